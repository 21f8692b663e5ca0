# SPDX-License-Identifier: Apache-2.0
"""Tests over a table: one test runs all rows and reports each row that fails."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def every_row(
    names: str | tuple[str, ...], rows: Iterable[Any], ids: Callable[[Any], object] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test on every row of a table, with the fixtures of one test.

    The arguments are the same as for ``pytest.mark.parametrize``, which makes a test of each row. Use this decorator if
    a row needs no fixtures of its own, for example if each request is rejected. The test fails after the last row, with
    a line for each failed row. Two decorators run the product of their tables.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = list(rows)
    assert table, "a table without rows proves nothing"
    single = isinstance(names, str) and len(columns) == 1

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failed = []
            for row in table:
                values = [row] if single else list(row)
                try:
                    test(**fixtures, **dict(zip(columns, values, strict=True)))
                except Exception as error:  # noqa: BLE001 - a row may fail in any way, and later rows run nevertheless
                    shown = ", ".join(str(ids(value) if ids else repr(value))[:200] for value in values)
                    failed.append(f"{shown}: {str(error) or repr(error)}")
            assert not failed, f"{len(failed)} of {len(table)} rows failed:\n" + "\n".join(failed)

        rest = [one for name, one in signature.parameters.items() if name not in columns]
        run.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return run

    return decorate
