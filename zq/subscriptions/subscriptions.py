# SPDX-License-Identifier: Apache-2.0
"""Use cases of subscriptions (contract 9): create, list, change, confirm and delete them.

All subscriptions of a source are stored in one document, so that no two have the same subscriber.

A queue with subscribers has ``MARK`` in its metadata. A post names the metadata that its server has cached. If another
server has added the mark meanwhile, the store refuses the post. A message is therefore never stored without its
notices.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from zq.clock import Clock
from zq.core.creation import QueueCreation, TopicCreation
from zq.core.quotas import AnyQuotas
from zq.core.values import Seen
from zq.errors import Invalid, InvalidBody, NotAuthorized, QuotaExceeded, SubscriptionExists, SubscriptionNotFound
from zq.limits import DEFAULT_PAGE, Limits, within
from zq.model import Page, QueueRef, Seconds, new_ids
from zq.model.documents import DocumentRef
from zq.model.topics import TopicRef
from zq.storage.api import Storage
from zq.subscriptions.documents import MAX_ATTEMPTS, SubscriptionDocuments
from zq.subscriptions.model import CONNECTION, Notice, Source, Subscription, SubscriptionSet
from zq.subscriptions.notices import drafts_of
from zq.subscriptions.policy import SubscriptionPolicy
from zq.subscriptions.subscribers import (
    TRUST,
    check_options,
    check_subscriber,
    entrusted,
    moved_options,
    restored_options,
    shown_options,
)
from zq.wire.webhooks import new_secret

# The kind of the documents that record recent requests for confirmation to each subscriber.
CONFIRMATIONS: Final = "confirmations"
MIN_TTL: Final = 60
# The latest expiry of a subscription, in seconds since 1970: the end of the year 9999.
LATEST_EXPIRY: Final = 253402300799
MAX_SUBSCRIPTIONS: Final = 100
# The maximum number of requests for confirmation to a subscriber in an hour (criterion E4).
MAX_CONFIRMATIONS: Final = 3
HOUR: Final = 3600.0
# The error sentence for an owner of the source that confirms instead of the subscriber.
NOT_THE_SUBSCRIBER: Final = (
    "Only the subscriber, by the signature of its confirmation, or an administrator may confirm this subscription."
)
# Seconds for which the previous secret signs deliveries after a rotation.
ROTATION: Final = 86400


class Terms(Struct):
    """The terms of a subscription that a caller requests. An unset term means the default, or no change."""

    subscriber: Any = None
    ttl: Any = UNSET
    options: Any = UNSET


class Subscribed(Struct, frozen=True):
    """The result of a creation: the subscription's id, and its secret if it is new ("" otherwise)."""

    id: str
    secret: str = ""


class Subscriptions:
    """The use cases of subscriptions."""

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
        self._stored = stored
        self._clock = clock
        self._limits = limits
        self._quotas = quotas
        self._queues = queues
        self._topics = topics
        self._policy = policy

    def create(self, source: Source, terms: Terms, token: str = "", connection: str = "") -> Subscribed:
        """Create a subscription (contract 9.2).

        If the subscriber has a subscription and has not confirmed it yet, another request for confirmation is sent.

        Args:
            source: The queue or topic.
            terms: The requested terms.
            token: The caller's Keystone token, to create a trust.
            connection: The WebSocket connection that subscribes if the terms name no subscriber (contract 14). A
                connection need not confirm, and its messages are not signed.

        Raises ``Invalid``, ``SubscriptionExists``, ``QuotaExceeded``.
        """
        self._ensure(source)
        pushed = bool(connection) and terms.subscriber is None
        uri = f"{CONNECTION}{connection}" if pushed else self._subscriber(terms.subscriber)
        ttl = self._policy.default_ttl if terms.ttl is UNSET else self._ttl(terms.ttl)
        options = check_options(None if terms.options is UNSET else terms.options)
        self._admit(source.project)
        secret = "" if pushed else new_secret()
        made = Subscription(new_ids(1, self._clock.now())[0], uri, ttl, self._clock.now(), options)
        sealed = b"" if pushed else self._policy.sealer.seal(secret)
        made = msgspec.structs.replace(made, secret=sealed, agreed=pushed or None)
        made = self._started(made)
        made = self._bounded(made)
        known = any(each.subscriber == uri for each in self._stored.of(source).items)
        trust = "" if known else self._trust(uri, token, made.expires)
        made = msgspec.structs.replace(made, options=entrusted(options, trust))

        def add(all: SubscriptionSet) -> tuple[SubscriptionSet, Subscription]:
            same = next((each for each in all.items if each.subscriber == uri), None)
            if same is None:
                if len(all.items) >= MAX_SUBSCRIPTIONS:
                    raise QuotaExceeded(f"A {source.kind} may have {MAX_SUBSCRIPTIONS} subscriptions.")
                new = self._stored.from_next(source, all, made)
                return all.replace(new), new
            if pushed or same.has_agreed:
                raise SubscriptionExists("The subscriber is subscribed, and has agreed.")
            if same.confirmed is None and same.agreed is None and (new := self._started(same)).confirmed is not None:
                new = self._stored.from_next(source, all, new)
                return all.replace(new), new
            return all, same

        found = self._change(source, add)
        self._request_confirmation(source, found, "SubscriptionConfirmation")
        return Subscribed(found.id, secret if found.id == made.id else "")

    def list(self, source: Source, marker: str, limit: int | None) -> Seen[Page[Subscription]]:
        """Return a page of the subscriptions, sorted by id. Raises ``Invalid``."""
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, self._limits.max_messages_per_page)
        now = self._clock.now()
        items = [each for each in self._stored.of(source).items if each.id > marker][:size]
        return Seen(Page(items, items[-1].id if items else None), now)

    def get(self, source: Source, id: str) -> Seen[Subscription]:
        """Return a subscription. Raises ``SubscriptionNotFound``."""
        found = self._stored.of(source).at(id)
        if found is None:
            raise SubscriptionNotFound()
        return Seen(found, self._clock.now())

    def update(self, source: Source, id: str, terms: Terms, token: str = "") -> None:
        """Change the subscription to the given terms (contract 9.5).

        A new subscriber must agree again. Its subscription gets a new secret, and loses headers whose values the terms
        do not contain. ``token``: the caller's Keystone token; a trust of the caller replaces the former trust.

        Raises ``Invalid``, ``SubscriptionNotFound``, ``SubscriptionExists``.
        """
        uri = None if terms.subscriber is None else self._subscriber(terms.subscriber)
        ttl = terms.ttl if terms.ttl in (None, UNSET) else self._ttl(terms.ttl)
        options = terms.options if terms.options in (None, UNSET) else check_options(terms.options)
        if uri is None and ttl in (None, UNSET) and options in (None, UNSET):
            raise InvalidBody("Give one of subscriber, ttl and options.")
        now = self._clock.now()
        former = self._stored.of(source).at(id)
        trust = ""
        if former is not None:
            lasts = former.expires if ttl in (None, UNSET) else now + ttl
            trust = self._trust(uri or former.subscriber, token, lasts)

        def change(all: SubscriptionSet) -> tuple[SubscriptionSet, tuple[Subscription, bool]]:
            found = _require(all, id)
            changes: dict[str, Any] = {}
            if ttl not in (None, UNSET):
                changes |= {"ttl": ttl, "started": now}
            if options not in (None, UNSET):
                changes["options"] = restored_options(options, found.options)
            moved = uri is not None and uri != found.subscriber
            if moved:
                if any(each.subscriber == uri for each in all.items):
                    raise SubscriptionExists("Another subscription has this subscriber.")
                # A caller may change a subscription without knowing its secrets, so no other subscriber gets them.
                known = shown_options(found.options) if options in (None, UNSET) else options
                changes |= {"subscriber": uri, "confirmed": None, "options": moved_options(known)}
                changes |= {"agreed": None, "secret": self._policy.sealer.seal(new_secret()), "former": None}
            new = self._bounded(msgspec.structs.replace(found, **changes))
            new = self._started(new) if moved else new
            new = msgspec.structs.replace(new, options=entrusted(new.options, trust))
            new = self._stored.from_next(source, all, new) if moved else new
            return all.replace(new), (new, moved)

        new, moved = self._change(source, change)
        if moved:
            self._request_confirmation(source, new, "SubscriptionConfirmation")

    def confirm(self, source: Source, id: str, agreed: bool, by_owner: bool = False) -> None:
        """Record whether the subscriber agrees (contract 9.6).

        If a subscriber withdraws its agreement, it gets a request that lets it agree again.

        ``by_owner``: the caller may manage the source, and is neither the subscriber nor an administrator. Raises
        ``SubscriptionNotFound``, and ``NotAuthorized`` if an owner confirms a subscription that only the subscriber may
        confirm.
        """

        def change(all: SubscriptionSet) -> tuple[SubscriptionSet, Subscription | None]:
            found = _require(all, id)
            if by_owner and agreed and found.must_agree(self._policy.confirm):
                raise NotAuthorized(NOT_THE_SUBSCRIBER)
            is_sent_to = found.is_sent_to(self._policy.confirm)
            # Remove ``confirmed``, too: with another ``require_confirmation``, messages would go to the subscriber.
            declined = not agreed and found.confirmed is not None
            if found.agreed == agreed == is_sent_to and not declined:
                return all, None
            was_active = found.has_agreed or is_sent_to
            new = msgspec.structs.replace(found, agreed=agreed)
            if is_sent_to != agreed or declined:
                new = msgspec.structs.replace(new, confirmed=0 if agreed else None)
                new = self._stored.from_next(source, all, new)
            return all.replace(new), new if was_active and not agreed else None

        if (left := self._change(source, change)) is not None:
            self._request_confirmation(source, left, "UnsubscribeConfirmation")

    def rotate(self, source: Source, id: str) -> str:
        """Replace the secret and return the new secret. The previous secret signs deliveries for another day, too.

        Raises ``Invalid``, ``SubscriptionNotFound``.
        """
        secret = new_secret()
        sealed, until = self._policy.sealer.seal(secret), self._clock.now() + ROTATION

        def change(all: SubscriptionSet) -> tuple[SubscriptionSet, None]:
            found = _require(all, id)
            return all.replace(msgspec.structs.replace(found, secret=sealed, former=(found.secret, until))), None

        self._change(source, change)
        return secret

    def delete(self, source: Source, id: str) -> None:
        """Delete a subscription and its deliveries. A missing subscription is ignored."""
        if self._stored.of(source).at(id) is not None:
            self._change(source, lambda all: (all.replace(without=id), None))
            self._stored.drop_deliveries(source, id)

    def _change(self, source: Source, change: Callable[[SubscriptionSet], tuple[SubscriptionSet, Any]]) -> Any:
        result = self._stored.change(source, change)
        if source.kind == "queue":
            self._queues.forget(QueueRef(source.project, source.name))
        return result

    def _ensure(self, source: Source) -> None:
        if source.kind == "queue":
            self._queues.rules(QueueRef(source.project, source.name))
        else:
            self._topics.rules(TopicRef(source.project, source.name))

    def _subscriber(self, uri: object) -> str:
        checked = check_subscriber(uri, self._policy.types)
        self._policy.check_address(checked)
        return checked

    def _trust(self, uri: str, token: str, until: Seconds) -> str:
        """Create a trust for the subscriber and return its id; "" if the subscriber needs none."""
        return self._policy.trusts.make(token, uri, min(until, LATEST_EXPIRY)) if uri.startswith(TRUST) else ""

    def _ttl(self, ttl: object) -> int:
        if type(ttl) is not int:
            raise Invalid("ttl must be an integer.")
        return within("ttl", ttl, MIN_TTL, 1 << 62)

    def _bounded(self, one: Subscription) -> Subscription:
        """Return the subscription unchanged. Raises ``Invalid`` if it expires after ``LATEST_EXPIRY``."""
        if one.expires > LATEST_EXPIRY:
            raise Invalid(f"ttl must be at most {int(LATEST_EXPIRY - one.started)} seconds: until the year 9999.")
        return one

    def _started(self, one: Subscription) -> Subscription:
        """Return the subscription with deliveries enabled if the subscriber need not agree first.

        Without an answer of the subscriber, ``agreed`` becomes False. If ``require_confirmation`` is enabled later,
        deliveries then wait for the subscriber's agreement.
        """
        if one.must_agree(self._policy.confirm):
            return one
        return msgspec.structs.replace(one, confirmed=0, agreed=bool(one.agreed))

    def _admit(self, project: str) -> None:
        most = self._quotas.max_subscriptions(project)
        if most and self._stored.count(project) >= most:
            raise QuotaExceeded(f"The project may have {most} subscriptions.")

    def _request_confirmation(self, source: Source, one: Subscription, confirmation: str) -> None:
        """Store a request for confirmation, unless none is required or the subscriber's hourly limit is reached."""
        if not one.must_agree(self._policy.confirm) or not self._may_request_confirmation(one.subscriber):
            return
        now = self._clock.now()
        notice = Notice(new_ids(1, now)[0], source.kind, source.name, b"null", one.ttl, confirmation=confirmation)
        self._messages.post(source.pending(one.id), drafts_of([notice], self._policy.keep, now), now)

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
    found = all.at(id)
    if found is None:
        raise SubscriptionNotFound()
    return found
