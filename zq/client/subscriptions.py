# SPDX-License-Identifier: Apache-2.0
"""Verbs of queues and topics about who gets their messages: subscriptions, and what could not be delivered to them."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from zq import wire
from zq.client.calls import Answer, Call, Page, Params, Repeat, listing, nothing, operation
from zq.client.resources import ResourceVerbs, id_list, linked
from zq.client.values import DeadDelivery, Redriven, Subscribed, Subscription
from zq.wire.numbers import checked_json

T = TypeVar("T")
# The segment below a queue's or topic's.
_SEGMENT: Final = "subscriptions"


class _Subscriptions(Struct):
    subscriptions: list[Subscription]
    links: list[dict[str, str]]


class _Deliveries(Struct):
    deliveries: list[DeadDelivery]
    links: list[dict[str, str]]


class _Tested(Struct):
    message_id: str


class _Secret(Struct):
    secret: str


class SubscriptionVerbs(ResourceVerbs):
    """Each raises ``SubscriptionNotFound`` where there is none of the id, but ``unsubscribe``."""

    @operation
    def subscribe(
        self, subscriber: str, *, ttl: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Call[Subscribed]:
        """Have messages delivered to a URI, once the subscriber has agreed; for ``ttl`` seconds, by default an hour.

        One that has not agreed yet is asked again. Raises ``SubscriptionExists``. If the answer is lost, the same call
        again finds the id, and ``rotate_secret`` makes a new secret.
        """
        terms = {"subscriber": subscriber, "ttl": ttl, "options": options}
        return Call(
            method="POST",
            path=self._path(_SEGMENT),
            body=checked_json({name: value for name, value in terms.items() if value is not None}),
            read=lambda answer: msgspec.json.decode(answer.body, type=Subscribed),
            repeat=Repeat.UNSENT,
        )

    @listing
    def subscriptions(self, *, page: int | None = None) -> Call[Page[Subscription]]:
        """All of them; ``page``: how many in a request."""

        def read(answer: Answer) -> Page[Subscription]:
            found = msgspec.json.decode(answer.body, type=_Subscriptions)
            return linked(self._path(_SEGMENT), found.subscriptions, found.links, read)

        return Call(method="GET", path=self._path(_SEGMENT), params={"limit": page}, read=read)

    @operation
    def subscription(self, id: str) -> Call[Subscription]:
        """One of them."""
        where = self._path(_SEGMENT, id)
        return Call(method="GET", path=where, read=lambda answer: msgspec.json.decode(answer.body, type=Subscription))

    @operation
    def update_subscription(
        self,
        id: str,
        *,
        subscriber: str | None = None,
        ttl: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Call[None]:
        """Change what is given. Raises ``SubscriptionExists``.

        Another subscriber has to agree anew. It gets no ``post_headers`` but those that are given, and a new secret;
        call ``rotate_secret`` for one that you know.
        """
        terms = {"subscriber": subscriber, "ttl": ttl, "options": options}
        body = checked_json({name: value for name, value in terms.items() if value is not None})
        return Call(method="PATCH", path=self._path(_SEGMENT, id), body=body, read=nothing)

    @operation
    def unsubscribe(self, id: str) -> Call[None]:
        """End one, with what was to be delivered to it. No error if it does not exist."""
        return Call(method="DELETE", path=self._path(_SEGMENT, id), read=nothing)

    @operation
    def confirm_subscription(self, id: str, agreed: bool = True) -> Call[None]:
        """Confirm a subscription in the subscriber's place, or end its deliveries.

        With authentication only an administrator may confirm while the server requires confirmation; else
        ``NotAuthorized`` is raised.
        """
        body = wire.encode({"confirmed": agreed})
        return Call(method="PUT", path=self._path(_SEGMENT, id, "confirm"), body=body, read=nothing)

    @operation
    def rotate_secret(self, id: str) -> Call[str]:
        """A new secret of signed webhooks; the former one signs for another day."""
        return Call(
            method="POST",
            path=self._path(_SEGMENT, id, "secret"),
            read=lambda answer: msgspec.json.decode(answer.body, type=_Secret).secret,
            repeat=Repeat.UNSENT,
        )

    @listing
    def dead_deliveries(self, id: str, *, page: int | None = None) -> Call[Page[DeadDelivery]]:
        """What could not be delivered to it, the first that was given up first; ``page``: how many in a request."""
        return self._deliveries(id, {"limit": page})

    @listing
    def waiting_deliveries(self, id: str, *, page: int | None = None) -> Call[Page[DeadDelivery]]:
        """What is to be delivered to it, tried already or not; ``page``: how many in a request."""
        return self._deliveries(id, {"limit": page, "state": "waiting"})

    def _deliveries(self, id: str, params: Params) -> Call[Page[DeadDelivery]]:
        where = self._path(_SEGMENT, id, "deliveries")

        def read(answer: Answer) -> Page[DeadDelivery]:
            found = msgspec.json.decode(answer.body, type=_Deliveries)
            return linked(where, found.deliveries, found.links, read)

        return Call(method="GET", path=where, params=params, read=read)

    @operation
    def test_subscription(self, id: str) -> Call[str]:
        """Have ``{"test": true}`` delivered to this subscriber alone, and return its message's id. Raises ``Conflict``
        unless it has agreed."""
        return Call(
            method="POST",
            path=self._path(_SEGMENT, id, "deliveries"),
            read=lambda answer: msgspec.json.decode(answer.body, type=_Tested).message_id,
            repeat=Repeat.UNSENT,
        )

    @operation
    def redrive_deliveries(self, id: str, *, limit: int | None = None) -> Call[Redriven]:
        """Have them tried again, up to 1,000 or ``limit`` of them, each with all attempts anew."""
        return Call(
            method="POST",
            path=self._path(_SEGMENT, id, "deliveries", "redrive"),
            body=wire.encode({} if limit is None else {"limit": limit}),
            read=lambda answer: msgspec.json.decode(answer.body, type=Redriven),
            repeat=Repeat.UNSENT,
        )

    @operation
    def drop_deliveries(self, id: str, deliveries: Iterable[str] | None = None) -> Call[None]:
        """Drop up to 20 of them by their ids, or all. No error for those that are not there."""
        params: Params = {} if deliveries is None else {"ids": id_list(deliveries)}
        if not params.get("ids", True):
            return Call(method="DELETE", path="", read=nothing, local_answer=Answer(204, {}, b""))
        return Call(method="DELETE", path=self._path(_SEGMENT, id, "deliveries"), params=params, read=nothing)
