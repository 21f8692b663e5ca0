# SPDX-License-Identifier: Apache-2.0
"""HTTP resources for a subscription's deliveries, ``…/subscriptions/{subscription}/deliveries`` and below."""

from typing import Any, Final

import falcon
from msgspec import UNSET, Raw

from zq import wire
from zq.errors import Invalid, InvalidParameter
from zq.http import query
from zq.http.context import Request
from zq.limits import check_range
from zq.model import Seconds
from zq.subscriptions.deliveries import Deliveries, Delivery
from zq.subscriptions.model import Source
from zq.wire import encoding, extensions
from zq.wire import subscriptions as shapes

_LAST: Final = 2**63 - 1
# Values of the parameter ``state``, and whether they select pending deliveries.
_STATES: Final = {"dead": False, "waiting": True}


def _format_delivery(one: Delivery, now: Seconds) -> shapes.Delivery:
    stored = one.stored
    return shapes.Delivery(
        id=stored.id,
        message_id=one.notice.message,
        kind=one.notice.confirmation or "Notification",
        attempts=stored.origin_claim_count or stored.claim_count,
        reason=stored.reason,
        age=stored.age(now),
        ttl=stored.ttl,
        raw=UNSET if one.body is None else Raw(one.body),
    )


class DeliveryCollection:
    """The resource ``…/deliveries``: list and delete deliveries, and send a test message."""

    policy = {"GET": "subscription:get", "POST": "subscription:update", "DELETE": "subscription:update"}

    def __init__(self, deliveries: Deliveries, kind: str) -> None:
        self._deliveries = deliveries
        self._kind = kind

    def on_get(self, req: Request, resp: falcon.Response, subscription: str, **_path: str) -> None:
        limit, marker = query.integer(req, "limit"), check_range("marker", query.integer(req, "marker") or 0, 0, _LAST)
        state = query.text(req, "state")
        if state and state not in _STATES:
            raise InvalidParameter("state must be dead or waiting.")
        source, waiting = _source(req, self._kind), _STATES[state or "dead"]
        seen = self._deliveries.list(source, subscription, marker, limit, waiting)
        items = [_format_delivery(each, seen.now) for each in seen.value.items]
        link = query.next_page_query(seen.value.next, limit=limit, state=state)
        resp.data = encoding.page("deliveries", items, req.path, link)

    def on_post(self, req: Request, resp: falcon.Response, subscription: str, **_path: str) -> None:
        """Send a test message to the subscriber."""
        message = self._deliveries.test(_source(req, self._kind), subscription)
        resp.status, resp.data = falcon.HTTP_202, wire.encode(shapes.Tested(message))

    def on_delete(self, req: Request, resp: falcon.Response, subscription: str, **_path: str) -> None:
        self._deliveries.delete(_source(req, self._kind), subscription, query.values(req, "ids"))
        resp.status = falcon.HTTP_204


class DeliveryRedrive:
    """The resource ``…/deliveries/redrive``: redrive dead-lettered deliveries."""

    policy = {"POST": "subscription:update"}

    def __init__(self, deliveries: Deliveries, kind: str) -> None:
        self._deliveries = deliveries
        self._kind = kind

    def on_post(self, req: Request, resp: falcon.Response, subscription: str, **_path: str) -> None:
        raw = query.body(req)
        terms = extensions.redrive_terms(raw) if raw else extensions.RedriveTerms()
        if terms.to is not UNSET:
            raise Invalid("to must not be given: deliveries go back to their subscription.")
        limit = None if terms.limit is UNSET else terms.limit
        redriven = self._deliveries.redrive(_source(req, self._kind), subscription, limit)
        req.context.messages = redriven.moved
        resp.data = wire.encode(redriven)


def _source(req: Request, kind: str) -> Source:
    ref = getattr(req.context, kind)
    return Source(ref.project, kind, ref.name)


def add_routes(app: "falcon.App[Any, Any]", deliveries: Deliveries) -> None:
    for kind in ("queue", "topic"):
        path = f"/v2/{kind}s/{{{kind}}}/subscriptions/{{subscription}}/deliveries"
        app.add_route(path, DeliveryCollection(deliveries, kind))
        app.add_route(f"{path}/redrive", DeliveryRedrive(deliveries, kind))
