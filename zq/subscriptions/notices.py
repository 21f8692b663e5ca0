# SPDX-License-Identifier: Apache-2.0
"""Encoding of notices, for storage and for delivery to subscribers (contract sections 9.7, 9.8)."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, structs

from zq import wire
from zq.core.encryption import Sealing, attributes_binding, topic_binding
from zq.model import Draft, Seconds, new_ids
from zq.model.attributes import decode_attributes
from zq.subscriptions.model import Notice
from zq.wire.attributes import format_values

_notice_decoder: Final = msgspec.msgpack.Decoder(Notice)
# The placeholder in a ``post_data`` template that the notification replaces (contract 9.8). The quotes are part of it.
PLACEHOLDER: Final = '"$zaqar_message$"'


def encode_notice(notice: Notice) -> bytes:
    """Encode a notice as the body of a message in a hidden queue."""
    return msgspec.msgpack.encode(notice)


def decode_notice(body: bytes) -> Notice:
    """Decode a notice from the body of a message in a hidden queue."""
    return _notice_decoder.decode(body)


def make_drafts(notices: Sequence[Notice], ttl: int, now: Seconds) -> Sequence[Draft]:
    """Return message drafts for the notices, in the same order."""
    ids = new_ids(len(notices), now)
    return [Draft(id, encode_notice(each), ttl, 0, "") for id, each in zip(ids, notices, strict=True)]


def decrypt_notice(sealing: Sealing, project: str, notice: Notice) -> Notice:
    """Return the notice with decrypted body and attributes."""
    id = notice.message if notice.kind == "queue" else topic_binding(notice.name, notice.seal)
    body, attributes = sealing.open(project, id, notice.body), notice.attributes
    if attributes:
        attributes = sealing.open(project, attributes_binding(id), attributes)
    return structs.replace(notice, body=body, attributes=attributes)


def build_notification(notice: Notice, *, is_mail: bool = False) -> bytes:
    """Build the JSON document that subscribers receive (contract section 9.7). A mail has no attributes."""
    shown: dict[str, Any] = {"ttl": notice.ttl, "body": Raw(notice.body)}
    if notice.delay is not None:
        shown["delay"] = notice.delay
    if not is_mail and (values := format_values(decode_attributes(notice.attributes))):
        shown["attributes"] = values
    return wire.encode(shown | {"Message_Type": "Notification", f"{notice.kind}_name": notice.name})


def build_webhook_body(document: bytes, template: object) -> bytes:
    """Build the body of a webhook request from the JSON text of the notification.

    If ``template`` is a non-empty string, return the template with the notification in place of ``PLACEHOLDER``.
    """
    if not isinstance(template, str) or not template:
        return document
    return template.replace(PLACEHOLDER, document.decode()).encode("utf-8", "surrogatepass")
