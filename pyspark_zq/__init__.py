# SPDX-License-Identifier: Apache-2.0
"""The module through which Spark finds the data source of ``format("zq")`` without registration.

Spark imports all modules whose names begin with ``pyspark_`` when it looks for any data source. If one import fails,
Spark finds no data source at all, so this module imports zq only when Spark accesses ``DefaultSource``.
"""

import sys
from typing import Any


def __getattr__(name: str) -> Any:
    """Import the data source when Spark accesses ``DefaultSource``."""
    if name == "DefaultSource":
        try:
            from zq.spark.source import ZqDataSource
        except ImportError as cause:
            # Spark drops the cause and reports only an unknown data source, so print the cause to standard error.
            sentence = (
                f'Spark cannot load the source "zq" with {sys.executable}: {cause}. Install zq-queue[spark] there, '
            )
            sentence += "or name another Python in PYSPARK_PYTHON."
            print(sentence, file=sys.stderr)  # noqa: T201
            raise AttributeError(sentence) from None
        return ZqDataSource
    raise AttributeError(f"module {__name__} has no attribute {name}")
