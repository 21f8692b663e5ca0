# SPDX-License-Identifier: Apache-2.0
"""The rules of a queue's messages, derived from its metadata (contract 6.1, extensions 4), and their caches.

Caches are of ``cachetools``, which evicts one entry when a cache is full. A ``FIFOCache`` is read without a lock,
because a lookup changes nothing in it. ``LRUCache`` and ``TTLCache`` reorder entries on lookup, and cost three and
eight times as much.
"""

import re
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Final, Generic, TypeVar

from cachetools import FIFOCache
from msgspec import UNSET, Struct, structs

from zq import wire
from zq.core.encryption import is_plain
from zq.core.extensions import ProtocolKey, uses_protocol
from zq.core.metadata import PAUSED, SEALED, Metadata
from zq.core.redelivery import DeadLetters, Redelivery
from zq.errors import MetadataConflict, QueuePaused
from zq.limits import Limits, is_long_queue_name
from zq.model import Move, QueueRef, Seconds
from zq.model.hidden import MARK
from zq.storage.api import Storage

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Maximum number of queues in a cache. An entry takes 0.3 kB; an evicted entry costs a round trip.
CACHE_SIZE: Final = 100_000
# Attempts of a compare-and-set of metadata.
MAX_ATTEMPTS: Final = 20
# Seconds for which a value is cached.
CACHE_TTL: Final = 1.0

# Pairs of a queue name pattern with ``*`` and ``?``, and a ttl in seconds; the first match applies.
Patterns = Sequence[tuple[str, int]]


class DefaultTtls:
    """The default message ttl of every queue. Thread-safe."""

    def __init__(self, default: int, by_name: Patterns = ()) -> None:
        self._table = default, _finder(default, by_name)

    @property
    def default(self) -> int:
        """The ttl of queues that match no pattern."""
        return self._table[0]

    def of(self, queue: str) -> int:
        """Return the default ttl of the queue in seconds."""
        return self._table[1](queue)

    def replace(self, default: int, by_name: Patterns) -> None:
        """Apply these ttls to messages posted from now on."""
        self._table = default, _finder(default, by_name)


def _finder(default: int, by_name: Patterns) -> Callable[[str], int]:
    patterns = [(re.compile(translate(pattern)).match, ttl) for pattern, ttl in by_name]

    @lru_cache(maxsize=CACHE_SIZE)
    def find(queue: str) -> int:
        return next((ttl for fits, ttl in patterns if fits(queue)), default)

    return find


class ReadThroughCache(Generic[K, V]):
    """A cache of the answers of ``ask``, at most ``CACHE_TTL`` seconds old. Thread-safe.

    It is exact for changes made by this server, which calls ``forget``.
    """

    def __init__(self, ask: Callable[[K], V], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._known: FIFOCache[K, tuple[float, V]] = FIFOCache(CACHE_SIZE)
        self._changes = 0

    def get(self, key: K) -> V:
        """Return the cached answer for the key, or ask for it."""
        try:
            until, answer = self._known[key]
        except KeyError:
            until = 0.0
        asked = self._monotonic()
        if asked < until:
            return answer
        changes = self._changes
        answer = self._ask(key)
        with self._lock:
            if changes == self._changes:  # otherwise the answer may be older than the change
                self._known[key] = asked + CACHE_TTL, answer
        return answer

    def forget(self, key: K) -> None:
        """Drop the cached answer after this server changed the key's value."""
        with self._lock:
            self._changes += 1
            self._known.pop(key, None)


class Rules(Struct, frozen=True):
    """The rules of a queue's messages, parsed from ``metadata`` with defaults applied, except for the ttl.

    See ``RulesCache.ttl`` for the ttl.
    """

    metadata: bytes
    own_ttl: int | None
    default_delay: int
    max_post_size: int
    dead_letter_queue: str
    dead_letter_ttl: int | None
    max_claim_count: int | None
    waits: tuple[int, ...]
    history_ttl: int
    encrypts: bool = False
    subscribed: int = 0
    """The generation of the queue's subscriptions, see ``Subscribing``; 0 = no subscriptions."""
    claims_paused: bool = False
    posts_paused: bool = False
    sealed_since: Seconds = 0.0
    """Time since which all bodies of the queue are encrypted; 0 = some may be plain."""
    uses_protocol: bool = False
    """Whether the queue has attributes of a protocol; its dead letters then get the default ttl of their queue."""

    def ignores_delays(self, posted: Sequence[wire.Posted]) -> bool:
        """Return whether a message has a delay other than 0 and the queue ignores delays."""
        if not self.default_delay:
            for one in posted:
                if one.delay is not UNSET and bytes(one.delay) != b"0":
                    return True
        return False

    def dead_letters(self, queue: QueueRef) -> DeadLetters | None:
        """Return the dead-letter queue of ``queue`` and its conditions, or ``None`` if there is none (contract 8.6).

        A queue with attributes of a protocol may be its own dead-letter queue. Then messages stay, because moving them
        would reset their claim counts.
        """
        if self.dead_letter_queue in ("", queue.name) or self.max_claim_count is None:
            return None
        target = QueueRef(queue.project, self.dead_letter_queue)
        return DeadLetters(target, self.max_claim_count, self.dead_letter_ttl, self.history_ttl)


class RulesCache:
    """The rules of queues under given limits, cached by metadata and by queue."""

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
        """Parses metadata to rules. Memoized, because every post and claim calls it."""
        self._remembered: FIFOCache[QueueRef, Rules] = FIFOCache(CACHE_SIZE)
        self._lock = threading.Lock()
        self._queues = storage.queues
        self._messages = storage.messages
        self._recent = ReadThroughCache(self._stored, monotonic)

    def remembered(self, queue: QueueRef) -> Rules | None:
        """Return the rules that this server saw last, or ``None``.

        They may be out of date, so use them only if the store checks them (``expected`` metadata).
        """
        try:
            return self._remembered[queue]
        except KeyError:
            return None

    def remember(self, queue: QueueRef, metadata: bytes) -> Rules:
        """Parse the metadata and cache the rules for the queue."""
        rules = self.rules(metadata)
        with self._lock:
            self._remembered[queue] = rules
        return rules

    def recent(self, queue: QueueRef) -> Rules:
        """Return the queue's rules, at most ``CACHE_TTL`` seconds old; the default rules if the queue does not exist.

        It saves deletes and pops a round trip each.
        """
        return self._recent.get(queue)

    def fresh(self, queue: QueueRef) -> Rules:
        """Return the queue's rules as stored now; the default rules if the queue does not exist."""
        return self.remember(queue, self._stored(queue).metadata)

    def check_posts(self, queue: QueueRef) -> None:
        """Raise ``QueuePaused`` if posts to the queue are paused."""
        if self.fresh(queue).posts_paused:
            raise QueuePaused.of(queue.name)

    def admit_moves(self, source: QueueRef, moves: Sequence[Move], now: Seconds) -> None:
        """Let the targets accept the plain bodies that moves of ready messages bring. Raises ``MetadataConflict``."""
        self.admit_plain(self.plain_targets(source, moves, now))

    def plain_targets(
        self, source: QueueRef, moves: Sequence[Move], now: Seconds, claim: str = ""
    ) -> Collection[QueueRef]:
        """Return the targets that accept only encrypted bodies and would get plain ones by the moves.

        Only messages held by ``claim`` count; without a claim, ready messages. A move that will be refused must not
        change its target. The messages are read from the store only if the source may hold plain bodies.
        """
        targets = {move.to: QueueRef(source.project, move.to) for move in moves}
        sealed = {name for name, target in targets.items() if self.recent(target).sealed_since}
        if not sealed or self.fresh(source).sealed_since:
            return ()
        by_id = {move.id: move for move in moves if move.to in sealed}
        plain = set()
        for message in self._messages.get(source, list(by_id), now):
            move = by_id[message.id]
            moved = message if move.body is None else structs.replace(message, body=move.body)
            if message.claim == claim and (claim or message.available <= now) and is_plain(moved):
                plain.add(targets[move.to])
        return plain

    def admit_plain(self, targets: Iterable[QueueRef]) -> None:
        """Let the queues accept plain bodies from now on, because the next step moves some there.

        Drivers move messages without inspecting their bodies. Raises ``MetadataConflict``.
        """
        for target in targets:
            for _ in range(MAX_ATTEMPTS):
                stored = self._queues.get(target)
                metadata = wire.json_object(stored.metadata) if stored else {}
                if stored is None or metadata.pop(SEALED, None) is None:
                    break
                if self._queues.update(target, stored.metadata, wire.encode(metadata)):
                    break
            else:
                raise MetadataConflict("Others change the queue at the same time. Try again.")
            self.forget(target)

    def forget(self, queue: QueueRef) -> None:
        """Drop cached rules after this server has created, changed or deleted the queue."""
        with self._lock:
            self._remembered.pop(queue, None)
        self._recent.forget(queue)

    def dead_letters(self, queue: QueueRef, rules: Rules) -> DeadLetters | None:
        """Return the dead-letter queue of ``queue``, with the ttl of its messages; ``None`` if there is none."""
        letters = rules.dead_letters(queue)
        if letters is None or letters.ttl is not None or not rules.uses_protocol:
            return letters
        return structs.replace(letters, ttl=self.ttl(letters.queue, self.recent(letters.queue)))

    def ttl(self, queue: QueueRef, rules: Rules) -> int:
        """Return the default ttl of the queue's messages. Computed for each post, because options may change it."""
        return rules.own_ttl or self.default_ttls.of(queue.name)

    def _stored(self, queue: QueueRef) -> Rules:
        stored = self._queues.get(queue)
        return self.rules(stored.metadata if stored else b"{}")

    def _rules(self, raw: bytes) -> Rules:
        metadata = wire.json_object(raw)
        target, count = metadata.get("_dead_letter_queue"), metadata.get("_max_claim_count")
        paused = metadata.get(PAUSED)
        return Rules(
            metadata=raw,
            own_ttl=metadata.get("_default_message_ttl") or None,
            default_delay=metadata.get("_default_message_delay") or self._limits.default_message_delay,
            max_post_size=post_size(metadata, self._limits),
            dead_letter_queue=target if is_long_queue_name(target) else "",
            dead_letter_ttl=metadata.get("_dead_letter_queue_messages_ttl"),
            max_claim_count=None if count is None or count < 0 else count,
            waits=self._redelivery(metadata).waits(),
            history_ttl=metadata.get("_history_ttl") or 0,
            subscribed=metadata.get(MARK) or 0,
            sealed_since=metadata.get(SEALED) or 0.0,
            encrypts=bool(metadata.get("_enable_encrypt_messages")),
            claims_paused=paused in ("claims", "all"),
            posts_paused=paused in ("posts", "all"),
            uses_protocol=uses_protocol(self._protocol_keys, metadata),
        )

    def _redelivery(self, metadata: Metadata) -> Redelivery:
        cap = metadata.get("_redelivery_max_delay")
        return Redelivery(
            delay=metadata.get("_redelivery_delay") or 0,
            exponential=metadata.get("_redelivery_backoff") == "exponential",
            cap=self._limits.max_message_delay if cap is None else cap,
        )


def post_size(metadata: Metadata, limits: Limits) -> int:
    """Return the maximum size of a post in bytes.

    The server's limit also applies to metadata stored under a larger limit.
    """
    return min(metadata.get("_max_messages_post_size") or limits.max_messages_post_size, limits.max_messages_post_size)
