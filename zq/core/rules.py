# SPDX-License-Identifier: Apache-2.0
"""The rules of a queue's messages, from its metadata (contract 6.1, extensions 4) and its name, and their caches.

``cachetools`` bounds the caches: a full one drops an entry. A ``FIFOCache`` is read without a lock, since reading
changes nothing in it, while ``LRUCache`` and ``TTLCache`` move the entry that was read; they cost three and eight times
as much.
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

# Names of queues in one cache: each takes 0.3 kB, and a miss costs a round trip.
MOST_CACHED: Final = 100_000
# Attempts to change metadata that others change at the same time.
TRIES: Final = 20
# Seconds for which a cached answer is valid.
RECENT: Final = 1.0

# (pattern of queue names with ``*`` and ``?``, seconds); the first that fits counts.
Patterns = Sequence[tuple[str, int]]


class DefaultTtls:
    """The default ttl of every queue's messages. Threads may read it while another one changes it."""

    def __init__(self, default: int, by_name: Patterns = ()) -> None:
        self._table = default, _finder(default, by_name)

    @property
    def default(self) -> int:
        """The default ttl of queues whose name fits no pattern."""
        return self._table[0]

    def of(self, queue: str) -> int:
        """Return the default ttl of queues of this name."""
        return self._table[1](queue)

    def replace(self, default: int, by_name: Patterns) -> None:
        """Apply other default ttls to every message that is drafted from now on."""
        self._table = default, _finder(default, by_name)


def _finder(default: int, by_name: Patterns) -> Callable[[str], int]:
    patterns = [(re.compile(translate(pattern)).match, ttl) for pattern, ttl in by_name]

    @lru_cache(maxsize=MOST_CACHED)
    def find(queue: str) -> int:
        return next((ttl for fits, ttl in patterns if fits(queue)), default)

    return find


class ReadThroughCache(Generic[K, V]):
    """A cache of the answers of ``ask``, thread-safe.

    An answer is at most ``RECENT`` seconds old, and is never older than a change by this server.
    """

    def __init__(self, ask: Callable[[K], V], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._known: FIFOCache[K, tuple[float, V]] = FIFOCache(MOST_CACHED)
        self._changes = 0

    def get(self, key: K) -> V:
        """Return the answer for the key, from the cache or from ``ask``."""
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
            if changes == self._changes:  # else the answer may be older than the change
                self._known[key] = asked + RECENT, answer
        return answer

    def forget(self, key: K) -> None:
        """Drop the answer for the key: this server has changed it."""
        with self._lock:
            self._changes += 1
            self._known.pop(key, None)


class Rules(Struct, frozen=True):
    """The rules that a queue's ``metadata`` set, with all defaults but that of the ttl: see ``RulesCache.ttl``."""

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
    """The generation of the queue's followers that get copies of new messages; 0 if there are none."""
    claims_paused: bool = False
    posts_paused: bool = False
    sealed_since: Seconds = 0.0
    """From when on all bodies of the queue have been encrypted; 0 = it may hold plain ones."""
    uses_protocol: bool = False
    """Whether a protocol keeps attributes of the queue, so that its dead letters live as long as their queue says."""

    def ignores_delays(self, posted: Sequence[wire.Posted]) -> bool:
        """Return whether a message names a delay other than 0, and the queue ignores delays."""
        return not self.default_delay and any(one.delay is not UNSET and bytes(one.delay) != b"0" for one in posted)

    def dead_letters(self, queue: QueueRef) -> DeadLetters | None:
        """Return where messages of ``queue`` go that were claimed too often; None if they stay (contract 8.6).

        A queue with attributes of a protocol may be its own dead-letter queue. Its messages then stay: a move would
        reset their claim counts, so that they would circle for ever.
        """
        if self.dead_letter_queue in ("", queue.name) or self.max_claim_count is None:
            return None
        target = QueueRef(queue.project, self.dead_letter_queue)
        return DeadLetters(target, self.max_claim_count, self.dead_letter_ttl, self.history_ttl)


class RulesCache:
    """The rules that these limits make of metadata."""

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
        """The rules that stored metadata mean; remembered, since every post and claim asks."""
        self._remembered: FIFOCache[QueueRef, Rules] = FIFOCache(MOST_CACHED)
        self._lock = threading.Lock()
        self._queues = storage.queues
        self._messages = storage.messages
        self._recent = ReadThroughCache(self._stored, monotonic)

    def remembered(self, queue: QueueRef) -> Rules | None:
        """Return the queue's rules as this server read them last, for requests whose metadata the store compares."""
        try:
            return self._remembered[queue]
        except KeyError:
            return None

    def remember(self, queue: QueueRef, metadata: bytes) -> Rules:
        """Return the rules that the metadata set, and keep them for ``remembered``."""
        rules = self.rules(metadata)
        with self._lock:
            self._remembered[queue] = rules
        return rules

    def recent(self, queue: QueueRef) -> Rules:
        """Return the queue's rules from a ``ReadThroughCache``; those without metadata for a missing queue.

        Deletes and pops use it, which must not cost a round trip more.
        """
        return self._recent.get(queue)

    def fresh(self, queue: QueueRef) -> Rules:
        """Return the queue's rules as stored now; those without metadata for a missing queue."""
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
        """Return the targets that accept encrypted bodies only, and to which the moves bring plain ones.

        A refused move must not end that check of its target, so only messages count that the claim holds; without a
        claim, those that are ready. They are read from the store only if the source may hold plain bodies.
        """
        targets = {move.to: QueueRef(source.project, move.to) for move in moves}
        sealed = {name for name, target in targets.items() if self.recent(target).sealed_since}
        if not sealed or self.fresh(source).sealed_since:
            return ()
        ways = {move.id: move for move in moves if move.to in sealed}
        plain = set()
        for message in self._messages.get(source, list(ways), now):
            way = ways[message.id]
            moved = message if way.body is None else structs.replace(message, body=way.body)
            if message.claim == claim and (claim or message.available <= now) and is_plain(moved):
                plain.add(targets[way.to])
        return plain

    def admit_plain(self, targets: Iterable[QueueRef]) -> None:
        """Let the queues accept plain bodies from now on: the next step moves some there.

        Drivers move messages without a look at their bodies. Raises ``MetadataConflict``.
        """
        for target in targets:
            for _ in range(TRIES):
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
        """Drop the queue's cached rules: this server has created, changed or deleted the queue."""
        with self._lock:
            self._remembered.pop(queue, None)
        self._recent.forget(queue)

    def dead_letters(self, queue: QueueRef, rules: Rules) -> DeadLetters | None:
        """Return where messages of ``queue`` go that were claimed too often, with their ttl; None if they stay."""
        letters = rules.dead_letters(queue)
        if letters is None or letters.ttl is not None or not rules.uses_protocol:
            return letters
        return structs.replace(letters, ttl=self.ttl(letters.queue, self.recent(letters.queue)))

    def ttl(self, queue: QueueRef, rules: Rules) -> int:
        """Return the ttl of the queue's messages that name none, which options may change at any time."""
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
    """Return the largest body of a post in bytes: the queue's bound, within the server's own."""
    return min(metadata.get("_max_messages_post_size") or limits.max_messages_post_size, limits.max_messages_post_size)
