# SPDX-License-Identifier: Apache-2.0
"""A monotonic clock that also advances while the machine is suspended."""

import time


def since_boot() -> float:
    """Return a monotonic time in seconds that, on Linux, also advances while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
