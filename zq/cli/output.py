# SPDX-License-Identifier: Apache-2.0
"""The output of commands: tables, JSON lines and YAML on standard output, and notes on standard error."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click
import msgspec
from msgspec import Raw, Struct

from zq.client import Message, UndecodableBody

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

T = TypeVar("T")
Query = Callable[[Any], Any]
# Maximum number of characters of a body in a table.
BODY_WIDTH: Final = 80
# Columns that may be wrapped. Other columns keep their full width, so that users can copy their values.
WRAPPED_COLUMNS: Final = ("body", "metadata", "reason", "")
# Minimum width of a wrapped column in characters.
MIN_WIDTH: Final = 20
# Preferred width of a wrapped column in characters. On a narrower terminal, ids are shortened.
READABLE_WIDTH: Final = 40
# Columns with durations, shown as 3m 12s.
DURATIONS: Final = ("age", "ttl", "oldest", "newest", "dropped in", "ends in")
# Units of durations in seconds.
UNITS: Final = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
# Colours of columns on a terminal, unless ``NO_COLOR`` is set.
COLOURS: Final = {"id": "cyan", "name": "cyan", "reason": "yellow", "dead letters": "red"}
# Number of characters kept at each end of a shortened id.
ID_ENDS: Final = 6
# Line width in characters if the output is not a terminal.
PIPE_WIDTH: Final = 10_000
# Control characters and their replacement.
CONTROLS: Final = dict.fromkeys([*range(32), *range(127, 160)], "\ufffd")


class Output:
    """A writer of results to standard output. ``form`` is "json", "table" or "yaml"."""

    def __init__(self, form: str | None = None, query: Query | None = None, full: bool = False) -> None:
        self.form = form or ("table" if sys.stdout.isatty() else "json")
        self.query = query
        self.full = full
        self._shown = False

    @property
    def uses_tables(self) -> bool:
        return self.form == "table" and self.query is None

    def rows(
        self, columns: Sequence[str], items: Iterable[T], cells: Callable[[T], Sequence[object]], full: bool = False
    ) -> None:
        """Show items as a table with ``columns``, or as JSON lines or YAML.

        For a table, ``cells`` returns the row of an item.

        Tables and query results are written after the last item is available. Otherwise, each item is written as soon
        as the item is available.
        """
        if self.uses_tables:
            self._table(columns, [cells(item) for item in items], full or self.full)
        else:
            self._items(items)

    def line(self, item: object) -> None:
        """Write an item as a JSON line or YAML list entry."""
        if self.query is not None:
            self._write([self._apply_query(item, self.query)])
        elif self.form == "yaml":
            write(as_yaml(item, "- "))
        else:
            write_line(item)

    def result(self, members: Mapping[str, Any]) -> None:
        """Show an object. In YAML, each object is a separate document."""
        if self.uses_tables:
            show(members_table(members))
        elif self.query is None and self.form == "json":
            write_line(members)
        else:
            if self.form == "yaml" and self._shown:
                write(b"---\n")
            self._shown = True
            if self.query is not None:
                self._write(self._apply_query(members, self.query))
            else:
                write(as_yaml(members))

    def messages(self, found: Iterable[Message], full: bool = False, **more: str) -> None:
        """Show messages. The values in ``more`` are shown above the table, or as members of each JSON object."""
        if self.uses_tables:
            rows = [
                (message.id, message.age, message.ttl, message.claim_count, body_text(message)) for message in found
            ]
            if more and rows:
                self.result(more)
            self._table(("id", "age", "ttl", "claims", "body"), rows, full or self.full, ids=bool(more))
            return
        head = msgspec.json.encode(more)[:-1] + b"," if more else b"{"
        self._items(Raw(head + msgspec.json.encode(message)[1:]) for message in found)

    def _items(self, items: Iterable[object]) -> None:
        if self.query is not None:
            self._write(self._apply_query([*items], self.query))
            return
        none = True
        for item in items:
            self.line(item)
            none = False
        if none and self.form == "yaml":
            self._write([])

    def _apply_query(self, result: object, query: Query) -> Any:
        """Apply the query. If it fails, show the whole result, because the user must not lose messages."""
        from jmespath.exceptions import JMESPathError

        try:
            value = as_builtins(result)
        except UndecodableBody as error:
            for item in result if isinstance(result, list) else [result]:
                write_line(item)
            reason = str(error).removesuffix(".")
            raise click.UsageError(f"--query failed, so the whole result is shown: {reason}.") from error
        try:
            return query(value)
        except JMESPathError as error:
            self._write(value)
            raise click.UsageError(f"--query failed, so the whole result is shown: {error}.") from error

    def _write(self, value: Any) -> None:
        if self.form == "yaml":
            write(as_yaml(value))
        elif self.form == "table":
            show_value(value)
        else:
            for item in value if isinstance(value, list) else [value]:
                write_line(item)

    def _table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], full: bool, ids: bool = False) -> None:
        short = not full and not ids and "id" in columns and _too_wide(columns, rows)
        if short:
            index = columns.index("id")
            rows = [[*row[:index], shorten_id(str(row[index])), *row[index + 1 :]] for row in rows]
        show(build_table(columns, rows, full=full))
        if short:
            note("Ids are shortened to fit the screen; use --full to show whole ids.")


def write_line(item: object) -> None:
    write(msgspec.json.encode(item) + b"\n")


def write(text: bytes) -> None:
    """Write bytes to standard output and flush it."""
    file = sys.stdout.buffer
    file.write(text)
    file.flush()


def as_builtins(item: object) -> Any:
    """Convert an item to dicts, lists and scalars.

    Raises ``UndecodableBody`` if Python cannot represent the item.
    """
    if isinstance(item, list):
        return [as_builtins(one) for one in item]
    encoded = msgspec.json.encode(item)
    try:
        return msgspec.json.decode(encoded)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UndecodableBody(_message_id(encoded), str(error)) from error


class _Identified(Struct):
    id: str = ""


def _message_id(encoded: bytes) -> str:
    try:
        return msgspec.json.decode(encoded, type=_Identified).id
    except (msgspec.MsgspecError, RecursionError):
        return ""


def as_yaml(item: object, entry: Literal["", "- "] = "") -> bytes:
    """Encode an item as YAML. If Python cannot represent the item, encode it as JSON, which is valid YAML."""
    import yaml

    try:
        value = as_builtins(item)
    except UndecodableBody:
        return entry.encode() + msgspec.json.encode(item) + b"\n"
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    shown = [value] if entry else value
    return str(yaml.dump(shown, Dumper=dumper, sort_keys=False, allow_unicode=True)).encode()


def show_value(value: Any) -> None:
    """Show a query result: objects and lists of rows as a table, other values one per line."""
    if isinstance(value, dict):
        show(members_table(value))
        return
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, dict) for item in items):
        columns = [*dict.fromkeys(name for item in items for name in item)]
        show(build_table(columns, [[table_cell(item.get(name)) for name in columns] for item in items], full=True))
    elif items and all(isinstance(item, list) and len(item) == len(items[0]) for item in items):
        show(build_table([""] * len(items[0]), [[*map(table_cell, item)] for item in items], header=False, full=True))
    else:
        for item in items:
            click.echo(replace_controls(as_text(item)))


def members_table(members: Mapping[str, Any]) -> "Table":
    """Return a table with one row for each member of an object."""
    return build_table(("", ""), [(name, table_cell(value)) for name, value in members.items()], header=False)


def table_cell(value: object) -> object:
    """Convert a value to a table cell: text, or a number, which the table aligns right."""
    return value if value is None or _is_number(value) else as_text(value)


def create_console(stderr: bool = False) -> "Console":
    """Return a ``rich.console.Console`` that prints text literally, without markup."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=False)


def build_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], header: bool = True, full: bool = False
) -> "Table":
    """Build a table. Numbers are aligned right; bodies are truncated unless ``full`` is set."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(show_header=header, box=None, pad_edge=False)
    given = [*rows]
    shown = [[_cell(column, cell, full) for column, cell in zip(columns, row, strict=True)] for row in given]
    for index, (column, width) in enumerate(zip(columns, _widths(columns, shown), strict=True)):
        numbers = all(row[index] is None or _is_number(row[index]) for row in given)
        drawn.add_column(
            column,
            min_width=min(width, MIN_WIDTH) if column in WRAPPED_COLUMNS else width,
            no_wrap=column not in WRAPPED_COLUMNS,
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
    """Print a table. If the terminal is narrower than the columns, the terminal wraps the lines."""
    screen = create_console()
    min_width = sum((column.min_width or 0) + 1 for column in drawn.columns)
    screen.width = max(screen.width, min_width) if screen.is_terminal else PIPE_WIDTH
    screen.print(drawn)


def replace_controls(text: str) -> str:
    """Replace control characters with U+FFFD."""
    return text.translate(CONTROLS)


def format_duration(seconds: float) -> str:
    """Format seconds with their two largest units, such as 3m 12s."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in UNITS:
        if left >= size or parts:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(part for part in parts[:2] if part[0] != "0") or "0s"


def shorten_id(text: str) -> str:
    """Shorten an id to its first and last characters."""
    return text if len(text) <= 2 * ID_ENDS + 1 else f"{text[:ID_ENDS]}…{text[-ID_ENDS:]}"


def note(sentence: str, error: bool = False) -> None:
    """Print a note on standard error. An error is red unless ``NO_COLOR`` is set."""
    text = f"zq: {replace_controls(sentence)}"
    click.echo(click.style(text, fg="red") if error and not os.environ.get("NO_COLOR") else text, err=True)


def body_text(message: Message) -> str:
    """Return the body as JSON, or the start of the body in a listing with ``bodies="start"``."""
    return message.content.decode() or message.body_start


def _cell(column: str, value: object, full: bool) -> str:
    if value is None:
        return ""
    if column in DURATIONS and _is_number(value):
        return format_duration(float(str(value)))
    text = replace_controls(str(value))
    cut = column == "body" and not full and len(text) > BODY_WIDTH
    return text[: BODY_WIDTH - 1] + "…" if cut else text


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _widths(columns: Sequence[str], shown: Iterable[Sequence[str]]) -> list[int]:
    from rich.cells import cell_len

    return [max(map(cell_len, column)) for column in zip(columns, *shown, strict=True)]


def _too_wide(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bool:
    screen = create_console()
    shown = [[_cell(column, cell, False) for column, cell in zip(columns, row, strict=True)] for row in rows]
    widths = zip(columns, _widths(columns, shown), strict=True)
    wanted = sum(1 + (min(width, READABLE_WIDTH) if column in WRAPPED_COLUMNS else width) for column, width in widths)
    return screen.is_terminal and wanted > screen.width


def as_text(value: object) -> str:
    """Return a string as it is, and any other value as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
