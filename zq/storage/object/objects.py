# SPDX-License-Identifier: Apache-2.0
"""What this store needs of an object store. No vendor is known here.

Relied on: a write that was acknowledged is seen by every later read, and somebody can be elected. Not relied on: that
only one of several writers of a name is told that it was the first; listings; the machine's clock.
"""

import threading
from collections import Counter
from typing import Final, Protocol

from zq.errors import Unavailable


class ObjectStoreRefuses(Unavailable):
    """The object store answered that it will not do this: no rights, no space, a name or size that it does not take.

    Its sentence names the status; asking again helps only once somebody has put that right.
    """


class Requests:
    """How many there were, by verb and by the status of the answer; "none" where there was no answer."""

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
    """The objects of one store, by their names below its prefix. Safe for any number of threads.

    Every method may raise ``Unavailable`` within the request's timeout: then nobody knows whether it was done.
    """

    requests: Requests

    def put(self, name: str, value: bytes) -> bool:
        """Store the value; False if the object store says that something younger is there already."""
        ...

    def get(self, name: str) -> bytes | None:
        """The value as it was last acknowledged, or one that was written later; None if there is none."""
        ...

    def exists(self, name: str) -> bool:
        """Whether ``get`` would find it. Costs less."""
        ...

    def delete(self, name: str) -> None:
        """Remove it; a missing one is fine."""
        ...

    def elect(self, number: int) -> bool:
        """Run for the number; True for one caller at most, and for ever. Nobody may win."""
        ...

    def elected(self, number: int) -> bool:
        """Whether somebody has run for the number."""
        ...

    def close(self) -> None:
        """Let go of all connections."""
        ...


# Seconds that one request may take.
TIMEOUT: Final = 5.0
