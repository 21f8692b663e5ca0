# SPDX-License-Identifier: Apache-2.0
"""What a subscriber is sent who is asked whether it agrees (contract 9.11)."""

from collections.abc import Callable
from typing import Any

from zq import wire
from zq.model import Seconds
from zq.model.subscriptions import Notice, Source, Subscription

# (project, path, until when) -> a signature for PUT there.
Sign = Callable[[str, str, Seconds], str]
Shown = Callable[[Seconds], str]


class Confirmations:
    """``public_url``: where this service is for its subscribers; "" = it does not say so."""

    def __init__(self, sign: Sign, shown: Shown, public_url: str = "") -> None:
        self._sign = sign
        self._shown = shown
        self._public_url = public_url.rstrip("/")

    def document(self, source: Source, one: Subscription, notice: Notice) -> bytes:
        """The document, signed for the path that it names and nothing else."""
        path = f"/v2/{source.kind}s/{source.name}/subscriptions/{one.id}/confirm"
        ends = one.expires
        asked = "receive" if notice.confirmation == "SubscriptionConfirmation" else "receive no more of"
        told: dict[str, Any] = {
            "Message_Type": notice.confirmation,
            "Message": f"You are asked to confirm that you want to {asked} the messages of the {source.kind} "
            f"{source.name}: send SubscribeBody to URL-Paths by PUT, with the headers URL-Signature, URL-Expires, "
            "URL-Methods, URL-Paths and X-Project-ID; UnsubscribeBody refuses.",
            "URL-Signature": self._sign(source.project, path, ends),
            "URL-Expires": self._shown(ends),
            "URL-Methods": "PUT",
            "URL-Paths": path,
            "X-Project-ID": source.project,
            "SubscribeBody": {"confirmed": True},
            "UnsubscribeBody": {"confirmed": False},
            f"{source.kind}_name": source.name,
        }
        if self._public_url:
            told["WSGISubscribeURL"] = self._public_url + path
        return wire.encode(told)
