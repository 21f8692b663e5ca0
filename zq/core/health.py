# SPDX-License-Identifier: Apache-2.0
"""The health report of a store, and the probe that runs test operations on a temporary queue (contract section 5)."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final
from uuid import uuid4

from msgspec import Meta, Struct

from zq.clock import Clock
from zq.errors import Unavailable, ZqError
from zq.model import ClaimRequest, Draft, Lease, ListFilter, QueueRef, Seconds, new_ids
from zq.model.limits import MAX_DRIFT, MAX_UNCERTAINTY, MIN_TTL
from zq.storage.api import Storage
from zq.wire.answers import Count

LOG = logging.getLogger(__name__)
# Project of the probe's queues. A project id cannot contain a comma, so no client can access it.
PROJECT: Final = "zq,health"
# Number of messages posted by a probe.
POSTED: Final = 100
# Number of messages claimed by a probe.
CLAIMED: Final = 10
# Seconds for which a report is cached.
REPORT_TTL: Final = 1.0
# Age in seconds after which a probe's queue is considered abandoned.
ABANDONED_AFTER: Final = 60.0
# Maximum number of abandoned queues that one probe deletes.
MAX_ABANDONED: Final = 100
# Maximum number of queues whose messages are counted.
COUNTED_QUEUES: Final = 1000
# Maximum message count per state of a queue.
COUNTED: Final = 10_000
# Names of the operations of a probe, in order.
OPERATIONS: Final = (
    *("create_queue", "post_messages", "claim_messages", "list_messages"),
    *("delete_messages", "delete_claim", "bulk_delete_messages", "delete_queue"),
)


class Operation(Struct, frozen=True):
    """The outcome of one operation of a health probe.

    Attributes:
        ref: Id of the failure in the server log; null if the operation succeeded.
    """

    succeeded: bool
    seconds: Annotated[float, Meta(extra_json_schema={"minimum": 0})]
    ref: Annotated[str, Meta(extra_json_schema={"format": "uuid"})] | None


class Volume(Struct, frozen=True):
    """The number of messages in all projects, up to a limit at which the server stops counting."""

    free: Count
    claimed: Count
    total: Count


class Report(Struct, frozen=True):
    """The health of one store. The keys of ``operation_status`` are the names of the probed operations."""

    storage_reachable: bool
    operation_status: dict[str, Operation]
    message_volume: Volume


# Returns the stores of all pools by name; ``None`` for an unreachable store.
Pools = Callable[[], Mapping[str, Storage | None]]
# Reports by pool name, plus the key ``catalog_reachable``: whether the catalog can be read.
PoolsReport = dict[str, Report | bool]


class Health:
    """Health checks of the store or of all pools. Concurrent requests share one probe and its report."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
        pools: Pools | None = None,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._until = 0.0
        self._last: Report | PoolsReport | Unavailable = Unavailable("The store has not been probed yet.")
        self._pools = pools

    def report(self) -> Report | PoolsReport:
        """Return a report that is at most ``REPORT_TTL`` seconds old."""
        with self._lock:
            if self._until <= self._monotonic():
                try:
                    self._last = self._make_report()
                except Unavailable as absence:
                    self._last = absence
                self._until = self._monotonic() + REPORT_TTL
            last = self._last
        if isinstance(last, Unavailable):
            raise Unavailable(str(last)) from last
        return last

    def check_ready(self) -> None:
        """Raise ``Unavailable`` with the reason if the server cannot serve requests.

        The store must be reachable. The clocks of server and store must differ by at most ``MAX_DRIFT``. Round trips to
        the store must be short enough to measure the difference.
        """
        self._storage.ping()
        drift, uncertainty = self._clock.drift(), self._clock.uncertainty()
        if abs(drift) > MAX_DRIFT:
            raise Unavailable(
                f"This server's clock and the store's are {abs(drift):.0f} seconds apart; at most {MAX_DRIFT} seconds "
                "are allowed."
            )
        if uncertainty > MAX_UNCERTAINTY:
            raise Unavailable(
                f"The store's time is known only to within {1000 * uncertainty:.0f} ms, because the store responds "
                f"slowly; at most {1000 * MAX_UNCERTAINTY:.0f} ms are allowed."
            )

    def store_answers(self) -> bool:
        try:
            self._storage.ping()
        except Unavailable:
            return False
        return True

    def _make_report(self) -> Report | PoolsReport:
        self._storage.ping()
        if self._pools is None:
            return self._probe(self._storage)
        reports = {name: self._probe_pool(name, store) for name, store in self._pools().items()}
        return reports | {"catalog_reachable": True}

    def _probe_pool(self, name: str, store: Storage | None) -> Report:
        if store is not None:
            try:
                return self._probe(store)
            except Unavailable as absence:
                LOG.debug("Pool %s cannot be probed: %s", name, absence)
        ref = str(uuid4())
        LOG.error("Health probe %s: pool %s does not answer.", ref, name)
        return Report(False, dict.fromkeys(OPERATIONS, Operation(False, 0.0, ref)), Volume(0, 0, 0))

    def _probe(self, store: Storage) -> Report:
        now = self._clock.now()
        _delete_abandoned(store, now)
        volume = _volume(store, now)
        return Report(True, Probe(store, self._clock).run(), volume)


def _delete_abandoned(store: Storage, now: Seconds) -> None:
    for queue in store.queues.list(PROJECT, "", MAX_ABANDONED).items:
        if int(queue.ref.name[:12], 16) / 1000 < now - ABANDONED_AFTER:
            store.queues.delete(queue.ref)


def _volume(store: Storage, now: Seconds) -> Volume:
    free = claimed = 0
    for queue, depth in store.depths(now, COUNTED_QUEUES, COUNTED):
        if queue.project != PROJECT:
            free += depth.ready + depth.delayed
            claimed += depth.claimed
    return Volume(free, claimed, free + claimed)


class Probe:
    """A health probe: a run of all test operations on a temporary queue, whose name encodes the start time."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        name, self._claim, *self._ids = new_ids(2 + POSTED, clock.now())
        self._queue = QueueRef(PROJECT, name)
        self._status: dict[str, Operation] = {}

    def run(self) -> dict[str, Operation]:
        """Run all operations, even after a failure. Return the outcomes by operation name."""
        storage, queue, ids = self._storage, self._queue, self._ids
        drafts = [Draft(id, b'"probe"', MIN_TTL, 0, "") for id in ids]
        request = ClaimRequest(Lease(self._claim, MIN_TTL, 0), CLAIMED)
        shown = ListFilter("", True, True)
        self._try("create_queue", lambda now: storage.queues.create(queue, b"{}"))
        self._try("post_messages", lambda now: storage.messages.post(queue, drafts, now))
        self._try("claim_messages", lambda now: _require_found(storage.claims.create(queue, request, now).claim))
        self._try(
            "list_messages", lambda now: _require_found(storage.messages.list(queue, 0, POSTED, shown, now).items)
        )
        self._try("delete_messages", lambda now: storage.messages.delete(queue, ids[:1], now))
        self._try("delete_claim", lambda now: storage.claims.release(queue, self._claim, now))
        self._try("bulk_delete_messages", lambda now: storage.messages.delete(queue, ids, now))
        self._try("delete_queue", lambda now: storage.queues.delete(queue))
        return self._status

    def _try(self, name: str, operation: Callable[[Seconds], object]) -> None:
        began, ref = time.monotonic(), None
        try:
            operation(self._clock.now())
        except Exception as error:  # the report covers every failure of a store
            ref = str(uuid4())
            known = isinstance(error, ZqError)
            LOG.error("Health probe %s: %s failed: %s", ref, name, error if known else "", exc_info=not known)
        self._status[name] = Operation(ref is None, time.monotonic() - began, ref)


def _require_found(found: Any) -> None:
    if not found:
        raise Unavailable("The store does not return the posted messages.")
