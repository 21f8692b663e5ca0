# SPDX-License-Identifier: Apache-2.0
"""Use cases on published messages, but streams (extensions 8): publish, list, get."""

import time
from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import UNSET, Struct, structs

from zq import wire
from zq.broker.streams import Gap, check_marker
from zq.broker.tails import Tails
from zq.broker.topics import Topics
from zq.broker.waiting import Polled, Waiters
from zq.broker.watch import Watch
from zq.clock import Clock
from zq.errors import Invalid, MessageNotFound, Repeated
from zq.limits import DEFAULT_PAGE, MIN_TTL, Limits, body_size, count_within, within
from zq.model import Once, Seconds
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
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, self._limits.max_messages_per_page)
        seconds = within("wait", wait or 0, 0, self._limits.max_wait)
        pattern, after = Pattern(topic.name), as_marker(marker)
        page = self._page(topic, pattern, after, size)
        if page.messages or page.gap or not seconds:
            return Polled(page)
        with self._waiters.seat() as seated:
            if seated:
                return Polled(self._wait(topic, pattern, after, size, seconds))
        self._watch.turned_away()
        return Polled(page, turned_away=True)

    def get(self, topic: TopicRef, ids: Sequence[str]) -> tuple[Sequence[Published], Seconds]:
        """Those of the ids that are messages of the topic, each once, and the moment. Raises ``MessageNotFound``."""
        count_within("ids", len(ids), self._limits.max_messages_per_page)
        now = self._clock.now()
        found = [message for id in dict.fromkeys(ids) for message in self._find(topic, id, now)]
        if not found:
            raise MessageNotFound("There is no such message in the topic.")
        return found, now

    def _wait(self, topic: TopicRef, pattern: Pattern, after: int | None, size: int, seconds: int) -> Listed:
        """The first page that has a message, or the last one."""
        deadline = time.monotonic() + seconds
        with self._tails.following(topic.project) as tail:
            while True:
                page = self._page(topic, pattern, after, size)
                if page.messages or page.gap or tail.closed or time.monotonic() >= deadline:
                    return page
                self._watch.waiting(1)
                try:
                    tail.wait_for(topic.name, page.position, deadline)
                finally:
                    self._watch.waiting(-1)

    def _page(self, topic: TopicRef, pattern: Pattern, after: int | None, size: int) -> Listed:
        now, position, gap = self._clock.now(), after or 0, None
        found: list[Published] = []
        while True:
            reading = self._log.read(topic.project, position, size - len(found), pattern)
            check_marker(position, reading.last)
            if after is not None and reading.dropped > after and gap is None:
                gap = Gap(after, reading.dropped + 1)
            fresh = (message for batch in reading.batches for message in batch.messages(position, now))
            found += islice(fresh, size - len(found))
            position = max(position, reading.position)
            if len(found) == size or not reading.more:
                return Listed(found, found[-1].sequence if found else position, now, gap)

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


def as_marker(text: str) -> int | None:
    """A place in a log; None if there is none. Raises ``Invalid``."""
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise Invalid("The marker must be the sequence of a message: decimal digits, at most 19 of them.")
    return int(text)
