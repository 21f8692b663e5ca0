# SPDX-License-Identifier: Apache-2.0
"""Attributes: the fields of a message that travel with it and that no storage driver reads.

Verbs change the state of a message: its claim, its moments, its counts. Attributes never change after the post. A
driver stores them as one opaque field, ``Draft.attributes``, and returns them as they came; claims, moves, dead
letters, stages, history and replays keep them. Every bound and every rule about them is above the drivers.

The stored form is JSON. Readers ignore members that they do not know, so a new member may be added, but no member may
be renamed or change its type: servers of an earlier version may share the store.
"""

from typing import Final

from msgspec import Struct, field, json


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
