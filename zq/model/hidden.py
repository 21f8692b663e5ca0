# SPDX-License-Identifier: Apache-2.0
"""Reserved names of queues, stages and metadata keys. They begin with ``~``; names chosen by clients never do.

A hidden queue is a queue that the server uses internally for another queue or for a topic, its owner. The name of the
hidden queue is ``role/kind/owner``: its purpose, "queue" or "topic", and the owner's name.
"""

from typing import Final, NamedTuple

from zq.model import QueueRef

# First character of reserved names. It sorts after all characters that clients' names may contain.
HIDDEN: Final = "~"
# Metadata key with the version number of a queue's subscriptions. Clients cannot write the key.
MARK: Final = "~subscriptions"
# Role of the hidden queue with copies of its owner's messages for all followers.
NOTICES: Final = "~notices"


class Owner(NamedTuple):
    """The queue or topic that owns a hidden queue."""

    project: str
    kind: str
    name: str

    def hidden(self, role: str, *parts: str) -> QueueRef:
        """Return the owner's hidden queue with this role (purpose). ``parts`` are appended to the queue's name."""
        return QueueRef(self.project, "/".join((role, self.kind, self.name, *parts)))

    @property
    def notices(self) -> QueueRef:
        """The hidden queue with copies of the owner's messages, which the server delivers to subscriptions."""
        return self.hidden(NOTICES)


def is_hidden(queue: QueueRef) -> bool:
    """Return whether the queue has a reserved name."""
    return queue.name.startswith(HIDDEN)


def owner_of(queue: QueueRef) -> Owner | None:
    """Return the owner of a hidden queue; ``None`` if the queue is not hidden."""
    parts = queue.name.split("/")
    return Owner(queue.project, parts[1], parts[2]) if is_hidden(queue) and len(parts) > 2 else None


def copies_of(stage: str) -> str:
    """Return the name of the hidden stage with copies of the messages in a client's stage.

    The server delivers the copies to subscriptions when the stage is committed.
    """
    return f"{HIDDEN}{stage}"
