# SPDX-License-Identifier: Apache-2.0
"""How far a job of Spark is, on standard error: a live line on a terminal, else lines now and then; one at the end."""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import click
from rich.text import Text

from zq.cli.output import console, note, plain

QUIET: Final = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
EVERY: Final = 15.0
"""Seconds between lines where nobody watches."""
REDRAWN: Final = 0.5
"""Seconds after which a live line is drawn anew."""
RECENT: Final = 10
"""Steps of the count over which a rate is measured."""


class Progress:
    """What a job is at, and how much it has done. ``unit``: of what is counted."""

    def __init__(self, name: str, unit: str) -> None:
        self.stage = "starting Spark"
        self.count = 0
        self._name = name
        self._unit = unit
        self.tasks: Callable[[], str] = str
        """What Spark is at; nothing while it is not followed."""
        self._begin()

    def _begin(self) -> None:
        self._begun = time.monotonic()
        self._steps = deque([(self._begun, 0)], maxlen=RECENT)

    @contextmanager
    def following(self, tasks: Callable[[], str]) -> Generator[None, None, None]:
        """For the length of the block Spark's tasks are told, too. Time counts from here, for it has started."""
        self.tasks = tasks
        self._begin()
        try:
            yield
        finally:
            self.tasks = str

    def add(self, count: int) -> None:
        """So many more are done."""
        if count:
            self.count += count
            self._steps.append((time.monotonic(), self.count))

    def line(self, tasks: str) -> str:
        """All that is known, with the rate of late."""
        now, (first, before) = time.monotonic(), self._steps[0]
        rate = (self.count - before) / max(now - first, 0.001)
        counted = f"{self.count:,} {self._unit}, {rate:,.0f}/s" if self.count else ""
        parts = (f"{self._name}: {self.stage}", counted, tasks, f"{now - self._begun:,.0f} s")
        return "; ".join(filter(None, parts))

    def summary(self) -> str:
        """What it has done by its end."""
        took = max(time.monotonic() - self._begun, 0.001)
        return f"{self._name}: {self.count:,} {self._unit} in {took:,.1f} s, {self.count / took:,.0f}/s."


@contextmanager
def watching(name: str, quiet: bool, unit: str = "messages") -> Generator[Progress, None, None]:
    """Shows how far the block is, from a thread beside it; and in the end, if all went well, what it has done."""
    progress, ended = Progress(name, unit), threading.Event()
    if quiet:
        yield progress
        return
    show = _live if console(stderr=True).is_terminal else _lines
    thread = threading.Thread(target=show, args=(progress, ended), name="zq-progress", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        ended.set()
        thread.join()
    note(progress.summary())


def _live(progress: Progress, ended: threading.Event) -> None:
    """One line, drawn anew, which is gone in the end."""
    with console(stderr=True).status("") as shown:
        while not ended.wait(REDRAWN):
            shown.update(Text(plain(progress.line(progress.tasks()))))


def _lines(progress: Progress, ended: threading.Event) -> None:
    """None while nothing happens, as in a pipeline that waits for messages."""
    before = None
    while not ended.wait(EVERY):
        tasks, now = progress.tasks(), (progress.stage, progress.count)
        if tasks or now != before:
            note(progress.line(tasks))
        before = now
