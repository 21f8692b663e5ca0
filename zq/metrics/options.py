# SPDX-License-Identifier: Apache-2.0
"""Section ``[metrics]``, under its names."""

from msgspec import Struct


class Options(Struct, frozen=True, kw_only=True):
    """How much of queues is shown."""

    per_queue: bool = False
    max_queues: int = 1000
    max_counted: int = 10_000
