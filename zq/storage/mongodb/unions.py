# SPDX-License-Identifier: Apache-2.0
"""Queries that return messages and queue documents from a single command.

A single command costs half as much as two. On a sharded cluster, two commands are sent, because a cluster does not
route a union to a single shard.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bson.timestamp import Timestamp

from zq.model import UNBOUNDED
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.commands import FIRST_BATCH_SIZE
from zq.storage.mongodb.layout import MESSAGES, BsonDocument, size_of

# The fields of a queue document that ``floors`` reads.
FLOORS: Final = {"s": 1, "k1": 1, "m0": 1, "h0": 1, "g": 1, "g1": 1}


def find_with(
    client: StoreClient,
    queue_filter: Mapping[str, Any],
    conditions: Mapping[str, object],
    *,
    hint: str = "",
    limit: int = 0,
    sort: Mapping[str, int] | None = None,
    fields: Mapping[str, int] | None = None,
    skip: int = 0,
    session: Session | None = None,
    max_bytes: int = UNBOUNDED,
    **concern: bool | Timestamp,
) -> tuple[list[BsonDocument], list[BsonDocument]]:
    """Return the documents that match ``conditions``, and the queue documents that ``queue_filter`` selects."""
    options: Any = {"max_bytes": max_bytes, "session": session, **concern}
    if client.sharded:
        found = client.find(conditions, hint=hint, limit=limit, sort=sort, fields=fields, skip=skip, **options)
    else:
        stages: list[BsonDocument] = [{"$match": conditions}]
        stages += [{"$sort": sort}] if sort else []
        stages += [{"$skip": skip}] if skip else []
        stages += [{"$limit": limit}] if limit else []
        stages += [{"$project": fields}] if fields else []
        found, others = aggregate_with(client, queue_filter, stages, hint, limit, **options)
        is_cut = max_bytes < UNBOUNDED and sum(map(size_of, found)) >= max_bytes
        if others or session is not None or not is_cut:
            return found, others
    return found, client.find(queue_filter, session=session, committed=concern.get("committed", False))


def aggregate_with(
    client: StoreClient,
    queue_filter: Mapping[str, Any],
    stages: Sequence[BsonDocument],
    hint: str,
    limit: int = 0,
    *,
    session: Session | None = None,
    max_bytes: int = UNBOUNDED,
    **concern: bool | Timestamp,
) -> tuple[list[BsonDocument], list[BsonDocument]]:
    """Return a list of a pipeline's results, and a list of the queue documents that ``queue_filter`` selects.

    The pipeline reads the collection ``messages``. The list of queue documents may be empty if the results reach
    ``max_bytes``. If ``session`` is given, the list may also be empty if the pipeline has no results, and the queue
    documents may have only the fields ``FLOORS``.
    """
    if client.sharded:
        return client.aggregate(stages, hint, session), client.find(queue_filter, session=session)
    names = queue_filter["_id"]["$in"]
    if session is None:
        # A projection would take 0.1 ms.
        union: BsonDocument = {"$unionWith": {"coll": MESSAGES, "pipeline": [{"$match": queue_filter}]}}
    else:  # MongoDB does not support unions in transactions
        pipeline = [{"$match": queue_filter}, {"$project": FLOORS}]
        union = {"$lookup": {"from": MESSAGES, "pipeline": pipeline, "as": "beside"}}
    command: BsonDocument = {"aggregate": MESSAGES, "pipeline": [*stages, union], "cursor": {}}
    portion = limit if max_bytes >= UNBOUNDED else min(limit, FIRST_BATCH_SIZE)
    if limit:
        # One more than the maximum number of results. Otherwise, the driver would send another command to the cursor.
        command["cursor"] = {"batchSize": 1 + len(names) + portion}
    if hint:
        command["hint"] = hint
    found = client.read(command, session, max_bytes=max_bytes, is_single=0 < limit == portion, **concern)
    if session is not None:
        floors = [one.pop("beside") for one in found]
        return found, floors[0] if floors else []
    others = [one for one in found[-len(names) :] if one.get("_id") in names]
    return found[: len(found) - len(others)], others
