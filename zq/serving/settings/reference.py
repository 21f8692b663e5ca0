# SPDX-License-Identifier: Apache-2.0
"""The option tables in ``api-ref/configuration.md``, one per section.

The page has a marker for each section. The documentation site replaces the markers by tables when it is built.
"""

import re
from typing import Any, Final

from oslo_config import cfg

from zq.serving.settings.options import OPTIONS
from zq.serving.settings.transport import BOUNDS

# The line of the page that the table of a section replaces.
MARK: Final = "<!-- The site has the options of [{}] here. -->\n"
# Header lines of a table.
HEAD: Final = "| Option | Default | Values | At `HUP` | Meaning |\n|---|---|---|---|---|\n"
# Numbers of at least this size have thousands separators in ranges.
READABLE: Final = 10_000
# An option or a flag in a help text.
OPTION_OR_FLAG: Final = re.compile(r"(?<![\w-])([a-z]+(?:_[a-z]+)+|--[a-z-]+)(?!\w)")


def with_tables(page: str) -> str:
    """Return ``page`` with a table in place of each marker. Raises ``ValueError`` if a section has no marker."""
    for section in OPTIONS:
        before, found, after = page.partition(MARK.format(section))
        if not found:
            raise ValueError(f"The page has no line {MARK.format(section).strip()}")
        page = before + table(section) + after
    return page


def table(section: str) -> str:
    """Return the option table of a section, in the order of the sample configuration."""
    return HEAD + "".join(map(_row, OPTIONS[section]))


def _row(option: cfg.Opt) -> str:
    meaning = OPTION_OR_FLAG.sub(r"`\1`", option.help or "")
    again = "reload" if option.mutable else ""
    cells = (f"`{option.dest}`", _default(option.default), _values(option), again, meaning)
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return str(value)
    if value is None:
        return ""
    return f"`{value}`" if value else "none"


def _values(option: cfg.Opt) -> str:
    if isinstance(option, cfg.BoolOpt):
        return "`true`, `false`"
    if choices := getattr(option.type, "choices", None):
        return ", ".join(f"`{choice}`" for choice in choices)
    low, high = BOUNDS.get(option.dest, (getattr(option.type, "min", None), getattr(option.type, "max", None)))
    if low is None:
        return ""
    return f"from {_number(low)}" if high is None else f"{_number(low)} to {_number(high)}"


def _number(bound: float | str) -> str:
    if isinstance(bound, str):
        return f"`{bound}`"
    return f"{bound:,}" if bound >= READABLE else str(bound)
