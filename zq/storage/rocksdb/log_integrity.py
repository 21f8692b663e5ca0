# SPDX-License-Identifier: Apache-2.0
"""Whether the logs of topics, and records, agree with themselves."""

from zq.storage.rocksdb import batches, due, layout, records
from zq.storage.rocksdb.batches import LogRecord
from zq.storage.rocksdb.findings import Findings
from zq.storage.rocksdb.port import Write

NOWHERE = LogRecord(0)


class LogIntegrity:
    """The part of a check that is about logs. What fell off, and is still led to, is counted apart."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._logs: dict[bytes, LogRecord] = {}
        self._keys: dict[bytes, bytes] = {}
        """The key in ``logs`` of each number."""
        self._fallen = findings.noted(layout.FALLEN)

    def check(self) -> set[bytes]:
        """Look at everything; the numbers of all logs."""
        last = int.from_bytes(self._findings.store.get("default", b"numbers") or b"")
        for key, value in self._findings.entries("logs"):
            record = self._findings.decoded(batches.decode_log, "logs", key, value)
            if record is not None:
                self._check_log(key, record, last)
        self._check_batches()
        self._check_topics()
        for key, value in self._findings.entries("floors"):
            log = self._logs.get(key[:8], NOWHERE)
            if value[8:] != self._keys.get(key[:8]) or layout.number.unpack_from(value)[0] > log.last:
                self._findings.found(f"floors: {key.hex()} is of no log, or above its end")
        for number in self._fallen - self._logs.keys():
            self._findings.found(f"default: {number.hex()}, of which batches fell off, is no log's number")
        return set(self._logs)

    def check_due(self, key: bytes, note: bytes) -> None:
        """An entry of ``due`` about a batch is what the one in ``topics`` says, and the batch is there or fell off."""
        batch = due.named(key)[1]
        value = self._findings.store.get(*batches.trace(batch, note)[:2])
        if value is None or value[:8] != key[:8]:
            self._findings.found(f"due: {key.hex()} is not what topics says of the batch")
        elif self._findings.store.get("batches", batch) is None and not self._has_fallen(batch):
            self._findings.found(f"due: {key.hex()} points at no batch")

    def _check_log(self, key: bytes, record: LogRecord, last: int) -> None:
        number = layout.number.pack(record.number)
        if record.number > last or number in self._logs:
            self._findings.found(f"logs: {key!r} has a number of another log, or above the last one given")
        if record.dropped > record.last or record.gone_size > record.size or record.gone_messages > record.messages:
            self._findings.found(f"logs: more of {key!r} fell off than there was")
        self._logs[number] = record
        self._keys[number] = key

    def _check_batches(self) -> None:
        reached: dict[bytes, tuple[int, int]] = {}
        for key, value in self._findings.entries("batches"):
            wanted = self._wanted(key, value)
            if not wanted:
                continue
            log, stored = self._logs.get(key[:8], NOWHERE), batches.decode_stored(value)
            self._findings.check_wanted("batches", key, wanted)
            if not log.dropped < layout.pair.unpack(key)[1] <= log.last:
                self._findings.found(f"batches: {key.hex()} is of no log, fell off, or is above its end")
            size, messages = reached.get(key[:8], (0, 0))
            if stored.size < size or stored.messages < messages:
                self._findings.found(f"batches: {key.hex()} has smaller totals than those before it")
            reached[key[:8]] = stored.size + stored.batch.size, stored.messages + len(stored.batch.entries)
        for number, (size, messages) in reached.items():
            log = self._logs.get(number, NOWHERE)
            if size > log.size or messages > log.messages:
                self._findings.found(f"logs: {number.hex()} has smaller totals than its batches")

    def _check_topics(self) -> None:
        for key, value in self._findings.entries("topics"):
            batch = key[:8] + key[-8:]
            if self._has_fallen(batch):
                self._findings.counted["topics of batches that fell off"] += 1
                self._findings.check_wanted("topics", key, [("due", value[:8] + b"b" + batch, key[8:-8])])
                continue
            stored = self._findings.store.get("batches", batch)
            if stored is None or ("topics", key, value) not in self._wanted(batch, stored):
                self._findings.found(f"topics: {key.hex()} points at no batch that says so")

    def _has_fallen(self, batch: bytes) -> bool:
        number, last = batch[:8], layout.number.unpack(batch[8:])[0]
        return number in self._fallen and last <= self._logs.get(number, NOWHERE).dropped

    def _wanted(self, key: bytes, value: bytes) -> list[Write]:
        """All entries of a batch, by its own; itself included. None if it cannot be read."""
        return self._findings.decoded(lambda stored: entries_of(key, stored), "batches", key, value) or []


def entries_of(key: bytes, value: bytes) -> list[Write]:
    """All entries of a stored batch, itself included."""
    stored = batches.decode_stored(value)
    before = LogRecord(layout.pair.unpack(key)[0], size=stored.size, messages=stored.messages)
    return batches.writes(stored.batch, before)


def check_records(findings: Findings) -> None:
    """Every record that expires is in ``due``."""
    for key, value in findings.entries("records"):
        record = findings.decoded(records.decode, "records", key, value)
        if record is not None:
            findings.check_wanted("records", key, records.writes(key, record))
