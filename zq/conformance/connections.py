# SPDX-License-Identifier: Apache-2.0
"""Connections to a store, which tests share. Tests of races run with one and with two connections."""

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from zq.conformance.builders import OpenStore
from zq.storage.api import Storage

ONE_OR_TWO_CONNECTIONS = pytest.mark.parametrize(
    "connections",
    [pytest.param(1, id="one"), pytest.param(2, id="two", marks=pytest.mark.shared)],
    indirect=True,
)
"""Run a test whose threads race with one connection to the store, and with two.

A driver may combine the concurrent calls of one connection, so only two connections race in the store itself.
"""


class SharedStore:
    """An open store that several tests use, each with a project of its own."""

    def __init__(self, open_store: OpenStore) -> None:
        self._open_store = open_store
        self._connections: list[Storage] = []

    def connections(self, count: int) -> list[Storage]:
        """Return ``count`` connections, which stay open for later tests."""
        while len(self._connections) < count:
            self._connections.append(self._open_store())
        return self._connections[:count]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


class _AlternatingPart:
    """A storage, or a part of it, that sends each call to the connection of the calling thread."""

    def __init__(self, choose: Callable[[], Any]) -> None:
        self._choose = choose

    def __getattr__(self, name: str) -> Any:
        if callable(getattr(self._choose(), name)):
            return lambda *arguments, **terms: getattr(self._choose(), name)(*arguments, **terms)
        return _AlternatingPart(lambda: getattr(self._choose(), name))


def alternate(connections: Sequence[Storage]) -> Storage:
    """Combine connections into one storage. Each thread uses one of them, assigned round-robin."""
    turns = itertools.cycle(connections)
    own = threading.local()
    lock = threading.Lock()

    def choose() -> Storage:
        if not hasattr(own, "storage"):
            with lock:
                own.storage = next(turns)
        return cast(Storage, own.storage)

    return cast(Storage, _AlternatingPart(choose))
