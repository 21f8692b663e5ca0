# SPDX-License-Identifier: Apache-2.0
"""The thread that samples metrics, and its load on the store."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from tests.features import figures_of
from tests.servers import wait_for
from zq.clock import StoreClock
from zq.core import Broker
from zq.errors import Unavailable
from zq.figures import Figures
from zq.figures.counting import OTHER_NAMES, Counts
from zq.figures.exchange import MAX_RECORD_SIZE, Record, Server, Span, encode_record
from zq.figures.ranking import MAX_CACHED_ROWS, Ranking
from zq.figures.sampler import TICK_SECONDS
from zq.figures.series import CLOSE, DAY, FINE, WEEK, KnownCounts, Ring, Series, Window
from zq.model import QueueRef
from zq.model.stats import Depth
from zq.storage import connect
from zq.storage.api import Storage

QUEUE = QueueRef("acme", "jobs")
SERVER = Server("a:1", 1, 0.0, 0.0, "0", "memory", "x", 0.0, None, 0, 0, 0, 0, 0.0, None)


class Counting:
    """A store that counts lookups of queues, or does not respond."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.looks = self.sweeps = 0
        self.down = False

    def depth(self, queue: QueueRef, now: float, max_count: int) -> Depth:
        self.looks += 1
        return self._storage.depth(queue, now, max_count)

    def depths(self, now: float, queues: int, max_count: int) -> Sequence[tuple[QueueRef, Depth]]:
        if self.down:
            raise Unavailable("down")
        self.sweeps += 1
        return self._storage.depths(now, queues, max_count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


@pytest.fixture
def store() -> Iterator[Counting]:
    storage = connect("memory:")
    yield Counting(storage)
    storage.close()


@pytest.fixture
def figures(store: Counting) -> Iterator[Figures]:
    made = figures_of(Broker(store, StoreClock(store.now)), Counts())  # type: ignore[arg-type]
    made.sampler.start()
    yield made
    made.sampler.stop()


def within(seconds: float, ask: Callable[[], object], threads: int) -> None:
    """Call ``ask`` repeatedly in ``threads`` threads for ``seconds``."""
    until = time.monotonic() + seconds

    def go_on() -> None:
        while time.monotonic() < until:
            ask()
            time.sleep(0.1)

    asking = [threading.Thread(target=go_on) for _ in range(threads)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()


def test_twenty_viewers_cost_as_much_as_one(store: Counting, figures: Figures) -> None:
    """A watched queue is counted once in two seconds, whatever the number of viewers (acceptance 10)."""
    began = time.monotonic()
    within(3.0, lambda: figures.queue(QUEUE, 300), 20)
    wait_for(lambda: store.looks, 60, "it is counted")
    assert store.looks <= (time.monotonic() - began) / TICK_SECONDS + 2


def test_watched_queues_are_bounded(store: Counting, figures: Figures) -> None:
    """Further queues have only the samples of the sweep."""
    for number in range(80):
        figures.sampler.watch(QueueRef("acme", f"q{number}"))
    assert len(figures.sampler.watched) == 64
    assert figures.queue(QueueRef("acme", "q79"), 300).now.ready == 0


def test_a_store_that_does_not_answer_leaves_no_zeros(store: Counting, figures: Figures) -> None:
    """Requests fail with 503 during that time; its samples are `None` later."""
    store.queues.create(QUEUE, b"{}")
    figures.queue(QUEUE, 300)
    store.down = True
    wait_for(lambda: figures.sampler.failing, 60, "The store is seen to be down")
    with pytest.raises(Unavailable):
        figures.queue(QUEUE, 300)
    store.down = False
    wait_for(lambda: not figures.sampler.failing, 60, "The store is seen to be up")
    ready = figures.queue(QUEUE, 600).depth.ready
    assert set(ready) <= {0.0, None}
    assert ready.count(0.0) <= 4


def test_sweeps_rest_in_proportion(store: Counting, figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow sweeps run less often, even if there is a viewer."""
    monkeypatch.setattr("zq.figures.sampler.SWEEP_INTERVAL_FACTOR", 1e9)
    figures.sampler.register_viewer("acme")
    before = store.sweeps
    within(3.0, lambda: figures.sampler.register_viewer("acme"), 1)
    assert store.sweeps - before <= 1


def test_a_ring_forgets_values_beyond_its_size() -> None:
    """Samples that were never recorded are `None`."""
    ring = Ring(Window(1, 3), 2)
    assert ring.column(0, 9) == [None, None, None]
    ring.put(9, 0, [1, 2])
    ring.put(11, 0, [3, 4])
    ring.add(11, 1, [0.5])
    ring.put(8, 0, [9, 9])
    assert (ring.column(0, 11), ring.column(1, 11)) == ([1, None, 3], [2, None, 4.5])
    assert ring.column(0, 12) == [None, 3, None]
    ring.put(100, 0, [7])
    assert ring.column(0, 100) == [None, None, 7]


def test_rates_of_a_minute_are_the_mean_of_known_spans() -> None:
    """The mean is over the known ones of the six spans of a minute; a span covers five samples of two seconds each."""
    series = Series(600.0)
    for slot, rate in ((60, 2.0), (61, 4.0)):
        series.add_rates(slot, [rate, 0, 0, 0])
    known = frozenset({60, 61})
    assert series.rates(FINE, 629.0, known, KnownCounts()).posted[-3:] == [2, 4, None]
    assert series.rates(Window(60, 180), 659.0, known, KnownCounts()).posted[-1] == 3
    close = series.rates(CLOSE, 619.9, known, KnownCounts()).posted
    assert (len(close), close[-10:]) == (150, [2, 2, 2, 2, 2, 4, 4, 4, 4, 4])


def test_rates_of_day_and_week_are_the_mean_of_the_known_slots() -> None:
    """The mean includes slots that are not kept any more, but none from before the series began."""
    series, counts = Series(600.0), KnownCounts()
    for slot in range(40, 62):
        counts.add(slot)
    for slot, rate in ((60, 2.0), (61, 4.0)):
        series.add_rates(slot, [rate, 0, 0, 0])
    began = 58  # two slots earlier than the series: rates arrive later than depths
    assert series.rates(DAY, 1199.0, frozenset(), counts).posted[-2:] == [0, 3]
    assert series.rates(WEEK, 3599.0, frozenset(), counts).posted[-1] == pytest.approx(6 / (62 - 40), abs=0.2)
    assert counts.count(1, DAY, began) == 2


def test_a_record_is_bounded() -> None:
    """Older spans are dropped first, then the smallest queues are merged for each project; sums are kept."""
    rows = [(f"p{number % 3}", f"{number:04}" + "n" * 60, number, 0, 0, 0) for number in range(1000)]
    spans = {slot: Span(10.0, rows, []) for slot in (1, 2, 3)}
    value = encode_record(SERVER, spans)
    assert len(value) <= MAX_RECORD_SIZE
    record = msgspec.json.decode(value, type=Record)
    assert list(record.spans) == [3]
    kept = record.spans[3].queues
    assert sum(row[2] for row in kept) == sum(row[2] for row in rows)
    assert {row[0] for row in kept if row[1] == OTHER_NAMES} == {"p0", "p1", "p2"}
    assert kept[0][2] == 999


def test_orders_are_remembered_within_a_bound() -> None:
    """The oldest order is dropped, but its marker can still be used."""
    now = [0.0]
    ranking = Ranking(lambda: now[0])
    figures = {f"q{number}": float(number % 5) for number in range(20)}
    first = ranking.page("acme", lambda: figures, "desc", "", 3)
    assert first.next is not None
    now[0] = 61.0
    rest = ranking.page("acme", lambda: figures, "desc", first.next, 100)
    assert sorted([*first.names, *rest.names]) == sorted(figures)
    large = dict.fromkeys(map(str, range(MAX_CACHED_ROWS)), 0.0)
    for _ in range(3):
        ranking.page("acme", lambda: large, "names", "", 1)
    assert len(ranking._orders) == 1
