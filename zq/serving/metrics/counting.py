# SPDX-License-Identifier: Apache-2.0
"""The metrics of one process, and the page that Prometheus scrapes."""

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from zq import __version__
from zq.cache import ReadThroughCache
from zq.clock import Clock
from zq.events import Events, refusal_counts
from zq.model import Claim, CommitResult, Draft, Messages, Outcome, QueueRef, Seconds
from zq.model.modes import Mode
from zq.model.topics import Entry, TopicRef
from zq.serving.metrics import multiprocess
from zq.serving.metrics.collector import StoreCollector
from zq.serving.metrics.definitions import COUNTED, PREFIX, STORE_TOTALS, Definition, Kind
from zq.serving.settings.sections import MetricsOptions
from zq.storage.api import Storage

# Maximum number of values in a buffer. If one buffer is full, all buffers are flushed.
MAX_BUFFERED: Final = 1000
# Seconds for which a rendered page is cached.
PAGE_TTL: Final = 1.0
# Seconds between two flushes. Pages of other processes include the counts after a flush.
FLUSH_INTERVAL: Final = 1.0
# HTTP methods that are counted separately.
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Label of all other methods.
OTHER: Final = "OTHER"
# Label of all queues beyond ``max_queues``.
OTHER_QUEUES: Final = QueueRef("", "")

# The value of the metric ``mode`` is an index of this sequence.
MODES: Final = tuple(Mode)

Request = tuple[str, str, int, bool]


class Buffer:
    """A buffer of values for a metric.

    Updating a metric on each request would be too slow. Requests therefore add values to the buffer, and ``flush``
    updates the metric. ``note`` and ``extend`` are thread-safe.
    """

    def __init__(self, add: Callable[[list[float]], None]) -> None:
        self._add = add
        self._values: list[float] = []
        self.note = self._values.append
        self.extend = self._values.extend

    def __len__(self) -> int:
        return len(self._values)

    def flush(self) -> None:
        """Move the buffered values to the metric. Only one thread at a time may call this method."""
        count = len(self._values)
        if count:
            values = self._values[:count]
            del self._values[:count]
            self._add(values)


def sum_into(counter: Any, number: Any = None) -> Callable[[list[float]], None]:
    """Return a function that adds the sum of a list to ``counter``, and the length of the list to ``number``."""

    def add(values: list[float]) -> None:
        counter.inc(sum(values))
        if number is not None:
            number.inc(len(values))

    return add


def observe_into(histogram: Any, number: Any = None) -> Callable[[list[float]], None]:
    """Return a function that observes each value of a list in ``histogram``, and the list's length in ``number``."""

    def add(values: list[float]) -> None:
        for value in values:
            histogram.observe(value)
        if number is not None:
            number.inc(len(values))

    return add


class Metrics(Events):
    """The metrics of one process. The object must be created after the fork."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        *,
        store: str,
        engine: str,
        max_waiters: int = 0,
        max_streams: int = 0,
        options: MetricsOptions | None = None,
    ) -> None:
        """Create all metrics.

        The metric ``info`` has the labels ``store`` (the URI scheme of the store) and ``engine`` (the HTTP server).
        """
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._options = options or MetricsOptions()
        about = {"version": __version__, "store": store, "engine": engine}
        self._store = StoreCollector(storage, clock, about, self._options)
        self._registry = CollectorRegistry()
        self._registry.register(self._store)
        joined = multiprocess.is_shared()
        own = None if joined else self._registry
        self._metrics = {name: _create_metric(name, definition, own) for name, definition in COUNTED.items()}
        self._totals = {name: _create_metric(name, definition, own) for name, definition in STORE_TOTALS.items()}
        self._metrics["waiters_limit"].set(max_waiters)
        self._metrics["streams_limit"].set(max_streams)
        self._lock = threading.Lock()
        self._pages = ReadThroughCache(self._render, 1, PAGE_TTL)
        self._tallying = threading.Lock()
        self._tallied: dict[tuple[str, ...], float] = {}
        self._queues: set[QueueRef] = set()
        self._refused: dict[str, int] = {}
        self._prepare()
        if joined:
            MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]
            threading.Thread(target=self._flush_regularly, name="zq-metrics", daemon=True).start()
            atexit.register(self._flush)

    def _prepare(self) -> None:
        metrics = self._metrics
        self._requests: dict[Request, Buffer] = {}
        self._verbs: dict[str, Buffer] = {}
        self._ttls = Buffer(observe_into(metrics["message_ttl_seconds"], metrics["messages_posted_total"]))
        self._claimed = Buffer(sum_into(metrics["messages_claimed_total"], metrics["claims_total"]))
        self._redelivered = Buffer(sum_into(metrics["messages_redelivered_total"]))
        self._dwell_times = Buffer(observe_into(metrics["message_dwell_seconds"]))
        finished, woken = metrics["messages_finished_total"], metrics["wakeups_total"]
        self._finished = {outcome: Buffer(sum_into(finished.labels(outcome.value))) for outcome in Outcome}
        self._woken = {found: woken.labels(str(found).lower()) for found in (False, True)}
        self._published = Buffer(sum_into(metrics["messages_published_total"]))
        self._streamed = Buffer(sum_into(metrics["streamed_messages_total"]))
        self._buffers = [self._ttls, self._claimed, self._redelivered, self._dwell_times, *self._finished.values()]
        self._buffers += [self._published, self._streamed]

    def configure(self, options: MetricsOptions) -> None:
        self._options = options
        self._store.configure(options)

    def register(self, collector: Collector) -> None:
        """Add the metrics of another collector to the page."""
        self._registry.register(collector)

    def page(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return self._pages.get(None)

    def _render(self, _key: None) -> bytes:
        self._flush()
        self._tally()
        return generate_latest(self._registry)

    def answered(self, method: str, route: str, status: int, seconds: float, waited: bool) -> None:
        requests = self._requests.get((method, route, status, waited))
        if requests is None:
            requests = self._request(method if method in METHODS else OTHER, route, status, waited)
        requests.note(seconds)
        if len(requests) >= MAX_BUFFERED:
            self._flush()

    def store_called(self, verb: str, seconds: float) -> None:
        times = self._verbs.get(verb)
        if times is None:
            times = self._verb(verb)
        times.note(seconds)

    def auth_failed(self, reason: str) -> None:
        self._metrics["auth_failures_total"].labels(reason).inc()

    def quota_refused(self, limit: str) -> None:
        self._metrics["quota_refusals_total"].labels(limit).inc()

    def posted(self, queue: QueueRef, drafts: Sequence[Draft]) -> None:
        self._ttls.extend([draft.ttl for draft in drafts])
        if len(self._ttls) >= MAX_BUFFERED:
            self._flush()

    def claimed(self, queue: QueueRef, claim: Claim, now: Seconds) -> None:
        self._claimed.note(len(claim.messages))
        for message in claim.messages:
            if message.claim_count > 1:
                self._redelivered.note(1)
            else:
                self._dwell_times.note(max(0.0, now - message.created))
        if claim.lapsed:
            self._metrics["messages_lapsed_total"].inc(claim.lapsed)

    def popped(self, queue: QueueRef, messages: Messages, now: Seconds) -> None:
        self._finished[Outcome.POPPED].note(len(messages))
        self._dwell_times.extend([max(0.0, now - message.created) for message in messages if not message.claim_count])

    def finished(self, queue: QueueRef, outcome: Outcome, count: int) -> None:
        self._finished[outcome].note(count)

    def committed(self, commit: CommitResult) -> None:
        self._metrics["commits_total"].labels("replayed" if commit.replayed else "made").inc()
        if not commit.replayed:
            self._metrics["commit_messages_published_total"].inc(commit.published)

    def waiting(self, change: int) -> None:
        self._metrics["waiters"].inc(change)

    def woken(self, found: bool) -> None:
        self._woken[found].inc()

    def poll_refused(self) -> None:
        self._metrics["waits_turned_away_total"].inc()

    def published(self, topic: TopicRef, entries: Sequence[Entry]) -> None:
        self._published.note(len(entries))

    def streams(self, change: int) -> None:
        self._metrics["streams"].inc(change)

    def streamed(self, count: int) -> None:
        self._streamed.note(count)

    def stream_refused(self) -> None:
        self._metrics["streams_refused_total"].inc()

    def spans_dropped(self, count: int) -> None:
        self._metrics["spans_dropped_total"].inc(count)

    def unreadable(self) -> None:
        self._metrics["messages_unreadable_total"].inc()

    def stream_dropped(self) -> None:
        self._metrics["streams_dropped_total"].inc()

    def expired(self, count: int, queue: QueueRef) -> None:
        if not self._options.per_queue:
            return
        if queue not in self._queues:
            if len(self._queues) >= self._options.max_queues:
                queue = OTHER_QUEUES
            else:
                self._queues.add(queue)
        self._metrics["queue_expired_removed_total"].labels(*queue).inc(count)

    def swept(self, seconds: float, removed: int, exhausted: bool, paused: float) -> None:
        self._metrics["sweep_seconds"].observe(seconds)
        self._metrics["sweep_removed_total"].inc(removed)
        self._metrics["sweep_limit_reached_total"].inc(int(exhausted))
        self._metrics["sweep_rest_seconds_total"].inc(paused)
        self._tally()  # so that the pages of other processes include the totals

    def throttled(self, ratio: float, share: float) -> None:
        self._metrics["sweep_latency_ratio"].set(ratio)
        self._metrics["sweep_share"].set(share)

    def set_level(self, level: int) -> None:
        self._metrics["store_level"].set(level)

    def set_mode(self, mode: Mode) -> None:
        self._metrics["mode"].set(MODES.index(mode))

    def _request(self, method: str, route: str, status: int, waited: bool) -> Buffer:
        with self._lock:
            key = (method, route, status, waited)
            if key not in self._requests:
                where = method, route or "unmatched"
                times = self._metrics["long_poll_seconds" if waited else "request_seconds"].labels(*where)
                count = self._metrics["requests_total"].labels(*where, str(status))
                self._requests[key] = Buffer(observe_into(times, count))
                self._buffers.append(self._requests[key])
            return self._requests[key]

    def _verb(self, verb: str) -> Buffer:
        with self._lock:
            if verb not in self._verbs:
                self._verbs[verb] = Buffer(observe_into(self._metrics["storage_seconds"].labels(verb)))
                self._buffers.append(self._verbs[verb])
            return self._verbs[verb]

    def _flush(self) -> None:
        with self._lock:
            for buffer in self._buffers:
                buffer.flush()
            for reason, count in refusal_counts().items():
                self._metrics["refused_total"].labels(reason).inc(count - self._refused.get(reason, 0))
                self._refused[reason] = count

    def _flush_regularly(self) -> None:
        while True:
            time.sleep(FLUSH_INTERVAL)
            self._flush()

    def _tally(self) -> None:
        """Update the counters from the store's totals. If a total has decreased, it was reset since the last update."""
        with self._tallying:  # concurrent scrapes must add their increases in order
            measures = self._store.measures.get() or ()
            for measure in [measure for measure in measures if measure.name in self._totals]:
                total = self._totals[measure.name]
                values = [dict(measure.labels)[label] for label in STORE_TOTALS[measure.name].labels]
                key = (measure.name, *values)
                before = self._tallied.get(key, 0.0)
                self._tallied[key] = measure.value
                increase = measure.value - before if measure.value >= before else measure.value
                (total.labels(*values) if values else total).inc(increase)


def _create_metric(name: str, definition: Definition, registry: CollectorRegistry | None) -> Any:
    full = PREFIX + name
    if definition.kind is Kind.COUNTER:
        return Counter(full, definition.help, definition.labels, registry=registry)
    if definition.kind is Kind.GAUGE:
        mode: Any = definition.several
        return Gauge(full, definition.help, definition.labels, registry=registry, multiprocess_mode=mode)
    return Histogram(full, definition.help, definition.labels, registry=registry, buckets=definition.buckets)
