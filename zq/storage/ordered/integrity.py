# SPDX-License-Identifier: Apache-2.0
"""The integrity check of a store: each record must have its index entries, and each index entry its record.

The check reads each family once in key order and looks up the related entries, so its memory grows only with the
number of queues. The data of purged and deleted queues is only counted.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from zq.model import Grouping
from zq.model.stats import Report
from zq.storage.ordered import due, layout, stages, startup
from zq.storage.ordered.entries import HISTORY_OF, MESSAGE_OF, message_entries, record_entries
from zq.storage.ordered.group_index import GROUP_KEY_SIZE, encode_slot, group_entry, group_key
from zq.storage.ordered.layout import QueueRecord, StoredMessage
from zq.storage.ordered.log_integrity import Findings, LogIntegrity, check_documents
from zq.storage.ordered.store import LAST_KEY, Readable, Write


def slot(grouping: Grouping, key: bytes, record: StoredMessage) -> bytes:
    """Return a message's key in ``lines``, the message group index. ``key`` is the message's key in ``messages``."""
    number, sequence = layout.pair.unpack(key)
    return group_key(number, record.message_group) + encode_slot(grouping, record.available, sequence)


def parse_grouping(key: bytes) -> Grouping:
    """Determine whether a queue is ordered or fair from the key of one of its messages in ``lines``."""
    return Grouping.FAIR if layout.pair.unpack(key[GROUP_KEY_SIZE:])[0] else Grouping.ORDERED


class GroupIndexIntegrity:
    """The integrity check of message group indexes. ``queues`` maps queue numbers to queue records."""

    def __init__(self, findings: Findings, queues: Mapping[bytes, QueueRecord]) -> None:
        self._findings = findings
        self._store = findings.store
        self._queues = queues

    def grouping(self, number: bytes) -> Grouping:
        record = self._queues.get(number)
        return Grouping.NONE if record is None else record.grouping

    def check(self) -> None:
        """Check that each entry in ``lines`` has a message, and each group has a head and an ``available`` entry.

        The head of a group is a record in ``lines`` that refers to the group's first message.
        """
        group = head = b""
        for key, value in self._findings.entries("lines"):
            if not self.grouping(key[: layout.number.size]):
                self._check_former(key)
            elif len(key) == GROUP_KEY_SIZE:
                group, head = key, value
                if self._store.get("available", group_entry(key, value)[0]) != group_entry(key, value)[1]:
                    self._findings.contradict(f"available: the entry of the group {key.hex()} is missing or wrong")
                if self._store.get("lines", key + value[layout.number.size :]) is None:
                    self._findings.contradict(f"lines: the head of the group {key.hex()} does not exist")
            else:
                self._check_place(key, has_head=bool(head) and key.startswith(group))

    def check_entry(self, key: bytes, value: bytes) -> None:
        """Check that an entry of a grouped queue in ``available`` matches the head (first message) of its group."""
        group = key[: layout.number.size] + value
        head = self._store.get("lines", group) or b""
        if len(head) != layout.triple.size or group_entry(group, head)[0] != key:
            self._findings.contradict(f"available: {key.hex()} does not match the head of its group")

    def _check_place(self, key: bytes, has_head: bool) -> None:
        number = key[: layout.number.size]
        message = number + key[-layout.number.size :]
        stored = self._store.get("messages", message)
        if stored is None or slot(self.grouping(number), message, layout.decode_record(stored)) != key:
            self._findings.contradict(f"lines: {key.hex()} does not match a message")
        elif not has_head:
            self._findings.contradict(f"lines: {key.hex()} belongs to a group without a head")

    def _check_former(self, key: bytes) -> None:
        number = key[: layout.number.size]
        if self._store.get("default", layout.PENDING_QUEUE + number) is None:
            self._findings.contradict(f"lines: {key.hex()} does not belong to a grouped queue")


class RebuiltGroupIndexes:
    """The message group indexes that a salvage rebuilds from the messages; see the module ``group_index``."""

    def __init__(self, former: Callable[[bytes], bytes]) -> None:
        """Create an empty collection.

        ``former`` returns the stored head (time and first message) of a group in the damaged store, or b"" if there is
        none.
        """
        self._former = former
        self._heads: dict[bytes, tuple[bytes, int]] = {}

    def join(self, grouping: Grouping, key: bytes, record: StoredMessage) -> Write:
        """Add a message to its group, and return the write that stores the index entry."""
        where = slot(grouping, key, record)
        group, within = where[:GROUP_KEY_SIZE], where[GROUP_KEY_SIZE:]
        if group not in self._heads or within < self._heads[group][0]:
            self._heads[group] = within, record.available
        return "lines", where, b""

    def heads(self) -> Iterator[Write]:
        """Yield the writes that store the head (time and first message) and the ``available`` entry of each group."""
        for group, (within, available) in self._heads.items():
            head = self._former(group)
            if head[layout.number.size :] != within:
                head = layout.number.pack(available) + within
            yield "lines", group, head
            yield "available", *group_entry(group, head)


class Integrity(Findings):
    """The integrity check of a store. Nothing may write to the store during the check."""

    def __init__(self, store: Readable, now: int) -> None:
        super().__init__(store)
        self._now = now
        self._queues: dict[bytes, bytes] = {}
        """The keys in the family ``queues``, by queue number."""
        self._records: dict[bytes, QueueRecord] = {}
        self._group_indexes = GroupIndexIntegrity(self, self._records)
        self._histories: set[bytes] = set()
        self._keepers: dict[bytes, bytes] = {}
        """The number of the queue whose counters include a history, by history number."""
        self._kept: Counter[bytes] = Counter()
        """Bytes of history entries and idempotency results, by history number."""
        self._pending_queues = self.read_numbers(layout.PENDING_QUEUE)
        self._pending_numbers = self.read_numbers(layout.PENDING_NUMBER)
        self._staged: Counter[bytes] = Counter()
        self._logs = LogIntegrity(self)

    def report(self) -> Report:
        self._check_queues()
        self._check_messages()
        for family, message_of in MESSAGE_OF.items():
            self._check_index(family, message_of)
        self._check_claims()
        self._group_indexes.check()
        self._check_history()
        for family, record_of in HISTORY_OF.items():
            self._check_trace(family, record_of)
        self._check_staged()
        self._check_logs()
        self._check_ends()
        self._check_kept()
        check_documents(self)
        self._check_due()
        return super().report()

    def _check_queues(self) -> None:
        last = int.from_bytes(self.store.get("default", b"numbers") or b"")
        for family in ("queues", "hidden"):
            for key, value in self.entries(family):
                record = self.decode(layout.decode_queue, family, key, value)
                if record is not None:
                    self._check_queue(family, key, record, last)
        for family in ("numbers", "tallies"):
            for key, value in self.entries(family):
                if key not in self._queues and not (family == "tallies" and self._keepers.get(key) == key):
                    self.contradict(f"{family}: {key.hex()} does not belong to a queue")
                elif family == "numbers" and value != self._queues[key]:
                    self.contradict(f"numbers: {key.hex()} names a queue that has another number")

    def _check_queue(self, family: str, key: bytes, record: QueueRecord, last: int) -> None:
        number = layout.number.pack(record.number)
        if max(record.number, record.history) > last:
            self.contradict(f"{family}: {key!r} has a number above the last one assigned")
        if layout.number.pack(record.history) in self._histories:
            self.contradict(f"{family}: {key!r} has the same history as another queue")
        self._histories.add(layout.number.pack(record.history))
        self._keepers[layout.number.pack(record.history)] = number
        if family == "queues":
            if number in self._queues:
                self.contradict(f"queues: {key!r} has the same number as another queue")
            self._queues[number] = key
            self._records[number] = record
            for place in ("numbers", "tallies"):
                if self.store.get(place, number) is None:
                    self.contradict(f"{place}: the entry of the queue {key!r} is missing")

    def _check_messages(self) -> None:
        counts: defaultdict[bytes, int] = defaultdict(int)
        sizes: defaultdict[bytes, int] = defaultdict(int)
        last: defaultdict[bytes, int] = defaultdict(int)
        fresh: defaultdict[bytes, list[int]] = defaultdict(list)
        for key, value in self.entries("messages"):
            number = key[:8]
            record = self.decode(layout.decode_record, "messages", key, value)
            if record is None or self._is_pending_queue(number, "messages"):
                continue
            if number not in self._queues:
                self.contradict(f"messages: {key.hex()} does not belong to a queue")
                continue
            counts[number] += 1
            sizes[number] += record.size
            last[number] = layout.pair.unpack(key)[1]
            grouping = self._group_indexes.grouping(number)
            if grouping:
                self.check_wanted("messages", key, [("lines", slot(grouping, key, record), b"")])
            elif not record.indexed and record.expires > self._now + startup.STEP_BACK_MS:
                fresh[number][:] = [*fresh[number][:1], last[number]]
            self.check_wanted("messages", key, self._index_entries(key, record))
            self._check_body(key, record)
            if record.claim:
                self._check_claimed(key, record)
        for number, queue in self._queues.items():
            tally = layout.decode_tally(self.store.get("tallies", number) or layout.encode(layout.Tally()))
            if (tally.count, tally.bytes) != (counts[number], sizes[number]) or tally.sequence < last[number]:
                has = f"{counts[number]} messages with {sizes[number]} bytes"
                self.contradict(f"tallies: the queue {queue!r} has {has}, but its entry is {tally}")
            if any(not tally.fresh_head < sequence <= tally.fresh_tail for sequence in fresh[number]):
                self.contradict(
                    f"tallies: the queue {queue!r} has fresh messages at {fresh[number]}, but its entry is {tally}"
                )

    def _check_body(self, key: bytes, record: StoredMessage) -> None:
        body = self.store.get("bodies", key)
        if record.body is not None:
            if body is not None:
                self.contradict(f"bodies: {key.hex()} belongs to a message whose record contains the body")
        elif body is None:
            if record.expires > self._now:
                self.contradict(f"bodies: the body of the message {key.hex()} is missing")
            else:
                self.counted["expired messages whose bodies a compaction dropped"] += 1
        elif len(body) < layout.stamp.size or _stamp(body) < _stamp(layout.seal_body(b"", record.expires, 0)):
            self.contradict(f"bodies: {key.hex()} expires before its message")

    def _check_claimed(self, key: bytes, record: StoredMessage) -> None:
        number, sequence = layout.pair.unpack(key)
        value = self.store.get("claims", layout.claim_key(number, record.claim, record.group))
        if sequence not in _decode_group(value or b"", record.until):
            self.contradict(f"claims: the entry of {record.claim!r} does not match the message {key.hex()}")

    def _check_claims(self) -> None:
        for key, value in self.entries("claims"):
            if self._is_pending_queue(key[:8], "claims"):
                continue
            for sequence in _decode_group(value) or [0]:
                message = key[:8] + layout.number.pack(sequence)
                stored = self.store.get("messages", message)
                record = None if stored is None else self.decode(layout.decode_record, "messages", message, stored)
                if record is None or key != layout.claim_key(
                    layout.number.unpack_from(key)[0], record.claim, record.group
                ):
                    self.contradict(f"claims: {key.hex()} lists {sequence}, which is not a message of this claim")

    def _check_index(self, family: str, message_of: Callable[[bytes, bytes], bytes]) -> None:
        """Check that each entry of an index family belongs to a message.

        ``message_of`` returns the key of this message, given the key and the value of the entry.
        """
        for key, value in self.entries(family):
            message = message_of(key, value)
            if self._is_pending_queue(message[:8], family):
                continue
            if family == "available" and self._group_indexes.grouping(message[:8]):
                self._group_indexes.check_entry(key, value)
                continue
            stored = self.store.get("messages", message)
            record = None if stored is None else self.decode(layout.decode_record, "messages", message, stored)
            if record is None:
                self.contradict(f"{family}: {key.hex()} refers to a missing message")
            elif family != "bodies" and (family, key, value) not in self._index_entries(message, record):
                self.contradict(f"{family}: {key.hex()} does not match its message")

    def _check_history(self) -> None:
        for key, value in self.entries("history"):
            kept = self.decode(layout.decode_entry, "history", key, value)
            if kept is not None and not self._is_pending_number(key[:8], "history"):
                self._kept[key[:8]] += kept.size
                self.check_wanted("history", key, record_entries("history", key, value))

    def _check_trace(self, family: str, record_of: Callable[[bytes, bytes], bytes]) -> None:
        for key, value in self.entries(family):
            place = record_of(key, value)
            if self._is_pending_number(key[:8], family):
                continue
            stored = self.store.get("history", place)
            if stored is None or (family, key, value) not in self.record_entries("history", place, stored):
                self.contradict(f"{family}: {key.hex()} does not match a history entry")

    def _check_staged(self) -> None:
        for key, _ in self.entries("staged"):
            if not self._is_pending_number(key[:8], "staged", any_number=True):
                self._staged[key[:8]] += 1
        for key, value in self.entries("stages"):
            stage = self.decode(layout.decode_stage, "stages", key, value)
            if stage is not None:
                items = list(stages.messages(self.store, stage))
                size = sum(item.draft.size for item in items)
                if (stage.count, stage.size) != (len(items), size):
                    self._probe_damage("staged", (layout.pair.pack(stage.number, at) for at in range(stage.count)))
                    self.contradict(
                        f"stages: {key!r} should have {stage.count} messages, but has {len(items)} with {size} bytes"
                    )
                self._staged.pop(layout.number.pack(stage.number), None)
                self.check_wanted("stages", key, record_entries("stages", key, value))
        self._check_open()
        for number in self._staged:
            self._probe_damage(
                "default", (layout.COMMIT + key[:-8] for key, _ in self.store.scan("producers", b"", LAST_KEY))
            )
            self.contradict(f"staged: {number.hex()} does not belong to a stage")

    def _check_open(self) -> None:
        for producer, value in stages.scan_commits(self.store):
            last = int.from_bytes(self.store.get("default", b"numbers") or b"")
            commit = self.decode(stages.decode_commit, "default", layout.COMMIT + producer, value)
            if commit is not None and any(part.number > last for part in commit.reserved):
                self.contradict(f"default: {producer!r} deletes from a queue with a number above the last one assigned")
            for rest in commit.rests if commit is not None else ():
                count = self._staged.pop(layout.number.pack(rest.number), 0)
                if count != rest.end - rest.at:
                    self._probe_damage("staged", (layout.pair.pack(rest.number, at) for at in range(rest.at, rest.end)))
                    self.contradict(
                        f"default: {producer!r} has {rest.end - rest.at} messages to publish, but {count} exist"
                    )

    def _probe_damage(self, family: str, keys: Iterable[bytes]) -> None:
        """Read these entries one by one, and stop at the first damaged entry.

        Call this method before ``contradict`` if an entry was not found. A scan skips damaged entries, so the entry may
        be damaged, not missing. ``contradict`` then reports no contradiction.
        """
        for key in keys:
            self.store.get(family, key)
            if self.store.missed:
                return

    def _check_logs(self) -> None:
        numbers = self._logs.check()
        for number in numbers & self._histories:
            self.contradict(f"logs: {number.hex()} is also the history of a queue")
        self._histories |= numbers

    def _check_ends(self) -> None:
        for key, value in self.entries("producers"):
            self.check_wanted("producers", key, record_entries("producers", key, value))
        for key, value in self.entries("keys"):
            known = self.decode(layout.decode_known, "keys", key, value)
            if known is not None and not self._is_pending_number(key[:8], "keys"):
                self._kept[key[:8]] += known.size
                self.check_wanted("keys", key, record_entries("keys", key, value))

    def _check_kept(self) -> None:
        for history, owner in self._keepers.items():
            tally = layout.decode_tally(self.store.get("tallies", owner) or layout.encode(layout.Tally()))
            removed = int.from_bytes(self.store.get("default", layout.REMOVED + history) or b"")
            if tally.kept - removed != self._kept[history]:
                self._probe_damage(
                    "history", (history + position for _, position in self._scan_number(history, "sequences"))
                )
                self._probe_damage(
                    "keys", (key for family, key in self._all_due() if family == "keys" and key[:8] == history)
                )
                has = f"{self._kept[history]} bytes of history and stored answers"
                self.contradict(
                    f"tallies: {owner.hex()} has {has}, but its entry has {tally.kept} stored and {removed} removed"
                )

    def _scan_number(self, number: bytes, family: str) -> Iterator[tuple[bytes, bytes]]:
        return self.store.scan(family, number, layout.prefix_end(number))

    def _all_due(self) -> Iterator[tuple[str, bytes]]:
        return (due.parse_entry(key) for key, _ in self.store.scan("due", b"", LAST_KEY))

    def _check_due(self) -> None:
        for key, note in self.entries("due"):
            family, entry = due.parse_entry(key)
            if family == "batches":
                self._logs.check_due(key, note)
                continue
            value = self.store.get(family, entry)
            if value is None:
                self.contradict(f"due: {key.hex()} refers to a missing entry of {family}")
            elif ("due", key, note) not in self.record_entries(family, entry, value):
                self.contradict(f"due: {key.hex()} does not match its entry in {family}")

    def _index_entries(self, key: bytes, record: StoredMessage) -> list[Write]:
        return message_entries(layout.extract_project_prefix(self._queues.get(key[:8], b"")), key, record)

    def _is_pending_queue(self, number: bytes, family: str) -> bool:
        if number not in self._pending_queues:
            return False
        self.counted[f"{family} of deleted queues"] += 1
        return True

    def _is_pending_number(self, number: bytes, family: str, any_number: bool = False) -> bool:
        if number not in self._pending_numbers:
            if not any_number and number not in self._histories:
                self.contradict(f"{family}: {number.hex()} is not the history of a queue")
            return False
        self.counted[f"{family} of deleted owners"] += 1
        return True


def _decode_group(value: bytes, ends: int | None = None) -> list[int]:
    if not value or len(value) % layout.number.size:
        return []
    found, sequences = layout.decode_group(value)
    return sequences if ends in (None, found) else []


def _stamp(value: bytes) -> int:
    stamp: int = layout.stamp.unpack(value[-layout.stamp.size :])[0]
    return stamp
