# SPDX-License-Identifier: Apache-2.0
"""Spans of requests: the traced requests, and their links to spans of producers."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind

from tests.http.api import Api
from tests.otlp import Received, Receiver
from tests.servers import ZqServer, ask, wait_for
from zq.errors import StartRefused, TooManyRequests
from zq.events import NO_EVENTS, Events
from zq.tracing import exporting, requests, settings, store_calls
from zq.tracing.exporting import BoundedExporter, Recorder, SpanRecord, create_recorder
from zq.tracing.feature import TracingFeature, tracing_feature, tracing_observers
from zq.tracing.requests import RequestSpan, RequestTracing
from zq.tracing.settings import SECTION, TracingOptions
from zq.tracing.store_calls import MAX_STORE_CALLS, StoreCallObserver

JOBS = "/v2/queues/jobs"
TRACE, PRODUCER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{PRODUCER}-01"}
CONSUMER = {"traceparent": "00-11111111111111111111111111111111-2222222222222222-01"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{PRODUCER}-00"}
ONE: dict[str, Any] = {"messages": [{"body": 1}]}
# SQS operations on a queue, with their fields.
SQS: dict[str, dict[str, Any]] = {
    "SendMessage": {"MessageBody": "x"},
    "ReceiveMessage": {"VisibilityTimeout": 0},
    "ListQueues": {},
}
# An address on which no server listens.
NOWHERE = "http://127.0.0.1:9"
Traced = Callable[..., Api]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def recorder(receiver: Receiver) -> Iterator[Recorder]:
    recorder = create_recorder(f"{receiver.url}/v1/traces", NO_EVENTS)
    yield recorder
    recorder.finish()


@pytest.fixture
def traced(compose: Callable[..., Api], recorder: Recorder) -> Traced:
    """Return a function that builds an app which traces a fraction of the requests without a parent."""

    def build(
        sample: float = 0.0,
        names_project: bool = False,
        observers: Sequence[Events] = (),
        middleware: Sequence[object] = (),
    ) -> Api:
        feature = TracingFeature([RequestTracing(sample, recorder, names_project), *middleware])
        return compose(app={"features": [feature]}, store_observers=observers)

    return build


@pytest.fixture
def sent(receiver: Receiver, recorder: Recorder) -> Callable[[], list[Received]]:
    """Return a function that ends the recorder and returns all spans."""

    def end() -> list[Received]:
        recorder.finish()
        return receiver.spans

    return end


@pytest.mark.every_store
def test_the_span_of_a_claim_links_to_the_producer_through_a_dead_letter_and_a_redrive(
    traced: Traced, sent: Callable[[], list[Received]]
) -> None:
    api = traced()
    api.put(JOBS, 201, {"_dead_letter_queue": "dead", "_max_claim_count": 3})
    api.post(f"{JOBS}/messages", 201, ONE, PARENT)
    claim = api.post(f"{JOBS}/claims", 201, headers=CONSUMER)
    bury = {"bury": [{"id": claim.json["messages"][0]["id"], "reason": "no use"}]}
    api.post(f"{claim.headers['Location']}/settle", 200, bury, CONSUMER)
    api.post("/v2/queues/dead/claims?detailed=true", 201, {"ttl": 60}, CONSUMER)
    [claimed] = api.get("/v2/queues/dead/claims", 200).json["claims"]
    api.delete(f"/v2/queues/dead/claims/{claimed['id']}", 204, CONSUMER)
    api.post("/v2/queues/dead/redrive", 200, {}, CONSUMER)
    api.delete(f"{JOBS}/messages?pop=1", 200, CONSUMER)
    spans = sent()
    assert [(span.name, span.kind) for span in spans] == [
        ("send jobs", "PRODUCER"),
        ("receive jobs", "CONSUMER"),
        ("settle jobs", "SERVER"),
        ("receive dead", "CONSUMER"),
        ("settle dead", "SERVER"),
        ("POST /v2/queues/{queue}/redrive", "SERVER"),
        ("receive jobs", "CONSUMER"),
    ]
    send, *others = spans
    assert (send.trace, send.parent) == (TRACE, PRODUCER)
    assert {(span.trace, span.parent) for span in others} == {("1" * 32, "2" * 16)}
    assert [span.links for span in spans if span.kind == "CONSUMER"] == [[(TRACE, PRODUCER)]] * 3
    assert len({span.id for span in spans}) == len(spans)


@pytest.mark.every_store
def test_a_sampled_request_has_a_child_span_per_operation_of_the_store(
    traced: Traced, sent: Callable[[], list[Received]]
) -> None:
    """Unsampled requests on the same thread have none, and add none to another request."""
    api = traced(observers=[StoreCallObserver()])
    api.post(f"{JOBS}/messages", 201, ONE, PARENT)
    api.post(f"{JOBS}/messages", 201, ONE, UNSAMPLED)
    claim = api.post(f"{JOBS}/claims", 201, headers=CONSUMER)
    api.get(f"{JOBS}/depth", 200, CONSUMER)
    api.get(f"{JOBS}/depth", 200)
    api.delete(claim.headers["Location"], 204, CONSUMER)
    spans = sent()
    parents = [span for span in spans if not span.name.startswith("store ")]
    children = {parent.name: [span for span in spans if span.parent == parent.id] for parent in parents}
    assert sum(map(len, children.values())) == len(spans) - len(parents)
    found = {name: {span.name for span in calls} for name, calls in children.items()}
    assert "store messages.post" in found["send jobs"]
    assert "store claims.create" in found["receive jobs"]
    assert "store claims.release" in found["settle jobs"]
    assert "store depth" in found["GET /v2/queues/{queue}/depth"]
    for parent in parents:
        for child in children[parent.name]:
            assert (child.trace, child.kind, child.attributes, child.links) == (parent.trace, "INTERNAL", {}, [])
            assert 0 <= child.seconds <= parent.seconds
    names = [span.name for span in children["send jobs"]]
    assert names.count("store messages.post") == 1


def test_an_unsampled_request_collects_no_operations(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(requests, "collect", fail)
    monkeypatch.setattr(store_calls, "StoreCall", fail)
    api = traced(observers=[StoreCallObserver()])
    api.post(f"{JOBS}/messages", 201, ONE, UNSAMPLED)
    api.post(f"{JOBS}/claims", 201)


def test_the_store_has_no_observer_while_tracing_is_off() -> None:
    assert tracing_observers(TracingOptions()) == []
    assert len(tracing_observers(TracingOptions(enabled=True))) == 1


def test_a_request_has_at_most_100_child_spans(traced: Traced, sent: Callable[[], list[Received]]) -> None:
    observer = StoreCallObserver()

    class Calling:
        def process_request(self, _req: Any, _resp: Any) -> None:
            for _ in range(MAX_STORE_CALLS + 1):
                observer.store_called("messages.get", 0.001)

    api = traced(1.0, middleware=[Calling()])
    api.get("/v2/queues", 200)
    assert [span.name for span in sent()].count("store messages.get") == MAX_STORE_CALLS == 100


@pytest.mark.every_store
def test_a_commit_has_a_span_of_its_own(traced: Traced, sent: Callable[[], list[Received]]) -> None:
    api = traced(observers=[StoreCallObserver()])
    api.post(f"{JOBS}/messages?stage=s1", 202, ONE, PARENT)
    commit = {"producer": "p", "batch": 1, "publish": ["s1"]}
    api.post("/v2/commits", 200, commit, CONSUMER)
    api.get("/v2/commits/p", 200, CONSUMER)
    [send], [committed] = ([span for span in sent() if span.name == name] for name in ("send jobs", "commit"))
    assert (send.kind, committed.kind) == ("PRODUCER", "SERVER")
    assert committed.attributes["messaging.operation.name"] == "commit"
    assert committed.attributes["messaging.operation.type"] == "settle"
    names = {span.name for span in sent()}
    assert {"GET /v2/commits/{producer}", "store transactions.commit"} <= names


@pytest.mark.parametrize("names_project", [False, True])
def test_spans_name_the_project_only_if_the_option_is_set(
    traced: Traced, sent: Callable[[], list[Received]], names_project: bool
) -> None:
    api = traced(1.0, names_project=names_project)
    api.post(f"{JOBS}/messages", 201, ONE)
    api.get("/v2/queues", 200)
    api.get("/v2/none", 404)
    send, queues, missing = sent()
    expected = api.project if names_project else None
    assert [span.attributes.get("zq.project") for span in (send, queues)] == [expected] * 2
    assert all(api.project not in map(str, span.attributes.values()) for span in (send, queues, missing)) is (
        not names_project
    )


def test_a_span_has_the_attributes_of_the_conventions_and_no_body(
    traced: Traced, sent: Callable[[], list[Received]]
) -> None:
    api = traced(1.0)
    api.post(f"{JOBS}/messages", 201, {"messages": [{"body": "secret"}] * 3})
    api.get("/v2/queues/none/stats", 200)
    send, stats = sent()
    assert send.attributes == {
        "http.request.method": "POST",
        "http.route": "/v2/queues/{queue}/messages",
        "http.response.status_code": 201,
        "messaging.system": "zq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "jobs",
        "messaging.client.id": "30387f00",
        "messaging.batch.message_count": 3,
    }
    assert (send.service, send.failed, send.parent) == ("zq", False, "")
    assert 0 < send.seconds < 60
    assert stats.attributes == {
        "http.request.method": "GET",
        "http.route": "/v2/queues/{queue}/stats",
        "http.response.status_code": 200,
    }


@pytest.mark.parametrize(
    ("headers", "count"),
    [
        (PARENT, 1),
        ({"traceparent": f"00-{TRACE}-{PRODUCER}-03"}, 1),
        (UNSAMPLED, 0),
        ({"traceparent": f"00-{'0' * 32}-{PRODUCER}-01"}, 0),
        ({"traceparent": "none"}, 0),
        ({"traceparent": ""}, 0),
        ({}, 0),
    ],
)
def test_the_flag_of_the_parent_decides_whether_a_request_has_a_span(
    traced: Traced, sent: Callable[[], list[Received]], headers: dict[str, str], count: int
) -> None:
    api = traced()
    api.post(f"{JOBS}/messages", 201, ONE, headers)
    api.get("/v2/none", 404, headers)
    assert [span.name for span in sent()] == ["send jobs", "GET"] * count


def test_a_parent_without_the_flag_suppresses_the_span_of_a_sampled_fraction(
    traced: Traced, sent: Callable[[], list[Received]]
) -> None:
    traced(1.0).post(f"{JOBS}/messages", 201, ONE, UNSAMPLED)
    assert sent() == []


def test_a_sampled_post_without_a_parent_is_linked_by_its_own_span(
    traced: Traced, sent: Callable[[], list[Received]]
) -> None:
    api = traced(1.0)
    api.post(f"{JOBS}/messages", 201, ONE)
    api.post(f"{JOBS}/claims", 201)
    send, receive = sent()
    assert receive.links == [(send.trace, send.id)]
    assert receive.trace != send.trace


def test_a_span_has_at_most_20_links(traced: Traced, sent: Callable[[], list[Received]]) -> None:
    api = traced()
    parents = [PARENT["traceparent"].replace("b7-", f"{number:02}-") for number in range(30)]
    own = [{"body": 1, "attributes": {"traceparent": parent}} for parent in parents]
    api.post(f"{JOBS}/messages", 201, {"messages": [{"body": 1}, *own]})
    api.post(f"{JOBS}/claims?limit=31", 201, headers=CONSUMER)
    [receive] = sent()
    assert receive.links == [(TRACE, parent.split("-")[2]) for parent in parents[:20]]


def test_messages_of_one_span_have_one_link(traced: Traced, sent: Callable[[], list[Received]]) -> None:
    """Other attributes may differ; an attribute that is not a valid context has no link."""
    api = traced()
    messages = [{"body": 1}, {"body": 1}, {"body": 1, "attributes": {"traceparent": "none"}}]
    api.post(f"{JOBS}/messages", 201, {"messages": messages}, UNSAMPLED)
    api.post(f"{JOBS}/messages", 201, {"messages": [{"body": 1, "attributes": {"kind": "x"}}]}, UNSAMPLED)
    api.post(f"{JOBS}/claims", 201, headers=CONSUMER)
    [receive] = sent()
    assert receive.links == [(TRACE, PRODUCER)]


def test_the_answers_are_the_same_without_tracing_and_with_it(compose: Callable[..., Api], traced: Traced) -> None:
    """The responses are equal byte for byte, even for a message with a context."""

    def answers(api: Api) -> list[bytes]:
        api.put(JOBS, 201)
        api.post(f"{JOBS}/messages", 201, {"messages": [{"body": 1, "ttl": 300}]}, PARENT)
        pages = [api.get(f"{JOBS}/messages?echo=true{more}", 200, CONSUMER) for more in ("", "&detailed=true")]
        [id] = [message["id"] for message in pages[0].json["messages"]]
        return [page.body.replace(id.encode(), b"") for page in pages]

    plain, with_spans = compose().fresh(), traced(1.0).fresh()
    assert answers(plain) == answers(with_spans)


def test_a_context_that_the_server_made_leaves_the_base_representation_unchanged(
    compose: Callable[..., Api], traced: Traced
) -> None:
    """The responses are equal byte for byte, although the message has a new attribute."""

    def answers(api: Api) -> tuple[bytes, bytes]:
        api.post(f"{JOBS}/messages", 201, {"messages": [{"body": 1, "ttl": 300}]})
        base, detailed = (api.get(f"{JOBS}/messages?echo=true{more}", 200) for more in ("", "&detailed=true"))
        [id] = [message["id"] for message in base.json["messages"]]
        return base.body.replace(id.encode(), b""), detailed.body

    (plain, plain_details), (with_span, details) = answers(compose().fresh()), answers(traced(1.0).fresh())
    assert plain == with_span
    assert b"traceparent" not in plain_details
    assert b"traceparent" in details


def test_a_tracestate_without_a_parent_is_not_stored_with_the_servers_context(traced: Traced) -> None:
    api = traced(1.0)
    api.post(f"{JOBS}/messages", 201, ONE, {"tracestate": "other=1"})
    [message] = api.get(f"{JOBS}/messages?echo=true&detailed=true", 200).json["messages"]
    assert [*message["attributes"]] == ["traceparent"]


def test_probes_have_no_spans(traced: Traced, sent: Callable[[], list[Received]]) -> None:
    api = traced(1.0)
    for path in ("/healthz", "/readyz", "/metrics"):
        for headers in ({}, PARENT):
            api.call("GET", path, None, headers=headers)
    assert sent() == []


def test_an_unknown_method_does_not_name_a_span(traced: Traced, sent: Callable[[], list[Received]]) -> None:
    traced(1.0).unchecked().call("FOO", "/v2/queues", None)
    [span] = sent()
    assert span.name.split()[0] == span.attributes["http.request.method"] == "_OTHER"


def test_a_rate_limit_that_a_zaqar_client_sees_as_503_is_no_error(
    compose: Callable[..., Api], recorder: Recorder, sent: Callable[[], list[Received]]
) -> None:
    class Refusing:
        def process_request(self, _req: Any, _resp: Any) -> None:
            raise TooManyRequests("Too many requests.", 1, limit="requests")

    feature = TracingFeature([RequestTracing(1.0, recorder), Refusing()])
    api = compose(app={"features": [feature]})
    api.get("/v2/queues", 503, {"User-Agent": "python-requests/2"})
    [span] = sent()
    assert (span.failed, span.attributes["http.response.status_code"]) == (False, 503)
    assert "error.type" not in span.attributes


def test_no_middleware_is_installed_while_tracing_is_off() -> None:
    assert tracing_feature(TracingOptions(), NO_EVENTS).middleware == ()


def call_sqs(url: str, action: str, **fields: Any) -> Any:
    headers = {**PARENT, "X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
    answer = httpx.post(url, headers=headers, content=json.dumps(fields))
    assert answer.status_code == 200, answer.text
    return answer.json() if answer.content else None


class Blocked(SpanExporter):
    """An exporter whose receiver responds only after ``answer`` is set."""

    def __init__(self, result: SpanExportResult) -> None:
        self.result = result
        self.answer = threading.Event()

    def export(self, _spans: Any) -> SpanExportResult:
        self.answer.wait(60)
        return self.result


def span_record() -> SpanRecord:
    context = RequestSpan(None)
    return SpanRecord("x", SpanKind.SERVER, context.trace_id, context.span_id, None, {}, (), time.time(), 0.1, False)


class Dropped(Events):
    """A counter of dropped spans."""

    count = 0

    def spans_dropped(self, count: int) -> None:
        self.count += count


def test_spans_beyond_the_queue_are_dropped_and_counted_while_the_receiver_hangs(
    compose: Callable[..., Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans of a failed export count too. No request waits for the receiver."""
    monkeypatch.setattr(exporting, "MAX_QUEUED", 20)
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    exporter, dropped = Blocked(SpanExportResult.FAILURE), Dropped()
    recorder = Recorder(exporter, dropped, "collector:4318")
    api = compose(app={"features": [TracingFeature([RequestTracing(1.0, recorder)])]})
    began = time.monotonic()
    for _ in range(50):
        api.get("/v2/queues", 200)
    assert time.monotonic() - began < 30
    assert 50 - 20 - 10 <= dropped.count <= 50 - 20
    exporter.answer.set()
    recorder.finish()
    assert dropped.count == 50


@pytest.mark.parametrize(
    ("has_failed", "slow_export", "timeout", "seconds"),
    [(False, 30.0, 0.3, 0.3), (False, 0.05, 20.0, 0.1), (True, 30.0, 20.0, 0.1)],
)
def test_a_stop_waits_for_a_receiver_that_hangs_only_after_the_store_is_closed(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_failed: bool,
    slow_export: float,
    timeout: float,
    seconds: float,
) -> None:
    """The wait is shorter if the receiver fails. Spans that it has not received are dropped."""
    monkeypatch.setattr(exporting, "STOP_TIMEOUT", timeout)
    monkeypatch.setattr(exporting, "FAILING_STOP_TIMEOUT", 0.1)
    monkeypatch.setattr(exporting, "SLOW_EXPORT", slow_export)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10" if has_failed else "60000")
    blocked, dropped = Blocked(SpanExportResult.FAILURE), Dropped()
    recorder = Recorder(blocked, dropped, "collector:4318")
    if has_failed:
        blocked.answer.set()
        recorder.record(span_record())
        wait_for(lambda: dropped.count, 20, "the first span is lost")
        blocked.answer.clear()
    feature = TracingFeature((), recorder)
    recorder.record(span_record())
    began = time.monotonic()
    feature.stop()
    assert time.monotonic() - began < 0.1
    feature.finish()
    assert seconds <= time.monotonic() - began < 15
    recorder.record(span_record())
    assert dropped.count == 2 + has_failed
    assert "before collector:4318 has received the last 1 spans" in caplog.text
    blocked.answer.set()


@pytest.mark.one_store
def test_a_server_closes_its_store_before_it_waits_for_the_receiver() -> None:
    code = """
from zq.serving.maintenance import Upkeep
from zq.serving.server import open_app
from zq.serving.settings import Configuration
from zq.tracing.feature import TracingFeature

for owner, name in ((TracingFeature, "finish"), (TracingFeature, "stop"), (Upkeep, "stop")):
    def call(self, original=getattr(owner, name), label=f"{owner.__name__}.{name}"):
        print(label, flush=True)
        original(self)
    setattr(owner, name, call)
open_app(Configuration())
"""
    env = {**os.environ, "OS_STORAGE__URI": "memory:", "OS_METRICS__PORT": "0", "OS_SERVER__CONTROL": ""}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.split() == ["TracingFeature.stop", "Upkeep.stop", "TracingFeature.finish"]


def test_an_exporter_that_raises_an_error_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SpanExporter):
        def export(self, _spans: Any) -> SpanExportResult:
            raise RuntimeError

    dropped = Dropped()
    recorder = Recorder(Broken(), dropped, "collector:4318")
    recorder.record(span_record())
    recorder.finish()
    assert dropped.count == 1
    assert "Spans are not sent" in caplog.text


def test_an_outage_of_the_receiver_is_logged_once_with_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """The log has no records of the SDK and respects the operator's log level."""
    caplog.set_level("INFO")
    details = logging.getLogger(__name__)
    details.setLevel("ERROR")
    blocked = Blocked(SpanExportResult.FAILURE)
    blocked.answer.set()
    bounded = BoundedExporter(blocked, NO_EVENTS, "collector:4318")
    for result in (SpanExportResult.FAILURE, SpanExportResult.FAILURE, SpanExportResult.SUCCESS):
        details.error("Failed to export spans batch code: %d, reason: %s", 401, "http://collector/secret")
        blocked.result = result
        bounded.export([])
    assert [record.getMessage() for record in caplog.records] == [
        "Spans are not sent, because their receiver collector:4318 fails with status 401; zq_spans_dropped_total "
        "counts them.",
        "Spans are sent again.",
    ]
    assert details.level == logging.ERROR
    details.setLevel(logging.NOTSET)
    bounded.shutdown()
    assert details.filters == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"endpoint": "collector:4318"},
            "[tracing] endpoint must be an http:// or https:// URL with a host and a port",
        ),
        ({"endpoint": "http://"}, "[tracing] endpoint must be an http://"),
        ({"endpoint": "http://collector:99999"}, "[tracing] endpoint must be an http://"),
        ({"endpoint": "http://a b"}, "[tracing] endpoint must be an http://"),
        ({"endpoint": "http://user:word@collector"}, "[tracing] endpoint must not have a user, a password, a query"),
        ({"endpoint": "http://collector/v1/traces?key=word"}, "[tracing] endpoint must not have a user, a password, a"),
        ({"endpoint": "http://collector#word"}, "[tracing] endpoint must not have a user, a password, a query or a"),
    ],
)
def test_an_endpoint_that_is_no_url_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StartRefused) as refused:
        SECTION.complete(TracingOptions(**options), None)
    assert sentence in str(refused.value)
    assert "word" not in str(refused.value).replace("password", "")


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("", ""),
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("https://collector/own/path", "https://collector/own/path"),
    ],
)
def test_an_endpoint_without_a_path_gets_the_standard_path(endpoint: str, url: str) -> None:
    assert SECTION.complete(TracingOptions(endpoint=endpoint), None).endpoint == url


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:word@collector"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector?key=word"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector/v1/traces#word"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "word"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", 'a=b, authorization="word"'),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "-1"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0"),
        ("OTEL_BSP_SCHEDULE_DELAY", "9" * 5000),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "abc"),
    ],
)
def test_an_environment_variable_that_the_sdk_cannot_use_is_refused_without_its_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """The variable is checked only if tracing is on."""
    monkeypatch.setenv(name, value)
    SECTION.complete(TracingOptions(), None)
    with pytest.raises(StartRefused, match=f"^{name} must ") as refused:
        SECTION.complete(TracingOptions(enabled=True), None)
    assert "word" not in str(refused.value).replace("password", "")


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({}, "http://localhost:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector/a/"}, "https://collector/a/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/b"}, "https://collector/b"),
    ],
)
def test_the_environment_has_the_endpoint_if_the_option_is_empty(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert SECTION.complete(TracingOptions(enabled=True), None).endpoint == url


def test_a_variable_that_only_the_sdk_checks_refuses_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "none at all")
    with pytest.raises(StartRefused, match=r"OpenTelemetry rejects an environment variable: .*none at all"):
        tracing_feature(TracingOptions(enabled=True, endpoint=f"{NOWHERE}/v1/traces"), NO_EVENTS)


def test_no_middleware_is_installed_if_the_sdk_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    options = SECTION.complete(TracingOptions(enabled=True), None)
    assert tracing_feature(options, NO_EVENTS).middleware == ()


def test_the_missing_extra_is_named_only_if_tracing_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PACKAGES", ("opentelemetry.none.at_all",))
    SECTION.complete(TracingOptions(), None)
    with pytest.raises(StartRefused, match=r"pip install 'zq-queue\[tracing\]'"):
        SECTION.complete(TracingOptions(enabled=True), None)


@pytest.mark.one_store
@pytest.mark.parametrize("arguments", [(), ("--check",)])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"OS_TRACING__SAMPLE": "1.5"}, "section [tracing], set by OS_TRACING__SAMPLE, must be a number from 0 to 1"),
        ({"OS_TRACING__ENDPOINT": "collector:4318"}, "[tracing] endpoint must be"),
        ({"OS_TRACING__ENABLED": "true", "OTEL_BSP_SCHEDULE_DELAY": "0"}, "OTEL_BSP_SCHEDULE_DELAY must be"),
    ],
)
def test_a_server_refuses_to_start_with_an_option_beyond_its_bound(
    options: dict[str, str], sentence: str, arguments: tuple[str, ...]
) -> None:
    server = ZqServer("memory:", *arguments, env=options)
    assert server.launch().wait(20) == 2
    assert sentence in server.output


@pytest.mark.one_store
@pytest.mark.slow
def test_a_server_sends_spans_of_its_clients_and_of_sqs(receiver: Receiver) -> None:
    """The span of a long poll has its waiting time and the operations of all its polls.

    SQS requests have spans, and log lines have the trace id.
    """
    env = {
        **{"OS_TRACING__ENABLED": "true", "OS_TRACING__ENDPOINT": receiver.url, "OS_LOG__REQUESTS": "true"},
        **{"OS_SQS__ENABLED": "true", "OS_SQS__AUTH": "none", "OTEL_BSP_SCHEDULE_DELAY": "100"},
        **{"OTEL_SERVICE_NAME": "queues", "OS_TRACING__SAMPLE": "0"},
    }
    with ZqServer("memory:", engine="granian", env=env) as served:
        poll = threading.Thread(
            target=ask, args=(served.url, "POST", f"{JOBS}/claims?wait=20"), kwargs={"headers": CONSUMER}
        )
        poll.start()
        time.sleep(0.5)
        ask(served.url, "POST", f"{JOBS}/messages", ONE, headers=PARENT)
        poll.join()
        queue = call_sqs(served.url, "CreateQueue", QueueName="mails")["QueueUrl"]
        for action, fields in SQS.items():
            call_sqs(served.url, action, **({"QueueUrl": queue, **fields} if action != "ListQueues" else {}))
        [message] = call_sqs(served.url, "ReceiveMessage", QueueUrl=queue, VisibilityTimeout=60)["Messages"]
        change = {"Id": "a", "ReceiptHandle": message["ReceiptHandle"]}
        for seconds in (9, 0):
            entry = {**change, "VisibilityTimeout": seconds}
            call_sqs(served.url, "ChangeMessageVisibility", QueueUrl=queue, **entry)
            call_sqs(served.url, "ChangeMessageVisibilityBatch", QueueUrl=queue, Entries=[entry])
        wait_for(lambda: len(receiver.named("settle mails")) == 2, 20, "the last spans arrive")
        output = served.output
    [[receive], [from_sqs, *_]] = receiver.named("receive jobs"), receiver.named("receive mails")
    assert 0.2 < receive.attributes["zq.waited"] <= receive.seconds
    assert receive.links == from_sqs.links == [(TRACE, PRODUCER)]
    assert "zq.waited" not in from_sqs.attributes
    assert receive.service == "queues"
    assert len([span for span in receiver.named("store claims.create") if span.parent == receive.id]) >= 2
    assert all("zq.project" not in span.attributes for span in receiver.spans)
    assert [len(receiver.named(f"send {queue}")) for queue in ("jobs", "mails")] == [1, 1]
    # A timeout of 0 releases the message; another one renews the claim.
    names = ("sqs:ListQueues", "sqs:ChangeMessageVisibility", "sqs:ChangeMessageVisibilityBatch")
    assert [len(receiver.named(name)) for name in names] == [1, 1, 1]
    assert f"trace_id='{TRACE}'" in output or f'"trace_id":"{TRACE}"' in output


@pytest.mark.one_store
@pytest.mark.slow
def test_a_long_poll_under_gunicorn_has_its_waiting_time(receiver: Receiver) -> None:
    """The request's own thread waits."""
    env = {"OS_TRACING__ENABLED": "true", "OS_TRACING__ENDPOINT": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with ZqServer("memory:", engine="gunicorn", env=env) as served:
        post = threading.Timer(0.5, ask, (served.url, "POST", f"{JOBS}/messages", ONE))
        post.start()
        ask(served.url, "POST", f"{JOBS}/claims?wait=20", headers=CONSUMER)
        post.join()
        wait_for(lambda: receiver.named("receive jobs"), 20, "the span arrives")
    [receive] = receiver.named("receive jobs")
    assert 0.2 < receive.attributes["zq.waited"] <= receive.seconds


@pytest.mark.one_store
@pytest.mark.slow
def test_a_dead_receiver_does_not_slow_requests_and_its_lost_spans_are_counted() -> None:
    env = {
        **{"OS_TRACING__ENABLED": "true", "OS_TRACING__ENDPOINT": NOWHERE, "OS_TRACING__SAMPLE": "1"},
        **{"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"},
    }
    with ZqServer("memory:", engine="granian", env=env) as served:
        took = []
        for _ in range(200):
            began = time.monotonic()
            assert ask(served.url, "GET", "/v2/queues").status == 200
            took.append(time.monotonic() - began)
        assert sorted(took)[100] < 0.1

        def lost() -> bool:
            page = httpx.get(f"{served.url}/metrics").text
            return any(line.startswith("zq_spans_dropped_total") and line[-2:] != " 0" for line in page.splitlines())

        wait_for(lost, 30, "spans are counted as dropped")
        began = time.monotonic()
        assert served.terminate() == 0
        assert time.monotonic() - began < 5
        assert served.output.count("Spans are not sent, because their receiver 127.0.0.1:9 fails") == 1
        assert "url" not in served.output
