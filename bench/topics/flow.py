# SPDX-License-Identifier: Apache-2.0
"""Publishers and readers in one thread, which waits only for the server."""

import select
import time
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from bench.topics.lines import Publisher, Reader

PATIENCE = 30.0


class Flow(Struct):
    """The results of a measurement.

    ``took``: seconds until the last response and the last message of each reader. ``latencies``: seconds from sending a
    batch to reading its first message, with one publisher and one reader.
    """

    published: int
    took: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        """Return the messages per second."""
        return self.published / self.took


class Run:
    """A measurement with publishers and readers."""

    def __init__(self, publishers: Sequence[Publisher], readers: Sequence[Reader]) -> None:
        self._publishers, self._readers = publishers, readers
        self._lines: dict[int, Publisher | Reader] = {line.fileno(): line for line in (*publishers, *readers)}
        self._poll = select.poll()
        for number in self._lines:
            self._poll.register(number, select.POLLIN)
        self._published = self._answered = self._received = 0
        self._sent: deque[tuple[int, float]] = deque()
        self._latencies: list[float] = []
        self._began = 0.0

    def at_full_speed(self, seconds: float) -> Flow:
        """Publish at full speed: each publisher sends after the response to its last batch."""
        self._began = time.perf_counter()
        for publisher in self._publishers:
            self._send(publisher)
        while self._open():
            for line in self._ready(PATIENCE):
                if self._heard(line) and time.perf_counter() < self._began + seconds:
                    self._send(line)
        return self._flow()

    def at(self, rate: float, seconds: float) -> Flow:
        """Publish ``rate`` batches per second with the first publisher, or as many as are answered."""
        self._began = time.perf_counter()
        due, last = self._began, self._began + seconds
        publisher = self._publishers[0]
        while due < last or self._open():
            now = time.perf_counter()
            if due <= min(now, last) and self._published == self._answered:
                self._send(publisher)
                due += 1 / rate
            for line in self._ready(max(0.0, due - now) if due < last else PATIENCE):
                self._heard(line)
        return self._flow()

    def _send(self, publisher: Publisher | Reader) -> None:
        assert isinstance(publisher, Publisher)
        self._sent.append((self._published, time.perf_counter()))
        self._published += publisher.batch
        publisher.send()

    def _ready(self, seconds: float) -> list[Publisher | Reader]:
        ready = self._poll.poll(seconds * 1e3)
        assert ready or seconds < PATIENCE, "nothing comes any more"
        return [self._lines[number] for number, _ in ready]

    def _heard(self, line: Publisher | Reader) -> bool:
        """Read from the connection, and return whether a publisher's response is complete."""
        if isinstance(line, Publisher):
            done = line.answered()
            self._answered += line.batch if done else 0
            return done
        self._received += line.messages()
        while self._sent and self._sent[0][0] < self._received:
            self._latencies.append(time.perf_counter() - self._sent.popleft()[1])
        return False

    def _open(self) -> bool:
        return self._answered < self._published or self._received < self._published * len(self._readers)

    def _flow(self) -> Flow:
        return Flow(self._published, time.perf_counter() - self._began, self._latencies)
