# SPDX-License-Identifier: Apache-2.0
"""The interface of features that copy messages of queues and topics to followers, such as subscriptions."""

from collections.abc import Sequence

from zq.core.metadata import Metadata
from zq.core.rules import Rules
from zq.model import Copies, Draft, QueueRef, Seconds


class Followers:
    """The followers of queues and topics. A follower, such as a subscription, receives a copy of each message.

    In this base class, no queue or topic has followers.

    The metadata of a queue with followers contains the key ``MARK``. A server sends its cached metadata with each post.
    If another server has added the key meanwhile, the store rejects the post, and the server reads the metadata and
    posts again. Every accepted message is therefore copied.
    """

    def mark(self, _queue: QueueRef) -> Metadata:
        """Return metadata to add to a new queue: ``MARK`` if the queue has followers, otherwise nothing."""
        return {}

    def copies(
        self, _queue: QueueRef, _drafts: Sequence[Draft], _rules: Rules, _now: Seconds, _hops: int
    ) -> Copies | None:
        """Return the copies to store with a post, or ``None`` if no follower gets a copy.

        ``_hops`` is the number of zq subscriptions through which the messages have passed already.
        """
        return None

    def end(self, _kind: str, _project: str, _name: str) -> None:
        """Remove all followers of a queue (kind "queue") or topic (kind "topic")."""

    def remove(self, _project: str) -> bool:
        """Remove a limited number of the project's followers. Return ``True`` if followers may be left."""
        return False
