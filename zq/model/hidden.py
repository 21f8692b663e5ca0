# SPDX-License-Identifier: Apache-2.0
"""Names of queues, stages and metadata that zq reserves. They begin with ``HIDDEN``, as no name of a caller does.

A hidden queue belongs to a queue or a topic: its name is a role, the kind and the name of its owner, and more parts if
the owner has several hidden queues of the role.
"""

from typing import Final, NamedTuple

from zq.model import QueueRef

# The first character of reserved names. It sorts after all characters with which a caller's name may begin.
HIDDEN: Final = "~"
# The metadata key under which a queue names the generation of its followers. Callers cannot write it.
MARK: Final = "~subscriptions"
# The role of the queue of copies for all followers of its owner.
NOTICES: Final = "~notices"


class Owner(NamedTuple):
    """The owner of a hidden queue. ``kind``: "queue" or "topic"."""

    project: str
    kind: str
    name: str

    def hidden(self, role: str, *parts: str) -> QueueRef:
        """Return the owner's hidden queue of the role."""
        return QueueRef(self.project, "/".join((role, self.kind, self.name, *parts)))

    @property
    def notices(self) -> QueueRef:
        """The queue of copies for all followers."""
        return self.hidden(NOTICES)


def is_hidden(queue: QueueRef) -> bool:
    """Return whether zq has reserved the name of the queue."""
    return queue.name.startswith(HIDDEN)


def owner_of(queue: QueueRef) -> Owner | None:
    """Return the owner of a hidden queue; None if the queue is not hidden."""
    parts = queue.name.split("/")
    return Owner(queue.project, parts[1], parts[2]) if is_hidden(queue) and len(parts) > 2 else None


def copies_of(stage: str) -> str:
    """Return the reserved stage for the copies of a stage's messages."""
    return f"{HIDDEN}{stage}"
