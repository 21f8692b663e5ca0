# SPDX-License-Identifier: Apache-2.0
"""Spark looks into modules whose names begin like this one's for data sources: ``format("zq")`` needs no registering.

One of them that cannot be imported hides all others, and is imported for other formats too. So this one imports nothing
before Spark asks it for its source.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Spark's name for a module's source."""
    if name == "DefaultSource":
        try:
            from zq.spark.source import ZqDataSource
        except ImportError:
            raise AttributeError("zq[spark] is not installed completely") from None
        return ZqDataSource
    raise AttributeError(f"module {__name__} has no attribute {name}")
