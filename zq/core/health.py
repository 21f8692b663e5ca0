# SPDX-License-Identifier: Apache-2.0
"""A report on the health of the store: it is used as tenants use it, in a queue of nobody's (contract 5)."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import uuid4

from msgspec import Struct

from zq.clock import Clock
from zq.errors import Unavailable, ZqError
from zq.limits import MAX_DRIFT, MAX_UNCERTAINTY, MIN_TTL
from zq.model import ClaimRequest, Draft, Lease, ListFilter, QueueRef, Seconds, new_ids
from zq.storage.api import Storage

LOG = logging.getLogger(__name__)
# No project id may hold a comma, so no header and no token can name this one.
PROJECT: Final = "zq,health"
# Messages that a probe posts, and claims.
POSTED: Final = 100
CLAIMED: Final = 10
# Seconds for which a report is everybody's answer.
SHARED: Final = 1.0
# Seconds after which a probe's queue is one that its server has left behind.
LEFT: Final = 60.0
# Queues left behind that one probe removes.
MOST_LEFT: Final = 100
# Queues whose messages are counted, and up to which number in each state of each.
COUNTED_QUEUES: Final = 1000
COUNTED: Final = 10_000
# What a probe tries, in this order.
OPERATIONS: Final = (
    *("create_queue", "post_messages", "claim_messages", "list_messages"),
    *("delete_messages", "delete_claim", "bulk_delete_messages", "delete_queue"),
)


class Operation(Struct, frozen=True):
    """How one operation went. ``ref``: by which the log names the failure; None if it succeeded."""

    succeeded: bool
    seconds: float
    ref: str | None = None


class Volume(Struct, frozen=True):
    """The messages of all projects, as far as they are counted."""

    free: int
    claimed: int
    total: int


class Report(Struct, frozen=True):
    """What the store does. ``operation_status`` is by the names of contract 5."""

    storage_reachable: bool
    operation_status: dict[str, Operation]
    message_volume: Volume


# The open stores of pools by name; None for a store that does not answer.
Pools = Callable[[], Mapping[str, Storage | None]]
# By the names of pools; and whether the catalogue answers, by ``catalog_reachable``.
PoolsReport = dict[str, Report | bool]


class Health:
    """The health of the store, or of the stores of all pools. One probe runs at a time; requests meanwhile and within a
    second after it share its report."""

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
        self._last: Report | PoolsReport | Unavailable = Unavailable("The store was not probed yet.")
        self._pools = pools

    def report(self) -> Report | PoolsReport:
        """The report, at most ``SHARED`` seconds old. Raises ``Unavailable`` if the store does not answer at all."""
        with self._lock:
            if self._until <= self._monotonic():
                try:
                    self._last = self._made()
                except Unavailable as absence:
                    self._last = absence
                self._until = self._monotonic() + SHARED
            last = self._last
        if isinstance(last, Unavailable):
            raise Unavailable(str(last)) from last
        return last

    def check_ready(self) -> None:
        """Raise ``Unavailable`` with the reason if the store does not answer, if its clock and the server's differ too
        much, or if its answers are too slow to tell its time."""
        self._storage.ping()
        drift, uncertainty = self._clock.drift(), self._clock.uncertainty()
        if abs(drift) > MAX_DRIFT:
            raise Unavailable(f"This server's clock and the store's are {abs(drift):.0f} seconds apart.")
        if uncertainty > MAX_UNCERTAINTY:
            raise Unavailable(
                f"The store's time is known to {1000 * uncertainty:.0f} ms only, half of what the quickest of its last "
                f"answers took; {1000 * MAX_UNCERTAINTY:.0f} ms are allowed."
            )

    def store_answers(self) -> bool:
        """Return whether the store reads and writes now."""
        try:
            self._storage.ping()
        except Unavailable:
            return False
        return True

    def _made(self) -> Report | PoolsReport:
        self._storage.ping()
        if self._pools is None:
            return self._probed(self._storage)
        return {name: self._of_pool(name, store) for name, store in self._pools().items()} | {"catalog_reachable": True}

    def _of_pool(self, name: str, store: Storage | None) -> Report:
        if store is not None:
            try:
                return self._probed(store)
            except Unavailable as absence:
                LOG.debug("The pool %s is not probed: %s", name, absence)
        ref = str(uuid4())
        LOG.error("Health probe %s: the pool %s does not answer.", ref, name)
        return Report(False, dict.fromkeys(OPERATIONS, Operation(False, 0.0, ref)), Volume(0, 0, 0))

    def _probed(self, store: Storage) -> Report:
        now = self._clock.now()
        _remove_left(store, now)
        volume = _volume(store, now)
        return Report(True, Probe(store, self._clock).run(), volume)


def _remove_left(store: Storage, now: Seconds) -> None:
    """Remove the queues of probes whose servers ended before they could."""
    for queue in store.queues.list(PROJECT, "", MOST_LEFT).items:
        if int(queue.ref.name[:12], 16) / 1000 < now - LEFT:
            store.queues.delete(queue.ref)


def _volume(store: Storage, now: Seconds) -> Volume:
    free = claimed = 0
    for queue, depth in store.depths(now, COUNTED_QUEUES, COUNTED):
        if queue.project != PROJECT:
            free += depth.ready + depth.delayed
            claimed += depth.claimed
    return Volume(free, claimed, free + claimed)


class Probe:
    """One run of all operations on a queue of its own, whose name tells when it began."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        name, self._claim, *self._ids = new_ids(2 + POSTED, clock.now())
        self._queue = QueueRef(PROJECT, name)
        self._status: dict[str, Operation] = {}

    def run(self) -> dict[str, Operation]:
        """How each operation went; one that fails keeps none of the others from being tried."""
        storage, queue, ids = self._storage, self._queue, self._ids
        drafts = [Draft(id, b'"probe"', MIN_TTL, 0, "") for id in ids]
        request = ClaimRequest(Lease(self._claim, MIN_TTL, 0), CLAIMED)
        shown = ListFilter("", True, True)
        self._try("create_queue", lambda now: storage.queues.create(queue, b"{}"))
        self._try("post_messages", lambda now: storage.messages.post(queue, drafts, now))
        self._try("claim_messages", lambda now: _some(storage.claims.create(queue, request, now).claim))
        self._try("list_messages", lambda now: _some(storage.messages.list(queue, 0, POSTED, shown, now).items))
        self._try("delete_messages", lambda now: storage.messages.delete(queue, ids[:1], now))
        self._try("delete_claim", lambda now: storage.claims.release(queue, self._claim, now))
        self._try("bulk_delete_messages", lambda now: storage.messages.delete(queue, ids, now))
        self._try("delete_queue", lambda now: storage.queues.delete(queue))
        return self._status

    def _try(self, name: str, operation: Callable[[Seconds], object]) -> None:
        began, ref = time.monotonic(), None
        try:
            operation(self._clock.now())
        except Exception as error:  # the report is on whatever a store does
            ref = str(uuid4())
            known = isinstance(error, ZqError)
            LOG.error("Health probe %s: %s failed: %s", ref, name, error if known else "", exc_info=not known)
        self._status[name] = Operation(ref is None, time.monotonic() - began, ref)


def _some(found: Any) -> None:
    """Raise ``Unavailable`` if there is nothing."""
    if not found:
        raise Unavailable("The store has nothing of what was posted.")
