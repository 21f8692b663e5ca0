# SPDX-License-Identifier: Apache-2.0
"""Migration of projects between MongoDB and other stores, as parcels (records that do not depend on the driver).

An imported history entry gets a new ``_id``. The message's ``_id`` is stored in the field ``i``.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Final
from uuid import uuid4

import msgspec
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS

from zq.errors import Invalid
from zq.model import Grouping, Message, Page, QueueRef, Seconds
from zq.model.documents import Guard
from zq.model.parcels import (
    LOG,
    Answer,
    BatchParcel,
    Counters,
    DocumentParcel,
    FenceParcel,
    HistoryParcel,
    KeyParcel,
    LogParcel,
    MessageParcel,
    Parcel,
    ProducerParcel,
    QueueParcel,
    expiry_of,
    only,
)
from zq.model.quotas import OVERHEAD
from zq.storage.api import Storage
from zq.storage.capabilities import UndecidedCommit
from zq.storage.exporting import PAGE_BYTES, Exporter
from zq.storage.mongodb import documents, groups, layout, producers, topic_log, usage
from zq.storage.mongodb.changes import fence_identity
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.commits import Commits
from zq.storage.mongodb.expiry import PendingDeletes
from zq.storage.mongodb.floors import counters_of, floor_of, history_floor_of
from zq.storage.mongodb.layout import BsonDocument, QueueKey, encode_text
from zq.storage.mongodb.producers import ABORTING, PREPARING
from zq.storage.mongodb.queues import EXISTING_FILTER
from zq.storage.mongodb.topic_log import LogPosition
from zq.storage.mongodb.usage import UsageEstimates

# First letters of ``_id`` that precede a project's prefix: queues, fences, producers, documents, topic logs, stages.
OF_PROJECTS: Final = "qfprls"
# Number of queue names that one search looks up.
NAMES_AT_ONCE: Final = 100


class ParcelController:
    """The MongoDB implementation of ``zq.storage.capabilities.ParcelController``."""

    def __init__(
        self,
        client: StoreClient,
        storage: Storage,
        commits: Commits,
        pending_deletes: PendingDeletes,
        usages: UsageEstimates,
    ) -> None:
        self._client = client
        self._commits = commits
        self._pending_deletes = pending_deletes
        self._usages = usages
        self._exporter = Exporter(storage, ParcelReader(client))

    def projects(self) -> Sequence[str]:
        found = {project for letter in OF_PROJECTS for project in self._scan("_id", letter, "_id_")}
        return sorted({*found, *self._scan("q", "o", layout.CLAIMS)})

    def _scan(self, field: str, letter: str, index: str) -> Iterator[str]:
        """Yield the projects that have documents of the type ``letter``, without reading all documents."""
        lower, end = letter + "0", letter + ":"
        while True:
            where = {field: {"$gte": lower, "$lt": end}}
            with self._client.verb():
                found = self._client.find(where, limit=1, sort={field: 1}, hint=index, fields={field: 1})
            if not found:
                return
            length, _, rest = found[0][field][1:].partition(":")
            project = layout.decode_text(rest[: int(length)])
            yield project
            lower = letter + layout.after(layout.project_prefix(project))

    def export(self, project: str, after: str, limit: int, now: Seconds) -> Page[Parcel]:
        return self._exporter.page(project, after, limit, now)

    def export_queue(self, queue: QueueRef, after: str, limit: int, now: Seconds) -> Page[Parcel]:
        return self._exporter.queue_page(queue, after, limit, now)

    def adopt(self, project: str, parcels: Sequence[Parcel], now: Seconds, guard: Guard | None = None) -> None:
        for (kind, owner), group in groupby(parcels, _run_of):
            its, key = list(group), layout.key(QueueRef(project, owner))
            with self._client.verb():
                if kind is MessageParcel:
                    self._adopt_messages(key, [one.message for one in only(MessageParcel, its)], guard)
                elif kind is HistoryParcel:
                    self._insert([_history_document(key, one) for one in only(HistoryParcel, its)], guard)
                elif kind is BatchParcel:
                    self._adopt_batches(topic_log.key(project), only(BatchParcel, its), guard)
                elif kind is QueueParcel and (name := self._find_deleted(project, only(QueueParcel, its))):
                    raise Invalid(
                        f"The queue {name!r} was deleted in this store. The deletion would hide the queue's imported "
                        "items."
                    )
                elif statements := [one for parcel in its for one in self._statements(project, parcel)]:
                    self._update(statements, guard)

    def create_queue(self, queue: QueueRef, metadata: bytes, grouping: Grouping, guard: Guard) -> bool:
        key = layout.key(queue)
        made = {"n": key.shard, "b": metadata, **({"h": grouping.value} if grouping else {})}
        step = {"$set": made, "$unset": {"e": ""}}

        def work(session: Session) -> bool:
            documents.check_guard(self._client, session, guard)
            is_new = not self._client.find({**counters_of(self._client, [key]), **EXISTING_FILTER}, session=session)
            if is_new:
                self._client.update([_upsert({"_id": key.counter, "s": key.shard}, step)], session)
            return is_new

        with self._client.verb():
            return self._client.transaction(work)

    def delete_queue(self, queue: QueueRef, guard: Guard, sequence: int | None = None) -> bool:
        with self._client.verb():
            is_missing = self._pending_deletes.delete_guarded(layout.key(queue), guard, sequence)
        self._usages.forget(queue.project)
        return is_missing

    def find_undecided_commits(self, project: str, now: Seconds) -> Sequence[UndecidedCommit]:
        return [
            UndecidedCommit(commit.project, commit.producer, max(0, due - layout.ms(now)) / 1000)
            for commit, due in self._commits.find_commits(project, [PREPARING, ABORTING])
        ]

    def abort_commit(self, project: str, producer: str, now: Seconds) -> None:
        self._commits.abort_overdue(project, producer, layout.ms(now))

    def last_clock(self) -> Seconds | None:
        with self._client.verb():
            found = self._client.read({"find": layout.CLOCK, "filter": {"_id": layout.CLOCK}})
        return int(found[0]["t"]) / 1000 if found else 0.0

    def _find_deleted(self, project: str, queues: Sequence[QueueParcel]) -> str:
        """Return the name of the first queue in ``queues`` that was deleted but is not completely removed yet.

        Items of such a queue cannot be imported, because the deletion would hide them. If there is no such queue,
        return "".
        """
        keys = {layout.key(QueueRef(project, one.queue)).counter: one.queue for one in queues}
        pending = [{field: {"$exists": True}} for field in ("g", "g1")]
        shards = self._client.shards(layout.key(QueueRef(project, name)).shard for name in keys.values())
        where = {"_id": {"$in": list(keys)}, "n": {"$exists": False}, "$or": pending, **shards}
        return next((keys[one["_id"]] for one in self._client.find(where, hint="_id_", fields={"_id": 1})), "")

    def _adopt_messages(self, key: QueueKey, messages: Sequence[Message], guard: Guard | None) -> None:
        def work(session: Session) -> None:
            self._check(guard, session)
            counters = self._client.find({"_id": key.counter, "s": key.shard}, session=session)
            counter: BsonDocument = counters[0] if counters else {}
            grouping = Grouping(counter.get("h", ""))
            made = [{**_document(key, one), **layout.group_fields(grouping, one.group)} for one in messages]
            new = self._missing(made, session)
            if new:
                groups.add_to_entries(self._client, session, new, {key.shard: floor_of(counter)})
                self._client.insert(new, session)
                grown = {"n1": len(new), "w1": sum(layout.size_of(one) + OVERHEAD for one in new)}
                self._client.update([{"q": {"_id": key.counter, "s": key.shard}, "u": {"$inc": grown}}], session)

        self._client.transaction(work)

    def _adopt_batches(self, key: QueueKey, parcels: Sequence[BatchParcel], guard: Guard | None) -> None:
        def work(session: Session) -> None:
            self._check(guard, session)
            [counter] = self._client.find({"_id": key.counter, "s": key.shard}, fields={"k0": 1}, session=session)
            made: list[BsonDocument] = []
            for parcel in parcels:
                batch = parcel.batch
                position = LogPosition(batch.sequence, parcel.bytes, uuid4().hex)
                for one in topic_log.documents(key, batch.topic, batch.entries, layout.ms(batch.created), position):
                    # Retention computes message counts from ``f`` and ``k1``, as if sequences had no gaps. The
                    # sequences of an imported log may have gaps, so ``f`` is shifted.
                    made.append({**one, "f": int(counter["k0"]) + parcel.messages + 1})
            self._client.insert(self._missing(made, session), session)

        self._client.transaction(work)

    def _insert(self, made: Sequence[BsonDocument], guard: Guard | None) -> None:
        def work(session: Session) -> None:
            self._check(guard, session)
            self._client.insert(self._missing(made, session), session)

        self._client.transaction(work)

    def _update(self, statements: Sequence[BsonDocument], guard: Guard | None) -> None:
        """Run update statements. With a guard, run them in one transaction."""
        if guard is None:
            self._client.update(statements)
            return

        def work(session: Session) -> None:
            self._check(guard, session)
            self._client.update(statements, session)

        self._client.transaction(work)

    def _check(self, guard: Guard | None, session: Session) -> None:
        if guard is not None:
            documents.check_guard(self._client, session, guard)

    def _missing(self, made: Sequence[BsonDocument], session: Session) -> list[BsonDocument]:
        where = {"_id": {"$in": [one["_id"] for one in made]}, **self._client.shards(one["s"] for one in made)}
        known = {one["_id"] for one in self._client.find(where, fields={"_id": 1}, hint="_id_", session=session)}
        return [one for one in made if one["_id"] not in known]

    def _statements(self, project: str, parcel: Parcel) -> Iterator[BsonDocument]:
        match parcel:
            case QueueParcel(queue=name, metadata=metadata, grouping=grouping) if metadata is not None:
                key, (sequence, fresh, position, finished) = layout.key(QueueRef(project, name)), parcel.counters
                made = {"n": key.shard, "b": metadata, **({"h": grouping.value} if grouping else {})}
                raised = {"k1": sequence, "d1": layout.ms(fresh)}
                # The floors of a deleted queue without pending deletes hide nothing but the imported items.
                deleted = {"_id": key.counter, "s": key.shard, "n": {"$exists": False}, "g": {"$exists": False}}
                yield {"q": deleted, "u": {"$unset": {"m0": "", "h0": ""}}}
                step: BsonDocument = {"$set": made, "$max": raised, "$unset": {"e": ""}}
                yield _upsert({"_id": key.counter, "s": key.shard}, step)
                if position:
                    step = {"$max": {"p1": position, "f1": layout.ms(finished)}, "$unset": {"e": ""}}
                    yield _upsert({"_id": key.history_counter, "s": key.shard}, step)
            case DocumentParcel():
                yield documents.adoption(parcel.of(project))
            case LogParcel(last=last, dropped=dropped, messages=messages, bytes=size):
                key = topic_log.key(project)
                state = {"k1": last, "z1": size, "x": dropped, "k0": last - messages, "z0": 0}
                yield _upsert({"_id": key.counter, "s": key.shard}, {"$setOnInsert": state})
            case KeyParcel():
                key = topic_log.key(project) if parcel.queue == LOG else layout.key(QueueRef(project, parcel.queue))
                known = {
                    "s": key.shard,
                    "q": key.idempotency_keys,
                    "k": parcel.last,
                    "e": DatetimeMS(layout.ms(parcel.expires)),
                    "h": Binary(parcel.digest),
                    "b": json.dumps(msgspec.to_builtins(parcel.answer)),
                }
                yield _upsert({"_id": key.named("o", parcel.key), "s": key.shard}, known)
            case FenceParcel(epoch=epoch):
                identity = fence_identity(project, parcel.fence)
                if not self._client.find({**identity, "epoch": {"$gte": epoch}}, fields={"_id": 1}):
                    known_since = {} if parcel.advanced is None else {"advanced": layout.ms(parcel.advanced)}
                    yield _upsert(identity, {"$set": {"epoch": epoch, **known_since}})
            case ProducerParcel(batch=batch):
                identity = producers.identity(project, parcel.producer)
                if not self._client.find({**identity, "batch": {"$gte": batch}}, fields={"_id": 1}):
                    done = {"batch": batch, "published": parcel.published, "deleted": parcel.deleted}
                    if parcel.decided is not None:
                        done["decided"] = layout.ms(parcel.decided)
                    expires = DatetimeMS(layout.ms(parcel.expires))
                    yield _upsert(identity, {**identity, **done, "attempt": uuid4().hex, "e": expires})


def _run_of(parcel: Parcel) -> tuple[type[Parcel], str]:
    return type(parcel), parcel.queue if isinstance(parcel, MessageParcel | HistoryParcel) else ""


def _upsert(where: BsonDocument, change: BsonDocument) -> BsonDocument:
    return {"q": where, "u": change, "upsert": True}


def _document(key: QueueKey, message: Message) -> BsonDocument:
    made: BsonDocument = {
        "_id": layout.doc_id(key, message.id),
        "s": key.shard,
        "q": key.messages,
        "k": message.sequence,
        "d": layout.ms(message.available),
        "e": DatetimeMS(layout.ms(message.expires)),
        "a": layout.ms(message.created),
        "t": message.ttl,
        "u": encode_text(message.client),
        "b": message.body,
    }
    texts = ("m", message.checksum), ("r", message.reason), ("h", message.group)
    made |= {field: encode_text(text) for field, text in texts if text}
    first = {"f": layout.ms(message.first_claimed)} if message.first_claimed else {}
    if message.attributes:
        made["v"] = message.attributes
    if message.claim_count:
        made["c"] = {"n": message.claim_count, **first}
    if message.origin or message.origin_claim_count:
        origin = layout.key(key.ref._replace(name=message.origin)).shard
        made["o"] = {"q": origin, "n": message.origin_claim_count, **({} if message.claim_count else first)}
    return made


def _history_document(key: QueueKey, parcel: HistoryParcel) -> BsonDocument:
    entry = parcel.entry
    assert entry.outcome is not None, "only messages that have finished are in the history"
    made = _document(key, entry.message)
    return {
        **made,
        "_id": f"{key.history_entries}/{entry.position}",
        "i": made["_id"],
        "q": key.history_entries,
        "p": entry.position,
        "f": layout.ms(entry.finished),
        "x": entry.outcome.value,
        "z": made["e"],
        "e": DatetimeMS(layout.ms(entry.expires)),
    }


class ParcelReader:
    """The MongoDB implementation of ``zq.storage.exporting.ParcelReader``."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    def counters(self, queue: QueueRef) -> Counters:
        key = layout.key(queue)
        with self._client.verb():
            found = self._client.find({"_id": {"$in": [key.counter, key.history_counter]}, "s": key.shard})
        values: BsonDocument = {field: value for one in found for field, value in one.items()}
        sequence, fresh, position, finished = (int(values.get(field, 0)) for field in ("k1", "d1", "p1", "f1"))
        return Counters(sequence, fresh / 1000, position, finished / 1000)

    def missing(self, project: str, after: str, limit: int) -> Sequence[str]:
        prefix, missing = layout.project_prefix(project), list[str]()
        lower = "o" + prefix + (encode_text(after) + "\0" if after else "")
        while len(missing) < limit:
            names = list(islice(self._owners_of_keys(lower, "o" + layout.after(prefix)), NAMES_AT_ONCE))
            if not names:
                break
            with self._client.verb():
                known = self._client.find({"n": {"$in": names}}, hint=layout.NAMES, fields={"_id": 0, "n": 1})
            existing = {one["n"] for one in known}
            missing += [layout.decode_text(name[len(prefix) :]) for name in names if name not in existing]
            lower = "o" + names[-1] + "\0"
        return missing[:limit]

    def _owners_of_keys(self, lower: str, end: str) -> Iterator[str]:
        while True:
            with self._client.verb():
                where = {"q": {"$gte": lower, "$lt": end}}
                found = self._client.find(where, limit=1, sort={"q": 1}, hint=layout.CLAIMS, fields={"q": 1})
            if not found:
                return
            yield found[0]["q"][1:]
            lower = found[0]["q"] + "\0"

    def keys(self, queue: QueueRef, after: str, limit: int, now: Seconds) -> Page[KeyParcel]:
        key = topic_log.key(queue.project) if queue.name == LOG else layout.key(queue)
        prefix, moment = key.named("o", ""), layout.ms(now)
        where = {"_id": {"$gt": prefix + after, "$lt": layout.after(prefix)}, **self._client.shards([key.shard])}
        with self._client.verb():
            counters = self._client.find({"_id": key.counter, "s": key.shard})
            found = self._client.find(where, limit=limit, sort={"_id": 1}, hint="_id_")
        floor = history_floor_of(counters[0]) if counters and queue.name != LOG else 0
        parcels = [
            _key_parcel(queue.name, layout.decode_text(one["_id"][len(prefix) :]), one)
            for one in found
            if int(one["e"]) > moment and int(one["k"]) >= floor
        ]
        return Page(parcels, found[-1]["_id"][len(prefix) :] if len(found) == limit else None)

    def log(self, project: str) -> LogParcel | None:
        key = topic_log.key(project)
        with self._client.verb():
            found = self._client.find({"_id": key.counter, "s": key.shard})
        if not found:
            return None
        fields = ("k1", "x", "z1", "k0", "z0")
        last, dropped, size, gone, gone_size = (int(found[0].get(field, 0)) for field in fields)
        return LogParcel(last, dropped, last - max(0, gone), size - max(0, gone_size))

    def batches(self, project: str, after: int, limit: int, now: Seconds) -> Sequence[BatchParcel]:
        key = topic_log.key(project)
        parcels: list[BatchParcel] = []
        with self._client.verb():
            state = self._client.find({"_id": key.counter, "s": key.shard})
            if not state:
                return parcels
            notes = topic_log.PURGE + key.project
            purged = {"_id": {"$gt": notes, "$lt": layout.after(notes)}, "s": key.shard}
            floors = topic_log.floors_of([*state, *self._client.find(purged)])
            gone, gone_size = (max(0, int(state[0].get(field, 0))) for field in ("k0", "z0"))
            position = max(after, floors.trimmed)
            while not parcels:
                where = self._client.where(key, k={"$gt": position})
                found = self._client.find(
                    where, limit=limit, sort={"k": 1}, hint=layout.OBSERVERS, max_bytes=PAGE_BYTES
                )
                if not found:
                    break
                position = int(found[-1]["k"])
                for one in found:
                    parcel = BatchParcel(topic_log.to_batch(one), int(one["f"]) - 1 - gone, int(one["z"]) - gone_size)
                    if expiry_of(parcel) > now and one["k"] > floors.purged.get(one["d"], 0):
                        parcels.append(parcel)
        return parcels

    def documents(self, project: str, after: str, limit: int, now: Seconds) -> Page[DocumentParcel]:
        prefix, moment = "r" + layout.project_prefix(project), layout.ms(now)
        where = {"_id": {"$gt": prefix + after, "$lt": layout.after(prefix)}}
        with self._client.verb():
            found = self._client.find(where, limit=limit, sort={"_id": 1}, hint="_id_")
        parcels = []
        for one in found:
            length, _, rest = one["_id"][len(prefix) :].partition(":")
            kind, name = layout.decode_text(rest[: int(length)]), layout.decode_text(rest[int(length) + 1 :])
            expires = None if "e" not in one else int(one["e"])
            is_own = not project and kind == usage.KIND  # the driver's counts describe this store only
            if not is_own and (expires is None or expires > moment):
                ends = None if expires is None else expires / 1000
                parcels.append(DocumentParcel(kind, name, bytes(one["b"]), str(one["v"]), ends))
        return Page(parcels, found[-1]["_id"][len(prefix) :] if len(found) == limit else None)


def _key_parcel(queue: str, key: str, found: BsonDocument) -> KeyParcel:
    answer = msgspec.convert(json.loads(found["b"]), Answer)
    last = int(found["k"]) if isinstance(answer, list) else 0
    return KeyParcel(queue, key, bytes(found["h"]), int(found["e"]) / 1000, answer, max(0, last))
