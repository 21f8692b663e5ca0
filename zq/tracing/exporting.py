# SPDX-License-Identifier: Apache-2.0
"""The bounded queue of spans, and their export to an OTLP/HTTP receiver."""

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Final

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

LOG = logging.getLogger(__name__)
# Maximum number of spans that wait for their export.
MAX_QUEUED: Final = 2048
# Seconds for which a stopping server waits for the export of the last spans.
STOP_TIMEOUT: Final = 5.0
# Nanoseconds per second.
NANOSECONDS: Final = 1_000_000_000


class BoundedExporter(SpanExporter):
    """An exporter with a limit for the number of queued spans. It counts the spans that were not sent.

    Thread-safe.
    """

    def __init__(self, exporter: SpanExporter, events: Events) -> None:
        self._exporter = exporter
        self._events = events
        self._lock = threading.Lock()
        self._queued_count = 0
        self._is_failing = False
        self._details = logging.getLogger(type(exporter).__module__)

    def reserve(self) -> bool:
        """Reserve a place in the queue for a span. If the queue is full, count a dropped span and return ``False``."""
        with self._lock:
            has_space = self._queued_count < MAX_QUEUED
            self._queued_count += has_space
        if not has_space:
            self._events.spans_dropped(1)
        return has_space

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._lock:
            self._queued_count -= len(spans)
        result = self._exporter.export(spans)
        has_failed = result is not SpanExportResult.SUCCESS
        if has_failed:
            self._events.spans_dropped(len(spans))
        if has_failed != self._is_failing:
            self._log_change(has_failed)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def _log_change(self, is_failing: bool) -> None:
        """Log the start or the end of an outage of the receiver.

        During the outage, the exporter logs no details. Otherwise it would log several lines for each attempt.
        """
        self._is_failing = is_failing
        self._details.setLevel(logging.CRITICAL if is_failing else logging.NOTSET)
        if is_failing:
            LOG.warning("Spans are not sent, because their receiver fails; zq_spans_dropped_total counts them.")
        else:
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
        trace_id: Trace id, which is also the parent's.
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
    """The queue of spans of a server process. Thread-safe."""

    def __init__(self, exporter: SpanExporter, events: Events) -> None:
        self._ids = ChosenIds()
        self._exporter = BoundedExporter(exporter, events)
        # Standard environment variables take precedence.
        own = {SERVICE_NAME: "zq", SERVICE_VERSION: __version__}
        resource = Resource.create({**own, **OTELResourceDetector().detect().attributes})
        self._provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self._ids)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, MAX_QUEUED))
        self._tracer = self._provider.get_tracer("zq", __version__)
        self._stopping = threading.Event()
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
        """Send the queued spans. Returns after ``STOP_TIMEOUT`` even if the receiver is not available."""
        self._stopping.set()
        self._stopper.join(STOP_TIMEOUT)

    def _shut_down(self) -> None:
        self._stopping.wait()
        self._provider.shutdown()


def create_recorder(endpoint: str, events: Events) -> Recorder:
    """Create a recorder that sends spans to the OTLP/HTTP receiver at ``endpoint``.

    Args:
        endpoint: URL; "" = the standard environment variables of OpenTelemetry.
        events: Observes dropped spans.
    """
    return Recorder(OTLPSpanExporter(endpoint or None), events)
