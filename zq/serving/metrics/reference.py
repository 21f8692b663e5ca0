# SPDX-License-Identifier: Apache-2.0
"""The table of metrics in ``api-ref/metrics.md``, which is generated when the documentation site is built."""

from typing import Final

from zq.serving.metrics.definitions import ALL, PREFIX, Definition

# The line of the page that the table replaces.
MARK: Final = "<!-- The site has all metrics here. -->\n"


def with_metrics(page: str) -> str:
    """Return ``page`` with the table of all metrics. Raises ``ValueError`` if the page has no marker for the table."""
    before, found, after = page.partition(MARK)
    if not found:
        raise ValueError(f"The page has no line {MARK.strip()}")
    return before + table() + after


def table() -> str:
    """Return the Markdown table of all metrics, sorted by name."""
    rows = "".join(_row(name, ALL[name]) for name in sorted(ALL))
    return f"| Metric | Kind | Labels | Meaning |\n|---|---|---|---|\n{rows}"


def _row(name: str, definition: Definition) -> str:
    labels = " ".join(f"`{label}`" for label in definition.labels)
    cells = (f"`{PREFIX}{name}`", definition.kind.value, labels, definition.help)
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"
