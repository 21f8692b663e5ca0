# SPDX-License-Identifier: Apache-2.0
"""How often a call is tried again, and pauses that somebody may cut short."""

import time
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

PIECE: Final = 0.2
"""Seconds after which a pause looks whether it is still wanted."""


class Retries(Struct, frozen=True):
    """When a call is tried again: with pauses of random length, of up to ``first`` seconds at first, doubling up to
    ``most``, or as long as the server asks for; not more than ``attempts`` in all, and none after ``deadline`` seconds.
    """

    attempts: int = 10
    deadline: float = 60.0
    first: float = 0.2
    most: float = 10.0


def pieces(pause: float, over: Callable[[], bool]) -> Iterator[float]:
    """How long to sleep, again and again, until the pause has passed or is over."""
    ends = time.monotonic() + pause
    while (left := ends - time.monotonic()) > 0 and not over():
        yield min(left, PIECE)
