# SPDX-License-Identifier: Apache-2.0
"""Producers: a document for each, with its last batch and the commit that is under way. P = a project's prefix.

============= ==========================================================================================================
``_id``, ``s`` "p" P producer; P producer
``batch``     the last one that was decided; with its figures ``published`` and ``deleted``, and ``decided``: when,
              which earlier versions did not note. Absent before the first one
``attempt``   which commit wrote last
``e``         when the producer is forgotten; the TTL index removes it. Absent while a commit is under way
------------- ----------------------------------------------------------------------------------------------------------
``state``     of the commit under way: one of the three below; absent when there is none
``turn``      how many steps were taken of it
``due``       when other servers may take it over (milliseconds, as ``moment``, its own now)
``next``      its batch; with ``moment``, ``ttl`` and ``project`` as it came
``publish``   its stages, as they were found
``settle``    its claims: ``queue``, ``claim``, and ``history`` of each
``at``        how far it is published
``settled``   how many of its claims are done
``removed``   how many of its stages are gone; ``order``: up to which one the drafts of the next one are, if any are
``former``    what ``e`` was before
============= ==========================================================================================================
"""

from enum import StrEnum
from typing import Final

from bson.datetime_ms import DatetimeMS

from zq.model import ClaimRef, Commit, Committed, QueueRef, Unfinished
from zq.storage.mongodb import layout
from zq.storage.mongodb.layout import BsonDocument
from zq.storage.mongodb.stages import BEGINNING

# Claims are being reserved. It takes no effect unless it is decided before another server aborts it.
PREPARING: Final = "preparing"
# Aborted; its reservations are being released.
ABORTING: Final = "aborting"
# In effect; any server can carry it out.
DECIDED: Final = "decided"


class Step(StrEnum):
    """The steps of a commit, at which tests can end a process."""

    # The commit is recorded and its stages are reserved.
    BEGUN = "begun"
    # Messages of some of its claims are reserved.
    RESERVED = "reserved"
    DECIDED = "decided"
    # A part of its messages.
    PUBLISHED = "published"
    # A stage is gone.
    UNSTAGED = "unstaged"
    # The messages of its claims are deleted.
    SETTLED = "settled"
    # Nothing of it is left but its figures; after a small commit, which is one step, nothing else ever was.
    DONE = "done"
    # The commit is aborted.
    ABORTING = "aborting"
    # The messages are back under their claims.
    UNRESERVED = "unreserved"
    ABORTED = "aborted"


class CommitEvents:
    """Is notified of every step when it is done; tests override it."""

    def reached(self, step: Step) -> None:
        pass


LAST: Final = ("batch", "published", "deleted", "decided")
UNDER_WAY: Final = (
    "state", "turn", "due", "next", "moment", "ttl", "project", "publish", "settle", "at", "settled", "removed",
    "order", "former"
)  # fmt: skip


def identity(project: str, producer: str) -> BsonDocument:
    """Return the filter for the producer."""
    shard = layout.project_prefix(project) + layout.text(producer)
    return {"_id": "p" + shard, "s": shard}


def unchanged(record: BsonDocument) -> BsonDocument:
    """Return a filter for the producer that matches as long as no further step is taken."""
    return {field: record[field] for field in ("_id", "s", "attempt", "turn")}


def same(record: BsonDocument) -> BsonDocument:
    """Return a filter for the commit in progress in its current state."""
    return {field: record[field] for field in ("_id", "s", "attempt", "state")}


def remembered(record: BsonDocument, now: int) -> bool:
    """Return whether the producer has a last batch."""
    return "batch" in record and ("e" not in record or int(record["e"]) > now)


def committed(record: BsonDocument, *, replayed: bool = False) -> Committed:
    """Return the producer's last batch."""
    is_open = record.get("state") == DECIDED
    return Committed(int(record["batch"]), int(record["published"]), int(record["deleted"]), replayed, is_open)


def unfinished(record: BsonDocument) -> Unfinished:
    """Convert the record of a decided commit to the model's value."""
    project = layout.original(record["project"])
    producer = layout.original(record["s"][len(layout.project_prefix(project)) :])
    return Unfinished(project, producer, f"{record['attempt']} {record['turn']}")


def done(commit: Commit, attempt: str, published: int, deleted: int, now: int) -> BsonDocument:
    """Return the record of a completed commit."""
    return {
        **identity(commit.project, commit.producer),
        "batch": commit.batch,
        "published": published,
        "deleted": deleted,
        "decided": now,
        "attempt": attempt,
        "e": DatetimeMS(now + commit.ttl * 1000),
    }


def preparing(
    commit: Commit, attempt: str, stages: list[BsonDocument], former: BsonDocument, now: int, due: int
) -> BsonDocument:
    """Return the record of a commit that begins, based on the producer's former record."""
    record = {
        **identity(commit.project, commit.producer),
        "attempt": attempt,
        "state": PREPARING,
        "turn": 0,
        "due": due,
        "next": commit.batch,
        "moment": now,
        "ttl": commit.ttl,
        "project": layout.text(commit.project),
        "publish": stages,
        "settle": [
            {"queue": layout.text(held.queue.name), "claim": layout.text(held.claim), "history": held.history}
            for held in dict.fromkeys(commit.settle)
        ],
        "at": BEGINNING,
        "settled": 0,
        "removed": 0,
    }
    if remembered(former, now):
        record |= {field: former[field] for field in LAST if field in former} | {"former": former["e"]}
    return record


def claims(record: BsonDocument) -> list[ClaimRef]:
    """Return the claims of the commit in progress."""
    project = layout.original(record["project"])
    return [
        ClaimRef(QueueRef(project, layout.original(one["queue"])), layout.original(one["claim"]), one["history"])
        for one in record["settle"]
    ]
