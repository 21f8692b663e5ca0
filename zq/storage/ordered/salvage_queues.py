# SPDX-License-Identifier: Apache-2.0
"""The salvage of queues with their messages, claims, counters and histories from a damaged store."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property

from msgspec import Struct, structs

from zq.errors import StoreDamaged
from zq.model import Grouping
from zq.model.quotas import OVERHEAD
from zq.storage.ordered import due, layout, startup
from zq.storage.ordered.entries import HISTORY_OF, MESSAGE_OF, message_entries
from zq.storage.ordered.group_index import GROUP_KEY_SIZE
from zq.storage.ordered.integrity import RebuiltGroupIndexes, parse_grouping
from zq.storage.ordered.layout import QueueRecord, StoredMessage, Tally
from zq.storage.ordered.registry import NO_METADATA
from zq.storage.ordered.salvage_copy import LOST_COUNTER, SalvageState
from zq.storage.ordered.store import LAST_KEY, Write


class IndexedFields(Struct):
    """The fields of a message that can be read from its index entries."""

    id: str = ""
    expires: int = 0
    available: int = 0

    def read(self, family: str, key: bytes) -> None:
        """Decode a field of the message from an index entry, and set it.

        ``key`` is the key of the entry in the index ``family``.
        """
        if family == "ids":
            self.id = key[len(layout.extract_project_prefix(key)) :].decode("utf-8", "surrogatepass")
        elif family == "expiry":
            self.expires = layout.number.unpack_from(key)[0]
        else:
            self.available = layout.triple.unpack(key)[1]


def describe_queue(key: bytes) -> str:
    """Return the queue's name and project for the list of losses."""
    ref = layout.decode_queue_key(key)
    return f"queue {ref.name} of project {ref.project!r}"


class QueueSalvage:
    """A part of the salvage of a damaged store: copies queues with their messages, claims, counters and histories."""

    def __init__(self, salvage: SalvageState, reserved: Mapping[int, set[int]]) -> None:
        self._salvage = salvage
        self._source = salvage.source
        self._reserved = reserved
        self.histories: set[bytes] = set()
        self._records: dict[bytes, tuple[bytes, QueueRecord]] = {}
        """The key and the record of each queue, by queue number."""
        self._groups: defaultdict[bytes, tuple[int, list[int]]] = defaultdict(lambda: (0, []))
        """The end and the sequences of each claim group (messages of one claim with one end), by key in ``claims``."""
        self._group_numbers: Counter[bytes] = Counter()
        self._group_indexes = RebuiltGroupIndexes(self._head)
        self._counts: Counter[bytes] = Counter()
        self._bytes: Counter[bytes] = Counter()
        self._kept: Counter[bytes] = Counter()
        """Bytes of history entries, by history number."""
        self._hidden: list[QueueRecord] = []
        self._last: defaultdict[bytes, int] = defaultdict(int)
        """The largest message sequence, by queue number."""
        self._fresh: dict[bytes, int] = {}
        """The sequence of the first live fresh message, by queue number. Claims may have skipped it as unreadable."""
        self._available: Counter[bytes] = Counter()
        """The latest available-at of a fresh message (posted without a delay, not yet claimed), by queue number."""
        self._fresh_tails: Counter[bytes] = Counter()
        """The sequence of the last fresh message (posted without a delay, not yet claimed), by queue number."""
        self._positions: defaultdict[bytes, int] = defaultdict(int)
        """The largest position of a history entry, by history number."""
        self._finished: defaultdict[bytes, int] = defaultdict(int)
        """The time of the last history entry, by history number."""

    @property
    def numbers(self) -> set[bytes]:
        """The numbers of all queues in the new store."""
        return set(self._records)

    def run(self) -> None:
        self._copy_queues()
        self._copy_messages()
        self._copy_history()

    def _copy_queues(self) -> None:
        numbers = {value: key for key, value in self._source.entries("numbers") if value is not None}
        for key, value in self._source.entries("queues", lambda: numbers):
            if value is None:
                number = layout.number.unpack(numbers[key])[0]
                record = QueueRecord(number, NO_METADATA, number, self._grouping(numbers[key]))
                self._salvage.lost.append(f"The metadata and the earlier history of {describe_queue(key)} are lost")
            else:
                record = layout.decode_queue(value)
            self._add_queue(key, record)
        for key, value in self._source.entries("hidden"):
            if value is not None:
                record = layout.decode_queue(value)
                self._add_history(record)
                self._salvage.save("hidden", [("hidden", key, value)])
                self._hidden.append(record)

    def _grouping(self, number: bytes) -> Grouping:
        for key, _ in self._source.scan("lines", number, layout.prefix_end(number)):
            if len(key) > GROUP_KEY_SIZE:
                return parse_grouping(key)
        return Grouping.NONE

    def _add_queue(self, key: bytes, record: QueueRecord) -> None:
        number = layout.number.pack(record.number)
        self._add_history(record)
        self._records[number] = key, record
        self._salvage.save("queues", [("queues", key, layout.encode(record)), ("numbers", number, key)])

    def _add_history(self, record: QueueRecord) -> None:
        self.histories.add(layout.number.pack(record.history))
        self._salvage.raise_top(record.number, record.history)

    @cached_property
    def _pending_deletes(self) -> set[bytes]:
        notes = self._source.scan("default", layout.PENDING_QUEUE, layout.prefix_end(layout.PENDING_QUEUE))
        return {key[len(layout.PENDING_QUEUE) :] for key, _ in notes}

    @cached_property
    def _traces(self) -> dict[bytes, IndexedFields]:
        """The known fields of each message whose record is unreadable. Index entries provide the fields.

        The keys of the mapping are the messages' keys in the family ``messages``.
        """
        spans = self._source.gaps("messages")
        traces: defaultdict[bytes, IndexedFields] = defaultdict(IndexedFields)
        for family in ("ids", "expiry", "available") if spans else ():
            for key, value in self._source.scan(family, b"", LAST_KEY):
                message = MESSAGE_OF[family](key, value)
                if message in spans:
                    traces[message].read(family, key)
        return dict(traces)

    def _copy_messages(self) -> None:
        for key, value in self._source.entries("messages", lambda: self._traces):
            number = key[:8]
            if number in self._pending_deletes:
                continue
            if number not in self._records and not self._adopt(number):
                self._salvage.lost.append(f"Message {key.hex()} of an unknown queue is lost")
                continue
            self._last[number] = max(self._last[number], layout.pair.unpack(key)[1])
            record = self._rebuild_record(key) if value is None else layout.decode_record(value)
            if record is not None:
                if not record.indexed and not self._records[number][1].grouping:
                    self._available[number] = max(self._available[number], record.available)
                    self._fresh_tails[number] = self._last[number]
                    if record.expires > self._salvage.now:
                        self._fresh.setdefault(number, self._last[number])
                self._copy_message(key, record, value)
        self._salvage.write(("claims", key, layout.encode_group(*group)) for key, group in self._groups.items())
        self._salvage.write(self._group_indexes.heads())

    def _copy_message(self, key: bytes, record: StoredMessage, stored: bytes | None) -> None:
        """Copy a message with its index entries. ``stored`` is the encoded record, or None for a rebuilt record."""
        queue = self._records[key[:8]][0]
        try:
            apart = self._source.get("bodies", key) if record.body is None else None
        except StoreDamaged:
            apart = None
            self._salvage.lost.append(
                f"Message {record.id} of {describe_queue(queue)} is lost: "
                f"its body is unreadable{self._describe_fate(key)}"
            )
        else:
            if apart is record.body is None and record.expires > self._salvage.now:
                self._salvage.lost.append(f"Message {record.id} of {describe_queue(queue)} is lost: it has no body")
        body = record.body if apart is None else layout.unseal_body(apart)
        if body is not None:
            size = len(body) + len(record.attributes) + OVERHEAD
            if stored is None or record.size != size:
                record.size = size
                stored = layout.encode(record)
            writes: list[Write] = [("messages", key, stored)]
            if apart is not None:
                writes.append(("bodies", key, apart))
            if grouping := self._records[key[:8]][1].grouping:
                writes.append(self._group_indexes.join(grouping, key, record))
            self._salvage.save(
                "messages", [*writes, *message_entries(layout.extract_project_prefix(queue), key, record)]
            )
            if record.claim:
                self._add_to_group(key, record)
            self._counts[key[:8]] += 1
            self._bytes[key[:8]] += record.size

    def _rebuild_record(self, key: bytes) -> StoredMessage | None:
        """Rebuild a lost record from its index entries, as if the message had never been claimed.

        If the id, the expiry or the body is missing, report the loss and return None.
        """
        queue, sequence = self._records[key[:8]][0], layout.pair.unpack(key)[1]
        trace, now = self._traces[key], self._salvage.now
        if not trace.id or not trace.expires or not self._has_body(key):
            message = f"Message {trace.id}" if trace.id else f"The message with sequence {sequence}"
            self._salvage.lost.append(
                f"{message} of {describe_queue(queue)} is lost: its record is unreadable{self._describe_fate(key)}"
            )
            return None
        # A message without an entry in ``available`` is fresh and is claimed by its sequence.
        available = trace.available or self._available[key[:8]] or 1
        created = min(available, trace.expires, now)
        ttl = max(1, round((trace.expires - created) / 1000))
        self._salvage.lost.append(
            f"Message {trace.id} of {describe_queue(queue)} was saved without client, group, claim and counts"
        )
        indexed = trace.available > 0 and not self._records[key[:8]][1].grouping
        return StoredMessage(trace.id, created, trace.expires, available, ttl, "", indexed=indexed)

    def _add_to_group(self, key: bytes, record: StoredMessage) -> None:
        number, sequence = layout.pair.unpack(key)
        group = layout.claim_key(number, record.claim, record.group)
        self._groups[group] = record.until, [*self._groups[group][1], sequence]
        self._group_numbers[key[:8]] = max(self._group_numbers[key[:8]], record.group)

    def _head(self, group: bytes) -> bytes:
        try:
            return self._source.get("lines", group) or b""
        except StoreDamaged:
            return b""

    def _has_body(self, key: bytes) -> bool:
        try:
            return self._source.get("bodies", key) is not None
        except StoreDamaged:
            return False

    def _describe_fate(self, key: bytes) -> str:
        number, sequence = layout.pair.unpack(key)
        return " (a commit was deleting the message)" if sequence in self._reserved.get(number, ()) else ""

    def _adopt(self, number: bytes) -> bool:
        """Create the queue ``salvaged-<number>`` for a lost queue. Return False if the project is unknown."""
        key = self._replacement_keys.get(number)
        if key is not None:
            self._salvage.lost.append(
                f"The name, metadata and history of a queue are lost; its messages are now in {describe_queue(key)}"
            )
            self._add_queue(
                key, QueueRecord(layout.number.unpack(number)[0], NO_METADATA, layout.number.unpack(number)[0])
            )
        return key is not None

    @cached_property
    def _replacement_keys(self) -> dict[bytes, bytes]:
        """A mapping from the number of each lost queue to the key of its replacement in ``queues``.

        The replacement is a queue with the name ``salvaged-<number>``.
        """
        found = {}
        for key, value in self._source.scan("ids", b"", LAST_KEY):
            if value[:8] not in self._records and value[:8] not in found:
                name = f"salvaged-{layout.number.unpack_from(value)[0]}"
                found[value[:8]] = layout.extract_project_prefix(key) + name.encode()
        return found

    def _copy_history(self) -> None:
        for key, value in self._source.entries("history", self._history_keys):
            if key[:8] in self._salvage.dropped:
                continue
            if key[:8] not in self.histories:
                self._salvage.strays[f"entries of history {key[:8].hex()}"] += 1
                continue
            number, position = layout.pair.unpack(key)
            self._positions[key[:8]] = max(self._positions[key[:8]], position)
            if value is None:
                self._salvage.lost.append(f"Entry {position} of the history {number} ({self._owner(key[:8])}) is lost")
                continue
            kept = layout.decode_entry(value)
            self._finished[key[:8]] = max(self._finished[key[:8]], kept.finished)
            kept.size = len(kept.body) + len(kept.record.attributes) + OVERHEAD
            self._kept[key[:8]] += kept.size
            self._salvage.save("history", due.history_writes(number, position, kept))

    def _owner(self, history: bytes) -> str:
        number = layout.number.unpack(history)[0]
        return next(
            (describe_queue(key) for key, record in self._records.values() if record.history == number), "no queue"
        )

    def _history_keys(self) -> Iterator[bytes]:
        for family, history_of in HISTORY_OF.items():
            for key, value in self._source.scan(family, b"", LAST_KEY):
                yield history_of(key, value)

    def write_tallies(self, answers: Counter[bytes]) -> None:
        """Write the counters of all queues.

        ``answers`` has the size of the idempotency results in bytes, by history number.
        """
        self._kept.update(answers)
        for record in self._hidden:
            number = layout.number.pack(record.number)
            if self._kept[number]:
                self._salvage.write([("tallies", number, layout.encode(Tally(kept=self._kept[number])))])
        start = self._salvage.starts
        for number, (key, record) in self._records.items():
            history = layout.number.pack(record.history)
            try:
                value = self._source.get("tallies", number)
                tally = layout.decode_tally(value) if value else None
            except StoreDamaged:
                tally = None
            if tally is None:
                beyond = startup.initial_value(start) + LOST_COUNTER
                tally = Tally(self._last[number] + beyond, 0, 0, self._positions[history] + beyond, 0, start)
                self._salvage.lost.append(
                    f"The counters of {describe_queue(key)} are lost; new ones start far above all known sequences"
                )
            tally = structs.replace(
                tally,
                count=self._counts[number],
                bytes=self._bytes[number],
                kept=self._kept[history],
                sequence=max(tally.sequence, self._last[number]),
                position=max(tally.position, self._positions[history]),
                finished=max(tally.finished, self._finished[history]),
                fresh_head=min(tally.fresh_head, self._fresh.get(number, tally.fresh_head + 1) - 1),
                fresh_tail=max(tally.fresh_tail, self._fresh_tails[number]),
                group=max(tally.group, self._group_numbers[number]),
            )
            self._salvage.write([("tallies", number, layout.encode(tally))])
