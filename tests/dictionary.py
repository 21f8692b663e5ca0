# SPDX-License-Identifier: Apache-2.0
"""An object store in memory, which may take its time."""

import time

from zq.storage.object.objects import Objects, Requests


class Dictionary(Objects):
    """``put``, ``look``: seconds that each takes."""

    def __init__(self, put: float = 0.0, look: float = 0.0) -> None:
        self.requests = Requests()
        self._put, self._look = put, look
        self._values: dict[str, bytes] = {}

    def put(self, name: str, value: bytes) -> bool:
        time.sleep(self._put)
        self._values[name] = value
        return True

    def get(self, name: str) -> bytes | None:
        time.sleep(self._look)
        return self._values.get(name)

    def exists(self, name: str) -> bool:
        return self.get(name) is not None

    def delete(self, name: str) -> None:
        self._values.pop(name, None)

    def elect(self, number: int) -> bool:
        mine = object()
        return self._values.setdefault(f"epoch/{number}", mine) is mine  # type: ignore[arg-type]

    def elected(self, number: int) -> bool:
        return f"epoch/{number}" in self._values

    def close(self) -> None:
        """Nothing is open."""
