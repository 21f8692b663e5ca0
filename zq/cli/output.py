# SPDX-License-Identifier: Apache-2.0
"""What commands tell: tables for people, JSON lines for programs; progress and notes on standard error."""

import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from zq.client import Message

T = TypeVar("T")
LASTS: Final = 1.0
"""Seconds after which something is slow enough for a progress bar."""
SHOWN: Final = 80
"""Characters of a body in a table."""


class Output:
    """Where results go. ``tables`` None: tables if standard output is a terminal, else JSON lines."""

    def __init__(self) -> None:
        self.tables: bool | None = None

    @property
    def for_people(self) -> bool:
        """Whether tables are wanted."""
        return sys.stdout.isatty() if self.tables is None else self.tables

    def rows(self, columns: Sequence[str], items: Iterable[T], cells: Callable[[T], Sequence[object]]) -> None:
        """Each item as a line of JSON as it comes, or all as one table."""
        if self.for_people:
            console().print(table(columns, map(cells, items)))
            return
        for item in items:
            self.line(item)

    def line(self, item: object) -> None:
        """One line of JSON, written out at once."""
        click.echo(msgspec.json.encode(item))

    def thing(self, members: Mapping[str, Any]) -> None:
        """One thing with its members."""
        if self.for_people:
            console().print(table(("", ""), [(name, written(value)) for name, value in members.items()], header=False))
        else:
            self.line(members)

    def messages(self, found: Iterable[Message], **more: str) -> None:
        """Messages; ``more``: members that each line of JSON has besides."""
        if self.for_people:
            columns = ("id", "age", "ttl", "claims", *more, "body")
            console().print(table(columns, ((*_brief(message), *more.values(), body(message)) for message in found)))
            return
        for message in found:
            self.line({**more, **msgspec.json.decode(msgspec.json.encode(message))} if more else message)


def console(stderr: bool = False) -> Console:
    """Texts are shown as they are."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], header: bool = True) -> Table:
    """A table with a row each; figures to the right."""
    drawn = Table(*columns, show_header=header, box=None, pad_edge=False)
    for row in rows:
        drawn.add_row(*("" if cell is None else str(cell) for cell in row))
    return drawn


def note(sentence: str) -> None:
    """Tell people something that is no result."""
    click.echo(f"zq: {sentence}", err=True)


def body(message: Message) -> str:
    """The beginning of a body."""
    text = message.content.decode()
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


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
