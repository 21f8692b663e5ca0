# SPDX-License-Identifier: Apache-2.0
"""The use cases: every rule, default and limit of zq lives here, once."""

from collections.abc import Mapping

from zq.broker.accounts import Accounts
from zq.broker.browsing import Browsing
from zq.broker.claims import Claims
from zq.broker.data_keys import DataKeys
from zq.broker.deliveries import Deliveries
from zq.broker.encryption import Sealing
from zq.broker.following import Following
from zq.broker.health import Health
from zq.broker.history import History
from zq.broker.messages import Messages
from zq.broker.move_tasks import MoveTasks
from zq.broker.publishing import Publishing, Readers
from zq.broker.pushes import Pushes
from zq.broker.queues import Queues
from zq.broker.quotas import Quotas
from zq.broker.rates import Rates
from zq.broker.redriving import Redriving
from zq.broker.removal import Removal
from zq.broker.rules import DefaultTtls, Patterns, RulesCache
from zq.broker.settling import Settling
from zq.broker.sqs import SqsMessages
from zq.broker.streams import Streams
from zq.broker.subscription_documents import SubscriptionDocuments
from zq.broker.subscriptions import Subscribing
from zq.broker.tails import Tails
from zq.broker.topics import Topics
from zq.broker.trail import Trail
from zq.broker.transactions import Transactions
from zq.broker.waiting import Waiters
from zq.clock import Clock
from zq.errors import Unavailable
from zq.events import NO_EVENTS, Events
from zq.limits import DEFAULT_KEEP, MAX_COUNTED, MAX_DRIFT, MAX_UNCERTAINTY, Limits
from zq.model.quotas import Quota
from zq.model.topics import Retention
from zq.storage.api import Storage

DEFAULT_LIMITS = Limits()


class Broker:
    """The use cases on one store. ``checksum`` and ``delete_with_claim_id`` are options of contract 16.

    ``retention``: how much of a project's log of topics is kept. ``events`` is told what they did.
    ``patience``: seconds that the caller of a large commit waits for its end.
    ``quota``: what a project may use that has no values of its own; None = nobody is asked who it is, so that nobody
    can be bounded. ``share``: percent of waiters and streams that one project gets; ``rates``: by what projects
    are slowed down. ``encryption_keys``: as ``DataKeys`` has them. ``max_counted``: see ``Queues``.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits = DEFAULT_LIMITS,
        *,
        checksum: bool = False,
        delete_with_claim_id: bool = False,
        max_waiters: int = 40,
        max_streams: int = 16,
        retention: Retention = DEFAULT_KEEP,
        queue_ttl: Patterns = (),
        events: Events = NO_EVENTS,
        patience: float = 5.0,
        quota: Quota | None = None,
        share: int = 25,
        rates: Rates | None = None,
        encryption_keys: Mapping[str, bytes] | None = None,
        max_counted: int = MAX_COUNTED,
    ) -> None:
        self.rates = rates or Rates(threads=64)
        self.quotas = None if quota is None else Quotas(storage, clock, quota, self.rates)
        self.default_ttls = DefaultTtls(limits.default_message_ttl, queue_ttl)
        rules_cache = RulesCache(limits, storage, default_ttls=self.default_ttls)
        self.storage = storage
        keys = DataKeys(storage.documents, clock, encryption_keys or {})
        self.topics = Topics(storage, clock, limits, self.default_ttls, keys)
        self.sealing = sealing = Sealing(
            keys, events, lambda queue: rules_cache.recent(queue).sealed_since, self.topics.sealed_since
        )
        self._clock, self.limits = clock, limits
        self.queues = Queues(storage, clock, limits, rules_cache, keys)
        self.messages = Messages(storage, clock, limits, rules_cache, checksum, delete_with_claim_id, events, sealing)
        self.browsing = Browsing(storage, clock, limits, sealing)
        self.claims = Claims(storage, clock, limits, rules_cache, events, sealing)
        self.sqs = SqsMessages(
            storage, clock, rules_cache, self.messages, self.claims, events, sealing, checksum=checksum
        )
        self.settling = Settling(storage, clock, limits, rules_cache, checksum, events, sealing)
        self.redriving = Redriving(storage, clock, rules_cache, events)
        self.move_tasks = MoveTasks(storage, clock, rules_cache, events)
        self.history = History(storage, clock, limits, rules_cache, events, sealing)
        self.transactions = Transactions(storage, clock, limits, rules_cache, events, patience)
        self.waiters = Waiters(storage, clock, limits, max_waiters, events, share)
        self.queues.wake = self.waiters.wake
        self.queues.max_counted = max_counted
        self._tails = Tails(storage)
        self.streams = Streams(storage, clock, self._tails, sealing, max_streams, events, share)
        readers = Readers(self._tails, self.waiters)
        self.publishing = Publishing(storage, clock, limits, self.topics, readers, retention, events, checksum, sealing)
        self._subscribe(rules_cache)
        self.health = Health(storage, clock)
        self.trail = Trail(storage.documents, clock)
        self.accounts = Accounts(storage, clock)
        self.removal = Removal(storage, clock, self.queues, self.topics, self.subscriptions)
        self._bound()

    def _subscribe(self, rules_cache: RulesCache) -> None:
        """Subscriptions; what makes queues and messages asks them."""
        storage, clock, limits = self.storage, self._clock, self.limits
        subscribed = SubscriptionDocuments(storage, clock)
        self.subscriptions = subscriptions = Subscribing(storage, clock, limits, subscribed)
        self.following = Following(storage, clock, subscriptions)
        self.pushes = Pushes(storage, clock, self.sealing)
        self.deliveries = Deliveries(storage, clock, limits, subscriptions, self.sealing)
        self.queues.first_metadata = self.messages.first_metadata = subscribed.mark_of_queue
        self.messages.copies = subscriptions.copies
        self.queues.unsubscribe = subscriptions.end_queue
        self.topics.unsubscribe = subscriptions.end_topic
        subscribed.forget = rules_cache.forget
        subscriptions.ensure_queue, subscriptions.ensure_topic = self.messages.ensure, self.topics.rules

    def _bound(self) -> None:
        """Have the use cases that create or store something ask what the project may have, if it is bounded."""
        if (quotas := self.quotas) is None:
            return
        self.queues.admit = self.messages.admit = quotas.admit_queue
        self.queues.check_dead_letters = quotas.check_dead_letters
        self.settling.admit = self.redriving.admit = quotas.admit_targets
        self.messages.check_targets = quotas.check_targets
        self.messages.admit_work = self.transactions.admit_work = quotas.admit_work
        self.transactions.work_ended = quotas.work_ended
        self.waiters.share_of = self.streams.share_of = quotas.share_of
        self.messages.refusal = self.history.refusal = quotas.refusal
        self.topics.admit = quotas.admit_topic
        self.subscriptions.most = quotas.most_subscriptions

    def resume(self) -> None:
        """Go on with what no server carries on: to be called every second."""
        self.transactions.resume()
        self.move_tasks.resume()
        self.removal.resume(self.quotas)

    def end_waiting(self) -> None:
        """Answer all who wait and end all streams, for the server ends. May be called twice."""
        self.waiters.close()
        self.streams.close()

    def check_ready(self) -> None:
        """Raise ``Unavailable`` with what is wrong: the store does not answer, its clock and ours disagree, or the way
        to it is too slow to know its time."""
        self.storage.ping()
        drift, uncertainty = self._clock.drift(), self._clock.uncertainty()
        if abs(drift) > MAX_DRIFT:
            raise Unavailable(f"This server's clock and the store's are {abs(drift):.0f} seconds apart.")
        if uncertainty > MAX_UNCERTAINTY:
            raise Unavailable(
                f"The store's time is known to {1000 * uncertainty:.0f} ms only, half of what the quickest of its last "
                f"answers took; {1000 * MAX_UNCERTAINTY:.0f} ms are allowed."
            )

    def store_answers(self) -> bool:
        """Whether the store can read and write now."""
        try:
            self.storage.ping()
        except Unavailable:
            return False
        return True
