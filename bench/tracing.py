# SPDX-License-Identifier: Apache-2.0
"""Processor time that tracing adds to a request, in µs, on the request's own thread and on the export thread.

``python -m bench.tracing [--rounds N] [--calls N]`` prints a table. The first rows measure the middleware alone,
because differences between whole requests are smaller than their noise. With tracing off, the server has no middleware.
Two rows add the observer of the store's operations for a post and a claim. The bound of all rows without a span is
0.5 µs.
The last rows measure a repeated claim, which returns the same 20 messages, each with a trace context of its own. The
spans are encoded, but no receiver gets them. Each round measures all rows in turn, and the best round counts.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import falcon
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from bench.application import Application, Request, call, create_environ
from zq.clock import ManualClock
from zq.core import Broker
from zq.events import NO_EVENTS, Events
from zq.http.app import create_app
from zq.http.context import Request as HttpRequest
from zq.serving.metrics.timed import measure_verbs
from zq.storage import connect
from zq.tracing.exporting import Recorder
from zq.tracing.feature import TracingFeature
from zq.tracing.requests import RequestTracing
from zq.tracing.store_calls import StoreCallObserver

PARENT: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"
SAMPLED, UNSAMPLED = f"{PARENT}1", f"{PARENT}0"
HEALTH: Final = Request("GET", "/healthz")
LINKS: Final = 20
MESSAGES: Final = [
    {"body": 1, "attributes": {"traceparent": f"{PARENT[:-4]}{number:02}-01"}} for number in range(LINKS)
]
POST: Final = Request("POST", "/v2/queues/q/messages", body=json.dumps({"messages": MESSAGES}).encode())
ONE: Final = Request("POST", "/v2/queues/q/messages", body=b'{"messages": [{"body": 1}]}')
CLAIM: Final = Request("PUT", "/v2/queues/q/claims/bench.mine", f"limit={LINKS}", b'{"ttl": 43200}')


class Encoder(SpanExporter):
    """An exporter that only encodes the spans. ``spent`` is its processor time in seconds."""

    def __init__(self) -> None:
        self.spent, self.count = 0.0, 0

    def export(self, spans: Any) -> SpanExportResult:
        began = time.thread_time()
        encode_spans(spans).SerializeToString()
        self.spent += time.thread_time() - began
        self.count += len(spans)
        return SpanExportResult.SUCCESS


class VerbCounter(Events):
    """A counter of the operations of the store."""

    count = 0

    def store_called(self, _verb: str, _seconds: float) -> None:
        self.count += 1


def count_store_calls(request: Request) -> int:
    """Return the number of operations of the store that a repeated request calls."""
    counter = VerbCounter()
    app = create_app(Broker(measure_verbs(connect("memory:"), counter), ManualClock(time.time())))
    call(app, POST)
    call(app, request)
    before = counter.count
    call(app, request)
    return counter.count - before


def measure_observer(tracing: RequestTracing, store_calls: int, calls: int) -> float:
    """Return the mean µs of the middleware and the observer for a request without a parent."""
    observed = StoreCallObserver().store_called
    began = time.thread_time()
    for _ in range(calls * store_calls):
        observed("messages.post", 0.001)
    return (time.thread_time() - began) / calls * 1e6 + measure_middleware(tracing, "", calls)


def measure_middleware(tracing: RequestTracing, parent: str, calls: int) -> float:
    """Return the mean µs of the middleware's two calls for a request."""
    more = {"HTTP_TRACEPARENT": parent} if parent else {}
    requests = [HttpRequest(create_environ(*HEALTH) | more) for _ in range(calls)]
    response = falcon.Response()
    for request in requests:
        request.context.began = time.monotonic()
    began = time.thread_time()
    for request in requests:
        tracing.process_request(request, response)
        tracing.process_response(request, response, None, True)
    return (time.thread_time() - began) / calls * 1e6


def measure_claim(app: Application, parent: str, calls: int) -> float:
    """Return the mean µs of a repeated claim."""
    environments = [create_environ(*CLAIM) | {"HTTP_TRACEPARENT": parent} for _ in range(calls)]
    start: Callable[..., None] = lambda _status, _headers, _error=None: None  # noqa: E731
    began = time.thread_time()
    for environ in environments:
        app(environ, start)
    return (time.thread_time() - began) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=1000)
    arguments = parser.parse_args()
    broker, exporter = Broker(connect("memory:"), ManualClock(time.time())), Encoder()
    recorder = Recorder(exporter, NO_EVENTS, "no receiver")
    sampling, never = RequestTracing(0.01, recorder), RequestTracing(0.0, recorder)
    off, traced = create_app(broker), create_app(broker, features=[TracingFeature([sampling])])
    call(off, POST)
    call(traced, CLAIM)
    claim = f"claim of {LINKS}"
    posted, claimed = count_store_calls(ONE), count_store_calls(CLAIM)
    rows: dict[str, Callable[[int], float]] = {
        "parent without the flag": partial(measure_middleware, sampling, UNSAMPLED),
        "no parent, sample = 0": partial(measure_middleware, never, ""),
        "no parent, sample = 0.01": partial(measure_middleware, sampling, ""),
        f"post, operations of the store: {posted}": partial(measure_observer, never, posted),
        f"claim, operations of the store: {claimed}": partial(measure_observer, never, claimed),
        "parent with the flag": partial(measure_middleware, sampling, SAMPLED),
        f"{claim}, off": partial(measure_claim, off, SAMPLED),
        f"{claim}, without the flag": partial(measure_claim, traced, UNSAMPLED),
        f"{claim}, {LINKS} links": partial(measure_claim, traced, SAMPLED),
    }
    found = dict.fromkeys(rows, float("inf"))
    for _ in range(arguments.rounds):
        for name, row in rows.items():
            found[name] = min(found[name], row(arguments.calls))
    recorder.stop()
    print("| Request | µs |\n|---|--:|")
    for name, microseconds in found.items():
        print(f"| {name} | {microseconds:.2f} |")
    print(f"\nThe export thread spends {exporter.spent / exporter.count * 1e6:.0f} µs on each span.")


if __name__ == "__main__":
    main()
