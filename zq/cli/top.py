# SPDX-License-Identifier: Apache-2.0
"""The commands ``zq health`` and ``zq top``, which show the state of a server and its queues."""

import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count, islice
from select import select
from typing import TYPE_CHECKING, Final, NamedTuple

import click
from msgspec import Struct
from msgspec.structs import replace

from zq.cli.failures import RESOURCE_ERRORS, Failure, UnreadableResources, error_message, exit_code
from zq.cli.output import build_table, create_console
from zq.cli.param_types import Count, Seconds
from zq.cli.session import Command, Session, pass_session
from zq.client import Stats
from zq.errors import NotBuilt, Unavailable, ZqError

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

# Columns of the table.
COLUMNS: Final = ("name", "messages", "claimed", "in/s", "out/s", "change/s", "oldest")
# Number of terminal lines that show no queue: header, totals, keys and cursor.
OTHER_LINES: Final = 4
# A function that waits up to a number of seconds for a key press. It returns the key, or "" after the timeout.
ReadKey = Callable[[float], str]


class QueueMetrics(Struct, frozen=True, rename={"in_rate": "in/s", "out_rate": "out/s", "change": "change/s"}):
    """The metrics of one queue, or the totals of all queues. Ages are in seconds. Unknown values are ``None``."""

    name: str
    total: int
    free: int
    claimed: int
    oldest: int | None = None
    newest: int | None = None
    in_rate: float | None = None
    out_rate: float | None = None
    change: float | None = None
    paused: str | None = None
    """The paused operations: "claims", "posts" or "all"."""

    @property
    def shown_name(self) -> str:
        marks = {None: "", "all": " (paused)"}
        return self.name + marks.get(self.paused, f" ({self.paused} paused)")


# Sort keys, in descending order. Queues without a value are last, ordered by name.
SORTS: Final[dict[str, Callable[[QueueMetrics], float | None]]] = {
    "name": lambda _: None,
    "messages": lambda row: row.total,
    "in": lambda row: row.in_rate,
    "out": lambda row: row.out_rate,
    "oldest": lambda row: row.oldest,
}
# The server's names of sort orders, if different.
SERVER_SORTS: Final = {"messages": "ready"}
# Keyboard key of each sort order.
KEYS: Final = {"n": "name", "m": "messages", "i": "in", "o": "out", "a": "oldest"}


class Sample(NamedTuple):
    """The stats and the paused operations of a queue at a point in time."""

    stats: Stats
    moment: float
    paused: str | None = None


class Sampler:
    """A sampler of the metrics of up to ``limit`` queues whose names contain ``part``."""

    def __init__(self, session: Session, part: str | None, limit: int, sort: str) -> None:
        self._client = session.client
        self._sort = SERVER_SORTS.get(sort, sort)
        self._part = part
        self._limit = limit
        self._before: dict[str, Sample] = {}
        self.more = False
        """Whether the number of queues exceeds the limit."""
        self.unread = UnreadableResources()

    def sample(self) -> list[QueueMetrics]:
        """Return the metrics of each queue, with rates since the queue's last sample."""
        listed = [*islice(self._client.queues(name=self._part, detailed=True), self._limit + 1)]
        self.more = len(listed) > self._limit
        chosen = {one.name: (one.metadata or {}).get("_paused") for one in listed[: self._limit]}
        if self.more:
            chosen = self._first() or chosen
        now: dict[str, Sample] = {}
        for name, paused in chosen.items():
            try:
                now[name] = Sample(self._client.queue(name).stats(), time.monotonic(), paused)
            except RESOURCE_ERRORS as error:
                self.unread.add(name, error)
        rows = [queue_metrics(name, sample, self._before.get(name)) for name, sample in now.items()]
        self._before = now
        return rows

    def _first(self) -> dict[str, str | None]:
        try:
            rows = self._client.queue_figures(sort=self._sort, name=self._part)
            return {row.name: row.paused for row in islice(rows, self._limit)}
        except NotBuilt:
            return {}


def queue_metrics(name: str, now: Sample, before: Sample | None) -> QueueMetrics:
    """Compute the metrics of a queue from two samples. The outgoing rate is the incoming rate minus the growth."""
    stats = now.stats
    oldest, newest = (mark.age if mark else None for mark in (stats.oldest, stats.newest))
    found = QueueMetrics(name, stats.total, stats.free, stats.claimed, oldest, newest, paused=now.paused)
    if before is None:
        return found
    seconds, change = now.moment - before.moment, stats.total - before.stats.total
    found = replace(found, change=round(change / seconds, 1))
    posted = (stats.entered or 0) - (before.stats.entered or 0)
    if stats.entered is None or before.stats.entered is None or posted < 0:
        return found
    return replace(found, in_rate=round(posted / seconds, 1), out_rate=round(max(0, posted - change) / seconds, 1))


def total_metrics(rows: Sequence[QueueMetrics], more: bool) -> QueueMetrics:
    """Return the totals of the queues in ``rows``. A total rate is the sum of the known rates.

    ``more``: whether the project has further queues. Their metrics are not included.
    """
    name = f"{'first ' if more else ''}{len(rows):,} queue{'' if len(rows) == 1 else 's'}"
    total, free, claimed = (sum(getattr(row, member) for row in rows) for member in ("total", "free", "claimed"))
    oldest = max((row.oldest for row in rows if row.oldest is not None), default=None)
    in_rate, out_rate, change = (
        sum_rates(getattr(row, member) for row in rows) for member in ("in_rate", "out_rate", "change")
    )
    return QueueMetrics(name, total, free, claimed, oldest, None, in_rate, out_rate, change)


def sum_rates(rates: Iterable[float | None]) -> float | None:
    """Return the sum of the known rates, or ``None`` if all rates are unknown."""
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 1) if known else None


def sort_metrics(rows: Iterable[QueueMetrics], sort: str) -> list[QueueMetrics]:
    by = SORTS[sort]

    def key(row: QueueMetrics) -> tuple[bool, float, str]:
        value = by(row)
        return value is None, -(value or 0), row.name

    return sorted(rows, key=key)


def metrics_table(rows: Sequence[QueueMetrics], more: bool, sort: str, max_queues: int | None, keys: bool) -> "Group":
    """Return the table of ``zq top`` with the totals and with up to ``max_queues`` queues.

    If ``max_queues`` is ``None``, the table contains as many queues as fit on the terminal.

    Args:
        more: Whether the project has queues that ``rows`` does not contain.
        sort: The sort order, one of ``SORTS``.
        keys: Whether to explain the keyboard keys below the table.
    """
    from rich.console import Group

    shown = sort_metrics(rows, sort)[: max_queues or max(1, create_console().height - OTHER_LINES)]
    sums = total_metrics(rows, more)
    parts: list[RenderableType] = [build_table(COLUMNS, [cells(row) for row in (sums, *shown)])]
    if keys:
        press = ", ".join(f"{key} {name}" for key, name in KEYS.items())
        parts.append(f"{len(shown):,} of {len(rows):,} by {sort}. Press {press}, q quit.")
    return Group(*parts)


def cells(row: QueueMetrics) -> Sequence[object]:
    return row.shown_name, row.total, row.claimed, row.in_rate, row.out_rate, row.change, row.oldest


@contextmanager
def keyboard() -> Generator[ReadKey, None, None]:
    """Switch the terminal to unbuffered input without echo, and yield a function that reads a key.

    Without a Unix terminal, the function returns no keys. During the block, SIGTERM raises ``KeyboardInterrupt``,
    because the terminal must be restored.
    """
    if not sys.stdin.isatty() or find_spec("termios") is None:
        yield sleep_without_key
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        if not select([terminal], [], [], seconds)[0]:
            return ""
        key = os.read(terminal, 1)
        return key.decode(errors="replace") if key else sleep_without_key(seconds)  # b"" = the terminal was closed

    before_term = signal.signal(signal.SIGTERM, signal.default_int_handler)
    tty.setcbreak(terminal)
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, before_term)


def sleep_without_key(seconds: float) -> str:
    """Sleep and return "". Used if the keys of the terminal cannot be read."""
    time.sleep(seconds)
    return ""


@click.command("health", cls=Command)
@pass_session
def health(session: Session) -> None:
    """Check the server and its store. If one of them does not respond, the exit code is 7."""
    begun = time.perf_counter()
    try:
        session.client.ping()
    except ZqError as error:
        raise Failure(error_message(error), exit_code(Unavailable())) from error
    took = time.perf_counter() - begun
    session.out.result({"url": session.connection.shown_url, "status": "ok", "milliseconds": round(took * 1000, 1)})


@click.command("top", cls=Command)
@click.option("--name", metavar="PART", help="Show only queues whose names contain this text.")
@click.option("--sort", type=click.Choice([*SORTS]), default="messages", help="Sort order (default messages).")
@click.option("--rows", type=Count(1), help="Number of queues to show (default: as many as fit on the terminal).")
@click.option(
    "--limit", type=Count(1), default=200, help="Number of queues to sample, in the order of --sort (default 200)."
)
@click.option(
    "--interval", type=Seconds(0.1), default=2.0, metavar="SECONDS", help="Seconds between samples (default 2)."
)
@click.option("--looks", type=Count(1), help="Number of samples (default: until interrupted; 1 without a terminal).")
@click.option("--once", is_flag=True, help="Show one sample and exit.")
@pass_session
def top(
    session: Session,
    name: str | None,
    sort: str,
    rows: int | None,
    limit: int,
    interval: float,
    looks: int | None,
    once: bool,
) -> None:
    """Show live metrics of queues: depth, age of the oldest message, and incoming and outgoing rates.

    Rates are messages per second since the last sample. On a terminal, you can change the sort order with keys.
    """
    session.configure(patient=True)
    sampler = Sampler(session, name, limit, sort)
    if session.out.uses_tables and sys.stdout.isatty() and not once:
        live_top(sampler, sort, rows, interval, looks)
        sampler.unread.check()
        return
    sampler.sample()
    for _ in range(1 if once or looks is None else looks):
        time.sleep(interval)
        found = sampler.sample()
        if session.out.uses_tables:
            create_console().print(metrics_table(found, sampler.more, sort, rows, keys=False))
            continue
        for row in sort_metrics(found, sort)[:rows]:
            session.out.line(row)
    sampler.unread.check()


def live_top(sampler: Sampler, sort: str, rows: int | None, interval: float, looks: int | None) -> None:
    """Redraw the table with each sample, and change the sort order when a key is pressed."""
    from rich.live import Live

    with keyboard() as pressed, Live(console=create_console(), auto_refresh=False) as live:
        for number in count():
            found = sampler.sample()
            live.update(metrics_table(found, sampler.more, sort, rows, keys=True), refresh=True)
            if number == looks:
                return
            until = time.monotonic() + interval
            while (left := until - time.monotonic()) > 0:
                key = pressed(left)
                if key == "q":
                    return
                if key in KEYS:
                    sort = KEYS[key]
                    live.update(metrics_table(found, sampler.more, sort, rows, keys=True), refresh=True)
