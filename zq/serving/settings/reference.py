# SPDX-License-Identifier: Apache-2.0
"""The option tables in ``api-ref/configuration.md``, one per section.

``python -m zq.serving.settings.reference api-ref/configuration.md`` rewrites the table below each marker and keeps the
text between tables.
"""

import re
import sys
from pathlib import Path
from typing import Any, Final

from zq.serving.settings.options import OPTIONS, Declared

# Marker above the table of a section.
MARK: Final = "<!-- [{}]: written by python -m zq.serving.settings.reference. -->\n\n"
# Header lines of a table.
HEAD: Final = "| Option | Default | Values | At `HUP` | Meaning |\n|---|---|---|---|---|\n"
# Numbers of at least this size have thousands separators in ranges.
READABLE: Final = 10_000
# An option or a flag in a help text.
OPTION_OR_FLAG: Final = re.compile(r"(?<![\w-])([a-z]+(?:_[a-z]+)+|--[a-z-]+)(?!\w)")


def renewed(page: str) -> str:
    """Return ``page`` with current tables. Raises ``ValueError`` if a section has no marker."""
    for section in OPTIONS:
        mark = MARK.format(section)
        before, found, after = page.partition(mark)
        if not found:
            raise ValueError(f"The page has no line {mark.strip()}")
        page = before + mark + table(section) + re.sub(r"\A(?:\|.*\n)*", "", after)
    return page


def table(section: str) -> str:
    """Return the option table of a section, in the order of the sample configuration."""
    return HEAD + "".join(map(_row, OPTIONS[section]))


def _row(option: Declared) -> str:
    meaning = OPTION_OR_FLAG.sub(r"`\1`", option.description)
    again = "reload" if option.option.reload else ""
    cells = (f"`{option.name}`", _default(option.default), _values(option), again, meaning)
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return str(value)
    if value is None:
        return ""
    return f"`{list(value) if isinstance(value, tuple) else value}`" if value else "none"


def _values(option: Declared) -> str:
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


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renewed(file.read_text()))
