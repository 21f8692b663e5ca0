# SPDX-License-Identifier: Apache-2.0
"""Removal of popped messages. Concurrent pops of a process share a transaction, even from several queues."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from zq.model import Outcome
from zq.storage.concurrency import GroupCommit
from zq.storage.mongodb.changes import FinishTerms, finish
from zq.storage.mongodb.client import Session, StoreClient, TransactionAborted
from zq.storage.mongodb.floors import counters_of, floor_of
from zq.storage.mongodb.group_commit import FAULTS
from zq.storage.mongodb.layout import BsonDocument, QueueKey
from zq.storage.mongodb.shared_commands import CAPACITY, PARALLEL
from zq.storage.mongodb.unions import FLOORS

# Seconds for which pops do not share transactions after one was aborted.
SEPARATE_SECONDS: Final = 2.0


class Pop(NamedTuple):
    """A request to remove popped messages of one queue. ``now`` is in milliseconds, ``history`` in seconds."""

    key: QueueKey
    found: Sequence[BsonDocument]
    unchanged: BsonDocument
    now: int
    history: int

    @property
    def doc_ids(self) -> list[str]:
        return [found["_id"] for found in self.found]


class Pops:
    """The component that removes popped messages for all threads of a process.

    Concurrent requests share a transaction. If another process has changed a message, the transaction is aborted, and
    each request is repeated in its own transaction. For the next ``SEPARATE_SECONDS`` seconds, each new request also
    uses its own transaction, so that collisions on one queue do not abort pops from other queues. On a sharded cluster,
    requests never share a transaction, because the transaction would involve many shards.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._apart_until = 0.0
        self._groups = GroupCommit[Sequence[Pop], bool](
            self._execute,
            weigh=lambda pops: sum(len(pop.found) for pop in pops),
            capacity=CAPACITY,
            timeout=client.timeout,
            parallel=PARALLEL,
            one_by_one_after=FAULTS,
        )

    def submit(self, pops: Sequence[Pop]) -> bool:
        """Remove the messages of all pops and return True.

        If another process has changed one of the messages, remove none and return False.
        """
        if self._client.sharded or time.monotonic() < self._apart_until:
            return self._execute([pops])[0]
        return self._groups.submit(pops)

    def _execute(self, requests: Sequence[Sequence[Pop]]) -> Sequence[bool]:
        pops = [pop for request in requests for pop in request]
        try:
            with self._client.locks.locked(*{pop.key.history_counter for pop in pops if pop.history}):
                self._client.transaction(partial(self._remove, pops), retry_conflicts=False)
        except TransactionAborted:
            self._apart_until = time.monotonic() + SEPARATE_SECONDS
            return [False] if len(requests) == 1 else [self._execute([request])[0] for request in requests]
        return [True] * len(requests)

    def _remove(self, pops: Sequence[Pop], session: Session) -> None:
        plain = [pop for pop in pops if not pop.history]
        wheres = [self._client.where(pop.key, _id={"$in": pop.doc_ids}, **pop.unchanged) for pop in plain]
        statements = [{"q": where, "limit": 0, "hint": "_id_"} for where in wheres]
        if plain and self._client.delete(statements, session) != sum(len(pop.found) for pop in plain):
            raise TransactionAborted
        for pop in pops:
            if pop.history:
                self._finish(pop, session)

    def _finish(self, pop: Pop, session: Session) -> None:
        terms = FinishTerms(Outcome.POPPED, pop.now, pop.history)
        finish(self._client, session, pop.key, pop.doc_ids, terms, pop.unchanged)
        # A message that was purged after the search must not become a history entry.
        counters = self._client.find(counters_of(self._client, [pop.key]), fields=FLOORS, session=session)
        if any(found["k"] <= floor_of(counter) for counter in counters for found in pop.found):
            raise TransactionAborted
