# SPDX-License-Identifier: Apache-2.0
"""The export of an ordered store's projects, and the adoption (import) of projects from other stores.

All adopted messages have entries in the index ``available``, because their claim order may differ from the order of
their sequences.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Final

from msgspec import msgpack

from zq.model import Grouping, HistoryEntry, Message, Page, QueueRef, Seconds
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
    only,
)
from zq.model.quotas import OVERHEAD
from zq.storage.api import Storage
from zq.storage.capabilities import UndecidedCommit
from zq.storage.concurrency import StripedLocks
from zq.storage.exporting import PAGE_BYTES, Exporter
from zq.storage.ordered import documents, due, layout, logs
from zq.storage.ordered.changes import Change
from zq.storage.ordered.handle import Session, StoreHandle
from zq.storage.ordered.idempotency import Owner
from zq.storage.ordered.layout import ADVANCED, Batch, StoredEntry, StoredKey, StoredMessage, Tally
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.store import Store, Write

# Families whose keys begin with a project.
OF_PROJECTS: Final = ("queues", "hidden", "fences", "stages", "producers", "logs", "records")


class ParcelController:
    """The implementation of ``zq.storage.capabilities.ParcelController`` over an ordered store."""

    def __init__(self, handle: StoreHandle, storage: Storage, stripes: StripedLocks) -> None:
        self._handle = handle
        self._stripes = stripes
        self._exporter = Exporter(storage, ParcelReader(handle))

    def projects(self) -> Sequence[str]:
        with self._handle as (store, _):
            return sorted({project for family in OF_PROJECTS for project in _scan_projects(store, family)})

    def export(self, project: str, after: str, limit: int, now: Seconds) -> Page[Parcel]:
        return self._exporter.page(project, after, limit, now)

    def export_queue(self, queue: QueueRef, after: str, limit: int, now: Seconds) -> Page[Parcel]:
        return self._exporter.queue_page(queue, after, limit, now)

    def adopt(self, project: str, parcels: Sequence[Parcel], now: Seconds, guard: Guard | None = None) -> None:
        moment = layout.ms(now)
        with self._handle as session:
            kept = [one.of(project).ref for one in only(DocumentParcel, parcels)]
            with documents.guarded(session.store, self._stripes, guard, kept):
                for (kind, owner), group in groupby(parcels, lambda one: (type(one), getattr(one, "queue", ""))):
                    _adopt(session, kind, QueueRef(project, owner), list(group), moment)
            session.store.wait_durable()

    def create_queue(self, queue: QueueRef, metadata: bytes, grouping: Grouping, guard: Guard) -> bool:
        with self._handle as (store, registry):
            with documents.guarded(store, self._stripes, guard):
                is_new = registry.ensure(queue, metadata, grouping)
            store.wait_durable()
        return is_new

    def delete_queue(self, queue: QueueRef, guard: Guard, sequence: int | None = None) -> bool:
        with self._handle as (store, registry):
            with (
                documents.guarded(store, self._stripes, guard),
                registry.locked_or_hidden(queue) as state,
            ):
                if state is not None and sequence not in (None, state.tally.sequence):
                    return False
                if state is not None:
                    registry.delete(state)
            store.wait_durable()
        return True

    def find_undecided_commits(self, project: str, now: Seconds) -> Sequence[UndecidedCommit]:
        return []  # a commit is decided in one step

    def abort_commit(self, project: str, producer: str, now: Seconds) -> None:
        pass

    def last_clock(self) -> Seconds | None:
        return None


def _adopt(session: Session, kind: type[Parcel], queue: QueueRef, parcels: Sequence[Parcel], now: int) -> None:
    store, registry = session
    if kind is QueueParcel:
        for one in only(QueueParcel, parcels):
            _adopt_queue(session, queue, one, now)
    elif kind is LogParcel or kind is BatchParcel or (kind is KeyParcel and queue.name == LOG):
        log = registry.logs.ensure(queue.project)
        with log.lock:
            if kind is LogParcel and store.get("logs", log.key) is None:
                for one_log in only(LogParcel, parcels):
                    log.adopt(store, one_log)
            elif kind is BatchParcel:
                log.adopt_batches(store, only(BatchParcel, parcels))
            elif kind is KeyParcel:
                keys = _new_keys(store, log, only(KeyParcel, parcels), counts=False)
                store.write([write for writes, _ in keys for write in writes])
    elif kind is FenceParcel:
        fences = only(FenceParcel, parcels)
        store.write([write for one in fences for write in _fence_writes(store, queue.project, one)])
    elif kind is ProducerParcel:
        made = only(ProducerParcel, parcels)
        store.write([write for one in made for write in _producer_writes(store, queue.project, one)])
    elif kind is DocumentParcel:
        for document in only(DocumentParcel, parcels):
            documents.adopt(store, document.of(queue.project))
    else:
        with registry.locked_or_hidden(queue) as state:
            if state is not None:
                change = Change(store, now)
                _adopt_content(store, change, state, parcels)
                change.commit()


def _adopt_queue(session: Session, queue: QueueRef, parcel: QueueParcel, now: int) -> None:
    if parcel.metadata is None:
        session.registry.create_hidden(queue)
        return
    session.registry.ensure(queue, parcel.metadata, parcel.grouping)
    sequence, fresh, position, finished = parcel.counters
    with session.registry.locked(queue) as (state,):
        if state is not None:
            change = Change(session.store, now)
            lowest = Tally(sequence, layout.ms(fresh), position=position, finished=layout.ms(finished))
            change.raise_counters(state, lowest)
            change.commit()


def _adopt_content(store: Store, change: Change, state: QueueState, parcels: Sequence[Parcel]) -> None:
    """Add messages, history entries and idempotency keys from parcels to ``change``.

    Skip the items that the queue already has.
    """
    messages, history = only(MessageParcel, parcels), only(HistoryParcel, parcels)
    places = [layout.id_key(state.project, one.message.id) for one in messages]
    for parcel, place in zip(messages, store.get_many("ids", places), strict=True):
        if place is None:
            message = parcel.message
            change.adopt(state, message.sequence, _record(message), message.body)
    positions = [layout.pair.pack(state.history, one.entry.position) for one in history]
    for past, value in zip(history, store.get_many("history", positions), strict=True):
        if value is None:
            change.adopt_history(state, past.entry.position, _stored_entry(past.entry))
    for writes, size in _new_keys(store, state, only(KeyParcel, parcels)):
        change.adopt_key(state, writes, size)


def _record(message: Message) -> StoredMessage:
    return StoredMessage(
        id=message.id,
        created=layout.ms(message.created),
        expires=layout.ms(message.expires),
        available=layout.ms(message.available),
        ttl=message.ttl,
        client=message.client,
        checksum=message.checksum,
        count=message.claim_count,
        origin=message.origin,
        origin_count=message.origin_claim_count,
        reason=message.reason,
        size=len(message.attributes),
        first=layout.ms(message.first_claimed),
        attributes=message.attributes,
        message_group=message.group,
    )


def _stored_entry(entry: HistoryEntry) -> StoredEntry:
    message, outcome = entry.message, entry.outcome
    assert outcome is not None, "only messages that have finished are in the history"
    size = message.size + OVERHEAD
    finished, expires = layout.ms(entry.finished), layout.ms(entry.expires)
    return StoredEntry(_record(message), message.body, message.sequence, outcome, finished, expires, size)


def _new_keys(
    store: Store, owner: Owner, parcels: Sequence[KeyParcel], counts: bool = True
) -> Iterator[tuple[list[Write], int]]:
    """Yield (writes, size) for each idempotency key that the queue or log does not have yet.

    ``size`` is the size of the stored result in bytes, or 0 if ``counts`` is false.
    """
    for parcel in parcels:
        expires = layout.ms(parcel.expires)
        key = layout.name_prefix(layout.number.pack(owner.history), parcel.key) + layout.number.pack(expires)
        if store.get("keys", key) is None:
            answer = layout.encode(parcel.answer)
            size = len(answer) + OVERHEAD if counts else 0
            value = layout.encode(StoredKey(parcel.digest, answer, size, parcel.last))
            yield due.writes("keys", key, value, expires, due.size_note(size)), size


def _fence_writes(store: Store, project: str, parcel: FenceParcel) -> list[Write]:
    key = layout.queue_key(QueueRef(project, parcel.fence))
    if int.from_bytes(store.get("fences", key) or b"") >= parcel.epoch:
        return []
    advanced = None if parcel.advanced is None else layout.number.pack(layout.ms(parcel.advanced))
    return [("fences", key, layout.number.pack(parcel.epoch)), ("default", ADVANCED + key, advanced)]


def _producer_writes(store: Store, project: str, parcel: ProducerParcel) -> list[Write]:
    prefix, expires = layout.name_prefix(layout.project_prefix(project), parcel.producer), layout.ms(parcel.expires)
    key, former = prefix + layout.number.pack(expires), list[Write]()
    for known, value in store.scan("producers", prefix, layout.prefix_end(prefix)):
        if layout.decode_batch(value).batch >= parcel.batch:
            return []
        former += due.removals("producers", known, due.parse_expiry(known))
    decided = 0 if parcel.decided is None else layout.ms(parcel.decided)
    batch = Batch(parcel.batch, parcel.published, parcel.deleted, decided)
    return [*former, *due.writes("producers", key, layout.encode(batch), expires)]


def _scan_projects(store: Store, family: str) -> Iterator[str]:
    """Yield the projects in a family, skipping from project to project without reading all keys."""
    lower = b""
    while (found := next(store.scan(family, lower, layout.END), None)) is not None:
        prefix = layout.extract_project_prefix(found[0])
        yield layout.decode_project(prefix)
        lower = layout.prefix_end(prefix)


class ParcelReader:
    """The implementation of ``zq.storage.exporting.ParcelReader``."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

    def counters(self, queue: QueueRef) -> Counters:
        with self._handle as (_, registry):
            state = registry.find(queue)
            if state is None:
                return Counters()
            tally = state.tally
            return Counters(tally.sequence, tally.fresh / 1000, tally.position, tally.finished / 1000)

    def missing(self, project: str, after: str, limit: int) -> Sequence[str]:
        lower = layout.queue_key(QueueRef(project, after)) + b"\0" if after else layout.project_prefix(project)
        with self._handle as (store, _):
            found = store.scan("hidden", lower, layout.prefix_end(layout.project_prefix(project)))
            return [layout.decode_queue_key(key).name for key, _ in islice(found, limit)]

    def keys(self, queue: QueueRef, after: str, limit: int, now: Seconds) -> Page[KeyParcel]:
        moment = layout.ms(now)
        with self._handle as (store, registry):
            owner: Owner | None = registry.find(queue) or registry.find_hidden(queue)
            if queue.name == LOG:
                owner = registry.logs.find(queue.project)
            if owner is None:
                return Page([], None)
            prefix = layout.number.pack(owner.history)
            lower = bytes.fromhex(after) + b"\0" if after else prefix
            found = list(islice(store.scan("keys", lower, layout.prefix_end(prefix)), limit))
        parcels = [
            _key_parcel(queue.name, key[len(prefix) : -9], due.parse_expiry(key), value)
            for key, value in found
            if due.parse_expiry(key) > moment
        ]
        return Page(parcels, found[-1][0].hex() if len(found) == limit else None)

    def log(self, project: str) -> LogParcel | None:
        with self._handle as (_, registry):
            log = registry.logs.find(project)
            if log is None:
                return None
            record = log.view.record
        messages, size = record.messages - record.gone_messages, record.size - record.gone_size
        return LogParcel(record.last, record.dropped, messages, size)

    def batches(self, project: str, after: int, limit: int, now: Seconds) -> Sequence[BatchParcel]:
        found: list[BatchParcel] = []
        with self._handle as (store, registry):
            log = registry.logs.find(project)
            if log is None:
                return found
            record, floors = log.view
            lower = layout.pair.pack(record.number, max(after, record.dropped) + 1)
            for _, value in store.scan("batches", lower, layout.pair.pack(record.number, record.last + 1)):
                stored = logs.decode_stored(value)
                batch = stored.batch
                alive = any(batch.created + entry.ttl > now for entry in batch.entries)
                if alive and batch.last > floors.get(batch.topic, 0):
                    before = stored.messages - record.gone_messages, stored.size - record.gone_size
                    found.append(BatchParcel(batch, *before))
                if len(found) == limit or sum(one.batch.size for one in found) > PAGE_BYTES:
                    break
        return found

    def documents(self, project: str, after: str, limit: int, now: Seconds) -> Page[DocumentParcel]:
        prefix, moment = layout.project_prefix(project), layout.ms(now)
        with self._handle as (store, _):
            lower = bytes.fromhex(after) + b"\0" if after else prefix
            found = list(islice(store.scan("records", lower, layout.prefix_end(prefix)), limit))
        parcels = []
        for key, value in found:
            stored, rest = documents.decode(value), key[len(prefix) :]
            kind = layout.extract_project_prefix(rest)
            if stored.expires is None or stored.expires > moment:
                expires = None if stored.expires is None else stored.expires / 1000
                name = rest[len(kind) :].decode("utf-8", "surrogatepass")
                parcels.append(DocumentParcel(layout.decode_project(kind), name, stored.value, stored.version, expires))
        return Page(parcels, found[-1][0].hex() if len(found) == limit else None)


def _key_parcel(queue: str, name: bytes, expires: int, value: bytes) -> KeyParcel:
    stored = layout.decode_known(value)
    answer = msgpack.decode(stored.answer, type=Answer)
    last = stored.last if isinstance(answer, list) else 0
    return KeyParcel(queue, name.decode("utf-8", "surrogatepass"), stored.digest, expires / 1000, answer, last)
