# SPDX-License-Identifier: Apache-2.0
"""The salvage of a damaged store: it copies all readable data to a new store and lists the losses.

A salvage copies records and rebuilds their index entries, so that the new store is consistent. It does not copy the
data of purged and deleted queues. Counters never decrease.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from msgspec import structs

from zq.errors import StoreDamaged
from zq.model import levels
from zq.storage.ordered import layout, logs, startup
from zq.storage.ordered.entries import record_entries
from zq.storage.ordered.logs import LogRecord
from zq.storage.ordered.salvage_commits import CommitSalvage, NamedRecordSalvage
from zq.storage.ordered.salvage_copy import LOST_COUNTER, DamagedStore, SalvageState
from zq.storage.ordered.salvage_queues import QueueSalvage
from zq.storage.ordered.store import LAST_KEY

# Gap between the largest known number and the next one if the counter of numbers is lost.
LOST_NUMBERS: Final = 1_000_000


class Salvage(SalvageState):
    """The salvage of a damaged store, which copies the readable records to a new store; see ``SalvageState``."""

    def run(self) -> None:
        startup.check_readable(self.source)
        starts, numbers, clock = (self.read_number(key) for key in (b"starts", b"numbers", b"clock"))
        logs_part = LogSalvage(self)
        self.starts = starts if starts is not None else _latest_start(self.source)
        commits = CommitSalvage(self)
        queues = QueueSalvage(self, commits.reserved)
        queues.run()
        logs_part.run()
        named = NamedRecordSalvage(self, queues.histories | logs_part.numbers, commits)
        named.run()
        queues.write_tallies(named.kept)
        commits.copy(queues.numbers, named.producers)
        self.lost += (
            f"{count} {kind} are lost, because their owner is lost" for kind, count in self.strays.items() if count
        )
        given = numbers if numbers is not None else self.top + LOST_NUMBERS
        for key, value in (
            (b"version", layout.VERSION),
            (startup.LEVEL, self._find_level()),
            (b"starts", layout.number.pack(self.starts)),
            (b"numbers", layout.number.pack(max(given, self.top))),
            (b"clock", layout.number.pack(self.now if clock is None else clock)),
        ):
            self.write([("default", key, value)])
        self.flush()

    def _find_level(self) -> bytes | None:
        """Return the encoded level of the damaged store, or None if it has none.

        The level is the number of the data format that servers write. If the level is unreadable, return the highest
        level.
        """
        with suppress(StoreDamaged):
            return self.source.get("default", startup.LEVEL)
        return levels.initial()


def _latest_start(source: DamagedStore) -> int:
    """Return one more than the largest boot epoch (number of starts) that a readable record contains."""
    tallies = (layout.decode_tally(value).start for _, value in source.entries("tallies") if value is not None)
    records = (logs.decode_log(value).start for _, value in source.entries("logs") if value is not None)
    return max([0, *tallies, *records]) + 1


class LogSalvage:
    """The salvage of topic logs from a damaged store.

    ``numbers`` has the number of each log that was copied to the new store.
    """

    def __init__(self, salvage: SalvageState) -> None:
        self._salvage = salvage
        self._source = salvage.source
        self._logs: dict[bytes, tuple[bytes, LogRecord]] = {}
        """The key and the record of each log, by log number."""
        self._unknown_logs: Counter[bytes] = Counter()

    @property
    def numbers(self) -> set[bytes]:
        return set(self._logs)

    def run(self) -> None:
        names = self._names()
        for key, value in self._source.entries("logs", lambda: names):
            record = logs.decode_log(value) if value is not None else self._estimate_record(key, names[key])
            self._logs[layout.number.pack(record.number)] = key, record
            self._salvage.raise_top(record.number)
        for key, value in self._source.entries("batches", self._batch_keys):
            self._copy_batch(key, value)
        for key, value in self._source.entries("floors"):
            if value is not None and key[:8] in self._logs:
                self._salvage.save("purged topics", [("floors", key, value)])
        for number, (key, record) in self._logs.items():
            self._salvage.save("logs of topics", [("logs", key, layout.encode(self._raise_totals(number, record)))])
        for number, count in self._unknown_logs.items():
            log = layout.number.unpack(number)[0]
            self._salvage.lost.append(
                f"{count} batches of topics are lost, because the project of log {log} is unknown"
            )
            self._salvage.raise_top(log)

    def _names(self) -> dict[bytes, bytes]:
        """Return the number of each log that another family mentions, by the log's key in ``logs``.

        With this mapping, the salvage restores logs whose entries in ``logs`` are unreadable. The mapping is built from
        the families ``floors`` and ``default``.
        """
        floors = {value[8:]: key[:8] for key, value in self._source.scan("floors", b"", LAST_KEY)}
        notes = self._source.scan("default", layout.TRIMMED_LOG, layout.prefix_end(layout.TRIMMED_LOG))
        return floors | {value: key[len(layout.TRIMMED_LOG) :] for key, value in notes}

    def _estimate_record(self, key: bytes, number: bytes) -> LogRecord:
        self._salvage.lost.append(f"The counters of the topics of project {layout.decode_project(key)!r} are lost")
        start = self._salvage.starts
        record = LogRecord(layout.number.unpack(number)[0], startup.initial_value(start) + LOST_COUNTER, start=start)
        first = next(self._source.scan("batches", number, layout.prefix_end(number)), None)
        if first is None:
            return record
        header = logs.decode_header(first[1])
        return structs.replace(
            record, dropped=header.sequence - 1, gone_size=header.size, gone_messages=header.messages
        )

    def _batch_keys(self) -> Iterator[bytes]:
        for key, _ in self._source.scan("topics", b"", LAST_KEY):
            yield key[:8] + key[-8:]

    def _copy_batch(self, key: bytes, value: bytes | None) -> None:
        found = self._logs.get(key[:8])
        last = layout.pair.unpack(key)[1]
        if found is None:
            self._unknown_logs[key[:8]] += 1
        elif last > found[1].dropped and value is None:
            project = layout.decode_project(found[0])
            self._salvage.lost.append(
                f"The batch of topics of project {project!r} that ends at sequence {last} is lost"
            )
        elif last > found[1].dropped and value is not None:
            stored = logs.decode_stored(value)
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
            self._salvage.save("batches", record_entries("batches", key, value))

    def _raise_totals(self, number: bytes, record: LogRecord) -> LogRecord:
        floors = self._source.scan("floors", number, layout.prefix_end(number))
        last = max([record.last, *(layout.number.unpack_from(value)[0] for _, value in floors)])
        return structs.replace(
            record,
            last=last,
            size=max(record.size, record.gone_size),
            messages=max(record.messages, record.gone_messages),
        )
