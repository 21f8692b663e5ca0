# SPDX-License-Identifier: Apache-2.0
"""Producers: a document for each, with its last batch and the commit that is under way. P = a project's prefix.

============= ==========================================================================================================
``_id``, ``s`` "p" P producer; P producer
``batch``     the last one that was decided; with its figures ``published`` and ``deleted``. Absent before the first one
``attempt``   which commit wrote last
``e``         when the producer is forgotten; the TTL index removes it. Absent while a commit is under way
------------- ----------------------------------------------------------------------------------------------------------
``state``     of the commit under way: one of the three below; absent when there is none
``turn``      how many steps were taken of it
``due``       when others may take it over from whoever is at it (milliseconds, as ``moment``, its own now)
``next``      its batch; with ``moment``, ``ttl`` and ``project`` as it came
``publish``   its stages, as they were found
``settle``    its claims: ``queue``, ``claim``, and ``history`` of each
``at``        how far it is published
``settled``   how many of its claims are done
``removed``   how many of its stages are gone; ``order``: up to which one the drafts of the next one are, if any are
``former``    what ``e`` was before
============= ==========================================================================================================
"""

from typing import Final

from bson.datetime_ms import DatetimeMS

from zq.model import Commit, Committed, Held, QueueRef, Unfinished
from zq.storage.mongodb import layout
from zq.storage.mongodb.layout import Document
from zq.storage.mongodb.publishing import BEGINNING

PREPARING: Final = "preparing"
"""Claims are being pinned. It takes no effect unless it is decided before another one gives it up."""
ABORTING: Final = "aborting"
"""Given up; what it has pinned is being given back."""
DECIDED: Final = "decided"
"""It takes effect, whoever carries it out."""
LAST: Final = ("batch", "published", "deleted")
UNDER_WAY: Final = (
    "state", "turn", "due", "next", "moment", "ttl", "project", "publish", "settle", "at", "settled", "removed",
    "order", "former"
)  # fmt: skip


def identity(project: str, producer: str) -> Document:
    """The filter that finds the producer."""
    shard = layout.project_prefix(project) + layout.text(producer)
    return {"_id": "p" + shard, "s": shard}


def unchanged(record: Document) -> Document:
    """The filter that finds the producer while nobody takes a step."""
    return {field: record[field] for field in ("_id", "s", "attempt", "turn")}


def same(record: Document) -> Document:
    """The filter that finds the commit under way, in this state."""
    return {field: record[field] for field in ("_id", "s", "attempt", "state")}


def remembered(record: Document, now: int) -> bool:
    """Whether the producer has a last batch."""
    return "batch" in record and ("e" not in record or int(record["e"]) > now)


def committed(record: Document, *, replayed: bool = False) -> Committed:
    """The producer's last batch."""
    is_open = record.get("state") == DECIDED
    return Committed(int(record["batch"]), int(record["published"]), int(record["deleted"]), replayed, is_open)


def unfinished(record: Document) -> Unfinished:
    """What is told of a decided commit."""
    project = layout.original(record["project"])
    producer = layout.original(record["s"][len(layout.project_prefix(project)) :])
    return Unfinished(project, producer, f"{record['attempt']} {record['turn']}")


def done(commit: Commit, attempt: str, published: int, deleted: int, now: int) -> Document:
    """The record of a commit that is done."""
    return {
        **identity(commit.project, commit.producer),
        "batch": commit.batch,
        "published": published,
        "deleted": deleted,
        "attempt": attempt,
        "e": DatetimeMS(now + commit.ttl * 1000),
    }


def preparing(commit: Commit, attempt: str, stages: list[Document], former: Document, now: int, due: int) -> Document:
    """The record of a commit that begins, after what there was."""
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
        record |= {field: former[field] for field in LAST} | {"former": former["e"]}
    return record


def claims(record: Document) -> list[Held]:
    """The claims of the commit under way."""
    project = layout.original(record["project"])
    return [
        Held(QueueRef(project, layout.original(one["queue"])), layout.original(one["claim"]), one["history"])
        for one in record["settle"]
    ]
