# SPDX-License-Identifier: Apache-2.0
"""The interface between the core and features whose users follow queues and topics."""

from collections.abc import Sequence

from zq.core.metadata import Metadata
from zq.core.rules import Rules
from zq.model import Copies, Draft, QueueRef, Seconds


class Followers:
    """The followers of queues and topics. Here there are none; a feature that has followers derives from this class.

    A queue with followers has ``MARK`` in its metadata. A post expects the metadata that its server remembers, and the
    store refuses it if another server has added the mark meanwhile. So no message is accepted without its copies.
    """

    def mark(self, _queue: QueueRef) -> Metadata:
        """Return the metadata by which a new queue shows that it has followers."""
        return {}

    def copies(
        self, _queue: QueueRef, _drafts: Sequence[Draft], _rules: Rules, _now: Seconds, _hops: int
    ) -> Copies | None:
        """Return the copies to store together with the messages of a post; None for none. The queue has the mark.

        ``hops``: the number of deliveries by zq in the chain that led to the post.
        """
        return None

    def end(self, _kind: str, _project: str, _name: str) -> None:
        """Remove all followers of a queue or topic. ``kind``: "queue" or "topic"."""

    def remove(self, _project: str) -> bool:
        """Remove some of a project's followers. Return whether any may be left."""
        return False
