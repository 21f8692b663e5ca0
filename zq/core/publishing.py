# SPDX-License-Identifier: Apache-2.0
"""Operations on a topic's messages: publish, list and get (extensions contract, section 8)."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from msgspec import UNSET, Struct, structs

from zq import wire
from zq.clock import Clock
from zq.core.creation import TopicCreation, TopicRules
from zq.core.encryption import SEAL, UNREADABLE, Sealing, topic_binding
from zq.core.messages import NO_TRACE, build_attributes
from zq.core.modes import Modes
from zq.core.streams import Gap, lost_end
from zq.core.tails import RECHECK_INTERVAL, Tails
from zq.core.values import ReadResult, WriteResult
from zq.core.waiting import PollResult, Waiters
from zq.errors import Invalid, MessageNotFound, MessageUnreadable, Repeated
from zq.events import Events
from zq.model import IdempotencyKey, Seconds, take_portion
from zq.model.attributes import AttributeValue, trim_trace
from zq.model.limits import DEFAULT_PAGE, MAX_IDS, MIN_TTL, Limits, check_count, check_group_name, check_range
from zq.model.topics import Entry, Pattern, PublishedMessage, Retention, TopicRef
from zq.storage.api import Storage
from zq.turns import slices


class TopicPage(Struct, frozen=True):
    """A page of a topic's messages as of ``now``.

    The next page starts after the log position ``position``. The messages in ``gap`` are no longer in the log.
    """

    messages: Sequence[PublishedMessage]
    position: int
    now: Seconds
    gap: Gap | None = None


class Readers(Struct, frozen=True):
    """The resources that long polls of topics share: in-memory log tails, and slots for waiting requests."""

    tails: Tails
    waiters: Waiters


class Publishing:
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
        modes: Modes,
    ) -> None:
        self._modes = modes
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
        self._retention = retention

    def max_post_size(self, topic: TopicRef) -> int:
        """Return the topic's maximum request size in bytes. Create the topic if it does not exist."""
        return self._topics.rules(topic).max_post_size

    def publish(
        self,
        topic: TopicRef,
        raw: bytes,
        idempotency_key: IdempotencyKey | None = None,
        hops: int = 0,
        trace: Mapping[str, AttributeValue] = NO_TRACE,
    ) -> WriteResult[range]:
        """Append all messages of a JSON body to the topic's log atomically. Return their sequence numbers.

        A missing topic is created first. For ``hops`` and ``trace``, see ``Messages.post``. Raises ``Invalid``,
        ``KeyReused``, ``QuotaExceeded`` or ``NoPosts``.
        """
        self._modes.check_post()
        rules = self._topics.rules(topic)
        posted = wire.parse_post(raw)
        if len(posted) > self._limits.max_messages_per_post:
            check_count("messages", len(posted), self._limits.max_messages_per_post)
        if trace:
            trace = trim_trace(trace, (rules.max_post_size - len(raw)) // len(posted))
        entries = self._entries(topic, posted, rules, hops, trace)
        if idempotency_key is not None:  # the topics of a project share one log and its idempotency keys
            idempotency_key = structs.replace(idempotency_key, key=f"{topic.name}:{idempotency_key.key}")
        try:
            first = self._log.publish(topic, entries, self._clock.now(), self._retention, idempotency_key)
        except Repeated as earlier:
            return WriteResult(range(earlier.answer, earlier.answer + len(entries)), replayed=True)
        self._events.published(topic, entries)
        return WriteResult(range(first, first + len(entries)))

    def poll(
        self, topic: TopicRef, marker: str, limit: int | None, wait: int | None, topic_poll: "TopicPoll | None" = None
    ) -> "PollResult[TopicPage] | TopicPoll":
        """Return a page of messages, or a ``TopicPoll`` if the caller must wait for messages.

        The caller waits with the ``TopicPoll`` and then passes it to the next call. When this method returns a page or
        raises an error, it closes the ``TopicPoll``. ``wait`` is in seconds. Raises ``Invalid`` if the log has not
        assigned the sequence number ``marker`` yet.
        """
        size = DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, self._limits.max_messages_per_page)
        seconds = check_range("wait", wait or 0, 0, self._limits.max_wait, unit="seconds")
        after = parse_marker(marker)
        ask = partial(self._page, topic, Pattern(topic.name), after, size)
        if topic_poll is None:
            page = ask()
            if _has_news(page, after) or not seconds:
                return PollResult(page)
            if not self._waiters.acquire_slot(topic.project):
                self._events.poll_refused()
                return PollResult(page, turned_away=True)
            topic_poll = self._open_poll(topic, after, time.monotonic() + seconds)
        try:
            page = topic_poll.poll(ask)
        except BaseException:
            topic_poll.close()
            raise
        if _has_news(page, after) or topic_poll.over:
            topic_poll.close()
            return PollResult(page)
        return topic_poll

    def get(self, topic: TopicRef, ids: Sequence[str]) -> ReadResult[Sequence[PublishedMessage]]:
        """Return the topic's readable messages with these ids. Raises the same errors as ``Messages.get_many``."""
        check_count("ids", len(ids), MAX_IDS)
        now = self._clock.now()
        found = [message for id in dict.fromkeys(ids) for message in self._find(topic, id, now)]
        if not found:
            raise MessageNotFound("There is no such message in the topic.")
        if len(found) == 1:
            return ReadResult([self._sealing.decrypt_published_message(topic.project, found[0])], now)
        shown = self._sealing.decrypt_published(topic.project, found)
        if not shown:
            raise MessageUnreadable(UNREADABLE)
        return ReadResult(shown, now)

    def _open_poll(self, topic: TopicRef, after: int | None, deadline: float) -> "TopicPoll":
        try:
            return TopicPoll(topic, after, deadline, Readers(self._tails, self._waiters))
        except BaseException:
            self._waiters.release_slot(topic.project)
            raise

    def _page(self, topic: TopicRef, pattern: Pattern, after: int | None, size: int) -> TopicPage:
        now, position, gap = self._clock.now(), after or 0, None
        found: list[PublishedMessage] = []
        while True:
            reading = self._log.read(topic.project, position, size - len(found), pattern)
            missing = lost_end(position, reading)
            if after is not None and reading.dropped > after and gap is None:
                gap = Gap(after, reading.dropped + 1)
            gap = gap or missing
            fresh = (message for batch in reading.batches for message in batch.messages(position, now))
            found += islice(fresh, size - len(found))
            position = max(position, reading.position)
            shown = list(take_portion(found, self._limits.max_answer_bytes, lambda message: message.entry.size))
            if len(shown) == size or len(shown) < len(found) or not reading.more:
                end = shown[-1].sequence if shown else position
                return TopicPage(self._sealing.decrypt_published(topic.project, shown), end, now, gap)

    def _find(self, topic: TopicRef, id: str, now: Seconds) -> Iterator[PublishedMessage]:
        if len(id) <= 19 and id.isascii() and id.isdigit() and id == str(int(id)) and 0 < int(id) < 2**63:
            sequence = int(id)
            for batch in self._log.read(topic.project, sequence - 1, 1, Pattern(topic.name)).batches:
                yield from (message for message in batch.messages(sequence - 1, now) if message.sequence == sequence)

    def _entries(
        self,
        topic: TopicRef,
        posted: Sequence[wire.Posted],
        rules: TopicRules,
        hops: int,
        trace: Mapping[str, AttributeValue],
    ) -> Sequence[Entry]:
        project, seals, max_ttl = topic.project, rules.encrypts, self._limits.max_message_ttl
        is_plain = not (seals or self._checksum)
        entries = []
        for part in slices(posted):
            for message in part:
                ttl = rules.ttl if message.ttl is UNSET else message.ttl
                if message.ttl is not UNSET and not MIN_TTL <= ttl <= max_ttl:
                    check_range("ttl", ttl, MIN_TTL, max_ttl, unit="seconds")
                if message.group is not UNSET:  # topics have no groups; the name must be valid as in posts to queues
                    check_group_name(message.group)
                body, checksum, seal, id, attributes = bytes(message.body), "", b"", "", b""
                if not is_plain:
                    seal = os.urandom(SEAL) if seals else b""
                    id = topic_binding(topic.name, seal)
                    body, checksum = self._sealing.encode_body(project, id, body, seals=seals, checksum=self._checksum)
                if trace or message.attributes is not UNSET:
                    attributes = build_attributes(message, trace)
                    attributes = self._sealing.encode_attributes(project, id, attributes, seals=seals)
                entries.append(Entry(body, ttl, checksum, hops, seal, attributes))
        return entries


class TopicPoll:
    """A long poll of a topic. It occupies a slot until it is closed.

    ``deadline`` is a monotonic time. The topic is known to have no new message up to the log position ``position``. The
    constructor and the methods raise ``Unavailable`` if the log cannot be read.
    """

    def __init__(self, topic: TopicRef, after: int | None, deadline: float, readers: Readers) -> None:
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

    def seconds_left(self) -> float:
        """Return the seconds after which the caller must poll again if no notification comes earlier."""
        return max(0.0, min(self._deadline - time.monotonic(), RECHECK_INTERVAL))

    def poll(self, ask: Callable[[], TopicPage]) -> TopicPage:
        """Read a page with ``ask``. If the page is empty but messages have arrived in the meantime, read once more."""
        page = ask()
        self.position = page.position
        if not _has_news(page, self._after) and self._has_new():
            known = self._tail.position
            page = ask()
            self.position = max(page.position, known)
        return page

    def _has_new(self) -> bool:
        """Return whether the in-memory tail of the log contains messages of the topic after ``position``.

        If the tail contains only messages of other topics, advance ``position`` to the end of the tail.
        """
        while batches := self._tail.after(self.position, 0):
            if any(batch.topic == self._topic.name for batch in batches):
                return True
            self.position = batches[-1].last
        return False

    def begin(self, callback: Callable[[], object]) -> None:
        """Register a function to call when a message may be available. Returns immediately."""
        self._events.waiting(1)
        self._callback = callback
        self._tail.notify_when(self.position, self._topic.name.__eq__, callback)

    def end(self) -> None:
        """Unregister the function that ``begin`` has registered."""
        self._events.waiting(-1)
        if self._callback is not None:
            self._tail.cancel_notify(self._callback)

    def close(self) -> None:
        """End the long poll and release its slot. Idempotent."""
        if self._open:
            self._open = False
            self._readers.tails.leave(self._topic.project, self._tail)
            self._readers.waiters.release_slot(self._topic.project)


def _has_news(page: TopicPage, after: int | None) -> bool:
    """Return whether the page has messages, or a gap that moves the position of the reader beyond ``after``."""
    return bool(page.messages) or (page.gap is not None and page.position > (after or 0))


def parse_marker(text: str) -> int | None:
    """Parse a log position; return ``None`` for "". Raises ``Invalid`` if the text is not a sequence number."""
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise Invalid("The marker must be a message sequence of at most 19 decimal digits.")
    return int(text)
