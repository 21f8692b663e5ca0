# SPDX-License-Identifier: Apache-2.0
"""HTTP resources for the subscriptions of queues and topics (contract section 9), and for their deliveries."""

from typing import Any, ClassVar, Final

import falcon
from msgspec import UNSET, Raw
from msgspec.structs import asdict

from zq import wire
from zq.errors import Invalid, InvalidBody, InvalidParameter
from zq.http import query, weight
from zq.http.authentication import SIGNATURE, token_of
from zq.http.context import Request
from zq.http.features import CONNECTION
from zq.model import Seconds
from zq.model.allowance import Allowance
from zq.model.identity import ADMIN, Identity
from zq.model.limits import check_range
from zq.model.scopes import Kind, Verb
from zq.subscriptions.deliveries import Deliveries, Delivery
from zq.subscriptions.model import Source, Subscription
from zq.subscriptions.subscriptions import ListedSubscription, Subscriptions, Terms
from zq.wire import encoding, extensions
from zq.wire import subscriptions as shapes

_LAST: Final = 2**63 - 1
# Values of the parameter ``state``, and whether they select pending deliveries.
_STATES: Final = {"dead": False, "waiting": True}


class _Resource:
    def __init__(self, subscriptions: Subscriptions, kind: str) -> None:
        self._subscriptions = subscriptions
        self._kind = kind

    def _source(self, req: Request) -> Source:
        ref = getattr(req.context, self._kind)
        return Source(ref.project, self._kind, ref.name)


def _parse_terms(req: Request, needed: bool) -> Terms:
    """Parse the properties of a subscription in the request body. Unknown members are ignored.

    If ``needed`` is true, the request must have a body.
    """
    # Clients rely on the texts of the error messages (contract section 0.2).
    raw = query.body(req, required=needed)
    given = wire.json_value(raw) if raw else {}
    if not isinstance(given, dict):
        raise InvalidBody("Subscriptions must be a dict.")
    return Terms(**{name: given[name] for name in Terms.__struct_fields__ if name in given})


def _format_subscription(source: Source, subscription: Subscription, now: Seconds) -> shapes.Subscription:
    return shapes.Subscription(
        id=subscription.id,
        source=source.name,
        subscriber=subscription.subscriber,
        ttl=subscription.ttl,
        age=max(0, int(now - subscription.started)),
        options=shapes.mask_options(subscription.options),
        confirmed=subscription.has_agreed,
    )


class SubscriptionCollection(_Resource):
    """The resource ``…/subscriptions``: list and create subscriptions."""

    policy = {"GET": "subscription:get_all", "POST": "subscription:create"}

    def on_get(self, req: Request, resp: falcon.Response, **_path: str) -> None:
        limit, source = query.integer(req, "limit"), self._source(req)
        seen = self._subscriptions.list(source, query.text(req, "marker"), limit)
        items = [_format_subscription(source, each, seen.now) for each in seen.value.items]
        resp.data = encoding.page("subscriptions", items, req.path, query.next_page_query(seen.value.next, limit=limit))

    def on_post(self, req: Request, resp: falcon.Response, **_path: str) -> None:
        terms, connection = _parse_terms(req, needed=False), req.env.get(CONNECTION, "")
        made = self._subscriptions.create(self._source(req), terms, token_of(req), connection)
        resp.set_header("Location", req.path)
        resp.status, resp.data = falcon.HTTP_201, wire.encode(shapes.SubscribeResult(made.id, made.secret))


class ProjectSubscriptions:
    """The resource ``/v2/subscriptions``: list the project's subscriptions."""

    policy: ClassVar[dict[str, str]] = {"GET": "subscription:get_all"}

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        allowance: Allowance = req.context.allowance
        if any(allowance.visible(Verb.MANAGE, kind) is not None for kind in (Kind.QUEUE, Kind.TOPIC)):
            raise allowance.refusal("subscription:get_all")
        limit = query.integer(req, "limit")
        weight.admit(req, weight.UNKNOWN_MESSAGE_COUNT)
        seen = self._subscriptions.list_project(req.context.project, query.text(req, "marker"), limit)
        items = [_format_listed(each, seen.now) for each in seen.value.items]
        resp.data = encoding.page("subscriptions", items, req.path, query.next_page_query(seen.value.next, limit=limit))


def _format_listed(listed: ListedSubscription, now: Seconds) -> shapes.ProjectSubscription:
    shown = asdict(_format_subscription(listed.source, listed.subscription, now))
    return shapes.ProjectSubscription(**shown, kind=listed.source.kind, waiting=listed.waiting, dead=listed.dead)


class SubscriptionItem(_Resource):
    """The resource ``…/subscriptions/{subscription}``: get, change and delete a subscription."""

    policy = {"GET": "subscription:get", "PATCH": "subscription:update", "DELETE": "subscription:delete"}

    def on_get(self, req: Request, resp: falcon.Response, subscription: str, **_path: str) -> None:
        source = self._source(req)
        seen = self._subscriptions.get(source, subscription)
        resp.data = wire.encode(_format_subscription(source, seen.value, seen.now))

    def on_patch(self, req: Request, resp: falcon.Response, subscription: str, **_path: str) -> None:
        self._subscriptions.update(self._source(req), subscription, _parse_terms(req, needed=True), token_of(req))
        resp.set_header("Location", req.path)
        resp.status = falcon.HTTP_204

    def on_delete(self, req: Request, resp: falcon.Response, subscription: str, **_path: str) -> None:
        self._subscriptions.delete(self._source(req), subscription)
        resp.status = falcon.HTTP_204


class SubscriptionConfirmation(_Resource):
    """The resource ``…/subscriptions/{subscription}/confirm``: confirm or decline a subscription."""

    policy = {"PUT": "subscription:confirm"}

    def on_put(self, req: Request, resp: falcon.Response, subscription: str, **_path: str) -> None:
        given = wire.json_value(query.body(req, required=True))
        agreed = given.get("confirmed") if isinstance(given, dict) else None
        if not isinstance(agreed, bool):
            raise InvalidBody("The 'confirmed' should be boolean.")
        self._subscriptions.confirm(self._source(req), subscription, agreed, _is_owner(req))
        resp.set_header("Location", req.path)
        resp.status = falcon.HTTP_204


def _is_owner(req: Request) -> bool:
    """Return whether the caller acts as the source's owner.

    A caller with a signed URL or the role of an administrator does not act as the owner.
    """
    identity: Identity = req.context.identity
    return bool(identity.credential) and SIGNATURE not in req.env and ADMIN not in identity.roles


class SubscriptionSecret(_Resource):
    """The resource ``…/subscriptions/{subscription}/secret``: rotate the signing secret."""

    policy = {"POST": "subscription:update"}

    def on_post(self, req: Request, resp: falcon.Response, subscription: str, **_path: str) -> None:
        resp.data = wire.encode(shapes.Secret(self._subscriptions.rotate(self._source(req), subscription)))


def add_routes(app: "falcon.App[Any, Any]", subscriptions: Subscriptions) -> None:
    app.add_route("/v2/subscriptions", ProjectSubscriptions(subscriptions))
    for kind in ("queue", "topic"):
        path = f"/v2/{kind}s/{{{kind}}}/subscriptions"
        app.add_route(path, SubscriptionCollection(subscriptions, kind))
        app.add_route(f"{path}/{{subscription}}", SubscriptionItem(subscriptions, kind))
        app.add_route(f"{path}/{{subscription}}/confirm", SubscriptionConfirmation(subscriptions, kind))
        app.add_route(f"{path}/{{subscription}}/secret", SubscriptionSecret(subscriptions, kind))


def _format_delivery(delivery: Delivery, now: Seconds) -> shapes.Delivery:
    stored = delivery.stored
    return shapes.Delivery(
        id=stored.id,
        message_id=delivery.notice.message,
        kind=delivery.notice.confirmation or "Notification",
        attempts=stored.origin_claim_count or stored.claim_count,
        reason=stored.reason,
        age=stored.age(now),
        ttl=stored.ttl,
        raw=UNSET if delivery.body is None else Raw(delivery.body),
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
        resp.status, resp.data = falcon.HTTP_202, wire.encode(shapes.SubscriptionTestResult(message))

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
            raise Invalid('The field "to" must not be given: deliveries go back to their subscription.')
        limit = None if terms.limit is UNSET else terms.limit
        redriven = self._deliveries.redrive(_source(req, self._kind), subscription, limit)
        req.context.messages = redriven.moved
        resp.data = wire.encode(redriven)


def _source(req: Request, kind: str) -> Source:
    ref = getattr(req.context, kind)
    return Source(ref.project, kind, ref.name)


def add_delivery_routes(app: "falcon.App[Any, Any]", deliveries: Deliveries) -> None:
    for kind in ("queue", "topic"):
        path = f"/v2/{kind}s/{{{kind}}}/subscriptions/{{subscription}}/deliveries"
        app.add_route(path, DeliveryCollection(deliveries, kind))
        app.add_route(f"{path}/redrive", DeliveryRedrive(deliveries, kind))
