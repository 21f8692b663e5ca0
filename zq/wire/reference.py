# SPDX-License-Identifier: Apache-2.0
"""The table of error classes in ``api-ref/errors.md``, which is inserted when the documentation is built."""

import inspect
from typing import Final

from zq.errors import ZqError
from zq.wire.refusals import KINDS, row

# The line of the page that the table replaces.
MARK: Final = "<!-- The site has the error classes here. -->\n"


def with_classes(page: str) -> str:
    """Insert the table of error classes into a page. Raises ``ValueError`` if the page has no line ``MARK``."""
    before, found, after = page.partition(MARK)
    if not found:
        raise ValueError(f"The page has no line {MARK.strip()}")
    return before + table() + after


def table() -> str:
    """Return a Markdown table with the name, base, HTTP status and description of each error class."""
    return "| Class | Base | Status | Meaning |\n|---|---|---|---|\n" + "".join(map(_row, KINDS.values()))


def _row(kind: type[ZqError]) -> str:
    meaning = inspect.cleandoc(kind.__doc__ or "").partition("\n")[0].replace("``", "`")
    base = "" if kind is ZqError else f"`{kind.__mro__[1].__name__}`"
    cells = (f"`{kind.__name__}`", base, _status(kind), meaning)
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"


def _status(kind: type[ZqError]) -> str:
    try:
        return str(row(kind)[0])
    except StopIteration:
        return ""
