# SPDX-License-Identifier: Apache-2.0
"""The takers of one process, one for each queue in use."""

import threading
from typing import Final

from zq.storage.mongodb.layout import QueueKey
from zq.storage.mongodb.port import Port
from zq.storage.mongodb.taking import Announce, Taker

MANY: Final = 10_000
"""Takers that are kept; they hold nothing but hints."""


class Takers:
    """Finds a queue's taker."""

    def __init__(self, port: Port, announce: Announce) -> None:
        self._port = port
        self._announce = announce
        self._lock = threading.Lock()
        self._takers: dict[str, Taker] = {}

    def of(self, key: QueueKey) -> Taker:
        """The queue's taker, made when it is first asked for."""
        taker = self._takers.get(key.shard)
        if taker is None:
            with self._lock:
                if len(self._takers) >= MANY:
                    self._takers = {name: one for name, one in self._takers.items() if one.line.busy}
                taker = self._takers.setdefault(key.shard, Taker(self._port, key, self._announce))
        return taker

    def lower(self, key: QueueKey) -> None:
        """A message of the queue was given an earlier moment."""
        taker = self._takers.get(key.shard)
        if taker is not None:
            taker.front.lower()
