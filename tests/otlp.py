# SPDX-License-Identifier: Apache-2.0
"""A local receiver of OpenTelemetry spans over OTLP/HTTP."""

import threading
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.sites import LocalServer


class Received(NamedTuple):
    """A span with hexadecimal ids; ``links`` are pairs of trace id and span id."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    seconds: float
    failed: bool
    service: str


class Receiver(LocalServer):
    """A server that stores all received spans."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[Received] = []
        super().__init__(self._handler())

    @property
    def spans(self) -> list[Received]:
        """Return all spans so far, ordered by end."""
        with self._lock:
            return [*self._spans]

    def named(self, name: str) -> list[Received]:
        return [span for span in self.spans if span.name == name]

    def _receive(self, path: str, body: bytes) -> int:
        if path != "/v1/traces":
            return 404
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = next(each.value.string_value for each in group.resource.attributes if each.key == "service.name")
            with self._lock:
                self._spans += [_read(span, service) for scope in group.scope_spans for span in scope.spans]
        return 200

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receive = self._receive

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.send_response(receive(self.path, self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def _read(span: Span, service: str) -> Received:
    values = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
    return Received(
        span.name,
        Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        values,
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        span.status.code == 2,
        service,
    )
