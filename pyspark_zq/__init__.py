# SPDX-License-Identifier: Apache-2.0
"""Spark looks into modules whose names begin like this one's for data sources: ``format("zq")`` needs no registering.

One of them that cannot be imported hides all others, and is imported for other formats too. So this one imports nothing
before Spark asks it for its source.
"""

import sys
from typing import Any


def __getattr__(name: str) -> Any:
    """Spark's name for a module's source."""
    if name == "DefaultSource":
        try:
            from zq.spark.source import ZqDataSource
        except ImportError as cause:
            # Spark drops the error and says only that there is no such source: so the reason goes to standard error.
            sentence = (
                f'Spark cannot load the source "zq" with {sys.executable}: {cause}. Install zq-queue[spark] there, '
            )
            sentence += "or name another Python in PYSPARK_PYTHON."
            print(sentence, file=sys.stderr)  # noqa: T201
            raise AttributeError(sentence) from None
        return ZqDataSource
    raise AttributeError(f"module {__name__} has no attribute {name}")
