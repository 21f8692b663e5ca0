# SPDX-License-Identifier: Apache-2.0
"""The operations on subscriptions and deliveries, common to queues and topics."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from zq import wire
from zq.client.calls import Call, Page, Params, Repeat, Response, listing, operation, path, read_empty
from zq.client.resources import ResourceOperations, id_list, page_from_links
from zq.client.values import DeadDelivery, ProjectSubscription, Redriven, Subscribed, Subscription
from zq.wire.numbers import checked_json

T = TypeVar("T")
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

    def read(response: Response) -> Page[ProjectSubscription]:
        found = msgspec.json.decode(response.body, type=_ProjectSubscriptions)
        return page_from_links(path(_SEGMENT), found.subscriptions, found.links, read)

    return Call(method="GET", path=path(_SEGMENT), params={"limit": page}, read=read)


class SubscriptionOperations(ResourceOperations):
    """The operations on subscriptions. All but ``unsubscribe`` raise ``SubscriptionNotFound`` for an unknown id."""

    @operation
    def subscribe(
        self, subscriber: str, *, ttl: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Call[Subscribed]:
        """Subscribe a URI to the messages. Raises ``SubscriptionExists``.

        Deliveries begin when the subscriber has confirmed the subscription. If the subscriber has not confirmed an
        earlier subscription, the server sends the confirmation request again. If the response is lost, repeat the call
        to get the id, and call ``rotate_secret`` to get a secret.

        Args:
            ttl: Lifetime of the subscription in seconds. Default: one hour.
        """
        terms = {"subscriber": subscriber, "ttl": ttl, "options": options}
        return Call(
            method="POST",
            path=self._path(_SEGMENT),
            body=checked_json({name: value for name, value in terms.items() if value is not None}),
            read=lambda response: msgspec.json.decode(response.body, type=Subscribed),
            repeat=Repeat.UNSENT,
        )

    @listing
    def subscriptions(self, *, page: int | None = None) -> Call[Page[Subscription]]:
        """List the subscriptions.

        Args:
            page: Number of subscriptions per request.
        """

        def read(response: Response) -> Page[Subscription]:
            found = msgspec.json.decode(response.body, type=_Subscriptions)
            return page_from_links(self._path(_SEGMENT), found.subscriptions, found.links, read)

        return Call(method="GET", path=self._path(_SEGMENT), params={"limit": page}, read=read)

    @operation
    def subscription(self, id: str) -> Call[Subscription]:
        """Return a subscription."""
        where = self._path(_SEGMENT, id)
        return Call(
            method="GET", path=where, read=lambda response: msgspec.json.decode(response.body, type=Subscription)
        )

    @operation
    def update_subscription(
        self,
        id: str,
        *,
        subscriber: str | None = None,
        ttl: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Call[None]:
        """Change a subscription; ``None`` keeps a property. Raises ``SubscriptionExists``.

        A new subscriber must confirm again and gets a new secret, which ``rotate_secret`` replaces with one that you
        know. The old ``post_headers`` are not sent to the new subscriber.
        """
        terms = {"subscriber": subscriber, "ttl": ttl, "options": options}
        body = checked_json({name: value for name, value in terms.items() if value is not None})
        return Call(method="PATCH", path=self._path(_SEGMENT, id), body=body, read=read_empty)

    @operation
    def unsubscribe(self, id: str) -> Call[None]:
        """Delete a subscription with its pending deliveries. Has no effect if the subscription does not exist."""
        return Call(method="DELETE", path=self._path(_SEGMENT, id), read=read_empty)

    @operation
    def confirm_subscription(self, id: str, agreed: bool = True) -> Call[None]:
        """Confirm a subscription on behalf of the subscriber, or reject it if ``agreed`` is false.

        If the server requires authentication, only administrators may confirm a subscription that needs confirmation.
        For other callers, the call raises ``NotAuthorized``.
        """
        body = wire.encode({"confirmed": agreed})
        return Call(method="PUT", path=self._path(_SEGMENT, id, "confirm"), body=body, read=read_empty)

    @operation
    def rotate_secret(self, id: str) -> Call[str]:
        """Create and return a new webhook secret. For one day, deliveries are signed with both secrets."""
        return Call(
            method="POST",
            path=self._path(_SEGMENT, id, "secret"),
            read=lambda response: msgspec.json.decode(response.body, type=_Secret).secret,
            repeat=Repeat.UNSENT,
        )

    @listing
    def dead_deliveries(self, id: str, *, page: int | None = None) -> Call[Page[DeadDelivery]]:
        """List the failed deliveries of a subscription, oldest failure first.

        Args:
            page: Number of deliveries per request.
        """
        return self._deliveries(id, {"limit": page})

    @listing
    def waiting_deliveries(self, id: str, *, page: int | None = None) -> Call[Page[DeadDelivery]]:
        """List the pending deliveries of a subscription.

        Args:
            page: Number of deliveries per request.
        """
        return self._deliveries(id, {"limit": page, "state": "waiting"})

    def _deliveries(self, id: str, params: Params) -> Call[Page[DeadDelivery]]:
        where = self._path(_SEGMENT, id, "deliveries")

        def read(response: Response) -> Page[DeadDelivery]:
            found = msgspec.json.decode(response.body, type=_Deliveries)
            return page_from_links(where, found.deliveries, found.links, read)

        return Call(method="GET", path=where, params=params, read=read)

    @operation
    def test_subscription(self, id: str) -> Call[str]:
        """Send the test message ``{"test": true}`` to this subscriber only. Return the message id.

        Raises ``Conflict`` if the subscription is not confirmed.
        """
        return Call(
            method="POST",
            path=self._path(_SEGMENT, id, "deliveries"),
            read=lambda response: msgspec.json.decode(response.body, type=_Tested).message_id,
            repeat=Repeat.UNSENT,
        )

    @operation
    def redrive_deliveries(self, id: str, *, limit: int | None = None) -> Call[Redriven]:
        """Retry up to ``limit`` failed deliveries (default: 1,000). Their attempts are counted from zero again."""
        return Call(
            method="POST",
            path=self._path(_SEGMENT, id, "deliveries", "redrive"),
            body=wire.encode({} if limit is None else {"limit": limit}),
            read=lambda response: msgspec.json.decode(response.body, type=Redriven),
            repeat=Repeat.UNSENT,
        )

    @operation
    def drop_deliveries(self, id: str, deliveries: Iterable[str] | None = None) -> Call[None]:
        """Delete failed deliveries. Unknown ids are ignored.

        Args:
            deliveries: Up to 20 delivery ids. Default: all failed deliveries.
        """
        params: Params = {} if deliveries is None else {"ids": id_list(deliveries)}
        if not params.get("ids", True):
            return Call(method="DELETE", path="", read=read_empty, local_response=Response(204, {}, b""))
        return Call(method="DELETE", path=self._path(_SEGMENT, id, "deliveries"), params=params, read=read_empty)
