# SPDX-License-Identifier: Apache-2.0
"""Use cases on subscriptions (contract 9): who gets told of a source's messages, and who has agreed to be.

All subscriptions of a source are one document, so that two never have the same subscriber. A queue that has some to
deliver to says so in its metadata, under ``MARK``: a post that does not know it is refused by the store as any post
that expects other metadata, so no message is accepted without what is to be delivered of it.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET, Struct

from zq.clock import Clock
from zq.core.creation import QueueCreation, TopicCreation
from zq.core.quotas import AnyQuotas
from zq.core.rules import Rules
from zq.core.subscribers import (
    TRUST,
    TYPES,
    NoTrusts,
    Trusts,
    check_options,
    check_subscriber,
    entrusted,
    moved_options,
    restored_options,
    shown_options,
)
from zq.core.subscription_documents import TRIES, SubscriptionDocuments
from zq.core.values import Seen
from zq.errors import Invalid, InvalidBody, NotAuthorized, QuotaExceeded, SubscriptionExists, SubscriptionNotFound
from zq.limits import DEFAULT_PAGE, Limits, within
from zq.model import Copies, Draft, Page, QueueRef, Seconds, new_ids
from zq.model.documents import DocumentRef
from zq.model.subscriptions import CONNECTION, Notice, Source, Subscription, Subscriptions
from zq.model.topics import TopicRef
from zq.storage.api import Storage
from zq.wire.subscriptions import notice_body
from zq.wire.webhooks import new_secret

# The kind of the documents that count what was sent to a target that has not agreed.
ASKED: Final = "confirmations"
MIN_TTL: Final = 60
# Seconds since the epoch until which a subscription may last: the end of the year 9999.
LAST_MOMENT: Final = 253402300799
MOST_OF_SOURCE: Final = 100
# Confirmations that one target is asked for in an hour (criterion E4).
MOST_ASKED: Final = 3
HOUR: Final = 3600.0
# Deliveries of which each was posted by the one before; what comes by so many is not delivered any further.
MOST_HOPS: Final = 5
# The sentence of a 403 of an owner who confirms in the subscriber's place.
NOT_THE_SUBSCRIBER: Final = (
    "Only the subscriber, by the signature of its confirmation, or an administrator may confirm this subscription."
)
# Seconds for which a former secret signs, too.
ROTATION: Final = 86400


class Sealer(Protocol):
    """Keeps secrets from those who read the store."""

    def seal(self, secret: str) -> bytes:
        """A sealed secret. Raises ``Invalid`` where there is no key."""
        ...

    def open(self, sealed: bytes) -> str:
        """The secret; "" where no key opens it."""
        ...


class NoKey:
    """Where no key is configured."""

    def seal(self, secret: str) -> bytes:
        raise Invalid("This server takes no subscriptions: [signed_url] secret_key is not set.")

    def open(self, sealed: bytes) -> str:
        return ""


class Terms(Struct):
    """What a caller says of a subscription; unset = it stays, or the default."""

    subscriber: Any = None
    ttl: Any = UNSET
    options: Any = UNSET


class Subscribed(Struct, frozen=True):
    """``secret``: of a new subscription, else ""."""

    id: str
    secret: str = ""


def accept_any(_subscriber: str) -> None:
    """Accept every subscriber's address."""


class SubscriptionPolicy(Struct, frozen=True):
    """The server's rules for subscriptions."""

    types: tuple[str, ...] = TYPES
    """The accepted schemes of subscribers."""
    default_ttl: int = 3600
    """The ttl in seconds of a subscription that names none."""
    confirm: bool = True
    """Whether a subscriber must agree before anything is delivered to it."""
    lasting: int = 345600
    """Seconds for which an undelivered notice is kept."""
    sealer: Sealer = NoKey()
    trusts: Trusts = NoTrusts()
    check_address: Callable[[str], None] = accept_any
    """Raises ``Invalid`` for a subscriber at an address to which the server sends nothing."""


DEFAULT_POLICY: Final = SubscriptionPolicy()


class Subscribing:
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
        policy: SubscriptionPolicy = DEFAULT_POLICY,
    ) -> None:
        self._storage = storage
        self._documents = storage.documents
        self._stored = stored
        self._clock = clock
        self._limits = limits
        self._quotas = quotas
        self._queues = queues
        self._topics = topics
        self._policy = policy

    def create(self, source: Source, terms: Terms, token: str = "", connection: str = "") -> Subscribed:
        """Subscribe. The same subscriber, as long as it has not agreed, is asked again (contract 9.2).

        ``token``: the caller's, for a trust. ``connection``: who subscribes where the terms name no subscriber
        (contract 14); it has agreed, and what goes there is not signed.
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
        made = self._judged(made)
        known = any(each.subscriber == uri for each in self._stored.of(source).items)
        trust = "" if known else self._trust(uri, token, made.expires)
        made = msgspec.structs.replace(made, options=entrusted(options, trust))

        def add(all: Subscriptions) -> tuple[Subscriptions, Subscription]:
            same = next((each for each in all.items if each.subscriber == uri), None)
            if same is None:
                if len(all.items) >= MOST_OF_SOURCE:
                    raise QuotaExceeded(f"A {source.kind} may have {MOST_OF_SOURCE} subscriptions.")
                new = self._stored.from_next(source, all, made)
                return all.replace(new), new
            if pushed or same.has_agreed:
                raise SubscriptionExists("The subscriber is subscribed, and has agreed.")
            if same.confirmed is None and same.agreed is None and (new := self._started(same)).confirmed is not None:
                new = self._stored.from_next(source, all, new)
                return all.replace(new), new
            return all, same

        found = self._stored.change(source, add)
        self._ask(source, found, "SubscriptionConfirmation")
        return Subscribed(found.id, secret if found.id == made.id else "")

    def list(self, source: Source, marker: str, limit: int | None) -> Seen[Page[Subscription]]:
        """A page of them, by their ids."""
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, self._limits.max_messages_per_page)
        now = self._clock.now()
        items = [each for each in self._stored.of(source).items if each.id > marker][:size]
        return Seen(Page(items, items[-1].id if items else None), now)

    def get(self, source: Source, id: str) -> Seen[Subscription]:
        """One. Raises ``SubscriptionNotFound``."""
        found = self._stored.of(source).at(id)
        if found is None:
            raise SubscriptionNotFound()
        return Seen(found, self._clock.now())

    def update(self, source: Source, id: str, terms: Terms, token: str = "") -> None:
        """Change what the terms name (contract 9.5). Another subscriber has to agree anew.

        Another subscriber gets a new secret, and only those values of headers that the terms give.

        ``token``: the caller's, whose trust takes the place of the former one: what he changes goes in his name.

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

        def change(all: Subscriptions) -> tuple[Subscriptions, tuple[Subscription, bool]]:
            found = _there(all, id)
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
            new = self._judged(msgspec.structs.replace(found, **changes))
            new = self._started(new) if moved else new
            new = msgspec.structs.replace(new, options=entrusted(new.options, trust))
            new = self._stored.from_next(source, all, new) if moved else new
            return all.replace(new), (new, moved)

        new, moved = self._stored.change(source, change)
        if moved:
            self._ask(source, new, "SubscriptionConfirmation")

    def confirm(self, source: Source, id: str, agreed: bool, by_owner: bool = False) -> None:
        """Record that the subscriber agrees, or does not any more (contract 9.6).

        ``by_owner``: the caller may manage the source, and is neither the subscriber nor an administrator. Raises
        ``SubscriptionNotFound``, and ``NotAuthorized`` if an owner confirms where the subscriber has to.
        """

        def change(all: Subscriptions) -> tuple[Subscriptions, Subscription | None]:
            found = _there(all, id)
            if by_owner and agreed and found.must_agree(self._policy.confirm):
                raise NotAuthorized(NOT_THE_SUBSCRIBER)
            is_sent_to = self.is_sent_to(found)
            declined = not agreed and found.confirmed is not None  # with another option it may be sent to
            if found.agreed == agreed == is_sent_to and not declined:
                return all, None
            heard = found.has_agreed or is_sent_to
            new = msgspec.structs.replace(found, agreed=agreed)
            if is_sent_to != agreed or declined:
                new = msgspec.structs.replace(new, confirmed=0 if agreed else None)
                new = self._stored.from_next(source, all, new)
            return all.replace(new), new if heard and not agreed else None

        if (left := self._stored.change(source, change)) is not None:
            self._ask(source, left, "UnsubscribeConfirmation")

    def rotate(self, source: Source, id: str) -> str:
        """A new secret; for a day, deliveries are signed with the former one, too. Raises ``SubscriptionNotFound``."""
        secret = new_secret()
        sealed, until = self._policy.sealer.seal(secret), self._clock.now() + ROTATION

        def change(all: Subscriptions) -> tuple[Subscriptions, None]:
            found = _there(all, id)
            return all.replace(msgspec.structs.replace(found, secret=sealed, former=(found.secret, until))), None

        self._stored.change(source, change)
        return secret

    def delete(self, source: Source, id: str) -> None:
        """End a subscription, and what was to be delivered; one that is not there is fine."""
        if self._stored.of(source).at(id) is not None:
            self._stored.change(source, lambda all: (all.replace(without=id), None))
            self._drop(source, id)

    def delete_all(self, source: Source) -> None:
        """End all of a source (contract 6.8)."""
        gone = self._stored.of(source)
        if gone.items:
            self._stored.change(source, lambda all: (Subscriptions(all.generation + 1), None))
        for each in gone.items:
            self._drop(source, each.id)

    def gets(self, one: Subscription, notice: Notice) -> bool:
        """Return whether a notice goes to the subscription under this server's options."""
        return one.gets(notice, self._policy.confirm)

    def is_sent_to(self, one: Subscription) -> bool:
        """Return whether notices go to the subscription under this server's options."""
        return one.is_sent_to(self._policy.confirm)

    def of(self, source: Source) -> Subscriptions:
        """All of a source that have not ended."""
        return self._stored.of(source)

    def end_queue(self, queue: QueueRef) -> None:
        """``delete_all`` of a queue."""
        self.delete_all(Source(queue.project, "queue", queue.name))

    def end_topic(self, topic: TopicRef) -> None:
        """``delete_all`` of a topic."""
        self.delete_all(Source(topic.project, "topic", topic.name))

    def copies(
        self, queue: QueueRef, drafts: Sequence[Draft], rules: Rules, now: Seconds, hops: int = 0
    ) -> Copies | None:
        """What is to be delivered of a post: a notice of each message, which is fanned out later; None where it goes in
        circles."""
        if hops >= MOST_HOPS:
            return None
        delayed = bool(rules.default_delay)
        notices = [
            Notice(each.id, "queue", queue.name, each.body, each.ttl, delay, rules.subscribed, hops=hops)
            for each in drafts
            for delay in [each.delay if delayed else None]
        ]
        return Copies(Source(queue.project, "queue", queue.name).notices, self.drafts(notices, now))

    def secrets(self, subscription: Subscription) -> Sequence[str]:
        """With which its deliveries are signed now; none where the key that sealed them is gone."""
        former = subscription.former
        sealed = [subscription.secret] + ([former[0]] if former and former[1] > self._clock.now() else [])
        return [secret for secret in map(self._policy.sealer.open, sealed) if secret]

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
        """A new trust for the subscriber; "" where it needs none."""
        return self._policy.trusts.make(token, uri, min(until, LAST_MOMENT)) if uri.startswith(TRUST) else ""

    def _ttl(self, ttl: object) -> int:
        if type(ttl) is not int:
            raise Invalid("ttl must be an integer.")
        return within("ttl", ttl, MIN_TTL, 1 << 62)

    def _judged(self, one: Subscription) -> Subscription:
        """Raises ``Invalid`` for one that would last too long."""
        if one.expires > LAST_MOMENT:
            raise Invalid(f"ttl must be at most {int(LAST_MOMENT - one.started)} seconds: until the year 9999.")
        return one

    def _started(self, one: Subscription) -> Subscription:
        """Return the subscription with messages going to it, if the subscriber need not agree first.

        ``agreed`` is False then: the subscriber did not say so, and a server with another option waits for its word.
        """
        if one.must_agree(self._policy.confirm):
            return one
        return msgspec.structs.replace(one, confirmed=0, agreed=bool(one.agreed))

    def _admit(self, project: str) -> None:
        most = self._quotas.max_subscriptions(project)
        if most and self._stored.count(project) >= most:
            raise QuotaExceeded(f"The project may have {most} subscriptions.")

    def _ask(self, source: Source, one: Subscription, confirmation: str) -> None:
        """Leave a notice that asks for confirmation, unless its target was asked often enough."""
        if not one.must_agree(self._policy.confirm) or not self._may_ask(one.subscriber):
            return
        now = self._clock.now()
        notice = Notice(new_ids(1, now)[0], source.kind, source.name, b"null", one.ttl, confirmation=confirmation)
        self._storage.messages.post(source.pending(one.id), self.drafts([notice], now), now)

    def _may_ask(self, subscriber: str) -> bool:
        ref = DocumentRef("", ASKED, blake2b(subscriber.encode(), digest_size=16).hexdigest())
        for _ in range(TRIES):
            now = self._clock.now()
            document = self._documents.get(ref, now)
            asked = [when for when in msgspec.json.decode(document.value) if when > now - HOUR] if document else []
            if len(asked) >= MOST_ASKED:
                return False
            value, version = msgspec.json.encode([*asked, now]), document.version if document else ""
            if self._documents.put(ref, value, now, expected=version, expires=now + HOUR):
                return True
        return False

    def drafts(self, notices: Sequence[Notice], now: Seconds) -> Sequence[Draft]:
        """The notices as messages of a queue of ours."""
        lasting = self._policy.lasting
        ids = new_ids(len(notices), now)
        return [Draft(id, notice_body(each), lasting, 0, "") for id, each in zip(ids, notices, strict=True)]

    def _drop(self, source: Source, id: str) -> None:
        for queue in (source.pending(id), source.pushed(id), source.dead(id)):
            self._storage.queues.delete(queue)


def _there(all: Subscriptions, id: str) -> Subscription:
    found = all.at(id)
    if found is None:
        raise SubscriptionNotFound()
    return found
