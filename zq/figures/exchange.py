# SPDX-License-Identifier: Apache-2.0
"""Exchange of counts among the server processes that share a store, so that each process can report total rates.

Time is divided into intervals of ten seconds. The number of an interval (slot) is counted from the Unix epoch, so all
processes use the same numbers. Each process publishes a record with its counts of the most recent intervals. A record
contains several intervals, so that a process that reads the record late misses no interval.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from zq import __version__
from zq.core.reports import Reports
from zq.figures.counting import MAX_NAMES, OTHER_NAMES, IntervalCounts
from zq.model import Seconds
from zq.storage.api import DocumentController
from zq.wire.figures import Server

T = TypeVar("T", bound=tuple[Any, ...])
# Document kind.
KIND: Final = "server"
# Seconds after which the record of a process expires.
RECORD_TTL: Final = 60.0
# Maximum size of a record in bytes, and maximum number of intervals in it.
MAX_RECORD_SIZE: Final = 64 << 10
MAX_SPANS: Final = 3


class Span(Struct, frozen=True):
    """The message counts of one process in one interval, which is ``seconds`` long.

    A row of ``queues`` contains the project, the queue name, and the counters in the order of ``RATES``. A row of
    ``topics`` contains the project, the topic name, and the number of published messages.
    """

    seconds: float
    queues: list[tuple[str, str, int, int, int, int]]
    topics: list[tuple[str, str, int]]


class Record(Struct, frozen=True):
    """The document that a process publishes. ``spans`` maps interval numbers (slots) to counts."""

    process_info: Server[Seconds]
    spans: dict[int, Span]


class ProcessInfo(Struct, frozen=True):
    """The fields of this process's status report that never change."""

    store: str = ""
    engine: str = ""
    port: int = 0
    max_waiters: int = 0
    max_streams: int = 0


class State(Struct, frozen=True):
    """Current values for the status report of this process. The report also contains message and request counts."""

    waiters: int
    streams: int
    clock_offset: float
    sweep_lag: float | None


class Exchange:
    """The exchange of counts and status reports with the other server processes."""

    def __init__(self, documents: DocumentController, process_info: ProcessInfo, began: Seconds) -> None:
        self._records = Reports(documents, KIND, RECORD_TTL, Record)
        self._process_info = process_info
        self._began = began
        self._published_at = began
        self._server = f"{socket.gethostname()}:{process_info.port}"
        self._spans: dict[int, Span] = {}
        self._merged: dict[str, set[int]] = {}
        self.servers: Sequence[Server[Seconds]] = ()
        """The latest status reports, sorted by server and process."""

    def publish(self, slot: int, drained: IntervalCounts, state: State, now: Seconds) -> None:
        """Write this process's record. If the call raises ``Unavailable``, the next call writes the counts again."""
        seconds, self._published_at = max(1.0, now - self._published_at), now
        queues = [(*name, *figures) for name, figures in drained.queues.items()]
        topics = [(*name, figures[0]) for name, figures in drained.topics.items()]
        self._spans[slot] = Span(seconds, queues, topics)  # type: ignore[arg-type]
        self._spans = dict(sorted(self._spans.items())[-MAX_SPANS:])
        server = Server(
            server=self._server,
            process=os.getpid(),
            since=self._began,
            as_of=now,
            version=__version__,
            store=self._process_info.store,
            engine=self._process_info.engine,
            requests=round(drained.requests / seconds, 1),
            p95=drained.p95,
            max_waiters=self._process_info.max_waiters,
            max_streams=self._process_info.max_streams,
            **msgspec.structs.asdict(state),
        )
        self._records.publish(encode_record(server, self._spans), now)

    def read(self, now: Seconds, add: Callable[[int, Span], object]) -> None:
        """Read the records of all processes, and call ``add`` for each interval that was not read before.

        Raises ``Unavailable``.
        """
        records = self._records.read(now)
        for name, record in records.items():
            merged = self._merged.get(name, set())
            for slot, span in record.spans.items():
                if slot not in merged:
                    add(slot, span)
            self._merged[name] = set(record.spans)
        self._merged = {name: slots for name, slots in self._merged.items() if name in records}
        self.servers = sorted(
            (record.process_info for record in records.values()), key=lambda one: (one.server, one.process)
        )


def encode_record(server: Server[Seconds], spans: Mapping[int, Span]) -> bytes:
    """Encode a record.

    While the record exceeds ``MAX_RECORD_SIZE``, drop its oldest interval. If only one interval is left, keep the
    counts of the busiest queues and topics, and add up the counts of the others.
    """
    kept, max_names = dict(spans), MAX_NAMES
    while len(value := msgspec.json.encode(Record(server, kept))) > MAX_RECORD_SIZE and (len(kept) > 1 or max_names):
        if len(kept) > 1:
            del kept[min(kept)]
        else:
            max_names = max_names * 3 // 4
            kept = {slot: _fold(span, max_names) for slot, span in kept.items()}
    return value


def _fold(span: Span, max_names: int) -> Span:
    """Keep the counts of the ``max_names`` busiest queues and topics, and merge the counts of all others."""
    return Span(span.seconds, _merge_rest(span.queues, max_names), _merge_rest(span.topics, max_names))


def _merge_rest(rows: list[T], max_names: int) -> list[T]:
    """Keep the ``max_names`` busiest rows, and add up the counts of the other rows.

    The other rows are merged into one row per project. If this would give more than ``max_names`` rows, but at least
    two, they are merged into a single row instead.
    """
    ranked = sorted(rows, key=lambda row: sum(row[2:]), reverse=True)
    rest: dict[tuple[str, str], tuple[int, ...]] = {}
    others = ranked[max_names:]
    single = len({row[0] for row in others}) <= max(1, max_names)
    for row in others:
        name = (row[0] if single else "", OTHER_NAMES)
        rest[name] = tuple(map(sum, zip(row[2:], rest.get(name, (0,) * len(row[2:])), strict=True)))
    return [*ranked[:max_names], *[(*name, *figures) for name, figures in rest.items()]]  # type: ignore[list-item]
