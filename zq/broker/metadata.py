# SPDX-License-Identifier: Apache-2.0
"""What a queue's metadata mean for its messages (contract 6.1, extensions 4), and how long a server remembers it."""

import time
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

from zq import wire
from zq.broker.lifetimes import Lifetimes
from zq.broker.recent import MOST_REMEMBERED, Recent
from zq.broker.vocabulary import Metadata
from zq.limits import Limits, is_queue_name
from zq.model import DeadLetters, QueueRef, Redelivery
from zq.storage.api import Storage


class Rules(Struct, frozen=True):
    """What a queue's ``metadata`` mean for its messages, defaults filled in but that of the ttl: ``Book.ttl``."""

    metadata: bytes
    own_ttl: int | None
    default_delay: int
    max_post_size: int
    dead_letter_queue: str
    dead_letter_ttl: int | None
    max_claim_count: int | None
    redelivery: Redelivery
    history_ttl: int

    def dead_letters(self, queue: QueueRef) -> DeadLetters | None:
        """Where messages of ``queue`` go that were claimed too often; None if nowhere (contract 8.6)."""
        if not self.dead_letter_queue or self.max_claim_count is None:
            return None
        target = QueueRef(queue.project, self.dead_letter_queue)
        return DeadLetters(target, self.max_claim_count, self.dead_letter_ttl, self.history_ttl)


class Book:
    """The rules that these limits make of metadata."""

    def __init__(
        self,
        limits: Limits,
        storage: Storage,
        monotonic: Callable[[], float] = time.monotonic,
        lifetimes: Lifetimes | None = None,
    ) -> None:
        self.lifetimes = lifetimes or Lifetimes(limits.default_message_ttl)
        self._limits = limits
        self.rules: Callable[[bytes], Rules] = lru_cache(maxsize=1024)(self._rules)
        """The rules that stored metadata mean; remembered, since every post and claim asks."""
        self._remembered: dict[QueueRef, Rules] = {}
        self._queues = storage.queues
        self._recent = Recent(self._stored, monotonic)

    def remembered(self, queue: QueueRef) -> Rules | None:
        """The queue's rules as this server saw them last. They may have changed: only for what the store checks."""
        return self._remembered.get(queue)

    def remember(self, queue: QueueRef, metadata: bytes) -> Rules:
        """The rules that the queue's metadata mean, for next time."""
        if len(self._remembered) >= MOST_REMEMBERED:
            self._remembered.clear()
        rules = self._remembered[queue] = self.rules(metadata)
        return rules

    def recent(self, queue: QueueRef) -> Rules:
        """The queue's rules, as ``Recent`` has them; those without metadata for a missing queue.

        What every delete and pop asks for must not cost each a question.
        """
        return self._recent.get(queue)

    def forget(self, queue: QueueRef) -> None:
        """This server has created, changed or deleted the queue."""
        self._remembered.pop(queue, None)
        self._recent.forget(queue)

    def ttl(self, queue: QueueRef, rules: Rules) -> int:
        """How long the queue's messages live that do not say so. Asked for each post: options may change it."""
        return rules.own_ttl or self.lifetimes.of(queue.name)

    def _stored(self, queue: QueueRef) -> Rules:
        stored = self._queues.get(queue)
        return self.rules(stored.metadata if stored else b"{}")

    def _rules(self, raw: bytes) -> Rules:
        metadata = wire.json_object(raw)
        target, count = metadata.get("_dead_letter_queue"), metadata.get("_max_claim_count")
        return Rules(
            metadata=raw,
            own_ttl=metadata.get("_default_message_ttl") or None,
            default_delay=metadata.get("_default_message_delay") or self._limits.default_message_delay,
            max_post_size=post_size(metadata, self._limits),
            dead_letter_queue=target if is_queue_name(target) else "",
            dead_letter_ttl=metadata.get("_dead_letter_queue_messages_ttl"),
            max_claim_count=None if count is None or count < 0 else count,
            redelivery=self._redelivery(metadata),
            history_ttl=metadata.get("_history_ttl") or 0,
        )

    def _redelivery(self, metadata: Metadata) -> Redelivery:
        cap = metadata.get("_redelivery_max_delay")
        return Redelivery(
            delay=metadata.get("_redelivery_delay") or 0,
            exponential=metadata.get("_redelivery_backoff") == "exponential",
            cap=self._limits.max_message_delay if cap is None else cap,
        )


def post_size(metadata: Metadata, limits: Limits) -> int:
    """The largest body of a post, in bytes; a server's own bound holds whatever was stored under another one."""
    return min(metadata.get("_max_messages_post_size") or limits.max_messages_post_size, limits.max_messages_post_size)
