# SPDX-License-Identifier: Apache-2.0
"""Timing of a store's verbs, which does not change the verbs."""

import inspect

import pytest

from tests.http.stores import BrokenStore, down
from zq.errors import Unavailable
from zq.events import NO_EVENTS, Events
from zq.model import ListFilter, Page, QueueRef
from zq.serving.metrics.timed import CONTROLLERS, measure_verbs

QUEUE = QueueRef("acme", "jobs")


class Shelf:
    """A stub store with a few verbs."""

    def __init__(self) -> None:
        class Verbs:
            def __getattr__(self, name: str) -> object:
                return lambda *args, **kwargs: (name, args, kwargs)

        self.queues = self.messages = self.claims = self.history = self.transactions = Verbs()
        self.topics = self.documents = Verbs()
        self.depth = self.locate = lambda *args: args
        self.closed = False
        self.is_prompt = True

    def close(self) -> None:
        self.closed = True


class Listener(Events):
    """A listener that records the verbs and their times."""

    def __init__(self) -> None:
        self.verbs: list[str] = []
        self.times: list[float] = []

    def store_called(self, verb: str, seconds: float) -> None:
        self.verbs.append(verb)
        self.times.append(seconds)


class ListedMessages:
    """A controller of messages with one verb that has the interface's signature."""

    def list(self, queue: QueueRef, marker: int, limit: int, view: ListFilter, now: float) -> Page:
        return Page([], str(marker))


def test_each_verb_is_reported_with_its_time() -> None:
    """Arguments and results are passed through; every listener is notified."""
    one, other = Listener(), Listener()
    storage = measure_verbs(Shelf(), one, other)
    assert storage.messages.post(QUEUE, [], 1.0, once=None) == ("post", (QUEUE, [], 1.0), {"once": None})
    assert storage.claims.get(QUEUE, "c", 1.0)[0] == "get"
    assert storage.depth(QUEUE, 1.0, 10) == (QUEUE, 1.0, 10)
    assert storage.locate("acme", "m", 1.0) == ("acme", "m", 1.0)
    assert one.verbs == other.verbs == ["messages.post", "claims.get", "depth", "locate"]
    assert all(0 <= seconds < 5 for seconds in one.times)


def test_a_verb_that_fails_is_reported_too() -> None:
    """The error is raised to the caller too."""
    listener = Listener()
    storage = measure_verbs(BrokenStore(down), listener)
    with pytest.raises(Unavailable):
        storage.queues.get(QUEUE)
    assert listener.verbs == ["queues.get"]


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_every_verb_of_the_interface_is_there(controller: str) -> None:
    """Each controller has exactly the public names of its interface."""
    interface = CONTROLLERS[controller]
    promised = {name for name, _ in inspect.getmembers(interface, inspect.isfunction) if name[0] != "_"}
    promised |= set(inspect.get_annotations(interface))
    assert set(vars(getattr(measure_verbs(Shelf(), NO_EVENTS), controller))) == promised


def test_a_verb_keeps_its_signature() -> None:
    """`inspect.signature` returns the driver's signature."""
    store = Shelf()
    store.messages = type("Both", (type(store.queues),), {"list": ListedMessages.list})()
    listing = measure_verbs(store, NO_EVENTS).messages.list
    assert inspect.signature(listing) == inspect.signature(ListedMessages().list)


def test_the_rest_is_the_stores_own() -> None:
    """Attributes and methods other than verbs are the store's own."""
    store = Shelf()
    same = measure_verbs(store, NO_EVENTS)
    assert same.is_prompt
    same.close()
    assert store.closed
