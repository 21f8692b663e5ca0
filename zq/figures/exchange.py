# SPDX-License-Identifier: Apache-2.0
"""What processes tell each other: a record each, by which rates are those of all, whichever is asked.

A record has what went through its process in the last few spans of ten seconds, which are counted from the epoch, so
that those of all processes are the same. A reader that comes late finds the span before, too.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct

from zq import __version__
from zq.figures.counting import MOST_NAMES, REST, Drained
from zq.model import Seconds
from zq.model.documents import DocumentRef
from zq.storage.api import DocumentController

T = TypeVar("T", bound=tuple[Any, ...])
# The kind of the documents.
KIND: Final = "server"
# Seconds for which a record is of a process that lives.
LIFE: Final = 60.0
# Bytes of a record, and spans that it has at most.
MOST_BYTES: Final = 64 << 10
MOST_SPANS: Final = 3
# Processes of which one hears.
MOST_PROCESSES: Final = 256


class Span(Struct, frozen=True):
    """What went through in some seconds: project, name, and figures as ``RATES``."""

    seconds: float
    queues: list[tuple[str, str, int, int, int, int]]
    topics: list[tuple[str, str, int]]


class Server(Struct, frozen=True):
    """What a process says of itself. ``server``: machine and port, which the processes of one server have in common.

    ``requests`` are those a second; ``p95`` is None without any. ``sweep_lag``: for how many seconds the first message
    that expired waits to be removed; None = the store does not tell.
    """

    server: str
    process: int
    since: Seconds
    as_of: Seconds
    version: str
    store: str
    engine: str
    requests: float
    p95: Seconds | None
    waiters: int
    max_waiters: int
    streams: int
    max_streams: int
    clock_offset: float
    sweep_lag: float | None


class Record(Struct, frozen=True):
    """A process's document. ``spans``: by their slots of ``FINE``."""

    about: Server
    spans: dict[int, Span]


_decoder: Final = msgspec.json.Decoder(Record)


class About(Struct, frozen=True):
    """What does not change about this process."""

    store: str = ""
    engine: str = ""
    port: int = 0
    max_waiters: int = 0
    max_streams: int = 0


class State(Struct, frozen=True):
    """What changes about it, besides what goes through: as ``Server`` has it."""

    waiters: int
    streams: int
    clock_offset: float
    sweep_lag: float | None


class Exchange:
    """This process's record, and what was last heard of all."""

    def __init__(self, documents: DocumentController, about: About, began: Seconds) -> None:
        self._documents = documents
        self._about = about
        self._began = began
        self._told_at = began
        self._server = f"{socket.gethostname()}:{about.port}"
        self._ref = DocumentRef("", KIND, uuid4().hex)
        self._spans: dict[int, Span] = {}
        self._merged: dict[str, set[int]] = {}
        self.servers: Sequence[Server] = ()
        """What was heard last, by server and process."""

    def publish(self, slot: int, drained: Drained, state: State, now: Seconds) -> None:
        """Write the record. ``drained``: what went through since the last call, which is told as that of the slot.
        Raises ``Unavailable``; what could not be written is so the next time."""
        seconds, self._told_at = max(1.0, now - self._told_at), now
        queues = [(*name, *figures) for name, figures in drained.queues.items()]
        topics = [(*name, figures[0]) for name, figures in drained.topics.items()]
        self._spans[slot] = Span(seconds, queues, topics)  # type: ignore[arg-type]
        self._spans = dict(sorted(self._spans.items())[-MOST_SPANS:])
        server = Server(
            server=self._server,
            process=os.getpid(),
            since=self._began,
            as_of=now,
            version=__version__,
            store=self._about.store,
            engine=self._about.engine,
            requests=round(drained.requests / seconds, 1),
            p95=drained.p95,
            max_waiters=self._about.max_waiters,
            max_streams=self._about.max_streams,
            **msgspec.structs.asdict(state),
        )
        self._documents.put(self._ref, encoded(server, self._spans), now, expires=now + LIFE)

    def hear(self, now: Seconds, went: Callable[[int, Span], object]) -> None:
        """Read all records; what was not heard before is given to ``went``. Raises ``Unavailable``."""
        page = self._documents.list("", KIND, "", "", MOST_PROCESSES, now)
        heard = {document.ref.name: _decoder.decode(document.value) for document in page.items}
        for name, record in heard.items():
            merged = self._merged.get(name, set())
            for slot, span in record.spans.items():
                if slot not in merged:
                    went(slot, span)
            self._merged[name] = set(record.spans)
        self._merged = {name: slots for name, slots in self._merged.items() if name in heard}
        self.servers = sorted((record.about for record in heard.values()), key=lambda one: (one.server, one.process))

    def leave(self, now: Seconds) -> None:
        """This process ends. Raises ``Unavailable``."""
        self._documents.delete(self._ref, now)


def encoded(server: Server, spans: Mapping[int, Span]) -> bytes:
    """A record of at most ``MOST_BYTES``: older spans are left out of one that would be larger, and then the queues and
    topics with the least are told as the rest of their projects."""
    kept, most = dict(spans), MOST_NAMES
    while len(value := msgspec.json.encode(Record(server, kept))) > MOST_BYTES and (len(kept) > 1 or most):
        if len(kept) > 1:
            del kept[min(kept)]
        else:
            most = most * 3 // 4
            kept = {slot: _folded(span, most) for slot, span in kept.items()}
    return value


def _folded(span: Span, most: int) -> Span:
    """The same with ``most`` names of each kind, and what the others have in all."""
    return Span(span.seconds, _first(span.queues, most), _first(span.topics, most))


def _first(rows: list[T], most: int) -> list[T]:
    """Those with the most, and the sum of the others of each project; of all projects, where these are many."""
    ranked = sorted(rows, key=lambda row: sum(row[2:]), reverse=True)
    rest: dict[tuple[str, str], tuple[int, ...]] = {}
    others = ranked[most:]
    single = len({row[0] for row in others}) <= max(1, most)
    for row in others:
        name = (row[0] if single else "", REST)
        rest[name] = tuple(map(sum, zip(row[2:], rest.get(name, (0,) * len(row[2:])), strict=True)))
    return [*ranked[:most], *[(*name, *figures) for name, figures in rest.items()]]  # type: ignore[list-item]
