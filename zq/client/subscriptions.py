# SPDX-License-Identifier: Apache-2.0
"""The verbs of subscriptions and their deliveries, common to queues and topics."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from zq import wire
from zq.client.calls import Answer, Call, Page, Params, Repeat, listing, nothing, operation, path
from zq.client.resources import ResourceVerbs, id_list, linked
from zq.client.values import DeadDelivery, ProjectSubscription, Redriven, Subscribed, Subscription
from zq.wire.numbers import checked_json

T = TypeVar("T")
# Path segment of subscriptions.
_SEGMENT: Final = "subscriptions"


class _Subscriptions(Struct):
    subscriptions: list[Subscription]
    links: list[dict[str, str]]


class _ProjectSubscriptions(Struct):
    subscriptions: list[ProjectSubscription]
    links: list[dict[str, str]]


class _Deliveries(Struct):
    deliveries: list[DeadDelivery]
    links: list[dict[str, str]]


class _Tested(Struct):
    message_id: str


class _Secret(Struct):
    secret: str


def project_subscriptions_call(page: int | None) -> Call[Page[ProjectSubscription]]:
    """Return the call that lists the subscriptions of the project."""

    def read(answer: Answer) -> Page[ProjectSubscription]:
        found = msgspec.json.decode(answer.body, type=_ProjectSubscriptions)
        return linked(path(_SEGMENT), found.subscriptions, found.links, read)

    return Call(method="GET", path=path(_SEGMENT), params={"limit": page}, read=read)


class SubscriptionVerbs(ResourceVerbs):
    """Subscription verbs. All except ``unsubscribe`` raise ``SubscriptionNotFound`` for an unknown id."""

    @operation
    def subscribe(
        self, subscriber: str, *, ttl: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Call[Subscribed]:
        """Subscribe a URI to the messages, for ``ttl`` seconds (default: one hour), once the subscriber has confirmed.

        A subscriber that has not confirmed yet receives another request for confirmation. If the answer is lost, repeat
        the call to get the id, and call ``rotate_secret`` to get a secret. Raises ``SubscriptionExists``.
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
        """List all subscriptions.

        Args:
            page: Number of subscriptions per request.
        """

        def read(answer: Answer) -> Page[Subscription]:
            found = msgspec.json.decode(answer.body, type=_Subscriptions)
            return linked(self._path(_SEGMENT), found.subscriptions, found.links, read)

        return Call(method="GET", path=self._path(_SEGMENT), params={"limit": page}, read=read)

    @operation
    def subscription(self, id: str) -> Call[Subscription]:
        """Return a subscription."""
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
        """Change the given properties of a subscription. Raises ``SubscriptionExists``.

        A new subscriber must confirm again. It gets no ``post_headers`` except those given here, and a new secret; call
        ``rotate_secret`` to get a secret that you know.
        """
        terms = {"subscriber": subscriber, "ttl": ttl, "options": options}
        body = checked_json({name: value for name, value in terms.items() if value is not None})
        return Call(method="PATCH", path=self._path(_SEGMENT, id), body=body, read=nothing)

    @operation
    def unsubscribe(self, id: str) -> Call[None]:
        """Delete a subscription with its pending deliveries. An unknown subscription is ignored."""
        return Call(method="DELETE", path=self._path(_SEGMENT, id), read=nothing)

    @operation
    def confirm_subscription(self, id: str, agreed: bool = True) -> Call[None]:
        """Confirm a subscription on behalf of the subscriber, or refuse it.

        With authentication, only administrators may confirm a subscription that requires confirmation; other callers
        get ``NotAuthorized``.
        """
        body = wire.encode({"confirmed": agreed})
        return Call(method="PUT", path=self._path(_SEGMENT, id, "confirm"), body=body, read=nothing)

    @operation
    def rotate_secret(self, id: str) -> Call[str]:
        """Return a new secret for signed webhooks. The former secret also signs for one more day."""
        return Call(
            method="POST",
            path=self._path(_SEGMENT, id, "secret"),
            read=lambda answer: msgspec.json.decode(answer.body, type=_Secret).secret,
            repeat=Repeat.UNSENT,
        )

    @listing
    def dead_deliveries(self, id: str, *, page: int | None = None) -> Call[Page[DeadDelivery]]:
        """List the failed deliveries of a subscription, earliest failure first.

        Args:
            page: Number of deliveries per request.
        """
        return self._deliveries(id, {"limit": page})

    @listing
    def waiting_deliveries(self, id: str, *, page: int | None = None) -> Call[Page[DeadDelivery]]:
        """List the pending deliveries of a subscription, whether attempted or not.

        Args:
            page: Number of deliveries per request.
        """
        return self._deliveries(id, {"limit": page, "state": "waiting"})

    def _deliveries(self, id: str, params: Params) -> Call[Page[DeadDelivery]]:
        where = self._path(_SEGMENT, id, "deliveries")

        def read(answer: Answer) -> Page[DeadDelivery]:
            found = msgspec.json.decode(answer.body, type=_Deliveries)
            return linked(where, found.deliveries, found.links, read)

        return Call(method="GET", path=where, params=params, read=read)

    @operation
    def test_subscription(self, id: str) -> Call[str]:
        """Deliver ``{"test": true}`` to this subscriber only, and return the message id.

        Raises ``Conflict`` unless the subscription is confirmed.
        """
        return Call(
            method="POST",
            path=self._path(_SEGMENT, id, "deliveries"),
            read=lambda answer: msgspec.json.decode(answer.body, type=_Tested).message_id,
            repeat=Repeat.UNSENT,
        )

    @operation
    def redrive_deliveries(self, id: str, *, limit: int | None = None) -> Call[Redriven]:
        """Retry failed deliveries, up to 1,000 or ``limit`` of them, with all attempts again."""
        return Call(
            method="POST",
            path=self._path(_SEGMENT, id, "deliveries", "redrive"),
            body=wire.encode({} if limit is None else {"limit": limit}),
            read=lambda answer: msgspec.json.decode(answer.body, type=Redriven),
            repeat=Repeat.UNSENT,
        )

    @operation
    def drop_deliveries(self, id: str, deliveries: Iterable[str] | None = None) -> Call[None]:
        """Delete failed deliveries: up to 20 by id, or all. Unknown ids are ignored."""
        params: Params = {} if deliveries is None else {"ids": id_list(deliveries)}
        if not params.get("ids", True):
            return Call(method="DELETE", path="", read=nothing, local_answer=Answer(204, {}, b""))
        return Call(method="DELETE", path=self._path(_SEGMENT, id, "deliveries"), params=params, read=nothing)
