# SPDX-License-Identifier: Apache-2.0
"""The steps of a commit, by name, for those who want to see what becomes of it when a process ends at one of them."""

from typing import Final, Protocol

BEGUN: Final = "begun"
"""It is noted and its stages are pinned."""
PINNED: Final = "pinned"
"""So are messages of some of its claims."""
DECIDED: Final = "decided"
PUBLISHED: Final = "published"
"""A part of its messages."""
UNSTAGED: Final = "unstaged"
"""A stage is gone."""
SETTLED: Final = "settled"
"""What its claims held is gone."""
DONE: Final = "done"
"""Nothing of it is left but its figures; after a small commit, which is one step, nothing else ever was."""
ABORTING: Final = "aborting"
"""It is given up."""
UNPINNED: Final = "unpinned"
"""What its claims held is theirs again."""
ABORTED: Final = "aborted"
ALL: Final = (BEGUN, PINNED, DECIDED, PUBLISHED, UNSTAGED, SETTLED, DONE, ABORTING, UNPINNED, ABORTED)


class Steps(Protocol):
    """Is told of every step when it is done."""

    def reached(self, step: str) -> None: ...


class Unwatched:
    """Nobody looks."""

    def reached(self, step: str) -> None:
        pass
