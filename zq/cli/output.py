# SPDX-License-Identifier: Apache-2.0
"""What commands tell: tables for people, JSON lines for programs; progress and notes on standard error."""

import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec
from msgspec import Raw

from zq.client import Message

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

T = TypeVar("T")
Query = Callable[[Any], Any]
LASTS: Final = 1.0
"""Seconds after which something is slow enough for a progress bar."""
SHOWN: Final = 80
"""Characters of a body in a table."""
TEXTS: Final = ("body", "metadata", "reason", "")
"""Columns of a table that may be wrapped; all others stand in full width, so that they can be copied."""
NARROW: Final = 20
"""Characters to which they shrink at most."""
WANTED: Final = 40
"""Characters that they should have: for less, ids are shortened."""
SPANS: Final = ("age", "ttl", "oldest", "newest")
"""Columns of seconds, shown as 3m 12s."""
UNITS: Final = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
COLOURS: Final = {"id": "cyan", "name": "cyan", "reason": "yellow", "dead letters": "red"}
"""Of columns, on a terminal where ``NO_COLOR`` is not set."""
ENDS: Final = 6
"""Characters of an id that are left at each end."""
WIDE: Final = 10_000
"""Characters in a line that nobody sees on a terminal."""
CONTROLS: Final = dict.fromkeys([*range(32), *range(127, 160)], "\ufffd")


class Output:
    """Where results go. ``form``: json, table or yaml; None: tables if standard output is a terminal, else JSON lines.

    ``query``: what is made of each result before it is shown. ``full``: ids and bodies stand in tables whole.
    """

    def __init__(self, form: str | None = None, query: Query | None = None, full: bool = False) -> None:
        self.form = form or ("table" if sys.stdout.isatty() else "json")
        self.query = query
        self.full = full
        self._shown = False

    @property
    def for_people(self) -> bool:
        """Whether the tables are wanted that commands draw."""
        return self.form == "table" and self.query is None

    def rows(
        self, columns: Sequence[str], items: Iterable[T], cells: Callable[[T], Sequence[object]], full: bool = False
    ) -> None:
        """A list: each item as it comes, or all as one table or one query's; ``full``: whatever the caller chose."""
        if self.for_people:
            self._table(columns, [cells(item) for item in items], full or self.full)
        else:
            self._items(items)

    def line(self, item: object) -> None:
        """An item of a list without an end, written out at once: a line of JSON, or an entry of YAML."""
        if self.query is not None:
            self._write([self._queried(item, self.query)])
        elif self.form == "yaml":
            self._write([built(item)])
        else:
            write_line(item)

    def thing(self, members: Mapping[str, Any]) -> None:
        """One thing with its members; several are documents of YAML."""
        if self.for_people:
            show(members_table(members))
        elif self.query is None and self.form == "json":
            write_line(members)
        else:
            if self.form == "yaml" and self._shown:
                write(b"---\n")
            self._shown = True
            self._write(built(members) if self.query is None else self._queried(members, self.query))

    def messages(self, found: Iterable[Message], full: bool = False, **more: str) -> None:
        """Messages; ``more``: members that each line of JSON has besides, and a table above it."""
        if self.for_people:
            rows = [(*_brief(message), body(message)) for message in found]
            if more and rows:
                self.thing(more)
            self._table(("id", "age", "ttl", "claims", "body"), rows, full or self.full, ids=bool(more))
            return
        head = msgspec.json.encode(more)[:-1] + b"," if more else b"{"
        self._items(Raw(head + msgspec.json.encode(message)[1:]) for message in found)

    def _items(self, items: Iterable[object]) -> None:
        if self.query is not None:
            self._write(self._queried([*items], self.query))
            return
        none = True
        for item in items:
            self.line(item)
            none = False
        if none and self.form == "yaml":
            self._write([])

    def _queried(self, result: object, query: Query) -> Any:
        """What the query makes of a result. One that it cannot work on is shown whole: it may be there only once."""
        from jmespath.exceptions import JMESPathError

        value = built(result)
        try:
            return query(value)
        except JMESPathError as error:
            self._write(value)
            raise click.UsageError(f"--query does not fit the result, which is shown whole: {error}.") from error

    def _write(self, value: Any) -> None:
        """A value in the form wanted; of a list each item for itself."""
        if self.form == "yaml":
            write(as_yaml(value).encode())
        elif self.form == "table":
            show_value(value)
        else:
            for item in value if isinstance(value, list) else [value]:
                write_line(item)

    def _table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], full: bool, ids: bool = False) -> None:
        """``ids``: those are needed whole to go on."""
        short = not full and not ids and "id" in columns and _too_wide(columns, rows)
        if short:
            place = columns.index("id")
            rows = [[*row[:place], shortened(str(row[place])), *row[place + 1 :]] for row in rows]
        show(table(columns, rows, full=full))
        if short:
            note("Ids are shortened to fit the screen: --full shows them whole, for other commands.")


def write_line(item: object) -> None:
    """A line of JSON."""
    write(msgspec.json.encode(item) + b"\n")


def write(text: bytes) -> None:
    """Written out at once."""
    file = sys.stdout.buffer
    file.write(text)
    file.flush()


def built(item: object) -> Any:
    """An item as the objects, lists and texts that its JSON has."""
    return msgspec.json.decode(msgspec.json.encode(item))


def as_yaml(value: Any) -> str:
    """A value as YAML, its members in their order."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True))


def show_value(value: Any) -> None:
    """What a query has left, for people: a table if it has members or items, else a line for each."""
    if isinstance(value, dict):
        show(members_table(value))
        return
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, dict) for item in items):
        columns = [*dict.fromkeys(name for item in items for name in item)]
        show(table(columns, [[tabular(item.get(name)) for name in columns] for item in items], full=True))
    elif items and all(isinstance(item, list) and len(item) == len(items[0]) for item in items):
        show(table([""] * len(items[0]), [[*map(tabular, item)] for item in items], header=False, full=True))
    else:
        for item in items:
            click.echo(plain(written(item)))


def members_table(members: Mapping[str, Any]) -> "Table":
    """The members of one thing."""
    return table(("", ""), [(name, tabular(value)) for name, value in members.items()], header=False)


def tabular(value: object) -> object:
    """A value in a table: numbers as they are."""
    return value if value is None or _is_number(value) else written(value)


def console(stderr: bool = False) -> "Console":
    """Texts are shown as they are."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], header: bool = True, full: bool = False) -> "Table":
    """A table with a row each: numbers to the right, seconds as 3m 12s, bodies cut off unless ``full``."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(show_header=header, box=None, pad_edge=False)
    given = [*rows]
    shown = [[_cell(column, cell, full) for column, cell in zip(columns, row, strict=True)] for row in given]
    for place, (column, width) in enumerate(zip(columns, _widths(columns, shown), strict=True)):
        numbers = all(row[place] is None or _is_number(row[place]) for row in given)
        drawn.add_column(
            column,
            min_width=min(width, NARROW) if column in TEXTS else width,
            no_wrap=column not in TEXTS,
            overflow="fold",
            justify="right" if numbers and given else "left",
        )
    for row, cells in zip(shown, given, strict=True):
        styles = (
            COLOURS.get(column, "") if header and cell else "" for column, cell in zip(columns, cells, strict=True)
        )
        drawn.add_row(*(Text(text, style) for text, style in zip(row, styles, strict=True)))
    return drawn


def show(drawn: "Table") -> None:
    """Print a table. On a terminal that is too narrow its lines go on below."""
    screen = console()
    least = sum((column.min_width or 0) + 1 for column in drawn.columns)
    screen.width = max(screen.width, least) if screen.is_terminal else WIDE
    screen.print(drawn)


def plain(text: str) -> str:
    """Without what would steer a terminal."""
    return text.translate(CONTROLS)


def span(seconds: float) -> str:
    """The two largest units of a number of seconds, as 3m 12s."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in UNITS:
        if left >= size or parts:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(part for part in parts[:2] if part[0] != "0") or "0s"


def shortened(text: str) -> str:
    """Both ends of an id."""
    return text if len(text) <= 2 * ENDS + 1 else f"{text[:ENDS]}…{text[-ENDS:]}"


def note(sentence: str, error: bool = False) -> None:
    """Tell people something that is no result; an error in red, if they see colours."""
    text = f"zq: {plain(sentence)}"
    click.echo(click.style(text, fg="red") if error and not os.environ.get("NO_COLOR") else text, err=True)


def body(message: Message) -> str:
    """A body as it is written."""
    return message.content.decode()


def _cell(column: str, value: object, full: bool) -> str:
    if value is None:
        return ""
    if column in SPANS and _is_number(value):
        return span(float(str(value)))
    text = plain(str(value))
    cut = column == "body" and not full and len(text) > SHOWN
    return text[: SHOWN - 1] + "…" if cut else text


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _widths(columns: Sequence[str], shown: Iterable[Sequence[str]]) -> list[int]:
    from rich.cells import cell_len

    return [max(map(cell_len, column)) for column in zip(columns, *shown, strict=True)]


def _too_wide(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bool:
    """Whether whole ids leave too little of a terminal to the texts."""
    screen = console()
    shown = [[_cell(column, cell, False) for column, cell in zip(columns, row, strict=True)] for row in rows]
    widths = zip(columns, _widths(columns, shown), strict=True)
    wanted = sum(1 + (min(width, WANTED) if column in TEXTS else width) for column, width in widths)
    return screen.is_terminal and wanted > screen.width


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
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

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
    return message.id, message.age, message.ttl, message.claim_count


def written(value: object) -> str:
    """A text as it is, all else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
