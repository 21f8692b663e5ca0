# SPDX-License-Identifier: Apache-2.0
"""Plausibility check of stored times, for all drivers and clocks."""

from typing import Final

# Maximum seconds by which a stored time may be in the future. A later time comes from a wrong clock and is rejected.
FALSE_FUTURE: Final = 60
