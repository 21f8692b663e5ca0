# SPDX-License-Identifier: Apache-2.0
"""Plausibility of stored times, for all drivers and clocks."""

from typing import Final

# Seconds ahead of the current time beyond which a stored time is rejected as written by a wrong clock.
FALSE_FUTURE: Final = 60
