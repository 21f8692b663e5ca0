# SPDX-License-Identifier: Apache-2.0
"""Confirmation requests to subscribers, as signed documents or emails (contract section 9.11)."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from zq import wire
from zq.model import Seconds
from zq.subscriptions.model import Notice, Source, Subscription

# Returns the signature of a PUT request. The arguments are project, path and expiry time.
Sign = Callable[[str, str, Seconds], str]
Shown = Callable[[Seconds], str]
SUBSCRIBE = "SubscriptionConfirmation"


class Template(Struct, frozen=True):
    """A mail template. In ``body``, {0} is the source's name, {1} the project, and {2} the confirmation link."""

    topic: str
    sender: str
    body: str


class ConfirmationOptions(Struct, frozen=True):
    """The URLs and mail templates of confirmation requests."""

    service: str = ""
    page: str = ""
    joining: Template = Template("", "", "{2}")
    leaving: Template = Template("", "", "{2}")


class Mail(Struct, frozen=True):
    subject: str
    sender: str
    text: str


class Confirmations:
    """Builder of confirmation requests."""

    def __init__(self, sign: Sign, shown: Shown, places: ConfirmationOptions) -> None:
        self._sign = sign
        self._shown = shown
        self._places = places

    def document(self, source: Source, subscription: Subscription, notice: Notice) -> bytes:
        """Build the confirmation request for a webhook: a JSON document with the signature for the response."""
        path = _confirmation_path(source, subscription)
        action = "receive" if notice.confirmation == SUBSCRIBE else "no longer receive"
        document: dict[str, Any] = {
            "Message_Type": notice.confirmation,
            "Message": f"Confirm that you want to {action} the messages of the {source.kind} {source.name}: send "
            "SubscribeBody to URL-Paths with PUT and the headers URL-Signature, URL-Expires, URL-Methods, URL-Paths "
            "and X-Project-ID. To decline, send UnsubscribeBody.",
            "URL-Signature": self._sign(source.project, path, subscription.expires),
            "URL-Expires": self._shown(subscription.expires),
            "URL-Methods": "PUT",
            "URL-Paths": path,
            "X-Project-ID": source.project,
            "SubscribeBody": {"confirmed": True},
            "UnsubscribeBody": {"confirmed": False},
            f"{source.kind}_name": source.name,
        }
        if url := self._url(path):
            document["WSGISubscribeURL"] = url
        return wire.encode(document)

    def letter(self, source: Source, subscription: Subscription, notice: Notice) -> Mail | None:
        """Build the confirmation mail for a mail subscriber. Return None if no confirmation page is configured."""
        places = self._places
        if not places.page:
            return None
        path = _confirmation_path(source, subscription)
        # Confirmation pages for Zaqar parse the link: keep the order of the parameters, and do not encode them.
        link = (
            f"{places.page}?Signature={self._sign(source.project, path, subscription.expires)}&Methods=PUT&Paths={path}"
            f"&Project={source.project}&Expires={self._shown(subscription.expires)}&Url={self._url(path)}&Queue={source.name}"
        )
        template = places.joining if notice.confirmation == SUBSCRIBE else places.leaving
        return Mail(template.topic, template.sender, template.body.format(source.name, source.project, link))

    def _url(self, path: str) -> str:
        return self._places.service.rstrip("/") + path if self._places.service else ""


def _confirmation_path(source: Source, subscription: Subscription) -> str:
    return f"/v2/{source.kind}s/{source.name}/subscriptions/{subscription.id}/confirm"
