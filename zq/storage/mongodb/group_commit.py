# SPDX-License-Identifier: Apache-2.0
"""Group commit: one transaction for all requests of a kind that wait in this process, and their idempotency keys.

A transaction takes three or four round trips and one wait for the journal, whatever its size, and one of two that write
the same counter is run again. So a process has one transaction of each kind under way at a time. On a sharded cluster,
where many counters would mean many shards, it has one for each shard key.

A request with an idempotency key stores its answer in the transaction of its effect. There is no "running" state: two
requests with the same key write the same document, so one of them is run again and finds the answer.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError
from pymongo.errors import OperationFailure

from zq.errors import KeyReused, Repeated
from zq.model import IdempotencyKey
from zq.storage.concurrency import GroupCommit
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.floors import find_named, finished_floor_of
from zq.storage.mongodb.layout import BsonDocument, QueueKey

# Longest seconds for which a leader waits for followers, until there are as many as in the last group.
# Posts a second over HTTP (one process, 16 connections, 8 queues): 920 with 0.5 ms, 1,050 with 3 ms.
LINGER: Final = 0.003
# Bytes of bodies in one group.
CAPACITY: Final = 4 << 20
# Bytes that a message counts for at least, so that a group has 512 messages at most.
AT_LEAST: Final = 8 << 10
# Sequence for ``remember`` that lets any deletion of the queue remove the idempotency key.
BEFORE_ALL: Final = 0
# Errors that one request of a group may cause for all.
FAULTS: Final = (OperationFailure, BSONError, OverflowError)


class Keyed(Protocol):
    """A request for one queue or log at its moment (milliseconds), with an idempotency key or without."""

    @property
    def key(self) -> QueueKey: ...
    @property
    def now(self) -> int: ...
    @property
    def idempotency_key(self) -> IdempotencyKey | None: ...


Request = TypeVar("Request", bound=Keyed)
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class ShardGroups(Generic[Request, Answer]):
    """A ``GroupCommit`` for each shard key on a cluster, else one for all requests.

    ``execute`` runs a group in one transaction. Two requests for which ``keys`` returns the same value never share a
    transaction; by default it returns the ``_id`` of the idempotency key.
    """

    def __init__(
        self,
        client: StoreClient,
        execute: Callable[[Sequence[Request]], Sequence[Answer | Exception]],
        weigh: Callable[[Request], int],
        capacity: int = CAPACITY,
        keys: Callable[[Request], Sequence[str]] | None = None,
    ) -> None:
        def group_commit() -> GroupCommit[Request, Answer]:
            return GroupCommit(
                execute,
                weigh=weigh,
                capacity=capacity,
                timeout=client.timeout,
                linger=LINGER,
                keys=keys or key_ids,
                one_by_one_after=FAULTS,
            )

        self._sharded = client.sharded
        self._group_commits = defaultdict[str, GroupCommit[Request, Answer]](group_commit)

    def submit(self, request: Request) -> Answer:
        """Execute the request in a group, and return its answer when the effect is as durable as demanded."""
        return self._group_commits[request.key.shard if self._sharded else ""].submit(request)


def key_ids(request: Keyed) -> Sequence[str]:
    """Return ``_id`` of the request's idempotency key; empty if it has none."""
    return [request.key.named("o", request.idempotency_key.key)] if request.idempotency_key else ()


def in_order(refusals: Sequence[Exception | None], answers: Iterable[Answer | Exception]) -> list[Answer | Exception]:
    """Return the answers of a group: the refusals, and in the other places the answers to what was admitted."""
    admitted = iter(answers)
    return [next(admitted) if refusal is None else refusal for refusal in refusals]


def admitted(requests: Iterable[Asked], refusals: Iterable[Exception | None]) -> list[Asked]:
    """Return the requests that are not refused."""
    return [request for request, refusal in zip(requests, refusals, strict=True) if refusal is None]


def refusal_of(request: Keyed, known: Mapping[str, Repeated | KeyReused]) -> Repeated | KeyReused | None:
    """Return the answer to a request whose idempotency key is known, or None if it is not."""
    return next((known[key_id] for key_id in key_ids(request) if key_id in known), None)


def recall(
    client: StoreClient, session: Session, requests: Sequence[Keyed], answer: type[Any]
) -> dict[str, Repeated | KeyReused]:
    """Return the answers to the requests whose idempotency key is known, by ``_id`` of the key.

    ``answer`` is the type of the answers that ``remember`` stored. A deletion of the queue took a sequence of its own,
    ``h0``: keys of before are below it, and a key that has it is of a staging since then.
    """
    keyed = {one: request for request in requests for one in key_ids(request)}
    if not keyed:
        return {}
    keys = list(dict.fromkeys(request.key for request in keyed.values()))
    named = {"_id": {"$in": list(keyed)}, **client.shards(key.shard for key in keys)}
    found, counters = find_named(client, keys, named, session=session)
    floors = {counter["s"]: finished_floor_of(counter) for counter in counters}
    return {
        known["_id"]: _verdict(known, keyed[known["_id"]], answer)
        for known in found
        if int(known["e"]) > keyed[known["_id"]].now and known["k"] >= floors.get(known["s"], 0)
    }


def remember(client: StoreClient, session: Session, answers: Sequence[tuple[Keyed, Any, int]]) -> None:
    """Store the answer to each request that has an idempotency key, with a sequence of its queue.

    A deletion of the queue removes the key if it takes a higher sequence. Of a post it is the last sequence.
    """
    statements: list[BsonDocument] = []
    for request, answer, sequence in answers:
        if request.idempotency_key is None:
            continue
        known = {
            "s": request.key.shard,
            "q": request.key.known,
            "k": sequence,
            "e": DatetimeMS(request.now + request.idempotency_key.window * 1000),
            "h": Binary(request.idempotency_key.digest),
            "b": json.dumps(msgspec.to_builtins(answer)),  # pure ASCII, so lone surrogates come back
        }
        (doc_id,) = key_ids(request)
        statements.append({"q": {"_id": doc_id, "s": request.key.shard}, "u": known, "upsert": True})
    if statements:
        client.update(statements, session)


def _verdict(known: BsonDocument, request: Keyed, answer: type[Any]) -> Repeated | KeyReused:
    if request.idempotency_key is None or bytes(known["h"]) != request.idempotency_key.digest:
        return KeyReused()
    return Repeated(msgspec.convert(json.loads(known["b"]), answer), int(known["k"]))
