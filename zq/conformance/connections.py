# SPDX-License-Identifier: Apache-2.0
"""Connections to a test's store: races run with one and with two of them."""

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from zq.storage.api import Storage

ONE_OR_TWO_CONNECTIONS = pytest.mark.parametrize(
    "connections",
    [pytest.param(1, id="one"), pytest.param(2, id="two", marks=pytest.mark.shared)],
    indirect=True,
)
"""Run a test whose threads race with one connection to the store, and with two.

A driver may combine the concurrent calls of one connection, so only two connections race in the store itself.
"""


class _Alternating:
    """A storage, or a part of it, that sends each call to the connection of the calling thread."""

    def __init__(self, choose: Callable[[], Any]) -> None:
        self._choose = choose

    def __getattr__(self, name: str) -> Any:
        if callable(getattr(self._choose(), name)):
            return lambda *arguments, **terms: getattr(self._choose(), name)(*arguments, **terms)
        return _Alternating(lambda: getattr(self._choose(), name))


def alternating(connections: Sequence[Storage]) -> Storage:
    """Combine connections into one storage whose threads use the connections in turn."""
    turns = itertools.cycle(connections)
    own = threading.local()
    lock = threading.Lock()

    def choose() -> Storage:
        if not hasattr(own, "storage"):
            with lock:
                own.storage = next(turns)
        return cast(Storage, own.storage)

    return cast(Storage, _Alternating(choose))
