# SPDX-License-Identifier: Apache-2.0
"""The rules of a queue, which are the settings in its metadata, and caches of the rules (contract section 6.1).

The caches evict the oldest entry (FIFO), so a lookup does not reorder the entries and needs no lock.
"""

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Final

from msgspec import structs

from zq import wire
from zq.cache import ReadThroughCache
from zq.core.encryption import is_plain
from zq.core.extensions import ProtocolKey, uses_protocol
from zq.core.metadata import SEALED_SINCE_KEY
from zq.core.redelivery import DeadLetters, Redelivery
from zq.errors import ClaimNotFound, MetadataConflict, QueuePaused
from zq.model import Message, Move, QueueRef, Seconds
from zq.model.hidden import MARK
from zq.model.limits import Limits
from zq.storage.api import Storage
from zq.wire.metadata import ReservedKeys, parse_keys

# Maximum number of queues in a cache. An entry takes 0.3 kB; an evicted entry costs a round trip.
CACHE_SIZE: Final = 100_000
# Maximum number of compare-and-set attempts to change metadata.
MAX_ATTEMPTS: Final = 20
# Seconds for which a value is cached.
CACHE_TTL: Final = 1.0

# Pairs of a queue name pattern (wildcards ``*`` and ``?``) and a ttl in seconds. The first match applies.
Patterns = Sequence[tuple[str, int]]


class DefaultTtls:
    """The default message ttls of queues, by patterns of queue names. Thread-safe."""

    def __init__(self, default: int, by_name: Patterns = ()) -> None:
        self._table = default, _finder(default, by_name)

    @property
    def default(self) -> int:
        return self._table[0]

    def of(self, queue: str) -> int:
        return self._table[1](queue)

    def replace(self, default: int, by_name: Patterns) -> None:
        """Replace all default ttls, in seconds. The first matching pattern in ``by_name`` applies."""
        self._table = default, _finder(default, by_name)


def _finder(default: int, by_name: Patterns) -> Callable[[str], int]:
    patterns = [(re.compile(translate(pattern)).match, ttl) for pattern, ttl in by_name]

    @lru_cache(maxsize=CACHE_SIZE)
    def find(queue: str) -> int:
        return next((ttl for fits, ttl in patterns if fits(queue)), default)

    return find


class Rules(ReservedKeys, frozen=True, kw_only=True):
    """The settings of a queue that apply to its messages, parsed from ``metadata``.

    An unset ``default_message_ttl`` is ``None``; ``RulesCache.ttl`` returns its default.
    """

    metadata: bytes
    redelivery_delays: tuple[int, ...]
    """Redelivery delays in seconds after the first claim, the second claim, and so on."""
    subscribed: int = 0
    """Number that the subscriptions feature sets while the queue has subscriptions; 0 = no subscriptions."""
    sealed_since: Seconds = 0.0
    """Time since which all bodies of the queue are encrypted; 0 = bodies may be unencrypted."""
    uses_protocol: bool = False
    """Whether the queue has attributes of another protocol, such as SQS."""
    claims_paused: bool = False
    posts_paused: bool = False


class RulesCache:
    """Caches of the rules (parsed settings) of queues: one keyed by metadata, the others keyed by queue."""

    def __init__(
        self,
        limits: Limits,
        storage: Storage,
        monotonic: Callable[[], float] = time.monotonic,
        default_ttls: DefaultTtls | None = None,
        protocol_keys: Sequence[ProtocolKey] = (),
    ) -> None:
        self._protocol_keys = protocol_keys
        self.default_ttls = default_ttls or DefaultTtls(limits.default_message_ttl)
        self._limits = limits
        self.rules: Callable[[bytes], Rules] = lru_cache(maxsize=1024)(self._rules)
        """Parses metadata into rules. Memoized, because every post and claim calls it."""
        self._remembered: OrderedDict[QueueRef, Rules] = OrderedDict()
        self.remembered: Callable[[QueueRef], Rules | None] = self._remembered.get
        """Returns the rules of a queue as last read by this server, or ``None``.

        The rules may be outdated. The caller must send ``Rules.metadata`` to the store, which rejects outdated
        metadata.
        """
        self._lock = threading.Lock()
        self._queues = storage.queues
        self._messages = storage.messages
        self._claims = storage.claims
        self._recent = ReadThroughCache(self._stored, CACHE_SIZE, CACHE_TTL, monotonic)
        self.recent: Callable[[QueueRef], Rules] = self._recent.get
        """Returns a queue's rules, at most ``CACHE_TTL`` seconds old; the default rules for a missing queue."""

    def remember(self, queue: QueueRef, metadata: bytes) -> Rules:
        rules = self.rules(metadata)
        with self._lock:
            self._remembered[queue] = rules
            if len(self._remembered) > CACHE_SIZE:
                self._remembered.popitem(last=False)
        return rules

    def fresh(self, queue: QueueRef) -> Rules:
        """Return the queue's current rules from the store. If the queue does not exist, return the default rules."""
        return self.remember(queue, self._stored(queue).metadata)

    def check_posts(self, queue: QueueRef) -> None:
        """Raise ``QueuePaused`` if posts to the queue are paused."""
        if self.fresh(queue).posts_paused:
            raise QueuePaused.of(queue.name)

    def admit_moves(self, source: QueueRef, moves: Sequence[Move], now: Seconds) -> None:
        """Prepare target queues for moves of unencrypted messages.

        If a queue's metadata states that all bodies are encrypted, an unencrypted body counts as unreadable. This
        method removes the statement from target queues that would receive unencrypted messages. Raises
        ``MetadataConflict`` if concurrent changes to a target make every attempt fail.
        """
        by_id = self._moves_to_sealed(source, moves)
        if by_id:
            found = self._messages.get(source, list(by_id), now)
            ready = [message for message in found if message.available <= now and not message.claim]
            self.admit_plain(_plain_targets(source, ready, by_id))

    def plain_targets(self, source: QueueRef, claim: str, moves: Sequence[Move], now: Seconds) -> Collection[QueueRef]:
        """Return the target queues that accept only encrypted bodies but would receive unencrypted bodies."""
        by_id = self._moves_to_sealed(source, moves)
        if not by_id:
            return ()
        try:
            held = self._claims.get(source, claim, now).messages
        except ClaimNotFound:
            return ()
        return _plain_targets(source, held, by_id)

    def _moves_to_sealed(self, source: QueueRef, moves: Sequence[Move]) -> Mapping[str, Move]:
        """Return the moves to queues that accept only encrypted bodies, by message id.

        If the source queue also accepts only encrypted bodies, return no moves.
        """
        names = {move.to for move in moves}
        sealed = {name for name in names if self.recent(QueueRef(source.project, name)).sealed_since}
        if not sealed or self.fresh(source).sealed_since:
            return {}
        return {move.id: move for move in moves if move.to in sealed}

    def admit_plain(self, targets: Iterable[QueueRef]) -> None:
        """Let queues accept unencrypted bodies. Must be called before unencrypted bodies are moved to the queues."""
        for target in targets:
            for _ in range(MAX_ATTEMPTS):
                stored = self._queues.get(target)
                metadata = wire.json_object(stored.metadata) if stored else {}
                if stored is None or metadata.pop(SEALED_SINCE_KEY, None) is None:
                    break
                if self._queues.update(target, stored.metadata, wire.encode(metadata)):
                    break
            else:
                raise MetadataConflict("The queue was changed concurrently. Try again.")
            self.forget(target)

    def forget(self, queue: QueueRef) -> None:
        """Invalidate the cached settings of the queue after this server has created, changed or deleted the queue."""
        with self._lock:
            self._remembered.pop(queue, None)
        self._recent.forget(queue)

    def dead_letters(self, queue: QueueRef, rules: Rules) -> DeadLetters | None:
        """Return the queue's dead-letter settings, or ``None`` if no messages are moved to a dead-letter queue.

        A queue of another protocol, such as SQS, may be its own dead-letter queue. Its messages are never moved,
        because a move to the same queue would only reset their claim counts.
        """
        if rules.dead_letter_queue in ("", queue.name) or rules.max_claim_count is None:
            return None
        target, ttl = QueueRef(queue.project, rules.dead_letter_queue), rules.dead_letter_queue_messages_ttl
        if ttl is None and rules.uses_protocol:
            ttl = self.ttl(target, self.recent(target))
        return DeadLetters(target, rules.max_claim_count, ttl, rules.history_ttl)

    def ttl(self, queue: QueueRef, rules: Rules) -> int:
        """Return the default ttl of the queue's messages.

        The result is not cached, because server options may change the default.
        """
        return rules.default_message_ttl or self.default_ttls.of(queue.name)

    def _stored(self, queue: QueueRef) -> Rules:
        stored = self._queues.get(queue)
        return self.rules(stored.metadata if stored else b"{}")

    def _rules(self, raw: bytes) -> Rules:
        metadata = wire.json_object(raw)
        keys = parse_keys(metadata, self._limits)
        exponential = keys["redelivery_backoff"] == "exponential"
        return Rules(
            **keys,
            metadata=raw,
            redelivery_delays=Redelivery(keys["redelivery_delay"], exponential, keys["redelivery_max_delay"]).delays(),
            subscribed=metadata.get(MARK) or 0,
            sealed_since=metadata.get(SEALED_SINCE_KEY) or 0.0,
            uses_protocol=uses_protocol(self._protocol_keys, metadata),
            claims_paused=keys["paused"] in ("claims", "all"),
            posts_paused=keys["paused"] in ("posts", "all"),
        )


def _plain_targets(source: QueueRef, messages: Iterable[Message], by_id: Mapping[str, Move]) -> Collection[QueueRef]:
    plain = set()
    for message in messages:
        move = by_id.get(message.id)
        if move is not None:
            moved = message if move.body is None else structs.replace(message, body=move.body)
            if is_plain(moved):
                plain.add(QueueRef(source.project, move.to))
    return plain
