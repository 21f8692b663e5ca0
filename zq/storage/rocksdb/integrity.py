# SPDX-License-Identifier: Apache-2.0
"""Whether a store agrees with itself: every record with its index entries, and every entry with its record.

Reads everything once in the order of keys and looks up the rest, so memory grows with the queues only. What a purged or
deleted queue left behind, and nobody reaches, is counted apart.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from msgspec import MsgspecError

from zq.measures import Report
from zq.storage.rocksdb import due, layout, past, stages
from zq.storage.rocksdb.layout import QueueRecord, Record
from zq.storage.rocksdb.port import Store, Write

T = TypeVar("T")
EXAMPLES: Final = 20
TOP: Final = b"\xff" * 256
"""Above every key."""
INDEXES: Final[dict[str, Callable[[bytes, bytes], bytes]]] = {
    "bodies": lambda key, _: key,
    "available": lambda key, _: key[:8] + key[16:],
    "expiry": lambda key, _: key[8:],
    "ids": lambda _, value: value,
    "claims": lambda key, _: key[:8] + key[-8:],
}
"""The key in ``messages`` that an entry of each of these is about."""
TRACES: Final[dict[str, Callable[[bytes, bytes], bytes]]] = {
    "sequences": lambda key, value: key[:8] + value,
    "endings": lambda key, _: key[:8] + key[-8:],
}
"""The same for ``history``."""


class Integrity:
    """One check of an open store that nobody writes to; ``now`` by the machine's clock, in ms."""

    def __init__(self, store: Store, now: int) -> None:
        self._store = store
        self._now = now
        self._counted: Counter[str] = Counter()
        self._contradictions = 0
        self._examples: list[str] = []
        self._queues: dict[bytes, bytes] = {}
        """The key in ``queues`` of each number that a queue has."""
        self._histories: set[bytes] = set()
        self._doomed = self._noted(layout.DOOMED)
        self._dropped = self._noted(layout.DROPPED)
        self._staged: Counter[bytes] = Counter()

    def report(self) -> Report:
        """Look at everything."""
        self._check_queues()
        self._check_messages()
        for family, message_of in INDEXES.items():
            self._check_index(family, message_of)
        self._check_history()
        for family, record_of in TRACES.items():
            self._check_trace(family, record_of)
        self._check_staged()
        self._check_ends()
        self._check_due()
        return Report(dict(sorted(self._counted.items())), self._contradictions, self._examples)

    def _check_queues(self) -> None:
        last = int.from_bytes(self._store.get("default", b"numbers") or b"")
        for family in ("queues", "hidden"):
            for key, value in self._entries(family):
                record = self._decoded(layout.decode_queue, family, key, value)
                if record is not None:
                    self._check_queue(family, key, record, last)
        for family in ("numbers", "tallies"):
            for key, value in self._entries(family):
                if key not in self._queues:
                    self._found(f"{family}: {key.hex()} is no queue's number")
                elif family == "numbers" and value != self._queues[key]:
                    self._found(f"numbers: {key.hex()} names another queue than the one that has it")

    def _check_queue(self, family: str, key: bytes, record: QueueRecord, last: int) -> None:
        number = layout.number.pack(record.number)
        if max(record.number, record.history) > last:
            self._found(f"{family}: {key!r} has a number above the last one given")
        if layout.number.pack(record.history) in self._histories:
            self._found(f"{family}: {key!r} shares its history with another queue")
        self._histories.add(layout.number.pack(record.history))
        if family == "queues":
            if number in self._queues:
                self._found(f"queues: {key!r} shares its number with another queue")
            self._queues[number] = key
            for place in ("numbers", "tallies"):
                if self._store.get(place, number) is None:
                    self._found(f"{place}: nothing of the queue {key!r}")

    def _check_messages(self) -> None:
        counts: defaultdict[bytes, int] = defaultdict(int)
        last: defaultdict[bytes, int] = defaultdict(int)
        for key, value in self._entries("messages"):
            number = key[:8]
            record = self._decoded(layout.decode_record, "messages", key, value)
            if record is None or self._is_ruin(number, "messages"):
                continue
            if number not in self._queues:
                self._found(f"messages: {key.hex()} is of no queue")
                continue
            counts[number] += 1
            last[number] = layout.pair.unpack(key)[1]
            self._check_wanted("messages", key, self._index_entries(key, record))
            self._check_body(key, record)
        for number, queue in self._queues.items():
            tally = layout.decode_tally(self._store.get("tallies", number) or layout.encode(layout.Tally()))
            if tally.count != counts[number] or tally.sequence < last[number]:
                self._found(f"tallies: {tally} of {queue!r}, which has {counts[number]} messages")

    def _check_body(self, key: bytes, record: Record) -> None:
        body = self._store.get("bodies", key)
        if body is None:
            if record.expires > self._now:
                self._found(f"bodies: nothing of the living message {key.hex()}")
            else:
                self._counted["expired messages whose body the filter took"] += 1
        elif len(body) < layout.stamp.size or _stamp(body) < _stamp(layout.sealed(b"", record.expires, 0)):
            self._found(f"bodies: {key.hex()} is stamped to go before its message expires")

    def _check_index(self, family: str, message_of: Callable[[bytes, bytes], bytes]) -> None:
        """Every entry is one that its message should have."""
        for key, value in self._entries(family):
            message = message_of(key, value)
            if self._is_ruin(message[:8], family):
                continue
            stored = self._store.get("messages", message)
            record = None if stored is None else self._decoded(layout.decode_record, "messages", message, stored)
            if record is None:
                self._found(f"{family}: {key.hex()} points at no message")
            elif family != "bodies" and (family, key, value) not in self._index_entries(message, record):
                self._found(f"{family}: {key.hex()} is not what the message it points at says")

    def _check_history(self) -> None:
        for key, value in self._entries("history"):
            kept = self._decoded(layout.decode_past, "history", key, value)
            if kept is not None and not self._is_dropped(key[:8], "history"):
                number, position = layout.pair.unpack(key)
                self._check_wanted("history", key, past.writes(number, position, kept))

    def _check_trace(self, family: str, record_of: Callable[[bytes, bytes], bytes]) -> None:
        for key, value in self._entries(family):
            place = record_of(key, value)
            if self._is_dropped(key[:8], family):
                continue
            stored = self._store.get("history", place)
            kept = None if stored is None else self._decoded(layout.decode_past, "history", place, stored)
            number, position = layout.pair.unpack(place)
            if kept is None or (family, key, value) not in past.writes(number, position, kept):
                self._found(f"{family}: {key.hex()} points at no record of history that says so")

    def _check_staged(self) -> None:
        """Staged messages belong to a stage, which knows how many they are."""
        for key, _ in self._entries("staged"):
            if not self._is_dropped(key[:8], "staged", any_number=True):
                self._staged[key[:8]] += 1
        for key, value in self._entries("stages"):
            stage = self._decoded(layout.decode_stage, "stages", key, value)
            if stage is not None:
                items = list(stages.messages(self._store, stage))
                size = sum(len(item.draft.body) for item in items)
                if (stage.count, stage.size) != (len(items), size):
                    self._found(f"stages: {key!r} says {stage.count} messages and has {len(items)}, {size} bytes")
                self._staged.pop(layout.number.pack(stage.number), None)
                note = layout.number.pack(stage.number)
                self._check_wanted("stages", key, due.writes("stages", key, value, due.end_of(key), note))
        for number in self._staged:
            self._found(f"staged: {number.hex()} is no stage's number")

    def _check_ends(self) -> None:
        """What has its end in its key has its entry in ``due``."""
        for family in ("keys", "producers"):
            for key, value in self._entries(family):
                if family == "producers" or not self._is_dropped(key[:8], family):
                    self._check_wanted(family, key, due.writes(family, key, value, due.end_of(key)))

    def _check_due(self) -> None:
        for key, _ in self._entries("due"):
            family, entry = due.named(key)
            value = self._store.get(family, entry)
            if value is None:
                self._found(f"due: {key.hex()} points at nothing in {family}")
                continue
            kept = self._decoded(layout.decode_past, family, entry, value) if family == "history" else None
            if (due.end_of(entry) if kept is None else kept.expires) != layout.number.unpack_from(key)[0]:
                self._found(f"due: {key.hex()} has another moment than what it points at in {family}")

    def _index_entries(self, key: bytes, record: Record) -> list[Write]:
        """What else there is of a message, its body excepted."""
        project = layout.prefix_of(self._queues.get(key[:8], b""))
        number, sequence = layout.pair.unpack(key)
        wanted: list[Write] = [
            ("available", layout.triple.pack(number, record.available, sequence), layout.number.pack(record.expires)),
            ("expiry", layout.number.pack(record.expires) + key, b""),
            ("ids", layout.id_key(project, record.id), key),
        ]
        if record.claim:
            claim = layout.claim_prefix(number, record.claim) + key[8:]
            wanted.append(("claims", claim, layout.number.pack(record.ends)))
        return wanted

    def _check_wanted(self, family: str, key: bytes, wanted: list[Write]) -> None:
        for other, place, value in wanted:
            found = self._store.get(other, place)
            if found is None:
                self._found(f"{other}: nothing that leads to {key.hex()} of {family}")
            elif found != value:
                self._found(f"{other}: {place.hex()} does not say what {key.hex()} of {family} does")

    def _is_ruin(self, number: bytes, family: str) -> bool:
        if number not in self._doomed:
            return False
        self._counted[f"{family} of former queues"] += 1
        return True

    def _is_dropped(self, number: bytes, family: str, any_number: bool = False) -> bool:
        if number not in self._dropped:
            if not any_number and number not in self._histories:
                self._found(f"{family}: {number.hex()} is no queue's history")
            return False
        self._counted[f"{family} of former owners"] += 1
        return True

    def _noted(self, kind: bytes) -> set[bytes]:
        return {key[len(kind) :] for key, _ in self._store.scan("default", kind, layout.after(kind))}

    def _entries(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        for item in self._store.scan(family, b"", TOP):
            self._counted[family] += 1
            yield item

    def _decoded(self, decode: Callable[[bytes], T], family: str, key: bytes, value: bytes) -> T | None:
        try:
            return decode(value)
        except MsgspecError:
            self._found(f"{family}: {key.hex()} cannot be read")
            return None

    def _found(self, sentence: str) -> None:
        self._contradictions += 1
        if len(self._examples) < EXAMPLES:
            self._examples.append(f"{sentence}.")


def _stamp(value: bytes) -> int:
    stamp: int = layout.stamp.unpack(value[-layout.stamp.size :])[0]
    return stamp
