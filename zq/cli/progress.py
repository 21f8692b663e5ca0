# SPDX-License-Identifier: Apache-2.0
"""Progress on standard error: a progress bar, the counts of ``zq consume``, and the stages of a Spark job."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

import click
from rich.text import Text

from zq.cli.output import Output, create_console, note, replace_controls
from zq.client import Message

# The option that hides the progress.
QUIET: Final = click.option("-q", "--quiet", is_flag=True, help="Do not show progress.")
# Seconds before a progress bar appears.
BAR_DELAY: Final = 1.0
# Interval in seconds of progress lines if the output is not a terminal.
NOTE_INTERVAL: Final = 15.0
# Interval in seconds at which the line of a Spark job is redrawn.
REDRAW: Final = 0.5
# Interval in seconds at which the counts of ``zq consume`` are redrawn.
REDRAW_COUNTS: Final = 1.0
# Minimum width of the counts in characters.
WIDTH: Final = 60
# Number of updates over which a rate is averaged.
RATE_UPDATES: Final = 10


@contextmanager
def progress_bar(what: str, total: float | None) -> Generator[Callable[[float, int], None], None, None]:
    """Show a progress bar if the block takes more than a second.

    Yield a function that updates the bar. Its arguments are the completed part of ``total`` and the number of messages.
    """
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    watched = create_console(stderr=True)
    bar = Bar(*columns, TextColumn("{task.fields[rate]}"), console=watched, transient=True)
    task = bar.add_task(what, total=total, rate="")
    begun = time.monotonic()

    def update(done: float, messages: int) -> None:
        took = time.monotonic() - begun
        if watched.is_terminal and took > BAR_DELAY:
            bar.start()
            bar.update(task, completed=done, rate=f"{messages:,} messages, {messages / took:,.0f}/s")

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()


class Stopwatch:
    """A context manager that shows the message rate of its block at the end.

    It yields a function that sets the number of messages.
    """

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
    """The progress of a Spark job: ``stage`` describes the current step, ``count`` is the number of processed items."""

    def __init__(self, name: str, unit: str) -> None:
        self.stage = "starting Spark"
        self.count = 0
        self._name = name
        self._unit = unit
        self.tasks: Callable[[], str] = str
        """A function that returns a description of Spark's current tasks, or ""."""
        self._begin()

    def _begin(self) -> None:
        self._begun = time.monotonic()
        self._steps = deque([(self._begun, 0)], maxlen=RATE_UPDATES)

    @contextmanager
    def follow_tasks(self, tasks: Callable[[], str]) -> Generator[None, None, None]:
        """Return a context manager that includes the progress of Spark's tasks in the output.

        ``tasks`` returns a description of the current tasks. On entry, the elapsed time is reset to zero.
        """
        self.tasks = tasks
        self._begin()
        try:
            yield
        finally:
            self.tasks = str

    def add(self, count: int) -> None:
        if count:
            self.count += count
            self._steps.append((time.monotonic(), self.count))

    def line(self, tasks: str) -> str:
        """Return a progress line with the current step, the count, the recent rate, ``tasks`` and the elapsed time."""
        now, (first, before) = time.monotonic(), self._steps[0]
        rate = (self.count - before) / max(now - first, 0.001)
        counted = f"{self.count:,} {self._unit}, {rate:,.0f}/s" if self.count else ""
        parts = (f"{self._name}: {self.stage}", counted, tasks, f"{now - self._begun:,.0f} s")
        return "; ".join(filter(None, parts))

    def summary(self) -> str:
        took = max(time.monotonic() - self._begun, 0.001)
        return f"{self._name}: {self.count:,} {self._unit} in {took:,.1f} s, {self.count / took:,.0f}/s."


@contextmanager
def show_progress(name: str, quiet: bool, unit: str = "messages") -> Generator[Progress, None, None]:
    """Show the progress of the block in a background thread. Print a summary if the block succeeds."""
    progress, ended = Progress(name, unit), threading.Event()
    if quiet:
        yield progress
        return
    show = _redraw_line if create_console(stderr=True).is_terminal else _print_lines
    thread = threading.Thread(target=show, args=(progress, ended), name="zq-progress", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        ended.set()
        thread.join()
    note(progress.summary())


def _redraw_line(progress: Progress, ended: threading.Event) -> None:
    with create_console(stderr=True).status("") as shown:
        while not ended.wait(REDRAW):
            shown.update(Text(replace_controls(progress.line(progress.tasks()))))


def _print_lines(progress: Progress, ended: threading.Event) -> None:
    before = None
    while not ended.wait(NOTE_INTERVAL):
        tasks, now = progress.tasks(), (progress.stage, progress.count)
        if tasks or now != before:
            note(progress.line(tasks))
        before = now


class WorkCounts:
    """The message counts of ``zq consume``. Thread-safe.

    If ``keeps_failed_ids`` is true, ``unhandled_ids`` contains the ids of messages that failed and did not succeed in
    a later attempt.
    """

    def __init__(self, keeps_failed_ids: bool, max_failures: int = 0) -> None:
        self.done = 0
        self.failed = 0
        self.unstarted = 0
        """Number of messages that were released before the command was run."""
        self.unhandled_ids: set[str] = set()
        self.failures = 0
        self.max_failures = max_failures
        self._keeps_failed_ids = keeps_failed_ids
        self._lock = threading.Lock()

    def __str__(self) -> str:
        unstarted = f", {self.unstarted:,} of them not started" if self.unstarted else ""
        return f"{self.done:,} done, {self.failed + self.unstarted:,} released{unstarted}."

    @property
    def is_empty(self) -> bool:
        """Whether no message was counted."""
        return not (self.done or self.failed or self.unstarted)

    @property
    def has_failed_too_often(self) -> bool:
        """Whether the maximum number of consecutive failures was reached."""
        return 0 < self.max_failures <= self.failures

    def add(self, messages: Sequence[Message], done: bool) -> None:
        """Count messages as processed if ``done`` is true, else as failed."""
        ids = [message.id for message in messages]
        with self._lock:
            if done:
                self.done += len(ids)
                self.failures = 0
                self.unhandled_ids.difference_update(ids)
            else:
                self.failed += len(ids)
                self.failures += 1
                self.unhandled_ids.update(ids if self._keeps_failed_ids else ())

    def add_unstarted(self, count: int) -> None:
        """Count messages that were released before the command was run."""
        with self._lock:
            self.unstarted += count


@contextmanager
def show_counts(counts: WorkCounts, is_enabled: bool) -> Generator[None, None, None]:
    """Show the counts during the block if standard error is a terminal and ``is_enabled`` is true."""
    screen = create_console(stderr=True)
    if not is_enabled or not screen.is_terminal or screen.is_dumb_terminal:
        yield
        return
    ended = threading.Event()
    drawing = threading.Thread(target=redraw_counts, args=(counts, ended), name="zq-live", daemon=True)
    drawing.start()
    try:
        yield
    finally:
        ended.set()
        drawing.join()


def redraw_counts(counts: WorkCounts, ended: threading.Event) -> None:
    before, then = counts.done, time.monotonic()
    while not ended.wait(REDRAW_COUNTS):
        now = time.monotonic()
        rate = (counts.done - before) / (now - then)
        before, then = counts.done, now
        write_at_right_edge(f"{str(counts).removesuffix('.')}, {rate:,.0f}/s")
    write_at_right_edge("")


def write_at_right_edge(text: str) -> None:
    """Write text at the right edge of the current line, which the output of commands rarely reaches."""
    width = max(WIDTH, len(text))
    sys.stderr.write(f"\x1b7\x1b[999C\x1b[{width - 1}D{text:>{width}}\x1b8")
    sys.stderr.flush()
