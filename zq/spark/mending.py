# SPDX-License-Identifier: Apache-2.0
"""Finds the messages of a round that fail by themselves, and tells them from an outage and from a fault of the stages.

Rules only: ``fails`` is a dry run, of messages with these ids, that says why it failed, or None if it went well.
"""

from collections.abc import Callable, Sequence
from typing import Final

from zq.errors import ZqError

PAUSE: Final = 3.0
"""Seconds before a second look at what is to be buried: what fails for a reason outside may go well then."""
ENOUGH: Final = 5
"""Rounds after which messages of which all fail are at fault, and no outage: others would have come in between."""
PROBES: Final = 4
"""Messages that are tried alone to see whether any goes well."""
MOST_RUNS: Final = 500
"""Dry runs of one search."""
Fails = Callable[[Sequence[str], bool], str | None]
"""The second: whether results are staged, too, for the sake of what the sink refuses."""


class Hopeless(ZqError):
    """No message is at fault, or too many are."""


class Stopping(ZqError):
    """The run was told to stop in the middle of a search."""


def poison(
    ids: Sequence[str], fails: Fails, most: int, pause: Callable[[float], object], tried: int = 1
) -> dict[str, str]:
    """Messages that fail by themselves, twice, and why; none if nothing fails any more. Raises ``Hopeless``.

    ``pause``: waits so many seconds. ``tried``: how often each was handed out at least.
    """
    together, keep = fails(ids, False), False
    if together is None:
        together, keep = fails(ids, True), True
    if together is None:
        return {}
    if fails([], keep) and not _some_go_well(ids, fails, keep):  # else the stages cannot take nothing
        raise Hopeless("it is the stages that fail")
    search = Search(lambda some: fails(some, keep), most)
    if len(ids) > 1:
        search.look(ids, known=True)
    found = search.found if len(ids) > 1 else {ids[0]: together}
    if not found:
        raise Hopeless("no message fails by itself")
    if len(found) > most:
        raise Hopeless(f"more than {most} messages fail, one by {next(iter(found.values()))}")
    if len(found) == len(ids) > 1 and tried < ENOUGH:
        raise Hopeless(f"all of its messages fail, one by {next(iter(found.values()))}")
    pause(PAUSE)
    return {one: reason for one in found if (reason := fails([one], keep))}


def _some_go_well(ids: Sequence[str], fails: Fails, keep: bool) -> bool:
    probes = ids[:: -(-len(ids) // PROBES)] if ids else ids
    return any(fails([one], keep) is None for one in probes)


class Search:
    """Finds messages that fail by themselves, by halving what fails."""

    def __init__(self, fails: Callable[[Sequence[str]], str | None], most: int) -> None:
        """``most``: ends beyond so many."""
        self._fails = fails
        self._most = most
        self._runs = 0
        self.found: dict[str, str] = {}

    def look(self, ids: Sequence[str], known: bool) -> bool:
        """Whether one was found among these. ``known``: that they fail together."""
        if self._runs >= MOST_RUNS or len(self.found) > self._most:
            return False
        if len(ids) == 1 or not known:
            self._runs += 1
            reason = self._fails(ids)
            if reason is None:
                return False
            if len(ids) == 1:
                self.found[ids[0]] = reason
                return True
        half = len(ids) // 2
        left = self.look(ids[:half], known=False)
        right = self.look(ids[half:], known=not left)
        return left or right
