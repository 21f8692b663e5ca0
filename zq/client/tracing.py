# SPDX-License-Identifier: Apache-2.0
"""Trace contexts of posts and received messages, for programs that use OpenTelemetry."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from zq.model.attributes import MAX_STATE, TRACE_NAMES, trace_context

if TYPE_CHECKING:
    from opentelemetry.trace import Link

# The module of the current span. If no part of the program has imported it, no span is current.
API: Final = "opentelemetry.trace"
PARENT, STATE = TRACE_NAMES
NO_HEADERS: Final[Mapping[str, str]] = {}


def trace_headers() -> Mapping[str, str]:
    """Return the trace-context headers of the current OpenTelemetry span, or no headers if no span is current.

    A ``tracestate`` of more than ``MAX_STATE`` characters is omitted.
    """
    get_current_span = getattr(sys.modules.get(API), "get_current_span", None)
    if get_current_span is None:
        return NO_HEADERS
    context = get_current_span().get_span_context()
    if not context.is_valid:
        return NO_HEADERS
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    state = context.trace_state.to_header()
    return {PARENT: parent, STATE: state} if 0 < len(state) <= MAX_STATE else {PARENT: parent}


def link_to(attributes: Mapping[str, Any]) -> "Link | None":
    """Return a link to the span that posted the message with these attributes.

    Return ``None`` if the attributes contain no valid trace context. Raises ``ModuleNotFoundError`` if there is a trace
    context but the package ``opentelemetry-api`` is not installed.
    """
    parent, state = attributes.get(PARENT), attributes.get(STATE)
    if not isinstance(parent, str) or not trace_context(parent, ""):
        return None
    from opentelemetry.trace import Link, SpanContext, TraceFlags, TraceState  # not a dependency of the client

    return Link(
        SpanContext(
            int(parent[3:35], 16),
            int(parent[36:52], 16),
            is_remote=True,
            trace_flags=TraceFlags(int(parent[53:55], 16)),
            trace_state=TraceState.from_header([state]) if isinstance(state, str) else None,
        )
    )
