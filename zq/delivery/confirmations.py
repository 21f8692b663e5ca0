# SPDX-License-Identifier: Apache-2.0
"""What a subscriber is sent who is asked whether it agrees (contract 9.11): a signed document, or a mail."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from zq import wire
from zq.model import Seconds
from zq.model.subscriptions import Notice, Source, Subscription

# (project, path, until when) -> a signature for PUT there.
Sign = Callable[[str, str, Seconds], str]
Shown = Callable[[Seconds], str]
JOINS = "SubscriptionConfirmation"


class Template(Struct, frozen=True):
    """Of a mail. In ``body``, {0} is the source, {1} its project, {2} the link."""

    topic: str
    sender: str
    body: str


class Places(Struct, frozen=True):
    """``service``: where this service is for its subscribers, ``page``: where people confirm who got a mail; "" = it
    is not said. The templates are those of mail."""

    service: str = ""
    page: str = ""
    joining: Template = Template("", "", "{2}")
    leaving: Template = Template("", "", "{2}")


class Letter(Struct, frozen=True):
    """A mail to a subscriber."""

    subject: str
    sender: str
    text: str


class Confirmations:
    """Writes what asks for confirmation."""

    def __init__(self, sign: Sign, shown: Shown, places: Places) -> None:
        self._sign = sign
        self._shown = shown
        self._places = places

    def document(self, source: Source, one: Subscription, notice: Notice) -> bytes:
        """The document, signed for the path that it names and nothing else."""
        path = _path(source, one)
        asked = "receive" if notice.confirmation == JOINS else "receive no more of"
        told: dict[str, Any] = {
            "Message_Type": notice.confirmation,
            "Message": f"You are asked to confirm that you want to {asked} the messages of the {source.kind} "
            f"{source.name}: send SubscribeBody to URL-Paths by PUT, with the headers URL-Signature, URL-Expires, "
            "URL-Methods, URL-Paths and X-Project-ID; UnsubscribeBody refuses.",
            "URL-Signature": self._sign(source.project, path, one.expires),
            "URL-Expires": self._shown(one.expires),
            "URL-Methods": "PUT",
            "URL-Paths": path,
            "X-Project-ID": source.project,
            "SubscribeBody": {"confirmed": True},
            "UnsubscribeBody": {"confirmed": False},
            f"{source.kind}_name": source.name,
        }
        if url := self._url(path):
            told["WSGISubscribeURL"] = url
        return wire.encode(told)

    def letter(self, source: Source, one: Subscription, notice: Notice) -> Letter | None:
        """The mail; None where no page is named to which its link could lead."""
        places = self._places
        if not places.page:
            return None
        path = _path(source, one)
        # Verbatim and in this order, as the pages that were made for Zaqar read it.
        link = (
            f"{places.page}?Signature={self._sign(source.project, path, one.expires)}&Methods=PUT&Paths={path}"
            f"&Project={source.project}&Expires={self._shown(one.expires)}&Url={self._url(path)}&Queue={source.name}"
        )
        template = places.joining if notice.confirmation == JOINS else places.leaving
        return Letter(template.topic, template.sender, template.body.format(source.name, source.project, link))

    def _url(self, path: str) -> str:
        return self._places.service.rstrip("/") + path if self._places.service else ""


def _path(source: Source, one: Subscription) -> str:
    return f"/v2/{source.kind}s/{source.name}/subscriptions/{one.id}/confirm"
