# SPDX-License-Identifier: Apache-2.0
"""The decorator that runs one test over all rows of a table."""

import inspect

import pytest

from tests.tables import every_row


def test_every_row_with_failures_names_each_row_and_its_values() -> None:
    """Rows after a failure run too, and the message has the expected and the found values."""
    seen = []

    @every_row("number", [1, 2, 3])
    @every_row(("factor", "product"), [(2, 4), (3, 6)], ids=lambda value: f"<{value}>")
    def multiplied(start: int, number: int, factor: int, product: int) -> None:
        seen.append((start, number, factor))
        assert start * number * factor == product

    assert list(inspect.signature(multiplied).parameters) == ["start"]
    with pytest.raises(AssertionError) as raised:
        multiplied(start=1)
    assert seen == [(1, number, factor) for number in (1, 2, 3) for factor in (2, 3)]
    lines = str(raised.value).splitlines()
    assert [line for line in lines if "rows failed" in line] == [
        "2 of 3 rows failed:",
        "1: 2 of 2 rows failed:",
        "3: 2 of 2 rows failed:",
    ]
    assert [line.partition(": ")[0] for line in lines if line.startswith("<")] == ["<2>, <4>", "<3>, <6>"] * 2
    assert "assert ((1 * 3) * 3) == 6" in lines[-1]


def test_every_row_without_failures_passes() -> None:
    """The rows are the product of two tables, and all pass."""

    @every_row("number", [1, 2])
    def positive(number: int) -> None:
        assert number > 0

    positive()
