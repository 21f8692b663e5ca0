# SPDX-License-Identifier: Apache-2.0
"""Migration of projects between a Redis store and other stores, as parcels (records that do not depend on the driver).

The claim order of imported messages may differ from the order of their sequences. Imported messages therefore do not
join the queue's lane, which has the messages that are claimed in the order of their sequences (see ``layout``). All
scripts are in ``parcels.lua``.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from typing import Final

import msgspec

from zq.errors import StartRefused
from zq.model import Grouping, Message, Page, QueueRef, Seconds, SettleResult
from zq.model.documents import DocumentRef, Guard
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
from zq.storage.api import Storage
from zq.storage.capabilities import UndecidedCommit
from zq.storage.exporting import Exporter
from zq.storage.redis import batches, documents, layout, queues, scripts
from zq.storage.redis.client import ReadRequest
from zq.storage.redis.layout import (
    DRAFT,
    ENTRY,
    HISTORY_HEADER,
    MESSAGE_HEADER,
    OPTIONAL_HEADER,
    OPTIONAL_TAIL,
    OUTCOMES,
    STATE,
)
from zq.storage.redis.queues import KINDS
from zq.storage.redis.store import (
    NUMBER,
    PAIR,
    REQUEST_HEADER,
    SETTLE_HEADER,
    Store,
    checked,
    decode_posted,
    decode_settled,
)
from zq.storage.redis.transactions import PRODUCER

# Field of the usage hash with the bytes of a queue's remembered results: this prefix and the queue's name.
ANSWERS: Final = b"answers:"
# First byte of every result of a post, which is a MessagePack array. Counts of settlements are lower.
ARRAY: Final = 0x90
# Number of batches and bytes that one result has.
BATCHES: Final = 64
BUCKETS: Final = [layout.bucket_key(number) for number in range(layout.BUCKETS)]
LOG_FIELDS: Final = (b"sequence", b"dropped", b"published", b"published_bytes", b"fallen", b"fallen_bytes")


class ParcelController:
    """The Redis implementation of ``zq.storage.capabilities.ParcelController``."""

    def __init__(self, store: Store, storage: Storage) -> None:
        self._store = store
        self._exporter = Exporter(storage, ParcelReader(store))

    def projects(self) -> Sequence[str]:
        client, far = self._store.client, b"%d" % layout.LATEST_SCORE
        found = client.read_pipelined([ReadRequest(key, (b"ZRANGE", key, far, far, b"BYSCORE")) for key in BUCKETS])
        members = (member for bucket in found for member in bucket)
        projects = {"", *(layout.decode_full_name(member[layout.MOMENT.size :]).project for member in members)}
        unknown = self._tags() - {_tag(project) for project in projects}
        if unknown:
            raise StartRefused(
                f"The store has data of {len(unknown)} projects without queues, and does not record the names of such "
                "projects. Name all projects: --project NAME, and --project '' for tokens and pools."
            )
        return sorted(projects)

    def _tags(self) -> set[bytes]:
        tags = {name.partition(b"}")[0] for name in self._store.client.scan(b"zq:{*}:*")}
        return {tag for tag in tags if len(tag) > TAG}

    def export(self, project: str, after: str, limit: int, now: Seconds) -> Page[Parcel]:
        return self._exporter.page(project, after, limit, now)

    def export_queue(self, queue: QueueRef, after: str, limit: int, now: Seconds) -> Page[Parcel]:
        return self._exporter.queue_page(queue, after, limit, now)

    def adopt(self, project: str, parcels: Sequence[Parcel], now: Seconds, guard: Guard | None = None) -> None:
        moment, condition = layout.ms(now), documents.condition(project, guard)
        if parcels:
            self._store.register_project(project)
        for (kind, owner), group in groupby(parcels, lambda one: (type(one), getattr(one, "queue", ""))):
            its, queue = list(group), QueueRef(project, owner)
            soonest = min(map(expiry_of, its))
            if soonest < layout.MAX_MOMENT:
                self._store.schedule_expiry(queue, layout.ms(soonest), moment)
            if kind is QueueParcel:
                for one in only(QueueParcel, its):
                    self._adopt_queue(queue, one, moment, condition)
            elif kind is MessageParcel:
                messages = [term for one in only(MessageParcel, its) for term in _message_terms(one.message)]
                terms = b"%d" % moment, layout.encode_full_name(queue), *messages
                self._run(scripts.ADOPT_MESSAGES, queue, condition, terms)
            elif kind is HistoryParcel:
                history = [term for one in only(HistoryParcel, its) for term in _history_terms(one)]
                self._run(scripts.ADOPT_HISTORY, queue, condition, history, layout.keys(queue).history)
            elif kind is KeyParcel:
                known = [term for one in only(KeyParcel, its) for term in _key_terms(one)]
                terms = b"%d" % moment, layout.encode_text(owner), *known
                self._run(scripts.ADOPT_KEYS, queue, condition, terms, layout.keys(queue).answers)
            else:
                self._adopt_rest(project, its, condition)

    def create_queue(self, queue: QueueRef, metadata: bytes, grouping: Grouping, guard: Guard) -> bool:
        self._store.register_project(queue.project)
        return queues.create(self._store, queue, metadata, grouping, guard)

    def delete_queue(self, queue: QueueRef, guard: Guard, sequence: int | None = None) -> bool:
        return queues.delete(self._store, queue, guard, sequence)

    def find_undecided_commits(self, project: str, now: Seconds) -> Sequence[UndecidedCommit]:
        return []  # a commit is decided in one step

    def abort_commit(self, project: str, producer: str, now: Seconds) -> None:
        pass

    def last_clock(self) -> Seconds | None:
        return float(self._store.client.command(layout.CLOCK_KEY, b"GET", layout.CLOCK_KEY) or 0) / 1_000_000

    def _adopt_queue(self, queue: QueueRef, parcel: QueueParcel, now: int, condition: documents.Condition) -> None:
        if parcel.metadata is None:
            return
        grouping, (sequence, fresh, position, finished) = parcel.grouping, parcel.counters
        counters = max(sequence, position), layout.ms(fresh), layout.ms(finished)
        kind = b"%d" % KINDS.get(grouping, 0)
        terms = b"%d" % now, layout.encode_text(queue.name), parcel.metadata, grouping.encode(), kind
        self._run(scripts.ADOPT_QUEUE, queue, condition, [*terms, *(b"%d" % number for number in counters)])

    def _adopt_rest(self, project: str, parcels: Sequence[Parcel], condition: documents.Condition) -> None:
        whole = layout.project_ref(project)
        for log in only(LogParcel, parcels):
            numbers = [b"%d" % number for number in (log.last, log.messages, log.bytes, log.dropped)]
            self._run(scripts.ADOPT_LOG, whole, condition, numbers, batches.keys(project))
        published = [term for one in only(BatchParcel, parcels) for term in _batch_terms(one)]
        if published:
            self._run(scripts.ADOPT_BATCHES, whole, condition, published, batches.keys(project))
        work = [
            *(term for fence in only(FenceParcel, parcels) for term in _fence_terms(fence)),
            *(term for producer in only(ProducerParcel, parcels) for term in _producer_terms(producer)),
        ]
        if work:
            self._run(scripts.ADOPT_WORK, whole, condition, work, layout.keys(whole).transactions)
        kept = [term for one in only(DocumentParcel, parcels) for term in _document_terms(project, one)]
        if kept:
            self._run(scripts.ADOPT_DOCUMENTS, whole, condition, kept, batches.documents(project))

    def _run(
        self,
        script: scripts.Script,
        queue: QueueRef,
        condition: documents.Condition,
        terms: Sequence[bytes],
        keys: layout.Block = (),
    ) -> None:
        """Run a guarded script on a queue. ``keys`` are its keys besides those of the queue and of the condition."""
        checked(self._store.run(script, queue, *condition.terms, *terms, more=[condition.keys, keys]))


def _tag(project: str) -> bytes:
    return layout.project_keys(project, "")[0].partition(b"}")[0]


# Length of the longest key prefix whose hash tag is not a project but the number of a bucket.
TAG: Final = len(b"zq:{00")


def _head(message: Message) -> bytes:
    id, client = layout.pack_id(message.id), layout.pack_client_id(message.client)
    texts = [layout.encode_text(text) for text in (message.checksum, message.origin, message.reason)]
    group, attributes = layout.encode_text(message.group), len(message.attributes)
    first = 0 if message.claim_count else layout.ms(message.first_claimed)
    created, expires = layout.ms(message.created), layout.ms(message.expires)
    kept_created = 0 if created == expires - message.ttl * 1000 else created
    tail = OPTIONAL_TAIL.pack(first, attributes) + group if first or attributes or group else b""
    more = b""
    if kept_created or tail or any(texts) or message.origin_claim_count:
        more = OPTIONAL_HEADER.pack(kept_created, message.origin_claim_count, *map(len, texts)) + b"".join(texts) + tail
    sizes = message.size, len(id), len(client), len(more)
    return DRAFT.pack(layout.ms(message.available), expires, message.ttl, *sizes) + id + client + more


def _message_terms(message: Message) -> tuple[bytes, ...]:
    numbers = message.sequence, message.claim_count, layout.ms(message.first_claimed)
    return *(b"%d" % number for number in numbers), _head(message) + message.body + message.attributes


def _history_terms(parcel: HistoryParcel) -> tuple[bytes, ...]:
    entry, message = parcel.entry, parcel.entry.message
    expires, state = layout.ms(entry.expires), b""
    if message.claim_count:
        times = layout.ms(message.available), layout.ms(message.expires), message.ttl
        state = STATE.pack(*times, 0, 0, 0, 0, message.claim_count, layout.ms(message.first_claimed))
    record = HISTORY_HEADER.pack(OUTCOMES.index(entry.outcome), layout.ms(entry.finished), entry.position, expires)
    record += MESSAGE_HEADER.pack(len(state)) + state + b"\1" + message.sequence.to_bytes(MEMBER) + _head(message)
    numbers = (b"%d" % number for number in (entry.position, message.sequence, expires))
    return *numbers, record, layout.pack_id(message.id), message.body + message.attributes


# Bytes of a sequence in an entry.
MEMBER: Final = ENTRY.size - DRAFT.size - 1


def _key_terms(parcel: KeyParcel) -> tuple[bytes, ...]:
    answer = parcel.answer
    if isinstance(answer, SettleResult):
        lost = b"".join(len(id).to_bytes(2) + id for id in map(layout.pack_id, answer.lost))
        packed = SETTLE_HEADER.pack(answer.deleted, answer.released, answer.moved, answer.buried) + lost
    elif isinstance(answer, int):
        packed = b"%d" % answer
    else:
        packed = msgspec.msgpack.encode(answer)
        if parcel.last:
            packed = PAIR + packed + NUMBER + layout.MOMENT.pack(parcel.last)
    return layout.encode_text(parcel.key), parcel.digest, b"%d" % layout.ms(parcel.expires), packed


def _batch_terms(parcel: BatchParcel) -> tuple[bytes, ...]:
    batch = parcel.batch
    created, lives = layout.ms(batch.created), [entry.ttl * 1000 for entry in batch.entries]
    topic, ends = layout.encode_text(batch.topic), created + max(lives)
    front = len(topic).to_bytes(2) + topic + b"%0*d" % (batches.DIGITS, batch.last)
    numbers = len(batch.entries), created, created + min(lives), ends, parcel.messages, parcel.bytes
    return b"%d" % batch.last, b"%d" % ends, front + batches.BATCH_HEADER.pack(*numbers), batches.pack(batch.entries)


def _fence_terms(parcel: FenceParcel) -> tuple[bytes, ...]:
    return b"f", layout.encode_text(parcel.fence), b"%d" % parcel.epoch, _moment(parcel.advanced), b"", b""


def _producer_terms(parcel: ProducerParcel) -> tuple[bytes, ...]:
    expires, batch = layout.ms(parcel.expires), b"%d" % parcel.batch
    kept = PRODUCER.pack(expires, parcel.published, parcel.deleted) + batch
    return b"p", layout.encode_text(parcel.producer), batch, _moment(parcel.decided), kept, b"%d" % expires


def _document_terms(project: str, parcel: DocumentParcel) -> tuple[bytes, ...]:
    expires = 0 if parcel.expires is None else max(1, layout.ms(parcel.expires))
    packed = documents.packed(expires, layout.encode_text(parcel.version), parcel.value)
    return documents.title(DocumentRef(project, parcel.kind, parcel.name)), b"%d" % expires, packed


def _moment(moment: Seconds | None) -> bytes:
    return b"" if moment is None else b"%d" % layout.ms(moment)


class ParcelReader:
    """The Redis implementation of ``zq.storage.exporting.ParcelReader``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def counters(self, queue: QueueRef) -> Counters:
        key = layout.keys(queue).state
        fields = b"sequence", b"fresh", b"finished"
        sequence, fresh, finished = (
            int(float(value or 0)) for value in self._store.client.command(key, b"HMGET", key, *fields)
        )
        return Counters(sequence, fresh / 1000, sequence, finished / 1000)

    def missing(self, project: str, after: str, limit: int) -> Sequence[str]:
        keys, client, found = layout.keys(layout.project_ref(project)), self._store.client, list[str]()
        fields = client.command(keys.usage, b"HKEYS", keys.usage)
        names = sorted(field[len(ANSWERS) :] for field in fields if field.startswith(ANSWERS))
        names = names[bisect_right(names, layout.encode_text(after)) :]
        while names and len(found) < limit:
            scores = client.read_pipelined(
                [ReadRequest(keys.names, (b"ZSCORE", keys.names, name)) for name in names[:limit]]
            )
            found += [layout.decode_text(name) for name, score in zip(names, scores, strict=False) if score is None]
            names = names[limit:]
        return found[:limit]

    def keys(self, queue: QueueRef, after: str, limit: int, now: Seconds) -> Page[KeyParcel]:
        client, (answers, windows), rank = self._store.client, layout.keys(queue).answers, int(after or 0)
        names = client.command(windows, b"ZRANGE", windows, b"%d" % rank, b"%d" % (rank + limit - 1))
        kept = client.command(answers, b"HMGET", answers, *names) if names else []
        parcels = [_key_parcel(queue.name, name, value) for name, value in zip(names, kept, strict=True) if value]
        live = [parcel for parcel in parcels if parcel.expires > now]
        return Page(live, str(rank + limit) if len(names) == limit else None)

    def log(self, project: str) -> LogParcel | None:
        key = batches.keys(project)[1]
        values = self._store.client.command(key, b"HMGET", key, *LOG_FIELDS)
        if values[0] is None:
            return None
        last, dropped, messages, size, gone, gone_size = (int(float(value or 0)) for value in values)
        return LogParcel(last, dropped, messages - gone, size - gone_size)

    def batches(self, project: str, after: int, limit: int, now: Seconds) -> Sequence[BatchParcel]:
        client, (stream, counts, _, _, purged) = self._store.client, batches.keys(project)
        fields = b"dropped", b"fallen", b"fallen_bytes"
        dropped, gone, gone_size = (
            int(float(value or 0)) for value in client.command(counts, b"HMGET", counts, *fields)
        )
        pairs = client.command(purged, b"HGETALL", purged)
        floors = {layout.decode_text(name): int(floor) for name, floor in zip(pairs[::2], pairs[1::2], strict=True)}
        found: list[BatchParcel] = []
        position = max(after, dropped)
        while not found:
            start = b"%d-0" % (position + 1)
            entries = client.command(stream, b"XRANGE", stream, start, b"+", b"COUNT", b"%d" % min(limit, BATCHES))
            if not entries:
                break
            for _, (front, messages) in entries:
                parcel = _batch_parcel(front, messages, gone, gone_size)
                position = parcel.batch.last
                if expiry_of(parcel) > now and position > floors.get(parcel.batch.topic, 0):
                    found.append(parcel)
        return found

    def documents(self, project: str, after: str, limit: int, now: Seconds) -> Page[DocumentParcel]:
        start = b"(" + bytes.fromhex(after) if after else b"-"
        terms = b"%d" % layout.ms(now), start, b"+", b"%d" % limit
        last, *pairs = self._store.client.run(scripts.DOCUMENT_LIST, batches.documents(project), *terms)
        found = []
        for title, packed in zip(pairs[::2], pairs[1::2], strict=True):
            document = documents.unpacked(project, title, packed)
            ref = document.ref
            found.append(DocumentParcel(ref.kind, ref.name, document.value, document.version, document.expires))
        return Page(found, last.hex() if last else None)


def _key_parcel(queue: str, key: bytes, kept: bytes) -> KeyParcel:
    expires, length = REQUEST_HEADER.unpack_from(kept)
    end = REQUEST_HEADER.size + length
    digest, packed, last = kept[REQUEST_HEADER.size : end], kept[end:], 0
    answer: Answer
    if queue == LOG:
        answer = int(packed)
    elif packed[0] >= ARRAY:
        repeated = decode_posted(packed)
        answer, last = repeated.answer, repeated.last
    else:
        answer = decode_settled(packed)
    return KeyParcel(queue, layout.decode_text(key), digest, expires / 1000, answer, last)


def _batch_parcel(front: bytes, messages: bytes, gone: int, gone_size: int) -> BatchParcel:
    encoded = next(batches.batches(len(messages).to_bytes(4) + front + messages, 0))
    *_, before, size = batches.BATCH_HEADER.unpack(front[-batches.BATCH_HEADER.size :])
    return BatchParcel(encoded.decode(), before - gone, size - gone_size)
