# SPDX-License-Identifier: Apache-2.0
"""How much ``zq consume`` has done, and the line that shows it on a terminal."""

import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from zq.cli.output import console
from zq.client import Message

EVERY: Final = 1.0
"""Seconds between two drawings of the line."""
WIDTH: Final = 60


class Tally:
    """What became of messages, told by several threads. ``undone``: what failed and was not done later, if ``wanted``.

    ``most_failures``: so many runs of a command in a row may fail; 0 = any number.
    """

    def __init__(self, wanted: bool, most_failures: int = 0) -> None:
        self.done = 0
        self.failed = 0
        self.unstarted = 0
        """Messages that were claimed and given back without a run of the command."""
        self.undone: set[str] = set()
        self.failures = 0
        """Runs that failed since one was done."""
        self.most_failures = most_failures
        self._wanted = wanted
        self._lock = threading.Lock()

    def __str__(self) -> str:
        unstarted = f", {self.unstarted:,} of them not begun" if self.unstarted else ""
        return f"{self.done:,} done, {self.failed + self.unstarted:,} given back{unstarted}."

    @property
    def empty(self) -> bool:
        """Whether there was no message at all."""
        return not (self.done or self.failed or self.unstarted)

    @property
    def hopeless(self) -> bool:
        """Whether the command has failed as often as it may."""
        return 0 < self.most_failures <= self.failures

    def add(self, messages: Sequence[Message], done: bool) -> None:
        """The work on messages has ended."""
        ids = [message.id for message in messages]
        with self._lock:
            if done:
                self.done += len(ids)
                self.failures = 0
                self.undone.difference_update(ids)
            else:
                self.failed += len(ids)
                self.failures += 1
                self.undone.update(ids if self._wanted else ())

    def give_back(self, count: int) -> None:
        """So many messages were not begun."""
        with self._lock:
            self.unstarted += count


@contextmanager
def live_line(tally: Tally, wanted: bool) -> Generator[None, None, None]:
    """Shows how far it is on standard error, if that is a terminal and the line is ``wanted`` there."""
    screen = console(stderr=True)
    if not wanted or not screen.is_terminal or screen.is_dumb_terminal:
        yield
        return
    ended = threading.Event()
    drawing = threading.Thread(target=draw, args=(tally, ended), name="zq-live", daemon=True)
    drawing.start()
    try:
        yield
    finally:
        ended.set()
        drawing.join()


def draw(tally: Tally, ended: threading.Event) -> None:
    """At the right edge of the cursor's line, where it takes away nothing of what commands write."""
    before, then = tally.done, time.monotonic()
    while not ended.wait(EVERY):
        now = time.monotonic()
        rate = (tally.done - before) / (now - then)
        before, then = tally.done, now
        at_right_edge(f"{str(tally).removesuffix('.')}, {rate:,.0f}/s")
    at_right_edge("")


def at_right_edge(text: str) -> None:
    """Stands there, in place of what stood there before; the cursor stays where it is."""
    width = max(WIDTH, len(text))
    sys.stderr.write(f"\x1b7\x1b[999C\x1b[{width - 1}D{text:>{width}}\x1b8")
    sys.stderr.flush()
