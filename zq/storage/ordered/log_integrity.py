# SPDX-License-Identifier: Apache-2.0
"""The integrity check of topic logs and documents, and the class that collects the findings of a check."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from msgspec import MsgspecError

from zq.errors import StoreDamaged
from zq.model.stats import Report
from zq.storage.ordered import due, entries, layout, logs
from zq.storage.ordered.logs import LogRecord
from zq.storage.ordered.store import LAST_KEY, Readable, Write

T = TypeVar("T")
# Maximum number of contradictions that a report describes.
EXAMPLES: Final = 20
NO_LOG: Final = LogRecord(0)


class _LenientStore:
    """A store that reports a damaged value as missing. A read of a damaged value sets ``missed`` to True."""

    def __init__(self, store: Readable) -> None:
        self._store = store
        self.scan = store.scan
        self.missed = False

    def get(self, family: str, key: bytes) -> bytes | None:
        try:
            return self._store.get(family, key)
        except StoreDamaged:
            self.missed = True
            return None


class Findings:
    """The findings of one integrity check."""

    def __init__(self, store: Readable) -> None:
        self.store = _LenientStore(store)
        self.counted: Counter[str] = Counter()
        self._contradictions = 0
        self._examples: list[str] = []

    def contradict(self, sentence: str) -> None:
        """Add a contradiction to the report, unless a damaged entry may have caused it.

        A contradiction is a record or index entry that does not match the related entries.
        """
        if self.store.missed:
            self.store.missed = False
            self.counted["comparisons that are impossible because of damage"] += 1
            return
        self._contradictions += 1
        if len(self._examples) < EXAMPLES:
            self._examples.append(f"{sentence}.")

    def entries(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        for item in self.store.scan(family, b"", LAST_KEY):
            self.counted[family] += 1
            yield item

    def decode(self, decode: Callable[[bytes], T], family: str, key: bytes, value: bytes) -> T | None:
        """Decode a value. If it is damaged, report it and return ``None``."""
        try:
            return decode(value)
        except (MsgspecError, ValueError):
            self.contradict(f"{family}: {key.hex()} cannot be read")
            return None

    def check_wanted(self, family: str, key: bytes, expected: Sequence[Write]) -> None:
        """Report each entry in ``expected`` that is missing or different.

        The record that is stored under ``key`` must have these index entries.
        """
        for other, place, value in expected:
            stored = self.store.get(other, place)
            if stored is None:
                self.contradict(f"{other}: the entry for {key.hex()} of {family} is missing")
            elif stored != value:
                self.contradict(f"{other}: {place.hex()} does not match {key.hex()} of {family}")

    def record_entries(self, family: str, key: bytes, value: bytes) -> list[Write]:
        """Return the writes that store a record and its index entries, or an empty list if the value is damaged."""
        return self.decode(lambda stored: entries.record_entries(family, key, stored), family, key, value) or []

    def read_numbers(self, kind: bytes) -> set[bytes]:
        """Return the encoded numbers of queues, histories or logs in the keys of the family ``default``.

        Each of these keys consists of the prefix ``kind`` and a number.
        """
        return {key[len(kind) :] for key, _ in self.store.scan("default", kind, layout.prefix_end(kind))}

    def report(self) -> Report:
        return Report(dict(sorted(self.counted.items())), self._contradictions, self._examples, [])


class LogIntegrity:
    """The integrity check of topic logs. Index entries of trimmed batches are only counted."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._logs: dict[bytes, LogRecord] = {}
        self._keys: dict[bytes, bytes] = {}
        """The keys in the family ``logs``, by log number."""
        self._trimmed_entries = findings.read_numbers(layout.TRIMMED_LOG)

    def check(self) -> set[bytes]:
        """Check all logs and return their numbers."""
        last = int.from_bytes(self._findings.store.get("default", b"numbers") or b"")
        for key, value in self._findings.entries("logs"):
            record = self._findings.decode(logs.decode_log, "logs", key, value)
            if record is not None:
                self._check_log(key, record, last)
        self._check_batches()
        self._check_topics()
        for key, value in self._findings.entries("floors"):
            log = self._logs.get(key[:8], NO_LOG)
            if value[8:] != self._keys.get(key[:8]) or layout.number.unpack_from(value)[0] > log.last:
                self._findings.contradict(f"floors: {key.hex()} does not belong to a log, or is above its end")
        for number in self._trimmed_entries - self._logs.keys():
            self._findings.contradict(f"default: {number.hex()} has trimmed batches, but does not belong to a log")
        return set(self._logs)

    def check_due(self, key: bytes, note: bytes) -> None:
        """Check a batch's entry in ``due``.

        The batch must exist or be trimmed, and the batch's entry in ``topics`` must match.
        """
        batch = due.parse_entry(key)[1]
        value = self._findings.store.get(*logs.topic_removal(batch, note)[:2])
        if value is None or value[:8] != key[:8]:
            self._findings.contradict(f"due: {key.hex()} does not match the entry of its batch in topics")
        elif self._findings.store.get("batches", batch) is None and not self._is_trimmed(batch):
            self._findings.contradict(f"due: {key.hex()} refers to a missing batch")

    def _check_log(self, key: bytes, record: LogRecord, last: int) -> None:
        number = layout.number.pack(record.number)
        if record.number > last or number in self._logs:
            self._findings.contradict(
                f"logs: {key!r} has the number of another log, or a number above the last one assigned"
            )
        if record.dropped > record.last or record.gone_size > record.size or record.gone_messages > record.messages:
            self._findings.contradict(f"logs: {key!r} has trimmed more than it contained")
        self._logs[number] = record
        self._keys[number] = key

    def _check_batches(self) -> None:
        reached: dict[bytes, tuple[int, int]] = {}
        for key, value in self._findings.entries("batches"):
            wanted = self._wanted(key, value)
            if not wanted:
                continue
            log, stored = self._logs.get(key[:8], NO_LOG), logs.decode_stored(value)
            self._findings.check_wanted("batches", key, wanted)
            if not log.dropped < layout.pair.unpack(key)[1] <= log.last:
                self._findings.contradict(
                    f"batches: {key.hex()} does not belong to a log, was trimmed, or is above the end of the log"
                )
            size, messages = reached.get(key[:8], (0, 0))
            if stored.size < size or stored.messages < messages:
                self._findings.contradict(f"batches: {key.hex()} has smaller totals than an earlier batch")
            reached[key[:8]] = stored.size + stored.batch.size, stored.messages + len(stored.batch.entries)
        for number, (size, messages) in reached.items():
            log = self._logs.get(number, NO_LOG)
            if size > log.size or messages > log.messages:
                self._findings.contradict(f"logs: {number.hex()} has smaller totals than its batches")

    def _check_topics(self) -> None:
        for key, value in self._findings.entries("topics"):
            batch = key[:8] + key[-8:]
            if self._is_trimmed(batch):
                self._findings.counted["topics of trimmed batches"] += 1
                self._findings.check_wanted("topics", key, [("due", value[:8] + b"b" + batch, key[8:-8])])
                continue
            stored = self._findings.store.get("batches", batch)
            if stored is None or ("topics", key, value) not in self._wanted(batch, stored):
                self._findings.contradict(f"topics: {key.hex()} does not match a batch")

    def _is_trimmed(self, batch: bytes) -> bool:
        number, last = batch[:8], layout.number.unpack(batch[8:])[0]
        return number in self._trimmed_entries and last <= self._logs.get(number, NO_LOG).dropped

    def _wanted(self, key: bytes, value: bytes) -> list[Write]:
        return self._findings.record_entries("batches", key, value)


def check_documents(findings: Findings) -> None:
    """Check that each document has its index entries."""
    for key, value in findings.entries("records"):
        findings.check_wanted("records", key, findings.record_entries("records", key, value))
