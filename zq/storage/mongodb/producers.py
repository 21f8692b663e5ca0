# SPDX-License-Identifier: Apache-2.0
"""Documents of transactional producers. A document holds a producer's last batch and its commit in progress, if any.

P is the project's prefix. Times are in milliseconds since the epoch.

============= ==========================================================================================================
``_id``       "p", P and the name of the producer, concatenated
``s``         P and the name of the producer, concatenated
``batch``     number of the last decided batch; absent before the first batch. Its message counts are ``published`` and
              ``deleted``. ``decided`` is the time of the decision; early versions did not write it
``attempt``   id of the commit attempt that last wrote the document
``e``         expiry time of the document, removed by the TTL index; absent while a commit is in progress
------------- ----------------------------------------------------------------------------------------------------------
``state``     state of the commit in progress: ``preparing``, ``aborting`` or ``decided``; absent without a commit
``turn``      number of completed steps
``due``       time from which other servers may take over the commit
``next``      batch number of the commit; ``moment``: its start time; ``ttl`` and ``project``: as requested
``publish``   documents of the stages to publish
``settle``    claims to settle, each with ``queue``, ``claim`` and ``history``
``at``        position up to which the stages are published
``settled``   number of settled claims
``removed``   number of removed stages; ``order``: position up to which the drafts of the next stage are removed
``former``    value of ``e`` before the commit
============= ==========================================================================================================
"""

from enum import StrEnum
from typing import Final

from bson.datetime_ms import DatetimeMS

from zq.model import ClaimRef, Commit, CommitResult, QueueRef, UnfinishedCommit
from zq.storage.mongodb import layout
from zq.storage.mongodb.documents import LAST_CHARACTER
from zq.storage.mongodb.layout import BsonDocument
from zq.storage.mongodb.stages import BEGINNING

# The commit is reserving claims. It takes effect only if it is decided before another server aborts it.
PREPARING: Final = "preparing"
# The commit is aborted, and its reservations are being released.
ABORTING: Final = "aborting"
# The commit is in effect, and any server can complete it.
DECIDED: Final = "decided"


class Step(StrEnum):
    """The steps of a commit. Tests can kill the process after each step."""

    # The commit is stored, and its stages are reserved.
    BEGUN = "begun"
    # The messages of some claims are reserved.
    RESERVED = "reserved"
    DECIDED = "decided"
    # Some of the staged messages are published.
    PUBLISHED = "published"
    # A stage is removed.
    UNSTAGED = "unstaged"
    # The messages of the claims are deleted.
    SETTLED = "settled"
    # The commit is complete, and only the batch record remains. A small commit has no other step.
    DONE = "done"
    # The commit is aborted.
    ABORTING = "aborting"
    # The reserved messages are returned to their claims.
    UNRESERVED = "unreserved"
    ABORTED = "aborted"


class CommitEvents:
    """Hooks that are called at the steps of a commit; tests override them."""

    def reached(self, step: Step) -> None:
        pass


LAST_COMMIT_FIELDS: Final = ("batch", "published", "deleted", "decided")
PROGRESS_FIELDS: Final = ("s", "attempt", "project", "turn", "due")
UNDER_WAY: Final = (
    "state", "turn", "due", "next", "moment", "ttl", "project", "publish", "settle", "at", "settled", "removed",
    "order", "former"
)  # fmt: skip


def identity(project: str, producer: str) -> BsonDocument:
    """Return the filter for the producer's document."""
    shard = layout.project_prefix(project) + layout.encode_text(producer)
    return {"_id": "p" + shard, "s": shard}


def project_filter(project: str) -> BsonDocument:
    """Return the filter for the documents of all producers of the project."""
    prefix = "p" + layout.project_prefix(project)
    return {"_id": {"$gte": prefix, "$lt": prefix + LAST_CHARACTER}}


def unchanged_filter(record: BsonDocument) -> BsonDocument:
    """Return a filter that matches the producer's document until the next step of the commit."""
    return {field: record[field] for field in ("_id", "s", "attempt", "turn")}


def same_state_filter(record: BsonDocument) -> BsonDocument:
    """Return a filter that matches the producer's document while the state of the commit is unchanged."""
    return {field: record[field] for field in ("_id", "s", "attempt", "state")}


def has_last_batch(record: BsonDocument, now: int) -> bool:
    return "batch" in record and ("e" not in record or int(record["e"]) > now)


def last_batch(record: BsonDocument, *, replayed: bool = False) -> CommitResult:
    is_open = record.get("state") == DECIDED
    return CommitResult(int(record["batch"]), int(record["published"]), int(record["deleted"]), replayed, is_open)


def unfinished_commit(record: BsonDocument) -> UnfinishedCommit:
    project = layout.decode_text(record["project"])
    producer = layout.decode_text(record["s"][len(layout.project_prefix(project)) :])
    return UnfinishedCommit(project, producer, f"{record['attempt']} {record['turn']}")


def completed_document(commit: Commit, attempt: str, published: int, deleted: int, now: int) -> BsonDocument:
    """Return the producer's document after a complete commit."""
    return {
        **identity(commit.project, commit.producer),
        "batch": commit.batch,
        "published": published,
        "deleted": deleted,
        "decided": now,
        "attempt": attempt,
        "e": DatetimeMS(now + commit.ttl * 1000),
    }


def preparing_document(
    commit: Commit, attempt: str, stages: list[BsonDocument], former: BsonDocument, now: int, due: int
) -> BsonDocument:
    """Return the producer's document at the start of a commit that needs several steps. ``due`` is in milliseconds."""
    record = {
        **identity(commit.project, commit.producer),
        "attempt": attempt,
        "state": PREPARING,
        "turn": 0,
        "due": due,
        "next": commit.batch,
        "moment": now,
        "ttl": commit.ttl,
        "project": layout.encode_text(commit.project),
        "publish": stages,
        "settle": [
            {
                "queue": layout.encode_text(held.queue.name),
                "claim": layout.encode_text(held.claim),
                "history": held.history,
            }
            for held in dict.fromkeys(commit.settle)
        ],
        "at": BEGINNING,
        "settled": 0,
        "removed": 0,
    }
    if has_last_batch(former, now):
        record |= {field: former[field] for field in LAST_COMMIT_FIELDS if field in former} | {"former": former["e"]}
    return record


def claims(record: BsonDocument) -> list[ClaimRef]:
    project = layout.decode_text(record["project"])
    return [
        ClaimRef(QueueRef(project, layout.decode_text(one["queue"])), layout.decode_text(one["claim"]), one["history"])
        for one in record["settle"]
    ]
