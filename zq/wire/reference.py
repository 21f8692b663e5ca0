# SPDX-License-Identifier: Apache-2.0
"""The table of error classes of ``api-ref/errors.md``, which the documentation site adds when it is built."""

import inspect
from typing import Final

from zq.errors import ZqError
from zq.wire.refusals import KINDS, row

# The line of the page that the table replaces.
MARK: Final = "<!-- The site has the error classes here. -->\n"


def with_classes(page: str) -> str:
    """Return ``page`` with the table of error classes. Raises ``ValueError`` if the page has no place for it."""
    before, found, after = page.partition(MARK)
    if not found:
        raise ValueError(f"The page has no line {MARK.strip()}")
    return before + table() + after


def table() -> str:
    """Return a row for each error class: its name, its base, its HTTP status and the first line of its docstring."""
    return "| Class | Base | Status | Meaning |\n|---|---|---|---|\n" + "".join(map(_row, KINDS.values()))


def _row(kind: type[ZqError]) -> str:
    meaning = inspect.cleandoc(kind.__doc__ or "").partition("\n")[0].replace("``", "`")
    base = "" if kind is ZqError else f"`{kind.__mro__[1].__name__}`"
    cells = (f"`{kind.__name__}`", base, _status(kind), meaning)
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"


def _status(kind: type[ZqError]) -> str:
    """Return the status, or "" for an error that is no response."""
    try:
        return str(row(kind)[0])
    except StopIteration:
        return ""
