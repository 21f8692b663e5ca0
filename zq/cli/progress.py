# SPDX-License-Identifier: Apache-2.0
"""Progress on standard error: a progress bar, the counts of ``zq consume``, and the stages of a Spark job.

On a terminal, a single line is redrawn; otherwise a Spark job prints a line from time to time.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

import click
from rich.text import Text

from zq.cli.output import Output, console, note, plain
from zq.client import Message

# The option of commands that show progress.
QUIET: Final = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
# Seconds after which a progress bar appears.
BAR_AFTER: Final = 1.0
# Seconds between two lines without a terminal.
NOTE_INTERVAL: Final = 15.0
# Seconds after which a job's line is redrawn.
REDRAW: Final = 0.5
# Seconds after which the line of counts is redrawn.
REDRAW_COUNTS: Final = 1.0
# Minimum width of the line of counts in characters.
WIDTH: Final = 60
# Number of steps over which a rate is measured.
RECENT: Final = 10


@contextmanager
def progress_bar(what: str, total: float | None) -> Generator[Callable[[float, int], None], None, None]:
    """Draw a progress bar on a terminal if the work takes long. Yield its update function (done, messages)."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    watched = console(stderr=True)
    bar = Bar(*columns, TextColumn("{task.fields[rate]}"), console=watched, transient=True)
    task = bar.add_task(what, total=total, rate="")
    begun = time.monotonic()

    def update(done: float, messages: int) -> None:
        took = time.monotonic() - begun
        if watched.is_terminal and took > BAR_AFTER:
            bar.start()
            bar.update(task, completed=done, rate=f"{messages:,} messages, {messages / took:,.0f}/s")

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()


class Stopwatch:
    """Shows the number of stored messages and the rate at the end."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._count = 0

    def __enter__(self) -> Callable[[int], None]:
        self._begun = time.monotonic()
        return self._set

    def __exit__(self, kind: object, *_: object) -> None:
        took = max(time.monotonic() - self._begun, 0.001)
        if kind is None:
            self._out.result({"stored": self._count, "seconds": round(took, 3), "rate": round(self._count / took)})

    def _set(self, count: int) -> None:
        self._count = count


class Progress:
    """The stage and count of a job. ``unit`` names the counted items."""

    def __init__(self, name: str, unit: str) -> None:
        self.stage = "starting Spark"
        self.count = 0
        self._name = name
        self._unit = unit
        self.tasks: Callable[[], str] = str
        """Returns a description of Spark's current tasks; "" while they are not followed."""
        self._begin()

    def _begin(self) -> None:
        self._begun = time.monotonic()
        self._steps = deque([(self._begun, 0)], maxlen=RECENT)

    @contextmanager
    def following(self, tasks: Callable[[], str]) -> Generator[None, None, None]:
        """Show Spark's tasks during the block. Time is measured from here, after Spark's start."""
        self.tasks = tasks
        self._begin()
        try:
            yield
        finally:
            self.tasks = str

    def add(self, count: int) -> None:
        """Add to the count of completed items."""
        if count:
            self.count += count
            self._steps.append((time.monotonic(), self.count))

    def line(self, tasks: str) -> str:
        """Return stage, count, recent rate and tasks in one line."""
        now, (first, before) = time.monotonic(), self._steps[0]
        rate = (self.count - before) / max(now - first, 0.001)
        counted = f"{self.count:,} {self._unit}, {rate:,.0f}/s" if self.count else ""
        parts = (f"{self._name}: {self.stage}", counted, tasks, f"{now - self._begun:,.0f} s")
        return "; ".join(filter(None, parts))

    def summary(self) -> str:
        """Return a summary of the finished job."""
        took = max(time.monotonic() - self._begun, 0.001)
        return f"{self._name}: {self.count:,} {self._unit} in {took:,.1f} s, {self.count / took:,.0f}/s."


@contextmanager
def watching(name: str, quiet: bool, unit: str = "messages") -> Generator[Progress, None, None]:
    """Show the progress of the block from a thread and, after success, a summary."""
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
    """Show one line, which is redrawn and removed at the end."""
    with console(stderr=True).status("") as shown:
        while not ended.wait(REDRAW):
            shown.update(Text(plain(progress.line(progress.tasks()))))


def _lines(progress: Progress, ended: threading.Event) -> None:
    """Print lines, but none while nothing changes, for example in a pipeline that waits for messages."""
    before = None
    while not ended.wait(NOTE_INTERVAL):
        tasks, now = progress.tasks(), (progress.stage, progress.count)
        if tasks or now != before:
            note(progress.line(tasks))
        before = now


class WorkCounts:
    """Message counts of ``zq consume``, updated by several threads.

    Args:
        wanted: Whether to record in ``undone`` the messages that failed and were not completed later.
        most_failures: Maximum number of consecutive failures; 0 = no limit.
    """

    def __init__(self, wanted: bool, most_failures: int = 0) -> None:
        self.done = 0
        self.failed = 0
        self.unstarted = 0
        """Messages that were claimed and released without a run of the command."""
        self.undone: set[str] = set()
        self.failures = 0
        """Number of failed runs since the last success."""
        self.most_failures = most_failures
        self._wanted = wanted
        self._lock = threading.Lock()

    def __str__(self) -> str:
        unstarted = f", {self.unstarted:,} of them not started" if self.unstarted else ""
        return f"{self.done:,} done, {self.failed + self.unstarted:,} released{unstarted}."

    @property
    def empty(self) -> bool:
        """Whether there were no messages at all."""
        return not (self.done or self.failed or self.unstarted)

    @property
    def failed_too_often(self) -> bool:
        """Whether the command has reached the maximum number of consecutive failures."""
        return 0 < self.most_failures <= self.failures

    def add(self, messages: Sequence[Message], done: bool) -> None:
        """Count messages whose processing has ended."""
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
        """Count messages that were released without processing."""
        with self._lock:
            self.unstarted += count


@contextmanager
def live_line(counts: WorkCounts, wanted: bool) -> Generator[None, None, None]:
    """Show the counts on standard error, if it is a terminal and the line is ``wanted``."""
    screen = console(stderr=True)
    if not wanted or not screen.is_terminal or screen.is_dumb_terminal:
        yield
        return
    ended = threading.Event()
    drawing = threading.Thread(target=draw, args=(counts, ended), name="zq-live", daemon=True)
    drawing.start()
    try:
        yield
    finally:
        ended.set()
        drawing.join()


def draw(counts: WorkCounts, ended: threading.Event) -> None:
    """Draw the counts at the right edge of the current line, where they cover no output of commands."""
    before, then = counts.done, time.monotonic()
    while not ended.wait(REDRAW_COUNTS):
        now = time.monotonic()
        rate = (counts.done - before) / (now - then)
        before, then = counts.done, now
        at_right_edge(f"{str(counts).removesuffix('.')}, {rate:,.0f}/s")
    at_right_edge("")


def at_right_edge(text: str) -> None:
    """Write text over the previous one and restore the cursor position."""
    width = max(WIDTH, len(text))
    sys.stderr.write(f"\x1b7\x1b[999C\x1b[{width - 1}D{text:>{width}}\x1b8")
    sys.stderr.flush()
