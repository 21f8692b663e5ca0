# SPDX-License-Identifier: Apache-2.0
"""What every driver believes of moments that were kept, whatever clock they stem from."""

from typing import Final

# Seconds ahead of now from which on a moment that was kept stems from a clock that was wrong, so it is not believed.
FALSE_FUTURE: Final = 60
