# SPDX-License-Identifier: Apache-2.0
"""Subscriptions on the wire (contract 9), and their notices: as they are stored, and as a subscriber gets them."""

from typing import Any, Final

import msgspec
from msgspec import Raw

from zq import wire
from zq.model import Seconds
from zq.model.subscriptions import Notice, Subscription

_notice_decoder: Final = msgspec.msgpack.Decoder(Notice)
# What stands in ``post_data`` for the document, with its quotes (contract 9.8).
MESSAGE: Final = '"$zaqar_message$"'


def notice_body(notice: Notice) -> bytes:
    """As it is stored."""
    return msgspec.msgpack.encode(notice)


def notice_of(body: bytes) -> Notice:
    """What was stored."""
    return _notice_decoder.decode(body)


def shown(source: str, one: Subscription, options: dict[str, Any], now: Seconds) -> dict[str, Any]:
    """A representation (contract 9.1). ``options``: what of them may be seen."""
    return {
        "id": one.id,
        "source": source,
        "subscriber": one.subscriber,
        "ttl": one.ttl,
        "age": max(0, int(now - one.started)),
        "options": options,
        "confirmed": one.has_agreed,
    }


def notification(notice: Notice) -> bytes:
    """The document of a message (contract 9.7)."""
    told: dict[str, Any] = {"ttl": notice.ttl, "body": Raw(notice.body)}
    if notice.delay is not None:
        told["delay"] = notice.delay
    return wire.encode(told | {"Message_Type": "Notification", f"{notice.kind}_name": notice.name})


def posted(document: bytes, template: object) -> bytes:
    """What goes to a webhook: the document, or the template with the document in it."""
    if not isinstance(template, str) or not template:
        return document
    return template.replace(MESSAGE, document.decode()).encode("utf-8", "surrogatepass")
