# SPDX-License-Identifier: Apache-2.0
"""The bounded queue of spans, and their export to an OTLP/HTTP receiver."""

import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, StatusCode, set_span_in_context

from zq import __version__
from zq.events import Events
from zq.tracing.settings import MAX_QUEUED

LOG = logging.getLogger(__name__)
# Seconds since the stop for which the process waits for the export of the last spans, and the same if the receiver
# fails.
STOP_TIMEOUT: Final = 2.0
FAILING_STOP_TIMEOUT: Final = 1.0
# Seconds after which an export counts as failing. The SDK repeats an export for up to ten seconds.
SLOW_EXPORT: Final = 0.5
# Nanoseconds per second.
NANOSECONDS: Final = 1_000_000_000
# The HTTP status in a log record of the SDK.
STATUS: Final = re.compile(r"code: ([0-9]{3})\b")


class ExporterLogFilter(logging.Filter):
    """A filter that suppresses the log records of an exporter, which contain URLs and repeat with each attempt.

    Attributes:
        status: Latest HTTP status in a record; "" if there is none.
    """

    status = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if found := STATUS.search(record.getMessage()):
            self.status = found[1]
        return False

    def reset(self) -> None:
        """Forget the status, because an export has succeeded."""
        self.status = ""


class BoundedExporter(SpanExporter):
    """An exporter with a limit for the number of queued spans. It counts the spans that were not sent.

    Thread-safe.

    Args:
        receiver: Host and port of the receiver, as shown in log messages.
    """

    def __init__(self, exporter: SpanExporter, events: Events, receiver: str) -> None:
        self._exporter = exporter
        self._events = events
        self._receiver = receiver
        self._lock = threading.Lock()
        self._queued_count = self._exporting_count = 0
        self._export_began = 0.0
        self._is_closed = self._is_abandoned = self._has_failed = False
        self._filter = ExporterLogFilter()
        self._details = logging.getLogger(type(exporter).__module__)
        self._details.addFilter(self._filter)

    def reserve(self) -> bool:
        """Reserve a place in the queue for a span.

        If the queue is full or closed, count a dropped span and return ``False``.
        """
        with self._lock:
            has_space = self._queued_count < MAX_QUEUED and not self._is_closed
            self._queued_count += has_space
        if not has_space:
            self._events.spans_dropped(1)
        return has_space

    def close(self) -> None:
        """Accept no further spans."""
        with self._lock:
            self._is_closed = True

    def is_failing(self) -> bool:
        """Return whether the last export failed, or the current one has taken ``SLOW_EXPORT`` seconds."""
        with self._lock:
            is_slow = time.monotonic() - self._export_began >= SLOW_EXPORT
            return self._has_failed or (self._exporting_count > 0 and is_slow)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._lock:
            self._queued_count -= len(spans)
            self._exporting_count = len(spans)
            self._export_began = time.monotonic()
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:  # an exporter that raises an error has failed
            self._end_export(len(spans), result is not SpanExportResult.SUCCESS)
        return result

    def abandon(self) -> None:
        """Record all unsent spans as dropped, because the process ends."""
        with self._lock:
            count = self._queued_count + self._exporting_count
            self._queued_count = self._exporting_count = 0
            self._is_abandoned = True
        if count:
            self._events.spans_dropped(count)
            LOG.warning("The server stops before %s has received the last %d spans.", self._receiver, count)

    def shutdown(self) -> None:
        self._exporter.shutdown()
        self._details.removeFilter(self._filter)

    def _end_export(self, count: int, has_failed: bool) -> None:
        with self._lock:
            is_counted = has_failed and not self._is_abandoned
            has_changed = has_failed != self._has_failed
            self._has_failed = has_failed
            self._exporting_count = 0
        if is_counted:
            self._events.spans_dropped(count)
        if has_changed and has_failed:
            status = f" with status {self._filter.status}" if self._filter.status else ""
            LOG.warning(
                "Spans are not sent, because their receiver %s fails%s; zq_spans_dropped_total counts them.",
                self._receiver,
                status,
            )
        elif has_changed:
            self._filter.reset()
            LOG.info("Spans are sent again.")


class ChosenIds(IdGenerator):
    """An id generator that returns the ids that ``choose`` has set for the thread's next span."""

    def __init__(self) -> None:
        self._chosen = threading.local()

    def choose(self, trace_id: int, span_id: int) -> None:
        self._chosen.trace_id, self._chosen.span_id = trace_id, span_id

    def generate_trace_id(self) -> int:
        chosen: int = self._chosen.trace_id
        return chosen

    def generate_span_id(self) -> int:
        chosen: int = self._chosen.span_id
        return chosen


class SpanRecord(Struct, frozen=True):
    """A finished span.

    Attributes:
        trace_id: Trace id; the same as the parent span's, if there is a parent.
        links: Contexts of the spans that posted the delivered messages.
        ended: End of the span, in seconds since the epoch.
        seconds: Duration of the span.
    """

    name: str
    kind: SpanKind
    trace_id: int
    span_id: int
    parent: SpanContext | None
    attributes: Mapping[str, str | int | float]
    links: Sequence[SpanContext]
    ended: float
    seconds: float
    failed: bool


class Recorder:
    """The queue of spans of a server process. Thread-safe.

    Args:
        receiver: Host and port of the receiver, as shown in log messages.
    """

    def __init__(self, exporter: SpanExporter, events: Events, receiver: str) -> None:
        self._ids = ChosenIds()
        self._exporter = BoundedExporter(exporter, events, receiver)
        # Standard environment variables take precedence.
        own = {SERVICE_NAME: "zq", SERVICE_VERSION: __version__}
        resource = Resource.create({**own, **OTELResourceDetector().detect().attributes})
        self._provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self._ids)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, MAX_QUEUED))
        self._tracer = self._provider.get_tracer("zq", __version__)
        self._stopping = threading.Event()
        self._stopped_at = 0.0
        # The SDK's shutdown takes up to 30 seconds. Python starts no thread while it exits, so this one waits from now.
        self._stopper = threading.Thread(target=self._shut_down, name="zq-tracing-stop", daemon=True)
        self._stopper.start()

    def record(self, record: SpanRecord) -> None:
        """Queue a span for export, or drop it if the queue is full. Never blocks."""
        if not self._exporter.reserve():
            return
        self._ids.choose(record.trace_id, record.span_id)
        span = self._tracer.start_span(
            record.name,
            Context() if record.parent is None else set_span_in_context(NonRecordingSpan(record.parent), Context()),
            record.kind,
            record.attributes,
            [Link(context) for context in record.links],
            round((record.ended - record.seconds) * NANOSECONDS),
        )
        if record.failed:
            span.set_status(StatusCode.ERROR)
        span.end(round(record.ended * NANOSECONDS))

    def stop(self) -> None:
        """Start to send the queued spans, and reject further spans. Does not wait."""
        if not self._stopping.is_set():
            self._stopped_at = time.monotonic()
            self._exporter.close()
            self._stopping.set()

    def finish(self) -> None:
        """Stop, and wait until the queued spans are sent. Spans that are not sent in time are dropped.

        The wait ends ``STOP_TIMEOUT`` seconds after the call of ``stop`` at the latest. If exports fail, it ends after
        ``FAILING_STOP_TIMEOUT`` seconds.
        """
        self.stop()
        self._wait(FAILING_STOP_TIMEOUT)
        if self._stopper.is_alive() and not self._exporter.is_failing():
            self._wait(STOP_TIMEOUT)
        self._exporter.abandon()

    def _wait(self, timeout: float) -> None:
        self._stopper.join(max(self._stopped_at + timeout - time.monotonic(), 0))

    def _shut_down(self) -> None:
        self._stopping.wait()
        self._provider.shutdown()


def create_recorder(endpoint: str, events: Events) -> Recorder:
    """Create a recorder that sends spans to the OTLP/HTTP receiver at ``endpoint``.

    Args:
        endpoint: Complete URL.
        events: Observes dropped spans.
    """
    return Recorder(OTLPSpanExporter(endpoint), events, urlsplit(endpoint).netloc)
