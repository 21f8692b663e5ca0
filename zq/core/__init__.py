# SPDX-License-Identifier: Apache-2.0
"""The operations of the queue service. ``Broker`` creates and connects them."""

from collections.abc import Mapping, Sequence

from zq.clock import Clock
from zq.core.browsing import Browsing
from zq.core.claims import Claims
from zq.core.creation import QueueCreation, TopicCreation, TopicStore
from zq.core.data_keys import DataKeys
from zq.core.encryption import Sealing
from zq.core.extensions import Extension
from zq.core.followers import Followers
from zq.core.health import Health, Pools
from zq.core.history import History
from zq.core.messages import Messages
from zq.core.modes import Modes
from zq.core.publishing import Publishing, Readers
from zq.core.queues import Queues
from zq.core.quotas import NO_QUOTAS, Quotas
from zq.core.rates import Rates
from zq.core.redriving import Redriving
from zq.core.removal import Removal
from zq.core.rules import DefaultTtls, Patterns, RulesCache
from zq.core.settling import Settling
from zq.core.streams import Streams
from zq.core.tails import Tails
from zq.core.topics import Topics
from zq.core.trail import TTL, Trail
from zq.core.transactions import Transactions
from zq.core.waiting import Waiters
from zq.events import NO_EVENTS, Events
from zq.model.limits import DEFAULT_KEEP, MAX_COUNTED, Limits
from zq.model.quotas import Quota
from zq.model.topics import Retention
from zq.storage.api import Storage

DEFAULT_LIMITS = Limits()
NO_FOLLOWERS = Followers()


class Broker:
    """The operations of the queue service on one store.

    Args:
        patience: Seconds to wait for a large commit before the server replies that the commit is still running.
        quota: Default quota of a project; ``None`` = no quotas, for a server without authentication.
        share: Maximum percentage of the long-poll slots and streams that one project may occupy.
        max_counted: Maximum message count per state, see ``Queues.depth``.
        audit_ttl: Retention of audit entries in seconds.
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
        followers: Followers = NO_FOLLOWERS,
        pools: Pools | None = None,
        audit_ttl: float = TTL,
        extensions: Sequence[Extension] = (),
    ) -> None:
        self.storage = storage
        self.clock = clock
        self.events = events
        self.checksum = checksum
        self.limits = limits
        self.modes = modes = Modes(storage.documents, clock)
        self.rates = rates or Rates(threads=64)
        self.quotas = None if quota is None else Quotas(storage, clock, quota, self.rates)
        quotas = self.quotas or NO_QUOTAS
        self.default_ttls = DefaultTtls(limits.default_message_ttl, queue_ttl)
        protocol_keys = [key for extension in extensions for key in extension.protocol_keys]
        owned_documents = [owned for extension in extensions for owned in extension.owned_documents]
        self.rules_cache = rules_cache = RulesCache(
            limits, storage, default_ttls=self.default_ttls, protocol_keys=protocol_keys
        )
        self.waiters = waiters = Waiters(storage, clock, limits, max_waiters, events, share, quotas)

        self.queue_creation = QueueCreation(storage.queues, quotas, rules_cache, followers)
        topic_store = TopicStore(storage, clock)
        self.topic_creation = topic_creation = TopicCreation(topic_store, quotas, limits, self.default_ttls)
        self.sealing = sealing = Sealing(
            DataKeys(storage.documents, clock, encryption_keys or {}),
            events,
            lambda queue: rules_cache.recent(queue).sealed_since,
            topic_creation.sealed_since,
            lambda queue: rules_cache.fresh(queue).sealed_since,
            topic_creation.stored_sealed_since,
        )

        self.queues = Queues(
            storage,
            clock,
            limits,
            rules_cache,
            sealing.keys,
            quotas,
            followers,
            waiters,
            max_counted,
            protocol_keys,
        )
        self.messages = Messages(
            storage,
            clock,
            limits,
            rules_cache,
            checksum,
            delete_with_claim_id,
            events,
            sealing,
            quotas,
            self.queue_creation,
            followers,
            modes,
        )
        self.browsing = Browsing(storage, clock, limits, sealing)
        self.claims = Claims(storage, clock, limits, rules_cache, events, sealing)
        self.settling = Settling(storage, clock, limits, rules_cache, checksum, events, sealing, quotas)
        self.redriving = Redriving(storage, clock, rules_cache, events, quotas)
        self.history = History(storage, clock, limits, rules_cache, events, sealing, quotas, modes)
        self.transactions = Transactions(storage, clock, limits, rules_cache, events, patience, quotas)

        self.topics = Topics(
            storage,
            clock,
            limits,
            self.default_ttls,
            sealing.keys,
            quotas,
            topic_store,
            topic_creation,
            followers,
            protocol_keys,
        )
        tails = Tails(storage)
        self.streams = Streams(storage, clock, tails, sealing, max_streams, events, share, quotas)
        self.publishing = Publishing(
            storage, clock, limits, topic_creation, Readers(tails, waiters), retention, events, checksum, sealing, modes
        )

        self.health = Health(storage, clock, pools=pools)
        self.trail = Trail(storage.documents, clock, audit_ttl)
        self.removal = Removal(storage, clock, self.queues, self.topics, followers, owned_documents)

    def resume(self) -> None:
        """Resume commits and project deletions that were interrupted. Must be called once a second."""
        self.transactions.resume()
        self.removal.resume(self.quotas)

    def end_waiting(self) -> None:
        """End all long polls and streams before the server stops. Idempotent."""
        self.waiters.close()
        self.streams.close()
