# SPDX-License-Identifier: Apache-2.0
"""A store whose verbs are timed is the same store."""

import inspect

import pytest

from tests.http.stores import BrokenStore, down
from zq.errors import Unavailable
from zq.metrics.measured import CONTROLLERS, measured
from zq.model import Page, QueueRef, View

QUEUE = QueueRef("acme", "jobs")


class Shelf:
    """Enough of a store to be asked something; every other verb is missing."""

    def __init__(self) -> None:
        class Verbs:
            def __getattr__(self, name: str) -> object:
                return lambda *args, **kwargs: (name, args, kwargs)

        self.queues = self.messages = self.claims = self.history = self.transactions = Verbs()
        self.topics = self.records = Verbs()
        self.closed = False

    def close(self) -> None:
        self.closed = True


class ListedMessages:
    """One verb with the interface's signature."""

    def list(self, queue: QueueRef, marker: int, limit: int, view: View, now: float) -> Page:
        return Page([], str(marker))


def test_each_verb_is_told_with_its_time() -> None:
    """Arguments and answers go through; every observer hears."""
    heard: list[tuple[str, float]] = []
    verbs: list[str] = []
    storage = measured(Shelf(), lambda verb, seconds: heard.append((verb, seconds)), lambda verb, _: verbs.append(verb))
    assert storage.messages.post(QUEUE, [], 1.0, once=None) == ("post", (QUEUE, [], 1.0), {"once": None})
    assert storage.claims.get(QUEUE, "c", 1.0)[0] == "get"
    assert verbs == ["messages.post", "claims.get"]
    assert [verb for verb, _ in heard] == verbs
    assert all(0 <= seconds < 5 for _, seconds in heard)


def test_a_verb_that_fails_is_told_too() -> None:
    """And still fails."""
    heard: list[str] = []
    storage = measured(BrokenStore(down), lambda verb, seconds: heard.append(verb))
    with pytest.raises(Unavailable):
        storage.queues.get(QUEUE)
    assert heard == ["queues.get"]


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_every_verb_of_the_interface_is_there(controller: str) -> None:
    """And nothing else."""
    interface = CONTROLLERS[controller]
    promised = {name for name, _ in inspect.getmembers(interface, inspect.isfunction) if name[0] != "_"}
    promised |= set(inspect.get_annotations(interface))
    assert set(vars(getattr(measured(Shelf(), lambda verb, seconds: None), controller))) == promised


def test_a_verb_keeps_its_signature() -> None:
    """Whoever looks at it sees the driver's."""
    store = Shelf()
    store.messages = type("Both", (type(store.queues),), {"list": ListedMessages.list})()
    timed = measured(store, lambda verb, seconds: None).messages.list
    assert inspect.signature(timed) == inspect.signature(ListedMessages().list)


def test_the_rest_is_the_stores_own() -> None:
    """Told to the store itself."""
    store = Shelf()
    measured(store, lambda verb, seconds: None).close()
    assert store.closed
