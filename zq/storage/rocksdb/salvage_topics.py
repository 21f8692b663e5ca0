# SPDX-License-Identifier: Apache-2.0
"""The part of a salvage that is about topics: logs, their batches, and what was purged."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import structs

from zq.storage.rocksdb import batches, layout, starts
from zq.storage.rocksdb.batches import LogRecord
from zq.storage.rocksdb.findings import TOP
from zq.storage.rocksdb.log_integrity import entries_of
from zq.storage.rocksdb.salvage_queues import LOST_COUNTER

if TYPE_CHECKING:
    from zq.storage.rocksdb.salvage import Salvage


class Topics:
    """``numbers``: of all logs, by which their keys go."""

    def __init__(self, salvage: "Salvage") -> None:
        self._salvage = salvage
        self._rescue = salvage.rescue
        self._survey = salvage.rescue.survey
        self._logs: dict[bytes, tuple[bytes, LogRecord]] = {}
        """(key, record) by number."""
        self._strangers: Counter[bytes] = Counter()

    @property
    def numbers(self) -> set[bytes]:
        return set(self._logs)

    def run(self) -> None:
        names = self._names()
        for key, value in self._rescue.entries("logs", lambda: names):
            record = batches.decode_log(value) if value is not None else self._estimated(key, names[key])
            self._logs[layout.number.pack(record.number)] = key, record
            self._salvage.top = max(self._salvage.top, record.number)
        for key, value in self._rescue.entries("batches", self._batch_keys):
            self._copy_batch(key, value)
        for key, value in self._rescue.entries("floors"):
            if value is not None and key[:8] in self._logs:
                self._salvage.save("purged topics", [("floors", key, value)])
        for number, (key, record) in self._logs.items():
            self._salvage.save("logs of topics", [("logs", key, layout.encode(self._raised(number, record)))])
        for number, count in self._strangers.items():
            told = layout.number.unpack(number)[0]
            self._salvage.lost.append(f"{count} batches of topics, in log {told} of which the project is not known")
            self._salvage.top = max(self._salvage.top, told)

    def _names(self) -> dict[bytes, bytes]:
        """Numbers of logs by their keys, as far as other families name them."""
        floors = {value[8:]: key[:8] for key, value in self._survey.scan("floors", b"", TOP)}
        notes = self._survey.scan("default", layout.FALLEN, layout.after(layout.FALLEN))
        return floors | {value: key[len(layout.FALLEN) :] for key, value in notes}

    def _estimated(self, key: bytes, number: bytes) -> LogRecord:
        """What a log that was lost must be, by the batches that it has."""
        self._salvage.lost.append(f"The counters of the topics of project {layout.project_of(key)!r}")
        start = self._salvage.starts
        record = LogRecord(layout.number.unpack(number)[0], starts.origin(start) + LOST_COUNTER, start=start)
        first = next(self._survey.scan("batches", number, layout.after(number)), None)
        if first is None:
            return record
        header = batches.decode_header(first[1])
        return structs.replace(
            record, dropped=header.sequence - 1, gone_size=header.size, gone_messages=header.messages
        )

    def _batch_keys(self) -> Iterator[bytes]:
        for key, _ in self._survey.scan("topics", b"", TOP):
            yield key[:8] + key[-8:]

    def _copy_batch(self, key: bytes, value: bytes | None) -> None:
        found = self._logs.get(key[:8])
        last = layout.pair.unpack(key)[1]
        if found is None:
            self._strangers[key[:8]] += 1
        elif last > found[1].dropped and value is None:
            project = layout.project_of(found[0])
            self._salvage.lost.append(f"The batch of topics of project {project!r} that ends at sequence {last}")
        elif last > found[1].dropped and value is not None:
            stored = batches.decode_stored(value)
            size, messages = stored.size + stored.batch.size, stored.messages + len(stored.batch.entries)
            record = found[1]
            self._logs[key[:8]] = (
                found[0],
                structs.replace(
                    record,
                    last=max(record.last, last),
                    size=max(record.size, size),
                    messages=max(record.messages, messages),
                ),
            )
            self._salvage.save("batches", entries_of(key, value))

    def _raised(self, number: bytes, record: LogRecord) -> LogRecord:
        """With an end that no floor lies above."""
        floors = self._survey.scan("floors", number, layout.after(number))
        last = max([record.last, *(layout.number.unpack_from(value)[0] for _, value in floors)])
        return structs.replace(
            record,
            last=last,
            size=max(record.size, record.gone_size),
            messages=max(record.messages, record.gone_messages),
        )
