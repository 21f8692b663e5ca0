# SPDX-License-Identifier: Apache-2.0
"""Use cases of a topic's messages, except streams: publish, list and get (extensions 8)."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from msgspec import UNSET, Struct, structs

from zq import wire
from zq.clock import Clock
from zq.core.creation import TopicCreation, TopicRules
from zq.core.encryption import SEAL, UNREADABLE, Sealing, id_in_topic
from zq.core.streams import Gap, lost_end
from zq.core.tails import RECHECK, Tails
from zq.core.values import Applied, Seen
from zq.core.waiting import Check, Polled, Waiters
from zq.errors import Invalid, MessageNotFound, MessageUnreadable, Repeated
from zq.events import Events
from zq.limits import DEFAULT_PAGE, MAX_IDS, MIN_TTL, Limits, count_within, within
from zq.model import IdempotencyKey, Seconds, portion
from zq.model.topics import Entry, Pattern, Published, Retention, TopicRef
from zq.storage.api import Storage
from zq.turns import slices


class Listed(Struct, frozen=True):
    """A page of a topic's messages as of ``now``.

    Attributes:
        position: Log position after which the next page starts.
        gap: Messages after the client's marker that are no longer in the log.
    """

    messages: Sequence[Published]
    position: int
    now: Seconds
    gap: Gap | None = None


class Readers(Struct, frozen=True):
    """The log tails and slots that long polls of topics use."""

    tails: Tails
    waiters: Waiters


class Publishing:
    """Use cases of a topic's messages: publish, list and get."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        topics: TopicCreation,
        readers: Readers,
        retention: Retention,
        events: Events,
        checksum: bool,
        sealing: Sealing,
    ) -> None:
        self._sealing = sealing
        self._log = storage.topics
        self._clock = clock
        self._limits = limits
        self._topics = topics
        self._tails = readers.tails
        self._waiters = readers.waiters
        self._events = events
        self._checksum = checksum
        self._retention = retention

    def configure(self, retention: Retention) -> None:
        """Apply new retention limits from the next publish on."""
        self._retention = retention

    def max_post_size(self, topic: TopicRef) -> int:
        """Return the maximum size of a request body in bytes; create the topic if it does not exist."""
        return self._topics.rules(topic).max_post_size

    def publish(
        self, topic: TopicRef, raw: bytes, idempotency_key: IdempotencyKey | None = None, hops: int = 0
    ) -> Applied[range]:
        """Append all messages of the JSON body ``raw`` to the log, or none, and return their sequences.

        A missing topic is created first. The checks have the order of ``Messages.post``.

        Args:
            hops: Number of zq deliveries in the chain that led to this post.

        Raises ``Invalid``, ``KeyReused``, ``QuotaExceeded``.
        """
        rules = self._topics.rules(topic)
        posted = wire.parse_post(raw)
        count_within("messages", len(posted), self._limits.max_messages_per_post)
        entries = [self._entry(topic, message, rules, hops) for part in slices(posted) for message in part]
        if idempotency_key is not None:  # the topics of a project share one log and its idempotency keys
            idempotency_key = structs.replace(idempotency_key, key=f"{topic.name}:{idempotency_key.key}")
        try:
            first = self._log.publish(topic, entries, self._clock.now(), self._retention, idempotency_key)
        except Repeated as earlier:
            return Applied(range(earlier.answer, earlier.answer + len(entries)), replayed=True)
        self._events.published(topic, entries)
        return Applied(range(first, first + len(entries)))

    def look(
        self, topic: TopicRef, marker: str, limit: int | None, wait: int | None, listening: "Listening | None" = None
    ) -> "Polled[Listed] | Listening":
        """Return a page of the messages after ``marker`` ("" = from the start), ordered by sequence.

        If no message is available and ``wait`` seconds have not passed, return a ``Listening`` instead. The caller
        waits with it and then calls this method again with it. It is closed when this method returns a page or raises.

        Raises ``Invalid`` if no listing or stream can have returned the marker.
        """
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, self._limits.max_messages_per_page)
        seconds = within("wait", wait or 0, 0, self._limits.max_wait)
        after = as_marker(marker)
        ask = partial(self._page, topic, Pattern(topic.name), after, size)
        if listening is None:
            page = ask()
            if _has_news(page, after) or not seconds:
                return Polled(page)
            if not self._waiters.take_slot(topic.project):
                self._events.turned_away()
                return Polled(page, turned_away=True)
            listening = self._listen(topic, after, time.monotonic() + seconds)
        try:
            page = listening.look(ask)
        except BaseException:
            listening.close()
            raise
        if _has_news(page, after) or listening.over:
            listening.close()
            return Polled(page)
        return listening

    def get(self, topic: TopicRef, ids: Sequence[str]) -> Seen[Sequence[Published]]:
        """Return the topic's messages with these ids, each message once.

        Raises ``MessageNotFound`` if no message exists, ``MessageUnreadable`` if no message can be decrypted.
        """
        count_within("ids", len(ids), MAX_IDS)
        now = self._clock.now()
        found = [message for id in dict.fromkeys(ids) for message in self._find(topic, id, now)]
        if not found:
            raise MessageNotFound("There is no such message in the topic.")
        if len(found) == 1:
            return Seen([self._sealing.opened_one_published(topic.project, found[0])], now)
        shown = self._sealing.opened_published(topic.project, found)
        if not shown:
            raise MessageUnreadable(UNREADABLE)
        return Seen(shown, now)

    def _listen(self, topic: TopicRef, after: int | None, deadline: float) -> "Listening":
        try:
            return Listening(topic, after, deadline, Readers(self._tails, self._waiters))
        except BaseException:
            self._waiters.give_back_slot(topic.project)
            raise

    def _page(self, topic: TopicRef, pattern: Pattern, after: int | None, size: int) -> Listed:
        now, position, gap = self._clock.now(), after or 0, None
        found: list[Published] = []
        while True:
            reading = self._log.read(topic.project, position, size - len(found), pattern)
            missing = lost_end(position, reading)
            if after is not None and reading.dropped > after and gap is None:
                gap = Gap(after, reading.dropped + 1)
            gap = gap or missing
            fresh = (message for batch in reading.batches for message in batch.messages(position, now))
            found += islice(fresh, size - len(found))
            position = max(position, reading.position)
            shown = list(portion(found, self._limits.max_answer_bytes, lambda message: message.entry.body))
            if len(shown) == size or len(shown) < len(found) or not reading.more:
                end = shown[-1].sequence if shown else position
                return Listed(self._sealing.opened_published(topic.project, shown), end, now, gap)

    def _find(self, topic: TopicRef, id: str, now: Seconds) -> Iterator[Published]:
        if len(id) <= 19 and id.isascii() and id.isdigit() and id == str(int(id)) and 0 < int(id) < 2**63:
            sequence = int(id)
            for batch in self._log.read(topic.project, sequence - 1, 1, Pattern(topic.name)).batches:
                yield from (message for message in batch.messages(sequence - 1, now) if message.sequence == sequence)

    def _entry(self, topic: TopicRef, posted: wire.Posted, rules: TopicRules, hops: int) -> Entry:
        ttl = rules.ttl
        if posted.attributes is not UNSET:
            raise Invalid("attributes must not be given: only messages of queues have them.")
        if posted.ttl is not UNSET:
            ttl = within("ttl", posted.ttl, MIN_TTL, self._limits.max_message_ttl)
        seal = os.urandom(SEAL) if rules.encrypts else b""
        id = id_in_topic(topic.name, seal)
        body, checksum = self._sealing.stored(
            topic.project, id, bytes(posted.body), seals=rules.encrypts, checksum=self._checksum
        )
        return Entry(body, ttl, checksum, hops, seal)


class Listening:
    """A long poll for a topic's messages, which occupies a slot.

    Attributes:
        position: Log position after which the poll waits.
    """

    def __init__(self, topic: TopicRef, after: int | None, deadline: float, readers: Readers) -> None:
        """Initialize a poll from the client's marker ``after``.

        Args:
            deadline: End of the poll on the monotonic clock.

        Raises ``Unavailable``.
        """
        self._topic = topic
        self._after = after
        self._deadline = deadline
        self._readers = readers
        self._events = readers.waiters.events
        self._tail = readers.tails.join(topic.project)
        self._callback: Callable[[], object] | None = None
        self._open = True
        self.position = 0

    @property
    def over(self) -> bool:
        """Whether the deadline has passed or the server is stopping."""
        return self._tail.closed or time.monotonic() >= self._deadline

    def left(self) -> float:
        """Return the seconds until the next poll without a notification."""
        return max(0.0, min(self._deadline - time.monotonic(), RECHECK))

    def look(self, ask: Callable[[], Listed]) -> Listed:
        """Return the page that ``ask`` returns; call ``ask`` again if the tail has newer messages than the page."""
        page = ask()
        self.position = page.position
        if not _has_news(page, self._after) and self._has_new():
            known = self._tail.position
            page = ask()
            self.position = max(page.position, known)
        return page

    def _has_new(self) -> bool:
        """Return whether the tail has messages of the topic after ``position``.

        Advance ``position`` past the messages of other topics.
        """
        while batches := self._tail.after(self.position, 0):
            if any(batch.topic == self._topic.name for batch in batches):
                return True
            self.position = batches[-1].last
        return False

    def sleep(self, check: Check | None = None) -> None:
        """Block until a message may be available or the deadline has passed. If ``check`` raises, close and reraise."""
        self._events.waiting(1)
        try:
            if check is None:
                self._tail.wait_for(self._topic.name, self.position, self._deadline)
            else:
                self._tail.wait_for(self._topic.name, self.position, time.monotonic() + self.left())
                check()
        except BaseException:
            self.close()
            raise
        finally:
            self._events.waiting(-1)

    def begin(self, callback: Callable[[], object]) -> None:
        """Begin to wait without a thread; ``callback`` is called when a message may be available."""
        self._events.waiting(1)
        self._callback = callback
        self._tail.notify_when(self.position, self._topic.name.__eq__, callback)

    def end(self) -> None:
        """Cancel the notification."""
        self._events.waiting(-1)
        if self._callback is not None:
            self._tail.cancel_notify(self._callback)

    def close(self) -> None:
        """Release the slot. Idempotent."""
        if self._open:
            self._open = False
            self._readers.tails.leave(self._topic.project, self._tail)
            self._readers.waiters.give_back_slot(self._topic.project)


def _has_news(page: Listed, after: int | None) -> bool:
    """Return whether to answer now.

    A gap at the end of the log is not sufficient, because the next answer would report it again.
    """
    return bool(page.messages) or (page.gap is not None and page.position > (after or 0))


def as_marker(text: str) -> int | None:
    """Parse a log position; ``None`` if the text is "". Raises ``Invalid``."""
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise Invalid("The marker must be a message sequence of at most 19 decimal digits.")
    return int(text)
