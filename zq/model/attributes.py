# SPDX-License-Identifier: Apache-2.0
"""Message attributes: fields of a message that storage drivers do not interpret.

Attributes never change after the post, even if the message is moved, staged, finished or replayed. A driver stores them
as one opaque field, ``Draft.attributes``.

The stored form is JSON. Readers ignore unknown members. No member may be renamed or change its type, because servers of
an earlier version may share the store.
"""

import re
from collections.abc import Mapping
from itertools import starmap
from typing import Final

from msgspec import Struct, field, json

# The names of message attributes that hold the trace context, as the W3C names them.
TRACE_NAMES: Final = ("traceparent", "tracestate")
# A traceparent: version, trace id, parent id and flags. Versions later than 00 may have further fields.
_PARENT: Final = re.compile(
    r"(?:00-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-[0-9a-f]{2}"
    r"|(?!00|ff)[0-9a-f]{2}-(?P<later_trace>[0-9a-f]{32})-(?P<later_parent>[0-9a-f]{16})-[0-9a-f]{2}(?:-[!-~]*)?)"
)
# A member of a tracestate: a key and a value, or nothing.
_MEMBER: Final = re.compile(r"[ \t]*(?:[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~])?[ \t]*")
# Maximum number of members of a tracestate, maximum length of a tracestate, and maximum length of a traceparent.
_MAX_MEMBERS: Final = 32
MAX_STATE: Final = 512
_MAX_PARENT: Final = 256


class AttributeValue(Struct, frozen=True, omit_defaults=True, rename="pascal"):
    """A message attribute. ``data_type`` is String, Number or Binary, with an optional label after a dot."""

    data_type: str = ""
    string_value: str | None = None
    binary_value: str | None = None


class Attributes(Struct, frozen=True, omit_defaults=True, rename="pascal"):
    """The attributes of a message. The stored JSON omits each field that has its default value."""

    message_attributes: dict[str, AttributeValue] = {}
    """The sender's own attributes by name."""
    deduplication_id: str = field(default="", name="MessageDeduplicationId")
    """The id by which an SQS FIFO queue detected duplicates."""
    aws_trace_header: str = field(default="", name="AWSTraceHeader")
    """The trace header of AWS X-Ray."""


NO_ATTRIBUTES: Final = Attributes()
_encode: Final = json.Encoder().encode
_decode: Final = json.Decoder(Attributes).decode


def encode_attributes(attributes: Attributes) -> bytes:
    """Encode attributes for storage. If there are no attributes, return b""."""
    return b"" if attributes == NO_ATTRIBUTES else _encode(attributes)


def decode_attributes(stored: bytes) -> Attributes:
    """Decode stored attributes. For b"", return ``NO_ATTRIBUTES``."""
    return _decode(stored) if stored else NO_ATTRIBUTES


def trace_context(parent: str, state: str) -> Mapping[str, AttributeValue]:
    """Convert the headers traceparent and tracestate to message attributes. Invalid headers are ignored."""
    found = _PARENT.fullmatch(parent) if len(parent) <= _MAX_PARENT else None
    if found is None or any(given is not None and not given.strip("0") for given in found.groupdict().values()):
        return {}
    context = {"traceparent": AttributeValue("String", parent)}
    members = state.split(",")
    if state and len(state) <= MAX_STATE and len(members) <= _MAX_MEMBERS and all(map(_MEMBER.fullmatch, members)):
        context["tracestate"] = AttributeValue("String", state)
    return context


def trim_trace(trace: Mapping[str, AttributeValue], room: int) -> Mapping[str, AttributeValue]:
    """Return the part of a trace context that fits in ``room`` bytes. The tracestate is omitted first."""
    if not trace or sum(starmap(value_size, trace.items())) <= room:
        return trace
    parent = TRACE_NAMES[0]
    return {parent: trace[parent]} if value_size(parent, trace[parent]) <= room else {}


def value_size(name: str, value: AttributeValue) -> int:
    """Return the number of characters in an attribute's name, type and value.

    The size of a binary value is the length of its base64 text.
    """
    return len(name) + len(value.data_type) + len(value.string_value or value.binary_value or "")


def with_trace(
    values: Mapping[str, AttributeValue], trace: Mapping[str, AttributeValue]
) -> Mapping[str, AttributeValue]:
    """Add the trace context to the sender's attributes, unless the sender has set a trace context."""
    return values if any(name in values for name in TRACE_NAMES) else {**values, **trace}
