# SPDX-License-Identifier: Apache-2.0
"""The generated tables of ``api-ref``: options in ``configuration.md``, reserved metadata keys in ``queues.md``.

The documentation site replaces the marker of each table when it is built.
"""

import re
from typing import Any, Final

from msgspec import UNSET, Struct

from zq.model.declarations import find_declarations, read_docstrings
from zq.model.limits import Limits
from zq.serving.settings.options import OPTIONS, DeclaredOption
from zq.wire.metadata import FeatureKeys, Key, ReservedKeys, shown_defaults

# The line of a page that a table replaces.
MARK: Final = "<!-- The site has the table of [{}] here. -->\n"
# Header lines of the tables.
HEAD: Final = "| Option | Default | Values | At `HUP` | Meaning |\n|---|---|---|---|---|\n"
KEYS_HEAD: Final = "| Key | Values | Shown when unset | On topics | Meaning |\n|---|---|---|---|---|\n"
# Numbers of at least this size have thousands separators in ranges.
READABLE: Final = 10_000
# An option or a flag in a help text.
OPTION_OR_FLAG: Final = re.compile(r"(?<![\w-])([a-z]+(?:_[a-z]+)+|--[a-z-]+)(?!\w)")


def with_tables(name: str, page: str) -> str:
    """Return ``page`` with a table in place of each marker. Raises ``ValueError`` if the page lacks a marker."""
    for title, rows in build_tables(name).items():
        before, found, after = page.partition(MARK.format(title))
        if not found:
            raise ValueError(f"The page has no line {MARK.format(title).strip()}")
        page = before + rows + after
    return page


def build_tables(name: str) -> dict[str, str]:
    """Return the generated tables of a page, by the name in each table's marker."""
    if name == "queues.md":
        return {"metadata": KEYS_HEAD + _build_key_rows(ReservedKeys) + _build_key_rows(FeatureKeys)}
    return {section: HEAD + "".join(map(_row, options)) for section, options in OPTIONS.items()}


def _build_key_rows(keys: type[Struct]) -> str:
    shown, meanings = shown_defaults(Limits()), read_docstrings(keys)
    rows = []
    for field, key in find_declarations(keys, Key):
        name = f"`_{field.name}`"
        default = "not shown" if key.shown is UNSET else _default(shown[f"_{field.name}"], "`null`")
        cells = (f"[{name}]({key.page})" if key.page else name, key.values.text, default, _on_topics(key))
        rows.append(_format_row(*cells, meanings[field.name]))
    return "".join(rows)


def _on_topics(key: Key) -> str:
    if key.refusal:
        return "refused"
    if key.topics:
        return "the same"
    return "shown, no effect" if key.shown_on_topics else "no effect"


def _format_row(*cells: str) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"


def _row(option: DeclaredOption) -> str:
    meaning = OPTION_OR_FLAG.sub(r"`\1`", option.description)
    again = "reload" if option.option.reload else ""
    return _format_row(f"`{option.name}`", _default(option.default), _values(option), again, meaning)


def _default(value: Any, none: str = "") -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return str(value)
    if value is None:
        return none
    return f"`{list(value) if isinstance(value, tuple) else value}`" if value else "none"


def _values(option: DeclaredOption) -> str:
    if option.kind is bool:
        return "`true`, `false`"
    if choices := option.option.choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    low, high = option.option.low, option.option.high
    if low is None:
        return ""
    return f"from {_number(low)}" if high is None else f"{_number(low)} to {_number(high)}"


def _number(bound: float | str) -> str:
    if isinstance(bound, str):
        return f"`{bound}`"
    return f"{bound:,}" if bound >= READABLE else str(bound)
