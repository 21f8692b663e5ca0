# SPDX-License-Identifier: Apache-2.0
"""What commands tell: tables for people, JSON lines for programs; progress and notes on standard error."""

import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click
import msgspec
from msgspec import Raw
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from zq.client import Message

T = TypeVar("T")
LASTS: Final = 1.0
"""Seconds after which something is slow enough for a progress bar."""
SHOWN: Final = 80
"""Characters of a body in a table."""
TEXTS: Final = ("body", "metadata", "reason", "")
"""Columns of a table that may be wrapped; all others stand in full width, so that they can be copied."""
NARROW: Final = 20
"""Characters to which they shrink at most."""
WIDE: Final = 10_000
"""Characters in a line that nobody sees on a terminal."""
CONTROLS: Final = dict.fromkeys([*range(32), *range(127, 160)], "\ufffd")


class Output:
    """Where results go. ``tables`` None: tables if standard output is a terminal, else JSON lines."""

    def __init__(self, tables: bool | None = None) -> None:
        self.tables = tables

    @property
    def for_people(self) -> bool:
        """Whether tables are wanted."""
        return sys.stdout.isatty() if self.tables is None else self.tables

    def rows(self, columns: Sequence[str], items: Iterable[T], cells: Callable[[T], Sequence[object]]) -> None:
        """Each item as a line of JSON as it comes, or all as one table."""
        if self.for_people:
            show(table(columns, map(cells, items)))
            return
        for item in items:
            self.line(item)

    def line(self, item: object) -> None:
        """One line of JSON, written out at once."""
        file = sys.stdout.buffer
        file.write(msgspec.json.encode(item) + b"\n")
        file.flush()

    def thing(self, members: Mapping[str, Any]) -> None:
        """One thing with its members."""
        if self.for_people:
            show(table(("", ""), [(name, written(value)) for name, value in members.items()], header=False))
        else:
            self.line(members)

    def messages(self, found: Iterable[Message], **more: str) -> None:
        """Messages; ``more``: members that each line of JSON has besides."""
        if self.for_people:
            columns = ("id", "age", "ttl", "claims", *more, "body")
            show(table(columns, ((*_brief(message), *more.values(), body(message)) for message in found)))
            return
        head = msgspec.json.encode(more)[:-1] + b"," if more else b"{"
        for message in found:
            self.line(Raw(head + msgspec.json.encode(message)[1:]))


def console(stderr: bool = False) -> Console:
    """Texts are shown as they are."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], header: bool = True) -> Table:
    """A table with a row each."""
    drawn = Table(show_header=header, box=None, pad_edge=False)
    shown = [["" if cell is None else plain(str(cell)) for cell in row] for row in rows]
    for place, column in enumerate(columns):
        width = max(map(cell_len, [column, *(row[place] for row in shown)]))
        least = min(width, NARROW) if column in TEXTS else width
        drawn.add_column(column, min_width=least, no_wrap=column not in TEXTS, overflow="fold")
    for row in shown:
        drawn.add_row(*row)
    return drawn


def show(drawn: Table) -> None:
    """Print a table. On a terminal that is too narrow its lines go on below."""
    screen = console()
    least = sum((column.min_width or 0) + 1 for column in drawn.columns)
    screen.width = max(screen.width, least) if screen.is_terminal else WIDE
    screen.print(drawn)


def plain(text: str) -> str:
    """Without what would steer a terminal."""
    return text.translate(CONTROLS)


def note(sentence: str) -> None:
    """Tell people something that is no result."""
    click.echo(f"zq: {plain(sentence)}", err=True)


def body(message: Message) -> str:
    """The beginning of a body."""
    text = message.content.decode()
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


class Stopwatch:
    """Tells in the end how many messages were stored, and how quickly."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._count = 0

    def __enter__(self) -> Callable[[int], None]:
        self._begun = time.monotonic()
        return self._set

    def __exit__(self, kind: object, *_: object) -> None:
        took = max(time.monotonic() - self._begun, 0.001)
        if kind is None:
            self._out.thing({"stored": self._count, "seconds": round(took, 3), "rate": round(self._count / took)})

    def _set(self, count: int) -> None:
        self._count = count


@contextmanager
def progress(what: str, total: float | None) -> Generator[Callable[[float, int], None], None, None]:
    """Draws a bar if it lasts and people watch. To be told how far it is, as a part of ``total``, and the messages."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    watched = console(stderr=True)
    bar = Progress(*columns, TextColumn("{task.fields[rate]}"), console=watched, transient=True)
    task = bar.add_task(what, total=total, rate="")
    begun = time.monotonic()

    def told(done: float, messages: int) -> None:
        took = time.monotonic() - begun
        if watched.is_terminal and took > LASTS:
            bar.start()
            bar.update(task, completed=done, rate=f"{messages:,} messages, {messages / took:,.0f}/s")

    try:
        yield told
    finally:
        if bar.live.is_started:
            bar.stop()


def _brief(message: Message) -> tuple[object, ...]:
    return message.id, f"{message.age} s", f"{message.ttl} s", message.claim_count


def written(value: object) -> str:
    """A text as it is, all else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
