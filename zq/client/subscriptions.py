# SPDX-License-Identifier: Apache-2.0
"""The operations on subscriptions and deliveries, common to queues and topics."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from zq import wire
from zq.client.calls import Call, Page, Params, Repeat, Response, decode_as, listing, operation, pages, read_empty
from zq.client.resources import ResourceOperations, id_list
from zq.client.values import DeadDelivery, RedriveResult
from zq.wire.numbers import checked_json
from zq.wire.subscriptions import Secret, SubscribeResult, Subscription, SubscriptionTestResult

T = TypeVar("T")
_SEGMENT: Final = "subscriptions"


class SubscriptionOperations(ResourceOperations):
    """The operations on subscriptions. All except ``unsubscribe`` raise ``SubscriptionNotFound`` for an unknown id."""

    @operation
    def subscribe(
        self, subscriber: str, *, ttl: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Call[SubscribeResult]:
        """Subscribe a URI to the messages. Raises ``SubscriptionExists`` if the URI has a confirmed subscription.

        The server sends a confirmation request to the URI. Deliveries begin when the subscriber has confirmed. If the
        URI already has an unconfirmed subscription, the result contains its id, but no secret.

        If the response is lost, the client does not retry. Repeat the call to get the id, and call ``rotate_secret`` to
        get a secret. ``ttl`` is in seconds, by default one hour.
        """
        terms = {"subscriber": subscriber, "ttl": ttl, "options": options}
        return Call(
            method="POST",
            path=self._path(_SEGMENT),
            body=checked_json({name: value for name, value in terms.items() if value is not None}),
            read=decode_as(SubscribeResult),
            repeat=Repeat.UNSENT,
        )

    @listing
    def subscriptions(self, *, page: int | None = None) -> Call[Page[Subscription]]:
        """List the subscriptions."""
        return pages("subscriptions", Subscription, self._path(_SEGMENT), {"limit": page})

    @operation
    def subscription(self, id: str) -> Call[Subscription]:
        """Return a subscription."""
        where = self._path(_SEGMENT, id)
        return Call(method="GET", path=where, read=decode_as(Subscription))

    @operation
    def update_subscription(
        self,
        id: str,
        *,
        subscriber: str | None = None,
        ttl: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Call[None]:
        """Change a subscription. ``None`` leaves a property unchanged.

        Raises ``SubscriptionExists`` if another subscription has the URI ``subscriber``. A new ``subscriber`` must
        confirm and does not get the old ``post_headers``. To get a webhook secret for it, call ``rotate_secret``.
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

        If the server requires authentication and the subscription needs confirmation, only an administrator can confirm
        the subscription with this method. For other callers, a confirmation raises ``NotAuthorized``.
        """
        body = wire.encode({"confirmed": agreed})
        return Call(method="PUT", path=self._path(_SEGMENT, id, "confirm"), body=body, read=read_empty)

    @operation
    def rotate_secret(self, id: str) -> Call[str]:
        """Create and return a new webhook secret. For one day, deliveries are signed with both secrets."""
        return Call(
            method="POST",
            path=self._path(_SEGMENT, id, "secret"),
            read=lambda response: msgspec.json.decode(response.body, type=Secret).secret,
            repeat=Repeat.UNSENT,
        )

    @listing
    def dead_deliveries(self, id: str, *, page: int | None = None) -> Call[Page[DeadDelivery]]:
        """List the failed deliveries of a subscription, oldest failure first."""
        return self._deliveries(id, {"limit": page})

    @listing
    def waiting_deliveries(self, id: str, *, page: int | None = None) -> Call[Page[DeadDelivery]]:
        """List the pending deliveries of a subscription."""
        return self._deliveries(id, {"limit": page, "state": "waiting"})

    def _deliveries(self, id: str, params: Params) -> Call[Page[DeadDelivery]]:
        return pages("deliveries", DeadDelivery, self._path(_SEGMENT, id, "deliveries"), params)

    @operation
    def test_subscription(self, id: str) -> Call[str]:
        """Send a test message to this subscriber only, and return the message's id.

        Raises ``Conflict`` if the subscriber has not confirmed the subscription.
        """
        return Call(
            method="POST",
            path=self._path(_SEGMENT, id, "deliveries"),
            read=lambda response: msgspec.json.decode(response.body, type=SubscriptionTestResult).message_id,
            repeat=Repeat.UNSENT,
        )

    @operation
    def redrive_deliveries(self, id: str, *, limit: int | None = None) -> Call[RedriveResult]:
        """Retry up to ``limit`` failed deliveries (default: 1,000). The count of attempts starts again from zero."""
        return Call(
            method="POST",
            path=self._path(_SEGMENT, id, "deliveries", "redrive"),
            body=wire.encode({} if limit is None else {"limit": limit}),
            read=decode_as(RedriveResult),
            repeat=Repeat.UNSENT,
        )

    @operation
    def drop_deliveries(self, id: str, deliveries: Iterable[str] | None = None) -> Call[None]:
        """Delete the failed deliveries with these ids, at most 20. Unknown ids are ignored.

        If ``deliveries`` is ``None``, delete all failed deliveries.
        """
        params: Params = {} if deliveries is None else {"ids": id_list(deliveries)}
        if not params.get("ids", True):
            return Call(method="DELETE", path="", read=read_empty, local_response=Response(204, {}, b""))
        return Call(method="DELETE", path=self._path(_SEGMENT, id, "deliveries"), params=params, read=read_empty)
