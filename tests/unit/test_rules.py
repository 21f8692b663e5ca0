# SPDX-License-Identifier: Apache-2.0
"""The cache of queues' rules: how long entries are kept, and which results are not cached."""

from collections.abc import Callable

import pytest

from zq.core import rules
from zq.core.rules import CACHE_TTL, RulesCache
from zq.model import ClaimRequest, Lease, Queue, QueueRef
from zq.model.limits import Limits

JOBS = QueueRef("acme", "jobs")


class Store:
    """The metadata of one queue and the number of reads. ``meanwhile`` runs before a read returns."""

    def __init__(self) -> None:
        self.metadata: bytes | None = None
        self.asked = 0
        self.meanwhile: Callable[[], None] = lambda: None

    @property
    def queues(self) -> "Store":
        return self

    messages = claims = queues

    def get(self, queue: QueueRef) -> Queue | None:
        self.asked += 1
        found = None if self.metadata is None else Queue(queue, self.metadata)
        self.meanwhile()
        return found


class Watch:
    """A monotonic clock."""

    time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def rules_cache(store: Store, watch: Watch) -> RulesCache:
    return RulesCache(Limits(), store, watch)


def test_the_rules_are_read_once_per_interval(rules_cache: RulesCache, store: Store, watch: Watch) -> None:
    """Deletes do not query the store each time; a change by another server takes effect within that time."""
    assert [rules_cache.recent(JOBS).history_ttl for _ in range(5)] == [0] * 5
    store.metadata = b'{"_history_ttl": 60}'
    watch.time += CACHE_TTL * 0.99
    assert rules_cache.recent(JOBS).history_ttl == 0
    assert store.asked == 1
    watch.time += CACHE_TTL * 0.01
    assert rules_cache.recent(JOBS).history_ttl == 60
    assert store.asked == 2


def test_a_change_by_this_server_counts_at_once(rules_cache: RulesCache, store: Store) -> None:
    """A forgotten entry is read again."""
    assert rules_cache.recent(JOBS).history_ttl == 0
    store.metadata = b'{"_history_ttl": 60}'
    rules_cache.forget(JOBS)
    assert rules_cache.recent(JOBS).history_ttl == 60


def test_a_result_read_before_a_change_is_not_cached(rules_cache: RulesCache, store: Store) -> None:
    """The request that read before the change may use the old value; the next one may not."""

    def change() -> None:
        store.metadata = b'{"_history_ttl": 60}'
        rules_cache.forget(JOBS)

    store.meanwhile = change
    assert rules_cache.recent(JOBS).history_ttl == 0
    store.meanwhile = lambda: None
    assert rules_cache.recent(JOBS).history_ttl == 60


def test_a_full_cache_drops_the_oldest_entries(store: Store, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten queues too many, the cache has all but the first ten."""
    monkeypatch.setattr(rules, "CACHE_SIZE", 90)
    rules_cache = RulesCache(Limits(), store, watch)
    queues = [QueueRef("acme", f"q{number}") for number in range(100)]
    for queue in queues:
        rules_cache.remember(queue, b"{}")
    assert [queue for queue in queues if rules_cache.remembered(queue) is None] == queues[:10]


def test_metadata_determine_the_redelivery_delays(rules_cache: RulesCache, store: Store) -> None:
    """The cap is ``max_message_delay`` unless set; null counts as unset."""
    cases = {
        b"{}": [0, 0],
        b'{"_redelivery_delay": 600}': [600, 600],
        b'{"_redelivery_delay": 600, "_redelivery_backoff": "exponential"}': [600, 900],
        b'{"_redelivery_delay": 600, "_redelivery_backoff": "exponential", "_redelivery_max_delay": 2000}': [600, 1200],
        b'{"_redelivery_delay": 600, "_redelivery_max_delay": 0}': [0, 0],
        b'{"_redelivery_delay": null, "_redelivery_backoff": null, "_redelivery_max_delay": null}': [0, 0],
    }
    for store.metadata, waits in cases.items():
        rules_cache.forget(JOBS)
        request = ClaimRequest(Lease("c", 60, 60), 1, rules_cache.recent(JOBS).redelivery_delays)
        assert [request.redelivery_delay(count) for count in (1, 2)] == waits
