# SPDX-License-Identifier: Apache-2.0
"""A new store of all that can be read of a damaged one; what cannot is told.

Records are copied, and everything that leads to them is made anew, so that the new store agrees with itself. What
nobody reaches any more, of purged and deleted queues, stays behind. Counters never go back.
"""

import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from zq.errors import StartRefused, StoreDamaged
from zq.measures import Salvaged
from zq.storage.rocksdb import batches, guard, layout
from zq.storage.rocksdb.integrity import Integrity
from zq.storage.rocksdb.opening import hold_lock
from zq.storage.rocksdb.port import Store, Write
from zq.storage.rocksdb.rescue import Rescue
from zq.storage.rocksdb.salvage_commits import OpenCommits
from zq.storage.rocksdb.salvage_named import NamedThings
from zq.storage.rocksdb.salvage_queues import Queues
from zq.storage.rocksdb.salvage_topics import Topics
from zq.storage.rocksdb.survey import Survey

LOST_NUMBERS: Final = 1_000_000
"""By how much the next number is above all that are known, if the last one is not."""
FULL: Final = 4 << 20
"""Bytes of one write to the new store."""


class Salvage:
    """One salvage under way: what the parts have in common."""

    def __init__(self, rescue: Rescue, store: Store, now: int) -> None:
        self.rescue = rescue
        self.now = now
        self.saved: Counter[str] = Counter()
        self.lost: list[str] = []
        self.top = 0
        """The largest number of a queue, a history, a log or a stage."""
        self.starts = 0
        self.strays: Counter[str] = Counter()
        """Things whose owner is not known, by kind."""
        notes = rescue.survey.scan("default", layout.DROPPED, layout.after(layout.DROPPED))
        self.dropped = {key[len(layout.DROPPED) :] for key, _ in notes}
        """Numbers of histories and stages that nobody owns any more."""
        self._store = store
        self._writes: list[Write] = []
        self._size = 0

    def write(self, writes: Iterable[Write]) -> None:
        """Put something into the new store, with what was put before."""
        for write in writes:
            self._writes.append(write)
            self._size += len(write[1]) + len(write[2] or b"")
        if self._size >= FULL:
            self.flush()

    def save(self, kind: str, writes: Iterable[Write]) -> None:
        """The same of a thing that is counted."""
        self.saved[kind] += 1
        self.write(writes)

    def flush(self) -> None:
        self._store.write(self._writes)
        self._writes, self._size = [], 0

    def noted(self, key: bytes) -> int | None:
        """A number in ``default``; 0 if it is not there, None if that cannot be read."""
        try:
            return int.from_bytes(self.rescue.get("default", key) or b"")
        except StoreDamaged:
            self.lost.append(f"The number {key.decode()!r} of the store; a safe one takes its place")
            return None

    def run(self) -> None:
        """Copy everything."""
        guard.check_readable(self.rescue.survey)
        starts, numbers, clock = (self.noted(key) for key in (b"starts", b"numbers", b"clock"))
        topics = Topics(self)
        self.starts = starts if starts is not None else _latest_start(self.rescue)
        commits = OpenCommits(self)
        queues = Queues(self, commits.pinned)
        queues.run()
        topics.run()
        named = NamedThings(self, queues.histories | topics.numbers, commits)
        named.run()
        commits.copy(queues.numbers, named.producers)
        self.lost += (f"{count} {kind}, whose owner is lost" for kind, count in self.strays.items() if count)
        given = numbers if numbers is not None else self.top + LOST_NUMBERS
        for key, value in (
            (b"version", layout.VERSION),
            (b"starts", layout.number.pack(self.starts)),
            (b"numbers", layout.number.pack(max(given, self.top))),
            (b"clock", layout.number.pack(self.now if clock is None else clock)),
        ):
            self.write([("default", key, value)])
        self.flush()


def salvage(path: Path, to: Path, now: int) -> Salvaged:
    """Make a new store in ``to``; ``now`` in ms.

    Raises ``StartRefused`` if that is there, or the old one is not, or is in use.
    """
    unfinished = to.with_name(f"{to.name}.unfinished")
    for target in (to, unfinished):
        if target.exists():
            raise StartRefused(f"{target} is there already: a salvage makes a new store. Name another, or remove it.")
    if not path.is_dir() or (not any(path.glob("*.sst")) and not any(path.glob("*.log"))):
        raise StartRefused(f"There is no store in {path}.")
    hold_lock(path).close()  # said before anything is made
    try:
        unfinished.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise StartRefused(f"{unfinished} cannot be made: {error.strerror}.") from error
    try:
        salvaged = _salvage(path, unfinished, now)
        (unfinished / "store").rename(to)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return salvaged


def _salvage(path: Path, folder: Path, now: int) -> Salvaged:
    rescue = Rescue(path, folder)
    try:
        store = Store(folder / "store", layout.FAMILIES, "never", 0)
        try:
            salvage = Salvage(rescue, store, now)
            salvage.run()
            store.sync()
        finally:
            store.close()
        damage = [*rescue.survey.notes, *map(str, rescue.survey.gaps())]
    finally:
        rescue.close()
    made = Survey(folder / "store")
    try:
        report = Integrity(made, now).report()
    finally:
        made.close()
    return Salvaged(dict(sorted(salvage.saved.items())), salvage.lost, damage, report)


def _latest_start(rescue: Rescue) -> int:
    """The largest start that a counter was written by, and one more."""
    tallies = (layout.decode_tally(value).start for _, value in rescue.entries("tallies") if value is not None)
    logs = (batches.decode_log(value).start for _, value in rescue.entries("logs") if value is not None)
    return max([0, *tallies, *logs]) + 1
