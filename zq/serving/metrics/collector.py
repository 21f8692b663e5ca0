# SPDX-License-Identifier: Apache-2.0
"""A collector that reads the store's metrics and the queue depths on each scrape."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from zq import wire
from zq.cache import ReadThroughCache
from zq.clock import Clock
from zq.errors import Unavailable
from zq.model import QueueRef, Seconds
from zq.model.stats import Depth, Measure
from zq.serving.metrics.definitions import PER_QUEUE, PREFIX, READ, STORE_GAUGES, Definition
from zq.serving.settings.sections import MetricsOptions
from zq.storage.api import Storage

T = TypeVar("T")
# Seconds for which the store's metrics, or a failure to read them, are cached.
MEASURES_AGE: Final = 1.0
# Seconds for which queue depths are cached.
DEPTHS_AGE: Final = 10.0
# A result is cached for at least this multiple of the duration of its read, so that reads take at most 5 % of the time.
AGE_FACTOR: Final = 20
# Metadata without this text names no dead-letter queue and is not parsed.
MENTION: Final = b'"_dead_letter_queue"'
# Number of queues to read at once. It is small, because metadata may be large.
PAGE: Final = 100
# Values of the label ``state``, in the order of the message counts.
STATES: Final = ("ready", "delayed", "claimed", "expired")


class CachedCall(Generic[T]):
    """A cached result of a function. Concurrent callers share one call."""

    def __init__(self, call: Callable[[], T], seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._call = call
        self._seconds = seconds
        self._monotonic = monotonic
        self._cache = ReadThroughCache(self._read, 1, lambda result: result[1], monotonic)

    def get(self) -> T | None:
        """Return the cached value, or ``None`` if the store is unavailable."""
        return self._cache.get(None)[0]

    def forget(self) -> None:
        self._cache.forget(None)

    def _read(self, _key: None) -> tuple[T | None, float]:
        """Call the function. Return its value, and the seconds for which to cache the value.

        The value is ``None`` if the store is unavailable. The seconds count from the start of the call.
        """
        began = self._monotonic()
        try:
            value = self._call()
        except Unavailable:
            return None, self._monotonic() - began + MEASURES_AGE
        took = self._monotonic() - began
        return value, took + max(self._seconds, AGE_FACTOR * took)


class Depths(Struct, frozen=True):
    """The message counts of queues as of ``now``."""

    rows: Sequence[tuple[QueueRef, Depth]]
    now: Seconds
    dead_letter_queues: frozenset[QueueRef]
    """The dead-letter queues of the queues in ``rows``."""


class StoreCollector(Collector):
    """A collector for prometheus-client that reads the store on each scrape."""

    def __init__(self, storage: Storage, clock: Clock, labels: Mapping[str, str], options: MetricsOptions) -> None:
        self._storage = storage
        self._clock = clock
        self._labels = labels
        self._options = options
        self.measures = CachedCall(self._measures, MEASURES_AGE)
        self._depths = CachedCall(self._read_depths, DEPTHS_AGE)

    def configure(self, options: MetricsOptions) -> None:
        """Apply new options from the next scrape on."""
        self._options = options
        self._depths.forget()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield _one("info", 1, self._labels)
        yield _one("clock_offset_seconds", self._clock.drift())
        yield _one("clock_uncertainty_seconds", self._clock.uncertainty())
        measures = self.measures.get()
        depths = None if measures is None else self._depths.get()
        yield _one("store_up", int(measures is not None and depths is not None))
        yield from _gauges(measures or ())
        if depths is not None:
            yield _one("queues", len(depths.rows))
            yield from _queues(depths, self._options.per_queue)

    def _measures(self) -> Sequence[Measure]:
        return self._storage.measures(self._clock.now())

    def _read_depths(self) -> Depths:
        options, now = self._options, self._clock.now()
        rows = self._storage.depths(now, options.max_queues, options.max_counted)
        return Depths(rows, now, frozenset(self._dead_letter_queues(rows)))

    def _dead_letter_queues(self, rows: Sequence[tuple[QueueRef, Depth]]) -> Iterator[QueueRef]:
        """Yield the dead-letter queues of the queues in ``rows``, from the metadata of these queues.

        Precondition: the queues of a project in ``rows`` are the first queues of the project's listing. The method
        reads only this part of the listing.
        """
        for project, count in Counter(queue.project for queue, _ in rows).items():
            after: str | None = ""
            while count > 0 and after is not None:
                page = self._storage.queues.list(project, after, min(count, PAGE))
                for queue in page.items:
                    if MENTION in queue.metadata and (
                        name := wire.json_object(queue.metadata).get("_dead_letter_queue")
                    ):
                        yield QueueRef(project, name)
                after, count = page.next, count - PAGE


def _family(name: str, definition: Definition, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, definition.help, labels=(*more, *definition.labels))


def _one(name: str, value: float, labels: Mapping[str, str] | None = None) -> GaugeMetricFamily:
    family = _family(name, READ[name])
    family.add_metric([(labels or {})[label] for label in READ[name].labels], value)
    return family


def _gauges(measures: Sequence[Measure]) -> Iterator[GaugeMetricFamily]:
    families: dict[str, GaugeMetricFamily] = {}
    for measure in measures:
        definition = STORE_GAUGES.get(measure.name)
        if definition is not None:
            family = families.setdefault(measure.name, _family(measure.name, definition))
            family.add_metric([dict(measure.labels)[label] for label in definition.labels], measure.value)
    yield from families.values()


def _queues(depths: Depths, per_queue: bool) -> Iterator[GaugeMetricFamily]:
    more = PER_QUEUE if per_queue else ()
    counts: dict[tuple[str, ...], list[int]] = {} if per_queue else {(): [0] * len(STATES)}
    names = "queue_oldest_ready_seconds", "queue_oldest_dead_letter_seconds"
    oldest: list[dict[tuple[str, ...], float]] = [dict.fromkeys(counts, 0.0) for _ in names]
    for queue, depth in depths.rows:
        key = tuple(queue) if per_queue else ()
        found = (depth.ready, depth.delayed, depth.claimed, depth.expired)
        counts[key] = [sum(pair) for pair in zip(counts.get(key, [0] * len(STATES)), found, strict=True)]
        waited = 0.0 if depth.oldest_ready is None else max(0.0, depths.now - depth.oldest_ready)
        ages = oldest[queue in depths.dead_letter_queues]
        ages[key] = max(ages.get(key, 0.0), waited)
    messages = _family("queue_messages", READ["queue_messages"], *more)
    for key, of_states in counts.items():
        for state, count in zip(STATES, of_states, strict=True):
            messages.add_metric((*key, state), count)
    yield messages
    for name, ages in zip(names, oldest, strict=True):
        family = _family(name, READ[name], *more)
        for key, age in ages.items():
            family.add_metric(key, age)
        yield family
