# SPDX-License-Identifier: Apache-2.0
"""An object store in memory with configurable latency."""

import threading
import time

from zq.storage.object.objects import Objects, Requests


class Dictionary(Objects):
    """An object store in a dictionary; ``put`` and ``look`` are the seconds for each write and read."""

    def __init__(self, put: float = 0.0, look: float = 0.0) -> None:
        self.requests = Requests()
        self._alone = threading.Lock()
        self._put, self._look = put, look
        self._values: dict[str, bytes] = {}

    def put(self, name: str, value: bytes) -> bool:
        time.sleep(self._put)
        self._values[name] = value
        return True

    exclusive = True

    def put_new(self, name: str, value: bytes) -> bool:
        time.sleep(self._put)
        with self._alone:
            new = name not in self._values
            self._values.setdefault(name, value)
        return new

    def prove_exclusive(self) -> None:
        """Return without a check, because ``put_new`` is exclusive."""

    def get(self, name: str) -> bytes | None:
        time.sleep(self._look)
        return self._values.get(name)

    def exists(self, name: str) -> bool:
        return self.get(name) is not None

    def delete(self, name: str) -> None:
        self._values.pop(name, None)

    def elect(self, number: int) -> bool:
        return self.put_new(f"epoch/{number}", b"")

    def has_election(self, number: int) -> bool:
        return f"epoch/{number}" in self._values

    def close(self) -> None:
        """Do nothing, because no resource is open."""
