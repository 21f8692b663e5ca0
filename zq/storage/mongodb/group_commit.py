# SPDX-License-Identifier: Apache-2.0
"""Group commit of concurrent requests, and their idempotency keys.

A transaction takes three to five round trips and one journal commit, regardless of its size. If two transactions write
the same counter, one of them must be repeated. Each process therefore runs only one transaction at a time for each type
of request, and this transaction contains all waiting requests. On a sharded cluster, it runs one transaction for each
shard key, because a transaction on many counters would involve many shards.

A request with an idempotency key stores its result in the same transaction as its effect, so a stored key always has a
result. Two transactions with the same key write the same document, so one of them is repeated and finds the result of
the first.
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

from zq.errors import KeyReused, QueueNotFound, Repeated
from zq.model import IdempotencyKey
from zq.storage.concurrency import GroupCommit
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.floors import find_named, history_floor_of
from zq.storage.mongodb.layout import BsonDocument, QueueKey

# Maximum seconds for which a leader waits for as many followers as the previous group had.
# Posts per second over HTTP (one process, 16 connections, 8 queues): 920 with 0.5 ms, 1,050 with 3 ms.
LINGER: Final = 0.003
# Maximum size of the bodies in one group, in bytes.
CAPACITY: Final = 4 << 20
# Minimum weight of a message in bytes, so that a group has at most 512 messages.
MIN_WEIGHT: Final = 8 << 10
# A sequence for ``remember`` that lets every later deletion of the queue remove the idempotency key.
BEFORE_ALL: Final = 0
# Errors that a single request may cause for its whole group.
FAULTS: Final = (OperationFailure, BSONError, OverflowError, QueueNotFound)


class KeyedRequest(Protocol):
    """A request for one queue or topic log, with an optional idempotency key.

    ``now`` is the time of the request in milliseconds.
    """

    @property
    def key(self) -> QueueKey: ...
    @property
    def now(self) -> int: ...
    @property
    def idempotency_key(self) -> IdempotencyKey | None: ...


Request = TypeVar("Request", bound=KeyedRequest)
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class ShardGroups(Generic[Request, Answer]):
    """The group commit of one type of request. On a sharded cluster, each shard key has its own group commit.

    Args:
        execute: Runs a group in one transaction and returns the results in the order of the requests.
        weigh: Returns the weight of a request, such as its number of messages.
        capacity: Maximum total weight of a group.
        keys: Returns the exclusive keys of a request. Two requests with a common key never share a transaction. The
            default is the ``_id`` of the idempotency key.
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
        """Execute the request in a group, and return its result after the transaction is durable."""
        return self._group_commits[request.key.shard if self._sharded else ""].submit(request)


def key_ids(request: KeyedRequest) -> Sequence[str]:
    """Return a list with the ``_id`` of the request's idempotency key, or an empty list for a request without a key."""
    return [request.key.named("o", request.idempotency_key.key)] if request.idempotency_key else ()


def merge_results(
    refusals: Sequence[Exception | None], answers: Iterable[Answer | Exception]
) -> list[Answer | Exception]:
    """Merge the results and the errors of a group, in the order of its requests.

    ``refusals`` has the error of each rejected request and None for each admitted request. ``answers`` has the results
    of the admitted requests.
    """
    admitted = iter(answers)
    return [next(admitted) if refusal is None else refusal for refusal in refusals]


def select_admitted(requests: Iterable[Item], refusals: Iterable[Exception | None]) -> list[Item]:
    """Return the requests that were not rejected. ``refusals`` has an error or None for each request, in order."""
    return [request for request, refusal in zip(requests, refusals, strict=True) if refusal is None]


def find_refusal(request: KeyedRequest, known: Mapping[str, Repeated | KeyReused]) -> Repeated | KeyReused | None:
    """Return the error for a request whose idempotency key is stored, or None if the key is new or there is no key.

    ``known`` is the result of ``recall``.
    """
    return next((known[key_id] for key_id in key_ids(request) if key_id in known), None)


def recall(
    client: StoreClient, session: Session, requests: Sequence[KeyedRequest], answer: type[Any]
) -> dict[str, Repeated | KeyReused]:
    """Look up the idempotency keys of the requests. Return a mapping from the ``_id`` of each stored key to an error.

    The error is ``KeyReused`` if the key was used for a different request. Otherwise, it is ``Repeated`` with the
    stored result, an object of the type ``answer``.

    Keys that a deletion of the queue has removed are ignored.
    """
    keyed = {one: request for request in requests for one in key_ids(request)}
    if not keyed:
        return {}
    keys = list(dict.fromkeys(request.key for request in keyed.values()))
    named = {"_id": {"$in": list(keyed)}, **client.shards(key.shard for key in keys)}
    found, counters = find_named(client, keys, named, session=session)
    # A deletion of the queue reserves a sequence, which becomes the floor. A key with a lower sequence was stored
    # before the deletion. A key with exactly this sequence belongs to drafts that were staged after the deletion.
    floors = {counter["s"]: history_floor_of(counter) for counter in counters}
    return {
        known["_id"]: _verdict(known, keyed[known["_id"]], answer)
        for known in found
        if int(known["e"]) > keyed[known["_id"]].now and known["k"] >= floors.get(known["s"], 0)
    }


def remember(client: StoreClient, session: Session, answers: Sequence[tuple[KeyedRequest, Any, int]]) -> None:
    """Store the results of requests that have an idempotency key.

    Each item of ``answers`` has a request, its result, and a sequence of the queue. For a post, this is the sequence of
    its last message. A later deletion of the queue reserves a higher sequence, so it also removes the key.
    """
    statements: list[BsonDocument] = []
    for request, answer, sequence in answers:
        if request.idempotency_key is None:
            continue
        known = {
            "s": request.key.shard,
            "q": request.key.idempotency_keys,
            "k": sequence,
            "e": DatetimeMS(request.now + request.idempotency_key.window * 1000),
            "h": Binary(request.idempotency_key.digest),
            "b": json.dumps(msgspec.to_builtins(answer)),  # ASCII only, which preserves lone surrogates
        }
        (doc_id,) = key_ids(request)
        statements.append({"q": {"_id": doc_id, "s": request.key.shard}, "u": known, "upsert": True})
    if statements:
        client.update(statements, session)


def _verdict(known: BsonDocument, request: KeyedRequest, answer: type[Any]) -> Repeated | KeyReused:
    if request.idempotency_key is None or bytes(known["h"]) != request.idempotency_key.digest:
        return KeyReused()
    return Repeated(msgspec.convert(json.loads(known["b"]), answer), int(known["k"]))
