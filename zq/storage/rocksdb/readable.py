# SPDX-License-Identifier: Apache-2.0
"""What reading of a store needs, whether it is open to serve or to be looked at only."""

from collections.abc import Iterator
from typing import Protocol


class Readable(Protocol):
    """The reading half of ``port.Store``."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of one key."""
        ...

    def scan(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Items with ``lower <= key < upper`` in key order."""
        ...
