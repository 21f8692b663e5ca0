# SPDX-License-Identifier: Apache-2.0
"""The command ``zq canary``, which posts numbered messages and checks that each is delivered exactly once."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import click
from msgspec import Struct

from zq.cli.bench import percentile
from zq.cli.failures import LOSS, UNVERIFIED, Failure, exit_code
from zq.cli.param_types import Count, Seconds
from zq.cli.session import Command, Session, pass_session
from zq.client import Message, Queue, UndecodableBody
from zq.client.stopping import stop_on_signals
from zq.errors import Crowded, Invalid, NotAuthorized, NotFound, TooManyRequests, Unavailable, ZqError
from zq.model.limits import MIN_TTL

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# Member of a body with the id of the run that posted the message, and member with the message's number.
RUN: Final = "canary"
NUMBER: Final = "number"
# Seconds after which the server may drop a message.
TTL: Final = 3600
# Seconds around the ttl in which a message may have expired. A claim may extend a message's life by 2 * MIN_TTL.
EXPIRY_MARGIN: Final = 300
# Minimum of --patience in seconds: after a crash of the server, a stored claim may hide its messages for MIN_TTL.
MIN_PATIENCE: Final = MIN_TTL + 30
# Maximum of --patience in seconds: a message must not expire before it counts as lost.
MAX_PATIENCE: Final = 1800
# Maximum number of messages per claim.
CLAIM_SIZE: Final = 20
# Maximum seconds for which a claim waits, and after which the canary notices that it must stop.
WAIT: Final = 2
# Maximum seconds between two successful claims for which the server counts as available.
MAX_CLAIM_GAP: Final = WAIT + 1
# Seconds by which the age of a message, a rounded number of the server, may differ from the canary's clock.
AGE_MARGIN: Final = 2
# Seconds between two lines of the report.
REPORT_INTERVAL: Final = 60.0
# Seconds between two attempts after a failure.
RETRY_INTERVAL: Final = 1.0
# Minimum seconds between two claims that find no message.
MIN_ROUND: Final = 0.2
# Failures after which the canary continues. NotFound: a claim has expired, or the queue was deleted.
TEMPORARY: Final = (Unavailable, TooManyRequests, Crowded, NotFound)
# Counters of the ledger that Prometheus scrapes, with their help texts.
COUNTERS: Final = {
    "posted": "Acknowledged messages.",
    "received": "Messages that were delivered.",
    "lost": "Acknowledged messages that were not delivered in time, and are not in the queue.",
    "expired": "Acknowledged messages that expired during an outage.",
    "late": "Messages that were delivered after they had counted as lost.",
    "duplicates": "Deliveries after an acknowledged deletion, or after --patience.",
    "redelivered": "Repeated deliveries of messages whose deletion has failed.",
}
# The metrics by name, with their labels.
METRICS: Final = {
    **{f"zq_canary_{name}_total": () for name in COUNTERS},
    "zq_canary_pending": (),
    "zq_canary_missing": (),
    "zq_canary_unverified": (),
    "zq_canary_errors_total": ("step",),
    "zq_canary_seconds": ("step",),
}
# Histogram buckets in seconds.
BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)


class PendingMessage(Struct):
    """A message that was not delivered yet.

    Attributes:
        begun: Time when the post began.
        ended: Time when the post was acknowledged or has failed; ``None`` while it runs.
        available: Seconds for which the server had been available in this run when it acknowledged the post; ``None``
            without an acknowledgement. If a listing of the queue later contains the message, the value is updated.
    """

    begun: float
    ended: float | None = None
    available: float | None = None


class Ledger:
    """A thread-safe record of the canary's messages: which are pending, delivered or lost.

    An undelivered message is overdue after ``patience`` seconds. Only the seconds in which claims succeed are counted,
    so an outage of the server delays the detection of a loss, but causes no false loss.

    An overdue message counts as lost only if a listing of the queue does not contain it either. A message that may have
    expired never counts as lost.

    Args:
        patience: Seconds with a working server after which an acknowledged message is overdue.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._lock = threading.Lock()
        self._last = 0
        self._pending: dict[int, PendingMessage] = {}
        self._undeleted: dict[int, float] = {}
        """Delivered messages that may be delivered again, with the available seconds at their last delivery."""
        self._lost: set[int] = set()
        self._unverified: set[int] = set()
        """Pending messages that were overdue, and were not found to be lost."""
        self._available = 0.0
        self._claimed_at: float | None = None
        self.counts = dict.fromkeys(COUNTERS, 0)

    @property
    def pending_count(self) -> int:
        """Number of acknowledged messages that were neither delivered nor lost."""
        with self._lock:
            return sum(each.available is not None for each in self._pending.values())

    @property
    def missing_count(self) -> int:
        """Number of messages that counted as lost and have not been delivered since."""
        return len(self._lost)

    @property
    def unverified_count(self) -> int:
        """Number of overdue messages whose loss is not verified."""
        return len(self._unverified)

    def begin(self, now: float) -> int:
        """Record that the post of a new message begins, and return the message's number."""
        with self._lock:
            self._last += 1
            self._pending[self._last] = PendingMessage(now)
            return self._last

    def acknowledge(self, number: int, now: float) -> None:
        """Record that the server has stored a message. The message may already have been delivered."""
        with self._lock:
            self.counts["posted"] += 1
            if (found := self._pending.get(number)) is not None:
                found.ended, found.available = now, self._available

    def fail(self, number: int, now: float) -> None:
        """Record that a post has failed: the server may have stored the message or not."""
        with self._lock:
            if (found := self._pending.get(number)) is not None:
                found.ended = now

    def record_claim(self, numbers: list[int], now: float) -> list[float]:
        """Record the messages of a successful claim.

        Returns:
            The seconds from the post to the delivery of each message that is delivered for the first time.
        """
        with self._lock:
            delays = [delay for number in numbers if (delay := self._deliver(number, now)) is not None]
            if self._claimed_at is not None:
                self._available += min(now - self._claimed_at, MAX_CLAIM_GAP)
            self._claimed_at = now
            self._forget_expired(now)
            return delays

    def find_overdue(self, now: float, patience: float | None = None) -> set[int]:
        """Return the numbers of the overdue messages. The caller passes them to ``verify``, which finds the lost ones.

        Args:
            patience: Seconds with a working server after which a message is overdue; ``None`` = ``self.patience``.
        """
        with self._lock:
            due = self._available - (self.patience if patience is None else patience)
            overdue = {
                number
                for number, each in self._pending.items()
                if each.available is not None and each.available < due and now < each.begun + TTL - EXPIRY_MARGIN
            }
            self._unverified |= overdue
            return overdue

    def verify(self, overdue: set[int], stored: set[int]) -> None:
        """Mark each overdue message as lost, unless the queue contains the message.

        A message that the queue contains becomes overdue again after another ``patience`` seconds.

        Args:
            stored: Numbers of the messages in the queue, read after ``find_overdue`` and before the next claim.
        """
        with self._lock:
            for number in overdue & stored:
                self._pending[number].available = self._available
            for number in overdue - stored:
                del self._pending[number]
                self._unverified.discard(number)
                self._lost.add(number)
                self.counts["lost"] += 1

    def delete(self, number: int) -> None:
        """Record that the server has acknowledged a deletion."""
        with self._lock:
            self._undeleted.pop(number, None)

    def _deliver(self, number: int, now: float) -> float | None:
        found = self._pending.pop(number, None)
        self._unverified.discard(number)
        if found is not None:
            self.counts["received"] += 1
        elif number in self._undeleted:
            self.counts["redelivered"] += 1
        elif number in self._lost:
            self._lost.discard(number)
            self.counts["late"] += 1
        else:
            self.counts["duplicates"] += 1
        self._undeleted[number] = self._available
        return None if found is None else now - found.begun

    def _forget_expired(self, now: float) -> None:
        """Remove expired messages, and delivered messages that the server should no longer redeliver.

        A later redelivery counts as a duplicate.
        """
        due = self._available - self.patience
        self._undeleted = {number: last for number, last in self._undeleted.items() if last >= due}
        for number, each in [*self._pending.items()]:
            if each.ended is not None and each.ended + TTL + EXPIRY_MARGIN < now:
                del self._pending[number]
                self._unverified.discard(number)
                self.counts["expired"] += each.available is not None


class Canary:
    """A producer and a consumer of numbered messages, each in its own thread."""

    def __init__(self, queue: Queue, ledger: Ledger, interval: float, metrics: "CanaryMetrics") -> None:
        self._queue = queue
        self._ledger = ledger
        self._interval = interval
        self._metrics = metrics
        self._run = uuid4().hex
        self._started = time.monotonic()
        self._stopping = threading.Event()
        self._has_posted_all = threading.Event()
        self.error_count = 0
        self.delays: list[float] = []
        """Seconds from the post to the delivery, since the caller has emptied the list."""

    def stop(self) -> None:
        self._stopping.set()

    def produce(self) -> None:
        """Post a message per interval until the canary stops."""
        try:
            due = time.monotonic()
            while not self._stopping.wait(max(0.0, due - time.monotonic())):
                due = max(due + self._interval, time.monotonic())
                self._post()
        finally:
            self._stopping.set()
            self._has_posted_all.set()

    def consume(self) -> None:
        """Claim and delete messages until the canary has stopped and no message is pending.

        After the stop, the method waits for pending messages about as long as the ledger's patience. Afterwards,
        pending messages that are not in the queue count as lost.
        """
        try:
            while not self._has_posted_all.is_set():
                self._claim()
                self._verify()
            end = time.monotonic() + self._ledger.patience + WAIT
            while self._ledger.pending_count and time.monotonic() < end:
                self._claim()
                self._verify()
            self._verify(patience=-1)
        finally:
            self._stopping.set()

    def _post(self) -> None:
        number = self._ledger.begin(time.monotonic())
        with self._step("post", on_failure=lambda: self._ledger.fail(number, time.monotonic())):
            self._queue.post({RUN: self._run, NUMBER: number}, ttl=TTL)
            self._ledger.acknowledge(number, time.monotonic())

    def _claim(self) -> None:
        began = time.monotonic()
        with self._step("claim", timed=False, on_failure=partial(time.sleep, RETRY_INTERVAL)):
            claim = self._queue.claim(CLAIM_SIZE, ttl=MIN_TTL, grace=MIN_TTL, wait=WAIT)
            now = time.monotonic()
            uptime = now - self._started
            if foreign := next(filter(None, (describe_foreign(one, self._run, uptime) for one in claim.messages)), ""):
                self._queue.release(claim.id)
                raise Failure(
                    f"The queue {self._queue.name} contains {foreign}. Use a queue that only this canary uses.",
                    exit_code(Invalid()),
                )
            own = [message for message in claim.messages if message.body[RUN] == self._run]
            numbers = [message.body[NUMBER] for message in own]
            for delay in self._ledger.record_claim(numbers, now):
                self.delays.append(delay)
                self._metrics.observe("delivery", delay)
            if not claim.messages:
                time.sleep(max(0.0, MIN_ROUND - (now - began)))  # the server did not let the claim wait
                return
            # If another canary is running, it gets its messages back before they count as lost.
            deletable = own if uptime < MIN_TTL else claim.messages
            if deletable:
                with self._step("delete"):
                    self._queue.settle(claim.id, delete=[message.id for message in deletable])
                    for number in numbers:
                        self._ledger.delete(number)

    def _verify(self, patience: float | None = None) -> None:
        """Mark overdue messages that the queue does not contain as lost.

        If the queue cannot be read, the messages stay overdue.
        """
        overdue = self._ledger.find_overdue(time.monotonic(), patience)
        if overdue:
            with self._step("verify"), suppress(NotAuthorized):
                listed = [message for message in self._queue.list(claimed=True, delayed=True) if is_canary(message)]
                stored = {message.body[NUMBER] for message in listed if message.body[RUN] == self._run}
                self._ledger.verify(overdue, stored)

    @contextmanager
    def _step(self, name: str, timed: bool = True, on_failure: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Return a context manager that measures the duration of a request.

        If the request fails temporarily, suppress and count the error, and call ``on_failure``.

        Args:
            name: The value of the label ``step`` in the metrics.
            timed: Whether to measure the duration.
        """
        begun = time.monotonic()
        try:
            yield
        except ZqError as error:
            if not isinstance(error, TEMPORARY) and type(error) is not ZqError:  # ZqError itself: status 500
                raise
            self.error_count += 1
            self._metrics.fail(name)
            on_failure()
        else:
            if timed:
                self._metrics.observe(name, time.monotonic() - begun)


class CanaryMetrics:
    """The canary's metrics for Prometheus. Without a registry, the methods do nothing."""

    def __init__(self, ledger: Ledger, registry: "CollectorRegistry | None") -> None:
        self._errors = self._seconds = None
        if registry is None:
            return
        from prometheus_client import Counter, Gauge, Histogram
        from prometheus_client.core import CounterMetricFamily
        from prometheus_client.registry import Collector

        class LedgerCollector(Collector):
            """A Prometheus collector for the counters of the canary's ledger."""

            def collect(self) -> Iterator[CounterMetricFamily]:
                for name, text in COUNTERS.items():
                    yield CounterMetricFamily(f"zq_canary_{name}", text, value=ledger.counts[name])

        registry.register(LedgerCollector())
        Gauge("zq_canary_pending", "Messages that were not delivered yet.", registry=registry).set_function(
            lambda: ledger.pending_count
        )
        Gauge("zq_canary_missing", "Lost messages that have not arrived late.", registry=registry).set_function(
            lambda: ledger.missing_count
        )
        Gauge("zq_canary_unverified", "Overdue messages whose loss is not verified.", registry=registry).set_function(
            lambda: ledger.unverified_count
        )
        self._errors = Counter(
            "zq_canary_errors_total",
            "Failed requests, by step: post, claim, delete or verify.",
            ["step"],
            registry=registry,
        )
        self._seconds = Histogram(
            "zq_canary_seconds",
            "Duration in seconds, by step: post, delete, verify, or delivery (from the post to the claim's response).",
            ["step"],
            buckets=BUCKETS,
            registry=registry,
        )

    def observe(self, step: str, seconds: float) -> None:
        if self._seconds is not None:
            self._seconds.labels(step).observe(seconds)

    def fail(self, step: str) -> None:
        if self._errors is not None:
            self._errors.labels(step).inc()


def is_canary(message: Message) -> bool:
    """Return whether a canary has posted the message, in this run or an earlier one."""
    try:
        body = message.body
    except UndecodableBody:
        return False
    return isinstance(body, dict) and isinstance(body.get(RUN), str) and isinstance(body.get(NUMBER), int)


def describe_foreign(message: Message, run: str, uptime: float) -> str:
    """Describe a message that another program has posted to the canary's queue, for an error message.

    Return "" if this run or an earlier run of the canary has posted the message.

    Args:
        run: The id of this run.
        uptime: Seconds since this run has started.
    """
    if not is_canary(message):
        return f"a message that no canary has posted: {message.id}"
    if message.body[RUN] != run and message.age + AGE_MARGIN < uptime:
        return f"a message of another running canary: {message.id}"
    return ""


def serve_metrics(bind: str, port: int) -> "CollectorRegistry":
    """Serve metrics in a background thread, and return their registry. Raises ``OSError`` if the address is in use."""
    from prometheus_client import CollectorRegistry, disable_created_metrics, start_http_server

    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    start_http_server(port, bind, registry)
    return registry


@click.command("canary", cls=Command)
@click.option("--queue", required=True, metavar="QUEUE", help="Queue that only this canary uses.")
@click.option(
    "--interval", type=Seconds(0.001), default=1.0, metavar="SECONDS", help="Seconds between messages (default 1)."
)
@click.option("--duration", type=Seconds(0), metavar="SECONDS", help="Stop after this time.")
@click.option(
    "--patience",
    type=Count(MIN_PATIENCE, MAX_PATIENCE),
    default=120,
    metavar="SECONDS",
    help="Time after which the canary looks for an undelivered message (default 120).",
)
@click.option("--port", type=Count(0, 65_535), help="Port for Prometheus metrics (default: no metrics).")
@click.option("--bind", default="127.0.0.1", metavar="ADDRESS", help="Address for the metrics (default 127.0.0.1).")
@pass_session
def canary(
    session: Session, queue: str, interval: float, duration: float | None, patience: int, port: int | None, bind: str
) -> None:
    """Post, claim and delete numbered messages, and report lost messages, duplicates and latency.

    The command prints a line each minute and at the end. After --duration or on SIGTERM, it posts no further messages,
    and ends as soon as each message is delivered or lost, or after a time limit. If messages were lost, the exit code
    is 9. If messages were not delivered but are not known to be lost, the exit code is 10.
    """
    ledger = Ledger(patience)
    metrics = CanaryMetrics(ledger, None if port is None else serve_metrics(bind, port))
    runner = Canary(session.queue(queue), ledger, interval, metrics)
    end = None if duration is None else time.monotonic() + duration
    with ThreadPoolExecutor(2, "zq-canary") as pool, stop_on_signals(runner.stop):
        work = [pool.submit(runner.produce), pool.submit(runner.consume)]
        try:
            report_regularly(session, runner, ledger, work, end)
        finally:
            runner.stop()
    session.out.line(summarize(ledger, runner))
    for thread in work:
        thread.result()
    if ledger.missing_count:
        raise Failure(f"Lost messages: {ledger.missing_count:,}.", LOSS)
    if ledger.pending_count:
        raise Failure(
            f"Messages that were not delivered, but are not known to be lost: {ledger.pending_count:,}.", UNVERIFIED
        )


def report_regularly(
    session: Session, runner: Canary, ledger: Ledger, work: list[Future[None]], end: float | None
) -> None:
    """Print a line per minute until the threads have ended. Stop them at the monotonic time ``end``."""
    due = time.monotonic() + REPORT_INTERVAL
    pending = {*work}
    while pending:
        now = time.monotonic()
        _, pending = wait(pending, max(0.0, min(due if end is None else min(due, end), due) - now))
        now = time.monotonic()
        if end is not None and now >= end:
            runner.stop()
            end = None
        if pending and now >= due:
            due += REPORT_INTERVAL
            session.out.line(summarize(ledger, runner))


def summarize(ledger: Ledger, runner: Canary) -> Mapping[str, Any]:
    """Return the counters and latencies for a line of output.

    Latencies are in milliseconds and cover the messages since the previous call.
    """
    delays, runner.delays = sorted(runner.delays), []
    percentiles = {f"p{part}": round(percentile(delays, part) * 1000, 1) for part in (50, 99)}
    waiting = {"pending": ledger.pending_count, "unverified": ledger.unverified_count}
    return {**ledger.counts, **waiting, "errors": runner.error_count, **percentiles}
