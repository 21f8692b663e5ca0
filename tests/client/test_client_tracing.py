# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry trace contexts: the client posts the current one and returns that of a message as a link."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span

from zq.client import Draft
from zq.client.tracing import trace_headers

CONTEXT = SpanContext(
    0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7, False, TraceFlags(1), TraceState([("rojo", "00f067aa")])
)
# The context as received in a message.
REMOTE = SpanContext(CONTEXT.trace_id, CONTEXT.span_id, True, CONTEXT.trace_flags, CONTEXT.trace_state)
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def span() -> Iterator[None]:
    with use_span(NonRecordingSpan(CONTEXT)):
        yield


@pytest.mark.usefixtures("span")
def test_a_post_within_a_span_carries_its_context_to_the_consumer(queue: Any) -> None:
    """Single posts, batches and posts of many messages in threads carry the context."""
    queue.post("a")
    queue.post_batch(["b"])
    queue.post_many(["c", "d"], concurrency=2)
    links = [message.link() for message in queue.claim(10).messages]
    assert [link.context for link in links] == [REMOTE] * 4


def test_a_tracestate_that_is_too_long_is_omitted() -> None:
    state = TraceState([(f"k{number}", "v" * 250) for number in range(32)])
    with use_span(NonRecordingSpan(SpanContext(CONTEXT.trace_id, CONTEXT.span_id, False, TraceFlags(1), state))):
        assert trace_headers() == {"traceparent": PARENT}


def test_a_post_outside_of_a_span_has_no_context(queue: Any) -> None:
    queue.post("a")
    [message] = queue.claim(1).messages
    assert (message.attributes, message.link()) == ({}, None)


@pytest.mark.usefixtures("span")
def test_a_message_keeps_a_context_of_its_own(queue: Any) -> None:
    other = PARENT[:-2] + "00"
    queue.post_batch([Draft("a", attributes={"traceparent": other}), Draft("b", attributes={"traceparent": "none"})])
    own, invalid = (message.link() for message in queue.claim(2).messages)
    assert (own.context.span_id, own.context.trace_flags, own.context.trace_state) == (CONTEXT.span_id, 0, {})
    assert invalid is None


def test_the_client_does_not_import_opentelemetry() -> None:
    """Programs without spans need not install or load the package."""
    code = """
import sys
from zq.client.posting import post_call
assert "traceparent" not in post_call("queues", "jobs", b"{}", None).headers
assert not any(name.startswith("opentelemetry") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
