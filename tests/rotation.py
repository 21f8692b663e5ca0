# SPDX-License-Identifier: Apache-2.0
"""The seed of a run, and the part of long tables and random examples that a daily run covers.

A daily run covers a few rows of each long table. The seed, by default the number of the day, selects them, so that
every row is covered within some days. ``devstack/campaign`` runs all rows and all examples. ``ZQ_SEED=N`` repeats the
selection of an earlier run, ``ZQ_CAMPAIGN=1`` selects everything, and ``ZQ_EXAMPLES`` is the fraction of random
examples (between 0 and 1).
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

Row = TypeVar("Row")

CAMPAIGN = os.environ.get("ZQ_CAMPAIGN") == "1"
SEED = int(os.environ.get("ZQ_SEED") or datetime.now(UTC).toordinal())
# A campaign runs every example, a daily run a third of them.
EXAMPLES = float(os.environ.get("ZQ_EXAMPLES") or (1 if CAMPAIGN else 1 / 3))


def rotated(rows: Sequence[Row], count: int) -> list[Row]:
    """Return ``count`` rows in order, selected by the seed; in a campaign, all rows.

    Consecutive seeds select consecutive rows, so ``len(rows) / count`` days cover every row.
    """
    if CAMPAIGN or count >= len(rows):
        return list(rows)
    chosen = {(SEED * count + step) % len(rows) for step in range(count)}
    return [row for at, row in enumerate(rows) if at in chosen]


def examples(most: int) -> int:
    """Return the number of random examples of a test: at least 1, ``most`` in a campaign."""
    return max(1, round(most * EXAMPLES))
