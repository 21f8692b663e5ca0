# SPDX-License-Identifier: Apache-2.0
"""The limit beyond which a stored time is not plausible. All drivers and clocks use it."""

from typing import Final

# Maximum seconds by which a stored time may be in the future. A later time comes from a wrong clock and is rejected.
FALSE_FUTURE: Final = 60
