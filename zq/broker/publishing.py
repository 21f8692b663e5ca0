# SPDX-License-Identifier: Apache-2.0
"""Use cases on published messages, but streams (extensions 8): publish, list, get."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from msgspec import UNSET, Struct, structs

from zq import wire
from zq.broker.streams import Gap, lost_end
from zq.broker.tails import RECHECK, Tails
from zq.broker.topics import Topics
from zq.broker.waiting import Polled, Waiters
from zq.broker.watch import Watch
from zq.clock import Clock
from zq.errors import Invalid, MessageNotFound, Repeated
from zq.limits import DEFAULT_PAGE, MAX_IDS, MIN_TTL, Limits, body_size, count_within, within
from zq.model import Once, Seconds, portion
from zq.storage.api import Storage
from zq.topics import Entry, Keep, Pattern, Published, TopicRef


class Listed(Struct, frozen=True):
    """A page of a topic as of ``now``. ``position``: where to go on; ``gap``: what the caller's marker has missed."""

    messages: list[Published]
    position: int
    now: Seconds
    gap: Gap | None = None


class Readers(Struct, frozen=True):
    """What those wait with who wait for messages of topics."""

    tails: Tails
    waiters: Waiters


class Publishing:
    """What a caller can do with the messages of topics. ``keep`` may be replaced at any time."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        topics: Topics,
        readers: Readers,
        keep: Keep,
        watch: Watch,
        *,
        checksum: bool,
    ) -> None:
        self._log = storage.topics
        self._clock = clock
        self._limits = limits
        self._topics = topics
        self._tails = readers.tails
        self._waiters = readers.waiters
        self._watch = watch
        self._checksum = checksum
        self.keep = keep

    def max_post_size(self, topic: TopicRef) -> int:
        """Bytes that a publish may have; a missing topic is created."""
        return self._topics.rules(topic).max_post_size

    def publish(
        self, topic: TopicRef, posted: Sequence[wire.Posted], size: int, once: Once | None = None
    ) -> tuple[range, bool]:
        """Append all messages or none; their sequences, and whether they had been published before under ``once``.

        Raises ``Invalid``, ``KeyReused``.
        """
        count_within("messages", len(posted), self._limits.max_messages_per_post)
        rules = self._topics.rules(topic)
        body_size(size, rules.max_post_size)
        entries = [self._entry(message, rules.ttl) for message in posted]
        if once is not None:  # the log is the project's, so its keys are too
            once = structs.replace(once, key=f"{topic.name}:{once.key}")
        try:
            first = self._log.publish(topic, entries, self._clock.now(), self.keep, once)
        except Repeated as earlier:
            return range(earlier.answer, earlier.answer + len(entries)), True
        self._watch.published(entries)
        return range(first, first + len(entries)), False

    def list(self, topic: TopicRef, marker: str, limit: int | None, wait: int | None) -> Polled[Listed]:
        """A page of the messages behind ``marker`` ("" = all), in sequence; waits ``wait`` seconds for the first one.

        Raises ``Invalid`` for a marker that no listing or stream has given.
        """
        looked = self.look(topic, marker, limit, wait)
        while isinstance(looked, Listening):
            looked.sleep()
            looked = self.look(topic, marker, limit, wait, looked)
        return looked

    def look(
        self, topic: TopicRef, marker: str, limit: int | None, wait: int | None, listening: "Listening | None" = None
    ) -> "Polled[Listed] | Listening":
        """The same for one who has no thread to spend: where there is nothing yet, what to wait for, and to look again
        with. It is closed when an answer or an error comes."""
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, self._limits.max_messages_per_page)
        seconds = within("wait", wait or 0, 0, self._limits.max_wait)
        after = as_marker(marker)
        ask = partial(self._page, topic, Pattern(topic.name), after, size)
        if listening is None:
            page = ask()
            if _has_news(page, after) or not seconds:
                return Polled(page)
            if not self._waiters.sit(topic.project):
                self._watch.turned_away()
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

    def get(self, topic: TopicRef, ids: Sequence[str]) -> tuple[Sequence[Published], Seconds]:
        """Those of the ids that are messages of the topic, each once, and the moment. Raises ``MessageNotFound``."""
        count_within("ids", len(ids), MAX_IDS)
        now = self._clock.now()
        found = [message for id in dict.fromkeys(ids) for message in self._find(topic, id, now)]
        if not found:
            raise MessageNotFound("There is no such message in the topic.")
        return found, now

    def _listen(self, topic: TopicRef, after: int | None, deadline: float) -> "Listening":
        try:
            return Listening(topic, after, deadline, Readers(self._tails, self._waiters))
        except BaseException:
            self._waiters.rise(topic.project)
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
                return Listed(shown, shown[-1].sequence if shown else position, now, gap)

    def _find(self, topic: TopicRef, id: str, now: Seconds) -> Iterator[Published]:
        if len(id) <= 19 and id.isascii() and id.isdigit() and id == str(int(id)) and 0 < int(id) < 2**63:
            sequence = int(id)
            for batch in self._log.read(topic.project, sequence - 1, 1, Pattern(topic.name)).batches:
                yield from (message for message in batch.messages(sequence - 1, now) if message.sequence == sequence)

    def _entry(self, posted: wire.Posted, ttl: int) -> Entry:
        if posted.ttl is not UNSET:
            ttl = within("ttl", posted.ttl, MIN_TTL, self._limits.max_message_ttl)
        body = bytes(posted.body)
        return Entry(body, ttl, wire.checksum(body) if self._checksum else "")


class Listening:
    """One request's wait for a message of a topic; ``position``: behind what. It has a place among the waiters."""

    def __init__(self, topic: TopicRef, after: int | None, deadline: float, readers: Readers) -> None:
        """``after``: the caller's marker; ``deadline``: of the monotonic clock. Raises ``Unavailable``."""
        self._topic = topic
        self._after = after
        self._deadline = deadline
        self._readers = readers
        self._watch = readers.waiters.watch
        self._tail = readers.tails.join(topic.project)
        self._ring: Callable[[], object] | None = None
        self._open = True
        self.position = 0

    @property
    def over(self) -> bool:
        """Whether it has waited long enough."""
        return self._tail.closed or time.monotonic() >= self._deadline

    def left(self) -> float:
        """Seconds after which to look, though nobody rings."""
        return max(0.0, min(self._deadline - time.monotonic(), RECHECK))

    def look(self, ask: Callable[[], Listed]) -> Listed:
        """The page that ``ask`` answers; asked for again if the tail has heard of more than it shows."""
        page = ask()
        self.position = page.position
        if not _has_news(page, self._after) and self._heard():
            known = self._tail.position
            page = ask()
            self.position = max(page.position, known)
        return page

    def _heard(self) -> bool:
        """Whether something of the topic has come behind ``position``, which goes on to what has not."""
        while batches := self._tail.after(self.position, 0):
            if any(batch.topic == self._topic.name for batch in batches):
                return True
            self.position = batches[-1].last
        return False

    def sleep(self) -> None:
        """Return when there may be something, or the time is up."""
        self._watch.waiting(1)
        try:
            self._tail.wait_for(self._topic.name, self.position, self._deadline)
        finally:
            self._watch.waiting(-1)

    def begin(self, ring: Callable[[], object]) -> None:
        """It waits from now on; ``ring`` is called when it is to look again."""
        self._watch.waiting(1)
        self._ring = ring
        self._tail.ring_when(self.position, self._topic.name.__eq__, ring)

    def end(self) -> None:
        """It waits no more."""
        self._watch.waiting(-1)
        if self._ring is not None:
            self._tail.ring_no_more(self._ring)

    def close(self) -> None:
        """Give the place back. May be called twice."""
        if self._open:
            self._open = False
            self._readers.tails.leave(self._topic.project, self._tail)
            self._readers.waiters.rise(self._topic.project)


def _has_news(page: Listed, after: int | None) -> bool:
    """Whether it is to be told at once. A gap at the log's end is no reason: it would be told again and again."""
    return bool(page.messages) or (page.gap is not None and page.position > (after or 0))


def as_marker(text: str) -> int | None:
    """A place in a log; None if there is none. Raises ``Invalid``."""
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise Invalid("The marker must be the sequence of a message: decimal digits, at most 19 of them.")
    return int(text)
