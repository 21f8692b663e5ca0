# SPDX-License-Identifier: Apache-2.0
"""Stages of transactional producers: drafts that are invisible until a commit publishes them.

P is the project's prefix. A stage is a document with these fields:

============ ===========================================================================================================
``_id``      "s" P name
``s``        P name
``token``    unique id, which distinguishes the stage from earlier stages of the same name
``count``    number of drafts; ``bytes``: total size of the drafts
``expires``  expiry time
``due``      time from which maintenance removes the stage; 0 = dropped, and invisible to every operation; absent while
             a commit uses the stage
``commit``   commit attempt that uses the stage
``e``        time at which the TTL index removes the stage if no maintenance runs
============ ===========================================================================================================

Drafts have the same ``e`` as their stage. A commit of more than one step removes ``e`` permanently, because the TTL
index must not remove drafts of a decided commit.

A draft is a document with these fields, and is deleted with its stage:

============ ===========================================================================================================
``_id``      "d" token order
``s``        ``s`` of the stage
``q``        "d" token
``k``        order within the stage
``w``        message id; ``j``: queue
``t``        ttl; ``l``: delay; ``u``: client; ``b``: body; ``m``: checksum; ``v``: attributes; ``h``: group
============ ===========================================================================================================
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import uuid4

from bson.datetime_ms import DatetimeMS

from zq.errors import CommitRunning, KeyReused, Repeated, StageFull, StageNotFound
from zq.model import Commit, Draft, IdempotencyKey, QueueRef
from zq.model.quotas import OVERHEAD
from zq.storage.mongodb import groups, layout
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.counters import Arrivals, advance
from zq.storage.mongodb.floors import counters_of
from zq.storage.mongodb.group_commit import BEFORE_ALL, recall, remember
from zq.storage.mongodb.layout import BsonDocument, QueueKey

# Maximum number of drafts per command. MongoDB takes 30 µs for each draft, and other commands wait.
DRAFTS_AT_ONCE: Final = 500
# Flag of a stage that a commit publishes without counting its messages.
UNCOUNTED_FLAG: Final = "beside"
# Milliseconds between the expiry of a stage and its removal by the TTL index. A commit that began before the expiry can
# finish in this time.
TTL_GRACE: Final = 60_000


class StageRequest(NamedTuple):
    """A request to add drafts for a queue to a stage. Times are in milliseconds."""

    project: str
    stage: str
    queue: QueueRef
    drafts: Sequence[Draft]
    now: int
    expires: int
    max_bytes: int
    max_messages: int
    idempotency_key: IdempotencyKey | None

    @property
    def key(self) -> QueueKey:
        return layout.key(self.queue)


class StageResult(NamedTuple):
    """The result of a transaction that adds drafts to a stage.

    ``documents`` are the stored drafts. If an expired stage must be dropped first, ``expired`` is this stage, and
    no drafts were stored. If the request's idempotency key was already used, ``known`` is the error to raise, and no
    drafts were stored.
    """

    documents: Sequence[BsonDocument] = ()
    expired: BsonDocument | None = None
    known: Repeated | KeyReused | None = None

    def trace(self) -> BsonDocument:
        """Return a filter that matches the first stored draft, or an empty filter if no drafts were stored.

        The filter includes the message id, because another request's draft may have the same ``_id``.
        """
        return {field: one[field] for one in self.documents[:1] for field in ("_id", "s", "w")}


class Stages:
    """Operations on stages."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    def add(self, staging: StageRequest) -> None:
        """Store the drafts of a request atomically.

        Raises ``Repeated`` or ``KeyReused`` after the transaction's commit. The commit waits until no failover can undo
        the earlier request.
        """
        while True:
            with self._client.verb():
                staged = self._client.transaction(partial(self._add, staging), StageResult.trace)
            if staged.known:
                raise staged.known
            if staged.expired is None:
                return
            self.drop(exact_filter(staged.expired))

    def _add(self, staging: StageRequest, session: Session) -> "StageResult":
        for known in recall(self._client, session, [staging], list[str]).values():
            return StageResult(known=known)
        stage, expired = self._stage(session, staging)
        if expired:
            return StageResult(expired=expired)
        documents = _documents(stage, staging)
        self._client.insert(documents, session)
        if staging.idempotency_key:
            answer = [draft.id for draft in staging.drafts]
            remember(self._client, session, [(staging, answer, self._last_sequence(session, staging.key))])
        return StageResult(documents)

    def _last_sequence(self, session: Session, key: QueueKey) -> int:
        found = self._client.find(counters_of(self._client, [key]), fields={"k1": 1}, session=session)
        return int(found[0].get("k1", BEFORE_ALL)) if found else BEFORE_ALL

    def _stage(self, session: Session, staging: StageRequest) -> tuple[BsonDocument, BsonDocument | None]:
        """Add the drafts to the counts of the stage, and create the stage if it does not exist.

        Return the stage's document before the change, and None. If the stage has expired, change nothing, and return
        the stage's document as both values. The caller must then drop the expired stage.
        """
        named = identity(staging.project, staging.stage)
        more = {"count": len(staging.drafts), "bytes": sum(draft.size for draft in staging.drafts)}
        found = self._client.find(named, session=session)
        stage = found[0] if found else {**named, "token": uuid4().hex, "count": 0, "bytes": 0}
        if "commit" in stage:
            raise CommitRunning
        if found and stage["due"] <= staging.now:
            return stage, stage
        count, size = stage["count"] + more["count"], stage["bytes"] + more["bytes"]
        if size > staging.max_bytes or count > staging.max_messages:
            raise StageFull
        if found:
            self._client.update([{"q": named, "u": {"$inc": more}}], session)
        else:
            stage |= {"expires": staging.expires, "due": staging.expires, "e": DatetimeMS(staging.expires + TTL_GRACE)}
            self._client.insert([{**stage, **more}], session)
        return stage, None

    def find(self, commit: Commit, now: int, session: Session) -> list[BsonDocument]:
        """Return the stages that the commit publishes, in order and without duplicates.

        The stages in ``commit.beside`` come last and need not exist. They are marked with ``UNCOUNTED_FLAG``, because
        their messages are not counted.

        Raises ``StageNotFound`` if a stage in ``commit.publish`` does not exist, and ``CommitRunning`` if another
        commit uses a stage.
        """
        names = dict.fromkeys((*commit.publish, *commit.beside))
        wanted = {name: identity(commit.project, name) for name in names}
        query = self._any(list(wanted.values()))
        found = {stage["_id"]: stage for stage in self._client.find(query, session=session)} if names else {}
        stages = []
        for name, doc_id in wanted.items():
            stage, beside = found.get(doc_id["_id"]), name not in commit.publish
            if stage is None or stage["expires"] <= now or stage.get("due") == 0:
                if beside:
                    continue
                raise StageNotFound.of(name)
            if "commit" in stage:
                raise CommitRunning
            stages.append(stage | {UNCOUNTED_FLAG: True} if beside else stage)
        return stages

    def reserve(self, stages: Sequence[BsonDocument], attempt: str, session: Session) -> None:
        """Reserve the stages for a commit attempt, so that only this attempt can change or remove them."""
        step = {"$set": {"commit": attempt}, "$unset": {"due": "", "e": ""}}
        if stages:
            self._client.update([{"q": self._any(stages), "u": step, "multi": True}], session)

    def remove_expiry(self, stage: BsonDocument) -> Iterator[None]:
        """Remove the expiry of the drafts of a reserved stage, and yield after each step."""
        for part in self._parts(stage):
            with self._client.verb():
                statement = {"q": part, "u": {"$unset": {"e": ""}}, "multi": True, "hint": layout.OBSERVERS}
                kept = self._client.update([statement])
            if kept < min(DRAFTS_AT_ONCE, stage["count"] - part["k"]["$gt"]):
                raise StageNotFound.of(layout.queue_of(stage["s"]).name)  # a draft has expired meanwhile
            yield

    def unreserve(self, stages: Sequence[BsonDocument], attempt: str) -> None:
        """Cancel the reservation of the stages by a commit attempt."""
        step = [{"$set": {"due": "$expires"}}, {"$unset": "commit"}]
        if stages:
            self._client.update([{"q": {**self._any(stages), "commit": attempt}, "u": step, "multi": True}])

    def drafts(self, stage: BsonDocument, after: int, limit: int, session: Session | None = None) -> list[BsonDocument]:
        """Return up to ``limit`` drafts of the stage after the position ``after``, in order."""
        where = {**self._within(stage), "k": {"$gt": after}}
        return self._client.find(where, limit=limit, sort={"k": 1}, hint=layout.OBSERVERS, session=session)

    def drop(self, stage: BsonDocument) -> int:
        """Remove the stage, unless a commit uses the stage, and return the number of removed drafts."""
        step = {"query": {**stage, "commit": {"$exists": False}}, "update": {"$set": {"due": 0}}, "new": True}
        with self._client.verb():
            dropped = self._client.modify(step)
        return self.remove(dropped) if dropped else 0

    def remove(self, stage: BsonDocument) -> int:
        """Remove a dropped stage, and return the number of removed drafts."""
        removed = 0
        for part in self._parts(stage):
            with self._client.verb():
                removed += self._client.delete_all(part, hint=layout.OBSERVERS)
        self.forget(stage)
        return removed

    def remove_part(self, stage: BsonDocument, begin: int, end: int) -> None:
        """Remove the drafts of a published stage whose positions are above ``begin`` and at most ``end``."""
        with self._client.verb():
            self._client.delete_all({**self._within(stage), "k": {"$gt": begin, "$lte": end}}, hint=layout.OBSERVERS)

    def forget(self, stage: BsonDocument) -> None:
        """Remove the document of a stage whose drafts have been removed."""
        with self._client.verb():
            self._client.delete([{"q": exact_filter(stage), "limit": 1}])

    def remove_small(self, stages: Sequence[BsonDocument], session: Session) -> None:
        """Remove the stages of a small commit, together with the drafts in the stages, in the session's transaction."""
        if stages:
            drafts = [{"q": self._within(stage), "limit": 0, "hint": layout.OBSERVERS} for stage in stages]
            self._client.delete([*drafts, {"q": self._any(stages), "limit": 0}], session)

    def _any(self, stages: Sequence[BsonDocument]) -> BsonDocument:
        return {"_id": {"$in": [stage["_id"] for stage in stages]}, **self._client.shards(one["s"] for one in stages)}

    def _parts(self, stage: BsonDocument) -> list[BsonDocument]:
        starts = range(0, stage["count"], DRAFTS_AT_ONCE)
        return [{**self._within(stage), "k": {"$gt": start, "$lte": start + DRAFTS_AT_ONCE}} for start in starts]

    def _within(self, stage: BsonDocument) -> BsonDocument:
        return {"q": "d" + stage["token"], **self._client.shards([stage["s"]])}


def identity(project: str, stage: str) -> BsonDocument:
    """Return the filter for the stage."""
    shard = layout.project_prefix(project) + layout.encode_text(stage)
    return {"_id": "s" + shard, "s": shard}


def exact_filter(stage: BsonDocument) -> BsonDocument:
    """Return the filter for exactly this stage, not for a later stage with the same name."""
    return {field: stage[field] for field in ("_id", "s", "token")}


def _documents(stage: BsonDocument, staging: StageRequest) -> list[BsonDocument]:
    made = []
    for order, draft in enumerate(staging.drafts, stage["count"] + 1):
        made.append(
            {
                "_id": f"d{stage['token']}{order:08x}",
                "s": stage["s"],
                "q": "d" + stage["token"],
                "k": order,
                "w": layout.encode_text(draft.id),
                "j": layout.encode_text(staging.queue.name),
                "t": draft.ttl,
                "l": draft.delay,
                "u": layout.encode_text(draft.client),
                "b": draft.body,
                "m": layout.encode_text(draft.checksum),
                **({"v": draft.attributes} if draft.attributes else {}),
                **({"h": layout.encode_text(draft.group)} if draft.group else {}),
                **({"e": stage["e"]} if "e" in stage else {}),
            }
        )
    return made


def to_draft(document: BsonDocument) -> Draft:
    decode = layout.decode_text
    return Draft(
        id=decode(document["w"]),
        body=document["b"],
        ttl=document["t"],
        delay=document["l"],
        client=decode(document["u"]),
        checksum=decode(document["m"]),
        attributes=document.get("v", b""),
        group=decode(document.get("h", "")),
    )


# Maximum size of the messages in one slice, in bytes.
BYTES_AT_ONCE: Final = 4 << 20

# The progress of a commit: the index of the first incompletely published stage, and the position reached in this stage.
Progress = list[int]
BEGINNING: Final[Progress] = [0, 0]


def fits(stages: Sequence[BsonDocument], others: int, max_messages: int) -> bool:
    """Return whether one transaction can publish all messages of the stages.

    ``others`` is the number of other messages that the transaction changes.
    """
    count, weight = (sum(stage[what] for stage in stages) for what in ("count", "bytes"))
    return bool(count + others <= max_messages and weight <= BYTES_AT_ONCE)


def next_drafts(
    stage_store: Stages,
    stages: Sequence[BsonDocument],
    progress: Progress,
    max_drafts: int,
    session: Session | None = None,
) -> tuple[list[BsonDocument], Progress]:
    """Return up to ``max_drafts`` drafts to publish next.

    Also return the progress of the commit after these drafts are published.
    """
    chosen: list[BsonDocument] = []
    weight = 0
    index, order = progress
    while index < len(stages) and len(chosen) < max_drafts:
        stage = stages[index]
        usual = BYTES_AT_ONCE * stage["count"] // max(1, stage["bytes"])
        found = stage_store.drafts(stage, order, min(max_drafts - len(chosen), 1 + usual), session)
        for one in found:
            weight += layout.size_of(one)
            if chosen and weight > BYTES_AT_ONCE:
                return chosen, [index, order]
            chosen.append(one)
            order = one["k"]
        if order >= stage["count"] or not found:  # another server that carries the commit out may have removed them
            index, order = index + 1, 0
    return chosen, [index, order]


def publish(
    client: StoreClient, session: Session, project: str, drafts: Sequence[BsonDocument], now: int
) -> Sequence[QueueKey]:
    """Post staged messages to their queues at ``now``, in the given order, and return the queues."""
    by_queue: defaultdict[QueueKey, list[BsonDocument]] = defaultdict(list)
    for one in drafts:
        by_queue[layout.key(QueueRef(project, layout.decode_text(one["j"])))].append(one)
    entries = {key: _sum_arrivals(its, now) for key, its in by_queue.items()}
    documents: list[BsonDocument] = []
    floors: dict[str, int] = {}
    for key, sequences in advance(client, session, entries).items() if entries else ():
        for sequence, one in enumerate(by_queue[key], sequences.sequence):
            available = now + one["l"] * 1000 if one["l"] else sequences.available
            documents.append(layout.new_document(key, to_draft(one), sequence, available, now, sequences.grouping))
        floors[key.shard] = sequences.floor
    if documents:
        groups.add_to_entries(client, session, documents, floors)
        client.insert(documents, session)
    return list(by_queue)


def _sum_arrivals(drafts: Sequence[BsonDocument], now: int) -> Arrivals:
    number, size = len(drafts), sum(map(layout.size_of, drafts))
    return Arrivals(number, now if any(not one["l"] for one in drafts) else None, number, size + OVERHEAD * number)
