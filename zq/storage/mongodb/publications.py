# SPDX-License-Identifier: Apache-2.0
"""Publishing to topics: one transaction for all that wait in this process (``grouping``), told to readers behind it.

The counter of a log is changed in it, so batches become visible in the order of their sequences, and who holds the
counter decides alone what falls off. That is done once for each eighth of what is kept, and only noted: ``removal``
gives the space back.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import uuid4

from zq.model import Once
from zq.storage.mongodb import layout, log
from zq.storage.mongodb.counting import bump
from zq.storage.mongodb.grouping import AT_LEAST, Groups
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.once import BEFORE_ALL, Attempt, remember, unless_known
from zq.storage.mongodb.port import Port, Session
from zq.topics import Entry, Keep

COUNTER: Final = {"k1": 1, "z1": 1, "x": 1, "k0": 1, "z0": 1}


class Publication(NamedTuple):
    """One caller's batch, at its moment."""

    key: QueueKey
    topic: str
    entries: Sequence[Entry]
    now: int
    keep: Keep
    once: Once | None = None

    @property
    def attempts(self) -> Sequence[Attempt]:
        """One, if it has a key."""
        return [Attempt(self.key, self.once, self.now)] if self.once else []

    @property
    def size(self) -> int:
        """Bytes of the bodies."""
        return sum(len(entry.body) for entry in self.entries)


class Publisher:
    """Publications of one process. ``tell`` is told of the stored documents of each log, in order, before their
    publishers are answered."""

    def __init__(self, port: Port, tell: Callable[[str, Sequence[Document]], None]) -> None:
        self._port = port
        self._tell = tell
        self._groups = Groups[Publication, int](port, self._store, _weight)

    def publish(self, publication: Publication) -> int:
        """The first sequence, when the batch is stored as durably as the write concern says."""
        return self._groups.ask(publication)

    def _store(self, publications: Sequence[Publication]) -> Sequence[int | Exception]:
        stored: list[Document] = []

        def work(session: Session) -> Sequence[int | Exception]:
            stored.clear()
            return unless_known(self._port, session, publications, int, partial(self._append, session, stored))

        def first() -> Document:
            return {field: one[field] for one in stored[:1] for field in ("_id", "s", "w")}

        answers = self._port.transaction(work, first)
        told: defaultdict[str, list[Document]] = defaultdict(list)
        for document in stored:
            told[document["s"]].append(document)
        for shard, documents in told.items():
            self._tell(log.project_of(shard), documents)
        return answers

    def _append(self, session: Session, stored: list[Document], publications: Sequence[Publication]) -> Sequence[int]:
        """Append the batches and note their documents; their first sequences."""
        by_log: defaultdict[QueueKey, list[Publication]] = defaultdict(list)
        for one in publications:
            by_log[one.key].append(one)
        counters = bump(self._port, session, {key: _step(its) for key, its in by_log.items()}, COUNTER)
        writer = uuid4().hex
        places = {key: _place(counters[key], its, writer) for key, its in by_log.items()}
        placed: list[tuple[Publication, log.Place]] = []
        for one in publications:
            place = places[one.key]
            placed.append((one, place))
            stored += log.documents(one.key, one.topic, one.entries, one.now, place)
            places[one.key] = log.Place(place.sequence + len(one.entries), place.before + one.size, writer)
        self._port.insert(stored, session)
        for key, (newest, place) in {one.key: (one, place) for one, place in placed}.items():
            Shortening(self._port, session, key, counters[key]).to(newest.keep, place)
        answered = [(attempt, place.sequence, BEFORE_ALL) for one, place in placed for attempt in one.attempts]
        if answered:
            remember(self._port, session, answered)
        return [place.sequence for _, place in placed]


class Shortening:
    """Lets the oldest batches of a log fall off, in the transaction that holds its counter."""

    def __init__(self, port: Port, session: Session, key: QueueKey, counter: Document) -> None:
        self._port = port
        self._session = session
        self._key = key
        self._counter = counter

    def to(self, keep: Keep, newest: log.Place) -> None:
        """Note what falls off, if it is time to look. ``newest``: where the newest batch is, which stays."""
        messages, size = self._counter["k1"], self._counter["z1"]
        seen = max(0, self._counter.get("k0", 0)), max(0, self._counter.get("z0", 0))
        if messages - seen[0] <= keep.messages * 9 // 8 and size - seen[1] <= keep.size * 9 // 8:
            return
        floors = {"k0": min(messages - keep.messages, newest.sequence - 1), "z0": min(size - keep.size, newest.before)}
        noted: Document = dict(floors)
        if fallen := self._last_of(floors, newest.sequence - 1):
            noted |= {"x": fallen, "g": fallen}
        self._port.update(
            [{"q": {"_id": self._key.counter, "s": self._key.shard}, "u": {"$set": noted}}], self._session
        )

    def _last_of(self, floors: Document, end: int) -> int:
        """The last sequence, up to ``end``, of what was published in front of the floors; 0 = there is nothing new.

        Batches stand in the order of both, so that halving finds it.
        """
        start, fallen = self._counter.get("x", 0) + 1, 0
        while start <= end:
            middle = (start + end) // 2
            behind = self._port.where(self._key, k={"$gte": middle, "$lte": end})
            fields = {"k": 1, "f": 1, "z": 1}
            found = self._port.find(
                behind, limit=1, sort={"k": 1}, hint=layout.OBSERVERS, fields=fields, session=self._session
            )
            if found and (found[0]["f"] <= floors["k0"] or found[0]["z"] < floors["z0"]):
                fallen = found[0]["k"]
                start = fallen + 1
            else:
                end = middle - 1
        return fallen


def _step(publications: Sequence[Publication]) -> Document:
    return {"$inc": {"k1": sum(len(one.entries) for one in publications), "z1": sum(one.size for one in publications)}}


def _place(counter: Document, publications: Sequence[Publication], writer: str) -> log.Place:
    """Where the first of the publications goes that the counter has counted."""
    step = _step(publications)["$inc"]
    return log.Place(counter["k1"] - step["k1"] + 1, counter["z1"] - step["z1"], writer)


def _weight(publication: Publication) -> int:
    return max(AT_LEAST, publication.size)
