# SPDX-License-Identifier: Apache-2.0
"""Subscribing, posting and delivering in any order, by two brokers on one store.

Each message reaches each subscription that was confirmed when the message came, as long as the subscription exists, and
no other one. Transport (sockets, retries, leases) is not modelled: a rule of the machine does the work of a delivery
worker between two of its requests.
"""

import json
from dataclasses import dataclass, field
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.features import core_with_subscriptions, fan_out_of
from tests.model.pair import PICKS, Holder, outcome
from tests.model.timeline import Timeline
from zq.errors import SubscriptionExists, SubscriptionNotFound
from zq.model import Claim, ClaimRequest, Lease, ListFilter, QueueRef, Settlement
from zq.model.topics import TopicRef
from zq.subscriptions.model import Notice, Source
from zq.subscriptions.notices import decode_notice
from zq.subscriptions.policy import SubscriptionPolicy
from zq.subscriptions.subscriptions import MIN_TTL, Terms

SOURCES = st.sampled_from([0, 0, 0, 1, 1, 2])
BROKERS = st.sampled_from([0, 0, 1])
TARGETS = st.sampled_from(["http://a.test/", "http://b.test/", "http://c.test/"])
LIVES = st.sampled_from([MIN_TTL, 600, 100_000])
DIES = st.sampled_from([False, False, False, True])
"""Whether the worker is killed before its last step."""
LEASE = 10


class Unsealed:
    """An encryption that leaves secrets unchanged."""

    def seal(self, secret: str) -> bytes:
        return secret.encode()

    def open(self, sealed: bytes) -> str:
        return sealed.decode()


@dataclass
class Subscriber:
    """A subscription; ``agreed``: the number of messages before its last confirmation, `None` if unconfirmed."""

    id: str
    target: str
    expires: float
    agreed: int | None = None
    got: set[int] = field(default_factory=set)
    """Messages that were delivered, by their numbers."""


@dataclass
class Known:
    """A source and its subscribers."""

    source: Source
    subscribers: list[Subscriber] = field(default_factory=list)
    came: list[int] = field(default_factory=list)
    """The numbers of its messages, in order."""

    def living(self, now: float) -> list[Subscriber]:
        self.subscribers = [each for each in self.subscribers if each.expires > now]
        return self.subscribers

    def owed(self, one: Subscriber) -> set[int]:
        """Return the messages that the subscription must get, and no others."""
        return set() if one.agreed is None else set(self.came[one.agreed :])


class SubscribingMachine(Timeline):
    """Two brokers with a queue and a topic of one project, and a queue of another."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(holder)
        policy = SubscriptionPolicy(sealer=Unsealed())
        pairs = [core_with_subscriptions(holder.storage, holder.clock, policy) for _ in range(2)]
        self.brokers, self.use_cases = zip(*pairs, strict=True)
        self.fan_outs = [fan_out_of(holder.storage, holder.clock, policy) for _ in range(2)]
        first, second = self.projects
        kinds = ((first, "queue"), (first, "topic"), (second, "queue"))
        self.known = [Known(Source(project, kind, "jobs")) for project, kind in kinds]
        self.numbers, self.claims = count(), count()

    def ends(self) -> set[float]:
        return {each.expires for known in self.known for each in known.subscribers}

    def pick(self, at: int, pick: int) -> tuple[Known, Subscriber | None]:
        """Return a live subscriber of the source, `None` if there is none."""
        known = self.known[at]
        living = known.living(self.now)
        return known, living[pick % len(living)] if living else None

    @initialize(agreed=st.lists(st.tuples(SOURCES, TARGETS, LIVES), min_size=1, max_size=4))
    def begin(self, agreed: list[tuple[int, str, int]]) -> None:
        """Subscribe, confirm and post, because without subscribers nothing happens."""
        for at, uri, ttl in agreed:
            self.subscribe(at, 0, uri, ttl)
            self.confirm(at, 0, 0, agreed=True)
            self.post(at, 0, 1)

    @rule(at=SOURCES, by=BROKERS, uri=TARGETS, ttl=LIVES)
    def subscribe(self, at: int, by: int, uri: str, ttl: int) -> None:
        known = self.known[at]
        same = next((each for each in known.living(self.now) if each.target == uri), None)
        told = outcome(self.use_cases[by].subscriptions.create, known.source, Terms(uri, ttl))
        if same is None:
            known.subscribers.append(Subscriber(told.id, uri, self.now + ttl))
        elif same.agreed is None:
            assert (told.id, told.secret) == (same.id, "")
        else:
            assert told[0] is SubscriptionExists

    @rule(at=SOURCES, by=BROKERS, pick=PICKS, agreed=st.sampled_from([True, True, True, False]))
    def confirm(self, at: int, by: int, pick: int, agreed: bool) -> None:
        """Confirm or decline; a repeated confirmation changes nothing."""
        known, one = self.pick(at, pick)
        told = outcome(self.use_cases[by].subscriptions.confirm, known.source, one.id if one else "none", agreed)
        if one is None:
            assert told[0] is SubscriptionNotFound
        elif not agreed:
            one.agreed = None
        elif one.agreed is None:
            one.agreed = len(known.came)

    @rule(at=SOURCES, by=BROKERS, pick=PICKS, uri=st.none() | TARGETS, ttl=LIVES)
    def update(self, at: int, by: int, pick: int, uri: str | None, ttl: int) -> None:
        """Update a subscription: another subscriber must be confirmed again; another TTL counts from now."""
        known, one = self.pick(at, pick)
        if one is None:
            return
        told = outcome(self.use_cases[by].subscriptions.update, known.source, one.id, Terms(uri, ttl))
        if any(each.target == uri for each in known.subscribers if each is not one):
            assert told[0] is SubscriptionExists
            return
        assert told is None
        one.expires = self.now + ttl
        if uri not in (None, one.target):
            one.target, one.agreed = uri, None

    @rule(at=SOURCES, by=BROKERS, pick=PICKS)
    def unsubscribe(self, at: int, by: int, pick: int) -> None:
        known, one = self.pick(at, pick)
        self.use_cases[by].subscriptions.delete(known.source, one.id if one else "none")
        known.subscribers = [each for each in known.subscribers if each is not one]

    @rule(at=SOURCES, by=BROKERS, number=st.sampled_from([1, 1, 1, 2, 5]))
    def post(self, at: int, by: int, number: int) -> None:
        known, broker = self.known[at], self.brokers[by]
        numbers = [next(self.numbers) for _ in range(number)]
        body = json.dumps({"messages": [{"body": each, "ttl": 200_000} for each in numbers]}).encode()
        if known.source.kind == "queue":
            broker.messages.post(QueueRef(known.source.project, known.source.name), "alice", body)
        else:
            broker.publishing.publish(TopicRef(known.source.project, known.source.name), body)
        known.came += numbers

    @rule(at=SOURCES, by=BROKERS)
    def delete_queue(self, at: int, by: int) -> None:
        """Delete a queue; its subscriptions stay."""
        source = self.known[at].source
        if source.kind == "queue":
            self.brokers[by].queues.delete(QueueRef(source.project, source.name))

    def claim(self, queue: QueueRef, limit: int) -> Claim | None:
        lease = Lease(f"claim.{next(self.claims)}", LEASE, 0)
        return self.holder.storage.claims.create(queue, ClaimRequest(lease, limit), self.now).claim

    @rule(at=SOURCES, by=BROKERS, limit=st.sampled_from([1, 3, 100]), dies=DIES)
    def fan_out(self, at: int, by: int, limit: int, dies: bool) -> None:
        """Fan out once, as a worker does before it delivers."""
        self.fanned_out(at, by, limit, dies)

    def fanned_out(self, at: int, by: int, limit: int, dies: bool = False) -> bool:
        """Fan out once and return whether there was any message."""
        source, fan_out = self.known[at].source, self.fan_outs[by]
        if source.kind == "topic":
            followed = fan_out.follow(source.project)
            return followed is not None and followed.has_more
        claim = self.claim(source.notices, limit)
        if claim is not None and not dies:
            fan_out.fan_out(source.notices, claim)
        return claim is not None

    @rule(at=SOURCES, by=BROKERS, pick=PICKS, limit=st.sampled_from([1, 3, 20]), dies=DIES)
    def deliver(self, at: int, by: int, pick: int, limit: int, dies: bool) -> None:
        """Deliver pending messages of a subscription, as a worker does."""
        self.delivered(at, by, pick, limit, dies)

    def delivered(self, at: int, by: int, pick: int, limit: int, dies: bool = False) -> bool:
        """Deliver once and return whether there was any message."""
        known, one = self.pick(at, pick)
        if one is None:
            return False
        queue = known.source.worker_queue(one.id)
        claim = self.claim(queue, limit)
        if claim is None:
            return False
        stored = self.use_cases[by].stored.get(known.source).find(one.id)
        assert stored is not None
        for message in claim.messages:
            notice = decode_notice(message.body)
            if stored.receives(notice, confirm=True) and not notice.confirmation:
                self.judge(known, one, notice)
        if not dies:
            self.holder.storage.claims.settle(queue, claim.id, Settlement(rest=True), self.now)
        return True

    def judge(self, known: Known, one: Subscriber, notice: Notice) -> None:
        """Assert that the notice may be delivered; a repeat is allowed, because a worker may have been killed."""
        number = int(notice.body)
        assert number in known.owed(one), (number, one, known.came)
        one.got.add(number)

    @precondition(lambda self: any(known.came for known in self.known))
    @rule(by=BROKERS)
    def agree_on_everything(self, by: int = 0) -> None:
        """Let the workers finish, and assert that each subscription got all its messages."""
        self.holder.clock.advance(LEASE)
        for at, known in enumerate(self.known):
            while self.fanned_out(at, by, 100):
                pass
            for pick in range(len(known.living(self.now))):
                while self.delivered(at, by, pick, 20):
                    pass
            for one in known.living(self.now):
                assert known.owed(one) <= one.got, (one, known.came)
                stats = self.holder.storage.messages.list(
                    known.source.worker_queue(one.id), 0, 1, ListFilter(), self.now
                )
                assert not stats.items
