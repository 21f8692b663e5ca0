# SPDX-License-Identifier: Apache-2.0
"""Middleware that selects the requests to trace, and describes their spans by OpenTelemetry's conventions."""

import time
from collections.abc import Mapping, Sequence
from random import random
from typing import Final

import falcon
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from zq.clock import local_time
from zq.http.context import Request
from zq.http.pending import HANDOVER_KEY, NO_HANDOVER
from zq.model import Message
from zq.model.attributes import TRACE_NAMES, decode_attributes, trace_context
from zq.tracing.exporting import Recorder, SpanRecord
from zq.tracing.store_calls import StoreCall, collect

# Environment keys of the parent's context.
PARENT: Final = "HTTP_TRACEPARENT"
STATE: Final = "HTTP_TRACESTATE"
# Paths without spans, because probes would outnumber all other requests.
UNTRACED: Final = frozenset({"/healthz", "/readyz", "/metrics"})
# Methods that have their own spans, and the name of all others.
METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
OTHER: Final = "_OTHER"
# Position of the last digit of the flags in a traceparent, and the digits with the flag "sampled".
FLAGS: Final = slice(54, 55)
SAMPLED: Final = frozenset("13579bdf")
# Maximum number of links of a span.
MAX_LINKS: Final = 20
# Number of characters of a client id in a span.
CLIENT_CHARACTERS: Final = 8
SEND, RECEIVE, SETTLE, COMMIT = "send", "receive", "settle", "commit"
KINDS: Final = {
    SEND: SpanKind.PRODUCER,
    RECEIVE: SpanKind.CONSUMER,
    SETTLE: SpanKind.SERVER,
    COMMIT: SpanKind.SERVER,
}
# Operation types of OpenTelemetry's conventions, if they differ from the operation. A commit acknowledges claims.
OPERATION_TYPES: Final = {COMMIT: SETTLE}
# Operations on messages, by method and route, or by SQS operation.
OPERATIONS: Final[Mapping[str, str]] = {
    "POST /v2/queues/{queue}/messages": SEND,
    "POST /v2/topics/{topic}/messages": SEND,
    "POST /v2/queues/{queue}/claims": RECEIVE,
    "PUT /v2/queues/{queue}/claims/{claim}": RECEIVE,
    "DELETE /v2/queues/{queue}/messages": SETTLE,
    "DELETE /v2/queues/{queue}/messages/{message}": SETTLE,
    "DELETE /v2/queues/{queue}/claims/{claim}": SETTLE,
    "POST /v2/queues/{queue}/claims/{claim}/settle": SETTLE,
    "POST /v2/commits": COMMIT,
    "sqs:SendMessage": SEND,
    "sqs:SendMessageBatch": SEND,
    "sqs:ReceiveMessage": RECEIVE,
    "sqs:DeleteMessage": SETTLE,
    "sqs:DeleteMessageBatch": SETTLE,
    "sqs:ChangeMessageVisibility": SETTLE,
    "sqs:ChangeMessageVisibilityBatch": SETTLE,
}
# Operations that settle messages only if a timeout is 0, which releases a message. Otherwise, they renew claims.
RENEWALS: Final = frozenset({"sqs:ChangeMessageVisibility", "sqs:ChangeMessageVisibilityBatch"})
_random_ids: Final = RandomIdGenerator()


class RequestSpan:
    """The span of a request that is being handled.

    Attributes:
        store_calls: The operations of the store that the request has called.
    """

    def __init__(self, parent: SpanContext | None) -> None:
        self.parent = parent
        self.trace_id = parent.trace_id if parent else _random_ids.generate_trace_id()
        self.span_id = _random_ids.generate_span_id()
        self.links: Sequence[SpanContext] = ()
        self.store_calls: list[StoreCall] = []

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-01"

    @property
    def context(self) -> SpanContext:
        return SpanContext(self.trace_id, self.span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def link(self, messages: Sequence[Message]) -> None:
        """Link the span to the spans that posted the delivered messages.

        A span is linked only once. There are at most ``MAX_LINKS`` links.
        """
        links: dict[tuple[int, int], SpanContext] = {}
        for attributes in dict.fromkeys(message.attributes for message in messages if message.attributes):
            if (context := _stored_context(attributes)) is not None:
                links[context.trace_id, context.span_id] = context
                if len(links) == MAX_LINKS:
                    break
        self.links = [*links.values()]


class RequestTracing:
    """Falcon middleware that records a span of each sampled request.

    If a request has a parent span, the parent determines whether the request is sampled.

    Args:
        sample: The fraction of requests without a parent span that are sampled.
        names_project: Whether the spans have the project as an attribute.
    """

    def __init__(self, sample: float, recorder: Recorder, names_project: bool = False) -> None:
        self._sample = sample
        self._recorder = recorder
        self._names_project = names_project

    def process_request(self, req: Request, _resp: falcon.Response) -> None:
        # The SDK's sampler would take 6 microseconds for each request.
        parent = req.env.get(PARENT)
        if parent is None:
            if random() < self._sample:
                self._begin(req, None)
        elif parent[FLAGS] in SAMPLED and (context := _parse_context(parent)) is not None:
            self._begin(req, context)

    def process_response(self, req: Request, resp: falcon.Response, _resource: object, _req_succeeded: bool) -> None:
        span: RequestSpan | None = req.context.span
        if span is None:
            return
        collect(None)
        if req.env.get(HANDOVER_KEY, NO_HANDOVER).pending is not None:
            return
        project = getattr(req.context, "project", "") if self._names_project else ""
        self._recorder.record(_describe(req, resp, span, time.monotonic(), project))
        for call in span.store_calls:
            self._recorder.record(_describe_store_call(call, span))

    def resume(self, req: Request) -> None:
        """Record the store operations of the current thread in the request's span.

        Call this method before each poll of a long poll, because each poll may run on a different thread.
        """
        span: RequestSpan | None = req.context.span
        if span is not None:
            collect(span.store_calls)

    def _begin(self, req: Request, parent: SpanContext | None) -> None:
        if req.path in UNTRACED:
            return
        span = req.context.span = RequestSpan(parent)
        if parent is None:
            # The log lines take the trace id from this header, and the messages of a post take their context.
            req.env[PARENT] = span.traceparent
            req.env.pop(STATE, None)  # it belongs to another trace
        collect(span.store_calls)


def _describe(req: Request, resp: falcon.Response, span: RequestSpan, now: float, project: str) -> SpanRecord:
    context, route, status = req.context, req.uri_template or "", resp.status_code
    method = req.method if req.method in METHODS else OTHER
    attributes: dict[str, str | int | float] = {
        "http.request.method": method,
        "http.route": route,
        "http.response.status_code": status,
        "zq.project": project,
    }
    name = context.operation or f"{method} {route}".rstrip()
    operation = OPERATIONS.get(name)
    if operation is SETTLE and "pop" in req.params:
        operation = RECEIVE
    if name in RENEWALS and not context.releases:
        operation = None
    if operation is not None:
        target = getattr(context, "queue", None) or getattr(context, "topic", None)
        destination = target.name if target else ""
        name = f"{operation} {destination}".rstrip()
        attributes |= {
            "messaging.system": "zq",
            "messaging.operation.name": operation,
            "messaging.operation.type": OPERATION_TYPES.get(operation, operation),
            "messaging.destination.name": destination,
            "messaging.client.id": getattr(context, "client", "")[:CLIENT_CHARACTERS],
        }
        if context.messages is not None:
            attributes["messaging.batch.message_count"] = context.messages
    # The span includes the wait, like the response time that the client measures. Its length minus this is the work.
    # It is an attribute and no event, because a search for traces selects by attributes.
    if context.waits and context.waited:
        attributes["zq.waited"] = context.waited
    failed = (context.counted_as or status) >= 500
    if failed:
        attributes["error.type"] = str(status)
    return SpanRecord(
        name,
        KINDS[operation] if operation else SpanKind.SERVER,
        span.trace_id,
        span.span_id,
        span.parent,
        {key: value for key, value in attributes.items() if value != ""},
        span.links,
        local_time(),
        now - context.began,
        failed,
    )


def _describe_store_call(call: StoreCall, span: RequestSpan) -> SpanRecord:
    return SpanRecord(
        f"store {call.verb}",
        SpanKind.INTERNAL,
        span.trace_id,
        _random_ids.generate_span_id(),
        span.context,
        {},
        (),
        call.ended,
        call.seconds,
        failed=False,
    )


def _stored_context(attributes: bytes) -> SpanContext | None:
    """Return the context of the span that posted the messages with these attributes.

    Return None if the attributes contain no valid context.
    """
    value = decode_attributes(attributes).message_attributes.get(TRACE_NAMES[0])
    return _parse_context(value.string_value or "") if value else None


def _parse_context(traceparent: str) -> SpanContext | None:
    """Parse a traceparent. Return ``None`` if it is not valid."""
    if not trace_context(traceparent, ""):
        return None
    flags = TraceFlags(int(traceparent[53:55], 16))
    return SpanContext(int(traceparent[3:35], 16), int(traceparent[36:52], 16), is_remote=True, trace_flags=flags)
