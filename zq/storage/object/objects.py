# SPDX-License-Identifier: Apache-2.0
"""The protocol of an object store, independent of vendors.

Required: a read sees every earlier acknowledged write, and leader election is possible. Not required: conditional
writes (except for ``fencing`` by position), listings, and the machine's clock.
"""

import threading
from collections import Counter
from typing import Final, Protocol

from zq.errors import Unavailable


class ObjectStoreRefuses(Unavailable):
    """The object store rejected a request: permissions, space, or an invalid name or size.

    The message has the status. Retrying helps only after the cause is fixed.
    """


class Requests:
    """Request counts by verb and response status; "none" stands for no response."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: Counter[tuple[str, str]] = Counter()

    def count(self, verb: str, code: str | int) -> None:
        with self._lock:
            self._counted[verb, f"{code}"] += 1

    def counted(self) -> dict[tuple[str, str], int]:
        with self._lock:
            return dict(self._counted)


class Objects(Protocol):
    """The objects of one store, by name below its prefix. Thread-safe.

    Each method may raise ``Unavailable`` within the request timeout; the outcome is then unknown.
    """

    requests: Requests
    exclusive: bool = False
    """Set if ``put_new`` reports success to at most one of several writers."""

    def put(self, name: str, value: bytes) -> bool:
        """Store the value; False if the object store says that something younger is there already."""
        ...

    def put_new(self, name: str, value: bytes) -> bool:
        """Store the value where there is none; False if there is one. To be relied on if this is ``exclusive``."""
        ...

    def prove_exclusive(self) -> None:
        """Try whether it is. No try proves it, but many fail. Raises ``StartRefused``."""
        ...

    def get(self, name: str) -> bytes | None:
        """Return the last acknowledged value or a later one, or None."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether ``get`` would return a value; cheaper than ``get``."""
        ...

    def delete(self, name: str) -> None:
        """Remove it; a missing one is fine."""
        ...

    def elect(self, number: int) -> bool:
        """Run for the number; True for one caller at most, and for ever. Nobody may win."""
        ...

    def elected(self, number: int) -> bool:
        """Return whether any server has run for election with this number."""
        ...

    def close(self) -> None:
        """Let go of all connections."""
        ...


# Seconds that one request may take.
TIMEOUT: Final = 5.0
