# SPDX-License-Identifier: Apache-2.0
"""Use cases for subscriptions (contract section 9): create, list, change, confirm and delete.

All subscriptions of a source are stored in one document, so no subscriber can be added twice.

The metadata of a queue with active subscriptions contains the key ``MARK``. With each post, the server passes its
cached metadata to the store. If the queue's metadata has changed, the store rejects the post. A message is therefore
never stored without its notices, even if the first subscription was just created through another server.
"""

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from zq.clock import Clock
from zq.core.creation import QueueCreation, TopicCreation
from zq.core.quotas import AnyQuotas
from zq.core.values import ReadResult
from zq.errors import (
    Invalid,
    InvalidBody,
    InvalidParameter,
    NotAuthorized,
    QuotaExceeded,
    SubscriptionExists,
    SubscriptionNotFound,
)
from zq.model import Page, QueueRef, Seconds, new_ids
from zq.model.documents import DocumentRef
from zq.model.limits import DEFAULT_PAGE, Limits, check_range
from zq.model.topics import TopicRef
from zq.storage.api import Storage
from zq.subscriptions.documents import MAX_ATTEMPTS, SubscriptionDocuments, position
from zq.subscriptions.model import Notice, Source, Subscription, SubscriptionSet
from zq.subscriptions.notices import make_drafts
from zq.subscriptions.policy import SubscriptionPolicy
from zq.subscriptions.subscribers import (
    TRUST,
    check_options,
    check_subscriber,
    drop_masked_headers,
    restore_masked_headers,
    with_trust,
)
from zq.wire.subscriptions import CONNECTION, mask_options
from zq.wire.webhooks import new_secret

# Kind of the documents with the times of recent confirmation requests, one document per subscriber.
CONFIRMATIONS: Final = "confirmations"
MIN_TTL: Final = 60
# Latest expiry time of a subscription, in seconds since the epoch: the end of the year 9999.
LATEST_EXPIRY: Final = 253402300799
MAX_SUBSCRIPTIONS: Final = 100
# Maximum number of deliveries that a listing of a project counts for a subscription.
MAX_COUNTED: Final = 1000
# Marker of a page of a project's subscriptions: the kind and name of the source, and the subscription's id.
MARKER: Final = re.compile(r"(queue|topic)/[^/]{1,80}/[^/]{1,64}")
# Maximum number of confirmation requests to a subscriber per hour.
MAX_CONFIRMATIONS: Final = 3
HOUR: Final = 3600.0
# Error message if the owner of the source confirms instead of the subscriber.
NOT_THE_SUBSCRIBER: Final = (
    "Only the subscriber, with the signature in its confirmation request, or an administrator may confirm this "
    "subscription."
)
# Seconds for which the previous secret still signs deliveries after a rotation.
ROTATION_SECONDS: Final = 86400


class Terms(Struct):
    """The requested properties of a subscription. An unset property has its default or, in an update, its old value."""

    subscriber: Any = None
    ttl: Any = UNSET
    options: Any = UNSET


class CreatedSubscription(Struct, frozen=True):
    """A new or existing subscription. ``secret`` is "" for an existing or unsigned subscription."""

    id: str
    secret: str = ""


class ListedSubscription(Struct, frozen=True):
    """A subscription in the project's listing, and the counts of its deliveries, at most ``MAX_COUNTED`` each."""

    source: Source
    subscription: Subscription
    waiting: int
    dead: int


class Subscriptions:
    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        stored: SubscriptionDocuments,
        quotas: AnyQuotas,
        queues: QueueCreation,
        topics: TopicCreation,
        policy: SubscriptionPolicy,
    ) -> None:
        self._messages = storage.messages
        self._documents = storage.documents
        self._depth = storage.depth
        self._stored = stored
        self._clock = clock
        self._limits = limits
        self._quotas = quotas
        self._queues = queues
        self._topics = topics
        self._policy = policy

    def create(self, source: Source, terms: Terms, token: str = "", connection: str = "") -> CreatedSubscription:
        """Create a subscription (contract section 9.2).

        If the subscriber already has an unconfirmed subscription, send another confirmation request instead.

        Args:
            token: The caller's Keystone token, with which a trust is created.
            connection: The id of the caller's WebSocket connection. If ``terms`` has no subscriber, the connection
                becomes the subscriber.

        Raises:
            Invalid: A term is not valid, or the server lacks a key or a service that the subscription needs.
            SubscriptionExists: The subscriber already has a confirmed subscription.
        """
        self._ensure_source(source)
        pushed = bool(connection) and terms.subscriber is None
        uri = f"{CONNECTION}{connection}" if pushed else self._check_subscriber(terms.subscriber)
        ttl = self._policy.default_ttl if terms.ttl is UNSET else self._check_ttl(terms.ttl)
        options = check_options(None if terms.options is UNSET else terms.options)
        self._check_quota(source.project)
        secret = "" if pushed else new_secret()
        made = Subscription(new_ids(1, self._clock.now())[0], uri, ttl, self._clock.now(), options)
        sealed = b"" if pushed else self._policy.sealer.seal(secret)
        made = msgspec.structs.replace(made, secret=sealed, agreed=pushed or None)
        made = self._activate_if_allowed(made)
        made = self._check_expiry(made)
        known = any(each.subscriber == uri for each in self._stored.get(source).items)
        trust = "" if known else self._create_trust(uri, token, made.expires)
        made = msgspec.structs.replace(made, options=with_trust(options, trust))

        def add(all: SubscriptionSet) -> tuple[SubscriptionSet, Subscription]:
            same = next((each for each in all.items if each.subscriber == uri), None)
            if same is None:
                if len(all.items) >= MAX_SUBSCRIPTIONS:
                    raise QuotaExceeded(f"The {source.kind} has {MAX_SUBSCRIPTIONS} subscriptions, the maximum.")
                new = self._stored.start_at_next(source, all, made)
                return all.replace(new), new
            if pushed or same.has_agreed:
                raise SubscriptionExists("The subscriber already has a confirmed subscription.")
            if (
                same.confirmed is None
                and same.agreed is None
                and (new := self._activate_if_allowed(same)).confirmed is not None
            ):
                new = self._stored.start_at_next(source, all, new)
                return all.replace(new), new
            return all, same

        found = self._change(source, add)
        self._request_confirmation(source, found, "SubscriptionConfirmation")
        return CreatedSubscription(found.id, secret if found.id == made.id else "")

    def list(self, source: Source, marker: str, limit: int | None) -> ReadResult[Page[Subscription]]:
        """Return a page of the source's subscriptions, sorted by id.

        Raises ``Invalid`` if the limit is out of range.
        """
        size = DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, self._limits.max_messages_per_page)
        now = self._clock.now()
        items = [each for each in self._stored.get(source).items if each.id > marker][:size]
        return ReadResult(Page(items, items[-1].id if items else None), now)

    def list_project(self, project: str, marker: str, limit: int | None) -> ReadResult[Page[ListedSubscription]]:
        """Return a page of the project's subscriptions.

        Raises ``Invalid`` if the limit is out of range, and ``InvalidParameter`` if the marker is malformed.
        """
        size = DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, self._limits.max_messages_per_page)
        if marker and not MARKER.fullmatch(marker):
            raise InvalidParameter("marker is not valid for this listing; use the marker in the link to the next page.")
        found, now = self._stored.list_project(project, marker, size), self._clock.now()
        items = [
            ListedSubscription(
                *(source, each, self._count(source.delivery_queue(each), now)),
                self._count(source.dead_letter_queue(each.id), now),
            )
            for source, each in found
        ]
        return ReadResult(Page(items, position(*found[-1]) if found else None), now)

    def _count(self, queue: QueueRef, now: Seconds) -> int:
        depth = self._depth(queue, now, MAX_COUNTED)
        return min(depth.ready + depth.delayed + depth.claimed, MAX_COUNTED)

    def get(self, source: Source, id: str) -> ReadResult[Subscription]:
        """Return the subscription with the given id. Raises ``SubscriptionNotFound`` if it does not exist."""
        found = self._stored.get(source).find(id)
        if found is None:
            raise SubscriptionNotFound()
        return ReadResult(found, self._clock.now())

    def update(self, source: Source, id: str, terms: Terms, token: str = "") -> None:
        """Change the given properties of the subscription (contract section 9.5).

        If the subscriber changes:

        - the signing secret changes;
        - the new subscriber must confirm, if the server requires confirmation from this type of subscriber;
        - headers with masked values are removed, because the new subscriber must not receive the old values.

        Raises:
            Invalid: A term is not valid, or ``terms`` sets no property.
            SubscriptionNotFound: The subscription does not exist.
            SubscriptionExists: Another subscription has the new subscriber.
        """
        uri = None if terms.subscriber is None else self._check_subscriber(terms.subscriber)
        ttl = terms.ttl if terms.ttl in (None, UNSET) else self._check_ttl(terms.ttl)
        options = terms.options if terms.options in (None, UNSET) else check_options(terms.options)
        if uri is None and ttl in (None, UNSET) and options in (None, UNSET):
            raise InvalidBody("The body must contain at least one of subscriber, ttl and options.")
        now = self._clock.now()
        former = self._stored.get(source).find(id)
        trust = ""
        if former is not None:
            lasts = former.expires if ttl in (None, UNSET) else now + ttl
            trust = self._create_trust(uri or former.subscriber, token, lasts)

        def change(all: SubscriptionSet) -> tuple[SubscriptionSet, tuple[Subscription, bool]]:
            found = _require(all, id)
            changes: dict[str, Any] = {}
            if ttl not in (None, UNSET):
                changes |= {"ttl": ttl, "started": now}
            if options not in (None, UNSET):
                changes["options"] = restore_masked_headers(options, found.options)
            moved = uri is not None and uri != found.subscriber
            if moved:
                if any(each.subscriber == uri for each in all.items):
                    raise SubscriptionExists("Another subscription has this subscriber.")
                # The caller may not know the subscription's secrets, so they must not reach another subscriber.
                known = mask_options(found.options) if options in (None, UNSET) else options
                changes |= {"subscriber": uri, "confirmed": None, "options": drop_masked_headers(known)}
                changes |= {"agreed": None, "secret": self._policy.sealer.seal(new_secret()), "former": None}
            new = self._check_expiry(msgspec.structs.replace(found, **changes))
            new = self._activate_if_allowed(new) if moved else new
            new = msgspec.structs.replace(new, options=with_trust(new.options, trust))
            new = self._stored.start_at_next(source, all, new) if moved else new
            return all.replace(new), (new, moved)

        new, moved = self._change(source, change)
        if moved:
            self._request_confirmation(source, new, "SubscriptionConfirmation")

    def confirm(self, source: Source, id: str, agreed: bool, by_owner: bool = False) -> None:
        """Confirm or decline the subscription (contract section 9.6).

        If the subscriber declines an active subscription, the server sends another confirmation request. With this
        request, the subscriber can subscribe again.

        Args:
            by_owner: Whether the caller is the source's owner. The owner may decline any subscription.

        Raises:
            NotAuthorized: The caller is the owner, but only the subscriber may confirm this subscription.
        """

        def change(all: SubscriptionSet) -> tuple[SubscriptionSet, Subscription | None]:
            found = _require(all, id)
            if by_owner and agreed and found.must_confirm(self._policy.confirm):
                raise NotAuthorized(NOT_THE_SUBSCRIBER)
            is_sent_to = found.is_sent_to(self._policy.confirm)
            # Unset ``confirmed``, too. If it stayed set, deliveries would start when the operator disables
            # ``require_confirmation``.
            declined = not agreed and found.confirmed is not None
            if found.agreed == agreed == is_sent_to and not declined:
                return all, None
            was_active = found.has_agreed or is_sent_to
            new = msgspec.structs.replace(found, agreed=agreed)
            if is_sent_to != agreed or declined:
                new = msgspec.structs.replace(new, confirmed=0 if agreed else None)
                new = self._stored.start_at_next(source, all, new)
            return all.replace(new), new if was_active and not agreed else None

        if (left := self._change(source, change)) is not None:
            self._request_confirmation(source, left, "UnsubscribeConfirmation")

    def rotate(self, source: Source, id: str) -> str:
        """Create a signing secret and return it. For one day, the previous secret also signs deliveries.

        Raises ``Invalid`` if the server has no encryption key.
        """
        secret = new_secret()
        sealed, until = self._policy.sealer.seal(secret), self._clock.now() + ROTATION_SECONDS

        def change(all: SubscriptionSet) -> tuple[SubscriptionSet, None]:
            found = _require(all, id)
            return all.replace(msgspec.structs.replace(found, secret=sealed, former=(found.secret, until))), None

        self._change(source, change)
        return secret

    def delete(self, source: Source, id: str) -> None:
        """Delete the subscription and its deliveries. Do nothing if the subscription does not exist."""
        if self._stored.get(source).find(id) is not None:
            self._change(source, lambda all: (all.replace(without=id), None))
            self._stored.drop_deliveries(source, id)

    def _change(self, source: Source, change: Callable[[SubscriptionSet], tuple[SubscriptionSet, Any]]) -> Any:
        result = self._stored.change(source, change)
        if source.kind == "queue":
            self._queues.forget(QueueRef(source.project, source.name))
        return result

    def _ensure_source(self, source: Source) -> None:
        if source.kind == "queue":
            self._queues.rules(QueueRef(source.project, source.name))
        else:
            self._topics.rules(TopicRef(source.project, source.name))

    def _check_subscriber(self, uri: object) -> str:
        checked = check_subscriber(uri, self._policy.types)
        self._policy.check_address(checked)
        return checked

    def _create_trust(self, uri: str, token: str, until: Seconds) -> str:
        return self._policy.trusts.create(token, uri, min(until, LATEST_EXPIRY)) if uri.startswith(TRUST) else ""

    def _check_ttl(self, ttl: object) -> int:
        if type(ttl) is not int:
            raise Invalid("ttl must be an integer.")
        return check_range("ttl", ttl, MIN_TTL, 1 << 62, unit="seconds")

    def _check_expiry(self, subscription: Subscription) -> Subscription:
        if subscription.expires > LATEST_EXPIRY:
            latest = int(LATEST_EXPIRY - subscription.started)
            raise Invalid(f"ttl must be at most {latest} seconds, because a subscription must expire by the year 9999.")
        return subscription

    def _activate_if_allowed(self, subscription: Subscription) -> Subscription:
        """Return an active copy of the subscription. If the subscriber must confirm first, return it unchanged.

        A subscription that is active without a confirmation has ``agreed`` set to False. If the operator enables
        ``require_confirmation`` later, the subscriber must confirm.
        """
        if subscription.must_confirm(self._policy.confirm):
            return subscription
        return msgspec.structs.replace(subscription, confirmed=0, agreed=bool(subscription.agreed))

    def _check_quota(self, project: str) -> None:
        maximum = self._quotas.max_subscriptions(project)
        if maximum and self._stored.count(project) >= maximum:
            raise QuotaExceeded(f"The project has {maximum} subscriptions, the maximum.", "subscriptions")

    def _request_confirmation(self, source: Source, subscription: Subscription, confirmation: str) -> None:
        if not subscription.must_confirm(self._policy.confirm) or not self._may_request_confirmation(
            subscription.subscriber
        ):
            return
        now = self._clock.now()
        notice = Notice(
            new_ids(1, now)[0], source.kind, source.name, b"null", subscription.ttl, confirmation=confirmation
        )
        self._messages.post(source.worker_queue(subscription.id), make_drafts([notice], self._policy.keep, now), now)

    def _may_request_confirmation(self, subscriber: str) -> bool:
        ref = DocumentRef("", CONFIRMATIONS, blake2b(subscriber.encode(), digest_size=16).hexdigest())
        for _ in range(MAX_ATTEMPTS):
            now = self._clock.now()
            document = self._documents.get(ref, now)
            moments = [when for when in msgspec.json.decode(document.value) if when > now - HOUR] if document else []
            if len(moments) >= MAX_CONFIRMATIONS:
                return False
            value, version = msgspec.json.encode([*moments, now]), document.version if document else ""
            if self._documents.put(ref, value, now, expected=version, expires=now + HOUR):
                return True
        return False


def _require(all: SubscriptionSet, id: str) -> Subscription:
    found = all.find(id)
    if found is None:
        raise SubscriptionNotFound()
    return found
