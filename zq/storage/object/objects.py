# SPDX-License-Identifier: Apache-2.0
"""The interface to an object store.

An object store must provide read-after-write consistency and leader election. Conditional writes are needed only for
fencing by position. Listings are not needed.
"""

import threading
from collections import Counter
from typing import Final, Protocol

from zq.errors import Unavailable


class ObjectStoreRejection(Unavailable):
    """An error that is raised if the object store rejects a request for a lasting reason, such as an exceeded quota."""


class Requests:
    """Request counts by HTTP method and status. The status is "none" if there was no response."""

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
    """The thread-safe client of an object store. Names of objects are relative to the prefix of the zq store.

    Each method raises ``Unavailable`` if the request fails or times out. The outcome of a write is then unknown.
    """

    requests: Requests
    exclusive: bool = False
    """Whether at most one of several concurrent calls of ``put_new`` succeeds."""

    def put(self, name: str, value: bytes) -> bool:
        """Store the value, and return True. Return False if another write with a later timestamp prevails."""
        ...

    def put_new(self, name: str, value: bytes) -> bool:
        """Store the value if the object does not exist, and return whether the value was stored.

        Of several concurrent calls, at most one returns True, provided that the attribute ``exclusive`` is true.
        """
        ...

    def prove_exclusive(self) -> None:
        """Test that only one of several concurrent calls of ``put_new`` succeeds.

        Raises ``StartRefused`` if several calls succeed.
        """
        ...

    def get(self, name: str) -> bytes | None:
        """Return the last acknowledged value or a later one, or None if the object does not exist."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether the object exists."""
        ...

    def delete(self, name: str) -> None:
        """Delete the object if it exists."""
        ...

    def elect(self, number: int) -> bool:
        """Run in the election with this number, and return whether the caller has won.

        At most one caller ever wins an election, and sometimes no caller wins.
        """
        ...

    def has_election(self, number: int) -> bool:
        """Return whether any server has run in the election with this number."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


# Timeout of one request in seconds.
TIMEOUT: Final = 5.0
