# SPDX-License-Identifier: Apache-2.0
"""Attributes: the fields of a message that travel with it and that no storage driver reads.

Verbs change the state of a message: its claim, its times, its counts. Attributes never change after the post. A driver
stores them as one opaque field, ``Draft.attributes``, and returns them unchanged; claims, moves, dead letters, stages,
history and replays keep them. Limits and rules for attributes are enforced above the drivers.

The stored form is JSON. Readers ignore members that they do not know, so a new member may be added, but no member may
be renamed or change its type: servers of an earlier version may share the store.
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field, json

# The names of message attributes that hold the trace context, as the W3C names them.
TRACE_NAMES: Final = ("traceparent", "tracestate")
# A traceparent: version, trace id, parent id and flags. Later versions than 00 may have more behind them.
_PARENT: Final = re.compile(
    r"(?:00-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-[0-9a-f]{2}"
    r"|(?!00|ff)[0-9a-f]{2}-(?P<later_trace>[0-9a-f]{32})-(?P<later_parent>[0-9a-f]{16})-[0-9a-f]{2}(?:-[!-~]*)?)"
)
# A member of a tracestate: key and value, or nothing.
_MEMBER: Final = re.compile(r"[ \t]*(?:[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~])?[ \t]*")
# The maximum numbers of members and of characters of a tracestate, and of characters of a traceparent.
_MAX_MEMBERS: Final = 32
_MAX_STATE: Final = 512
_MAX_PARENT: Final = 256


class AttributeValue(Struct, frozen=True, omit_defaults=True, rename="pascal"):
    """The value and the type of a message attribute.

    ``data_type`` is String, Number or Binary, with an optional label behind a dot. ``string_value`` is the text of a
    String or a Number, ``binary_value`` the base64 of a Binary.
    """

    data_type: str = ""
    string_value: str | None = None
    binary_value: str | None = None


class Attributes(Struct, frozen=True, omit_defaults=True, rename="pascal"):
    """The attributes of a message. Declare each one here, with a default that means its absence."""

    message_attributes: dict[str, AttributeValue] = {}
    """Values by name that the sender chose."""
    message_deduplication_id: str = ""
    """The id by which a FIFO queue of SQS detected duplicates."""
    trace: str = field(default="", name="AWSTraceHeader")
    """The trace header of AWS X-Ray."""


NO_ATTRIBUTES: Final = Attributes()
_encode: Final = json.Encoder().encode
_decode: Final = json.Decoder(Attributes).decode


def encode_attributes(attributes: Attributes) -> bytes:
    """Return the stored form; empty bytes if there are no attributes."""
    return b"" if attributes == NO_ATTRIBUTES else _encode(attributes)


def decode_attributes(stored: bytes) -> Attributes:
    """Decode the stored form. Empty bytes yield ``NO_ATTRIBUTES``."""
    return _decode(stored) if stored else NO_ATTRIBUTES


def trace_context(parent: str, state: str) -> Mapping[str, AttributeValue]:
    """Return the message attributes of the request headers traceparent and tracestate.

    A header that does not have the form of W3C Trace Context is ignored, and so is a tracestate without a valid
    traceparent.
    """
    found = _PARENT.fullmatch(parent) if len(parent) <= _MAX_PARENT else None
    if found is None or any(given is not None and not given.strip("0") for given in found.groupdict().values()):
        return {}
    context = {"traceparent": AttributeValue("String", parent)}
    members = state.split(",")
    if state and len(state) <= _MAX_STATE and len(members) <= _MAX_MEMBERS and all(map(_MEMBER.fullmatch, members)):
        context["tracestate"] = AttributeValue("String", state)
    return context


def with_trace(
    values: Mapping[str, AttributeValue], trace: Mapping[str, AttributeValue]
) -> Mapping[str, AttributeValue]:
    """Return the sender's attributes and the trace context, which the sender's own replaces as a whole."""
    return values if any(name in values for name in TRACE_NAMES) else {**values, **trace}
