# SPDX-License-Identifier: Apache-2.0
"""Pages of messages in one state: the inherited implementation, and the number of reads on a long queue."""

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import Scene
from zq.conformance.test_states import located, mixed
from zq.model import Position, QueueRef, State
from zq.storage import browsing, connect
from zq.storage.memory import MemoryStore
from zq.storage.ordered.storage import OrderedStorage


@pytest.mark.parametrize("limit", [1, 3, 1000])
@pytest.mark.parametrize("state", State)
def test_the_inherited_listing_returns_the_same_pages(state: State, limit: int) -> None:
    """The inherited implementation returns the same pages as the driver's own."""
    scene = Scene(connect("memory:"), clock := ManualClock(1_700_000_000.0), QueueRef("acme", "jobs"))
    mixed(scene)
    scene.post(5, delay=100)
    scene.take(4)
    after, pages = Position(), 0
    while True:
        terms = (scene.queue, state, after, limit, clock.now())
        inherited = browsing.browse(scene.storage.messages, *terms, max_bytes=1_000_000)
        own = scene.storage.messages.browse(*terms)
        assert list(inherited.items) == list(own.items)
        if own.next is None:
            assert inherited.next is None
            break
        after, pages = own.next, pages + 1
    assert pages >= 1


def test_the_inherited_lookup_finds_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inherited lookup searches each queue and returns the latest record of a message."""
    scene = Scene(connect("memory:"), ManualClock(1_700_000_000.0), QueueRef("acme", "jobs"))
    monkeypatch.setattr(OrderedStorage, "locate", browsing.locate)
    other = scene.at("other")
    [id], [moved] = scene.post(1), scene.post(1)
    scene.move([moved], "other", history=600)
    assert located(scene, id) == ("jobs", None)
    assert located(scene, moved) == ("other", None)
    other.pop(history=600)
    assert located(scene, moved) == ("other", "popped")
    assert located(scene, "none") is None


class Counting(MemoryStore):
    """A store that counts reads."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[str] = Counter()

    def get_many(self, family: str, keys: Sequence[bytes], spare: bool = False) -> list[bytes | None]:
        self.read[family] += len(keys)
        return super().get_many(family, keys, spare)

    def scan(
        self, family: str, lower: bytes, upper: bytes, backwards: bool = False, spare: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for item in super().scan(family, lower, upper, backwards, spare):
            self.read[family] += 1
            yield item


def test_a_page_of_a_long_queue_reads_little() -> None:
    """Each page reads little more than it shows, wherever it begins.

    The queue has 3,000 ready, 600 delayed and 300 claimed messages. Of claims, a page reads only numbers. A page of
    delayed messages may have to skip claimed ones.
    """
    store = Counting()
    scene = Scene(OrderedStorage(lambda: store), ManualClock(1_700_000_000.0), QueueRef("acme", "jobs"))
    scene.post(300)
    for _ in range(15):
        scene.take(20)
    for _ in range(30):
        scene.tick(0.1)
        scene.post(100)
    scene.post(600, delay=600)
    for state, steps in ((State.READY, 0), (State.DELAYED, 300), (State.CLAIMED, 0)):
        after: Position | None = Position()
        pages = 0
        while after is not None:
            store.read.clear()
            after = scene.storage.messages.browse(scene.queue, state, after, 20, scene.now).next
            assert store.read["messages"] + store.read["available"] <= 100 + (4 * steps if pages == 0 else 0)
            assert store.read["claims"] <= (15 if state is State.CLAIMED else 0)
            pages += 1
        assert pages == {State.READY: 151, State.DELAYED: 31, State.CLAIMED: 16}[state]
