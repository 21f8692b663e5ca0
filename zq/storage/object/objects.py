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
    """Request counts by verb and response status; the status "none" means that there was no response."""

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
        """Store the value; return False if the object store reports a newer value."""
        ...

    def put_new(self, name: str, value: bytes) -> bool:
        """Store the value unless the object exists; return whether it was stored. Reliable only if ``exclusive``."""
        ...

    def prove_exclusive(self) -> None:
        """Test whether ``put_new`` is exclusive, as far as tests can show. Raises ``StartRefused`` if it is not."""
        ...

    def get(self, name: str) -> bytes | None:
        """Return the last acknowledged value or a later one, or None."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether ``get`` would return a value; cheaper than ``get``."""
        ...

    def delete(self, name: str) -> None:
        """Delete the object; do nothing if it does not exist."""
        ...

    def elect(self, number: int) -> bool:
        """Run for election with this number; return whether the caller has won.

        At most one caller ever wins a number. It is possible that no caller wins.
        """
        ...

    def elected(self, number: int) -> bool:
        """Return whether any server has run for election with this number."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


# Timeout of one request in seconds.
TIMEOUT: Final = 5.0
