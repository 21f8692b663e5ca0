# SPDX-License-Identifier: Apache-2.0
"""The part of a salvage that is about open commits: decided ones, which the new store finishes after its start.

A slice takes out of a stage what it publishes, in one write: all that still lies there has not been published. What
claims held stays pinned, so that it is not handed out again; of that, what is lost was to be deleted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from zq.storage.rocksdb import due, layout, unfinished
from zq.storage.rocksdb.findings import TOP
from zq.storage.rocksdb.layout import COMMIT, Batch
from zq.storage.rocksdb.unfinished import Shelf, Unfinished

if TYPE_CHECKING:
    from zq.storage.rocksdb.salvage import Salvage

REMEMBERED: Final = 30 * 86_400_000
"""Milliseconds for which a producer is remembered of which only the open commit is left: the default of
``producer_ttl``."""
SHOWN: Final = 5
"""Queues that one sentence names at most."""
UNKNOWN: Final = (
    "Commits that were open, if there were any: what they were to delete is handed out again, and what they were to "
    "publish is missing"
)


def told(producer: bytes) -> str:
    """A producer for people."""
    prefix = layout.prefix_of(producer)
    return f"{producer[len(prefix) : -1].decode('utf-8', 'replace')} of project {layout.project_of(prefix)!r}"


class OpenCommits:
    """``pinned``: sequences that are to be deleted, by the numbers of their queues, as ``unfinished.pinned``."""

    def __init__(self, salvage: "Salvage") -> None:
        self._salvage = salvage
        self._survey = salvage.rescue.survey
        self._open: dict[bytes, Unfinished] = {}
        """By the key of the producer."""
        self.pinned: defaultdict[int, set[int]] = defaultdict(set)
        for key, value in salvage.rescue.entries("default"):
            if value is not None and key.startswith(COMMIT):
                self._open[key[len(COMMIT) :]] = unfinished.decode(value)
        for commit in self._open.values():
            for part in commit.pinned:
                self.pinned[part.number].update(part.sequences)
            numbers = [part.number for part in commit.pinned] + [shelf.number for shelf in commit.shelves]
            salvage.top = max([salvage.top, *numbers])
        self.stages = {shelf.number for commit in self._open.values() for shelf in commit.shelves}
        """Numbers of the stages that they have taken."""

    def batch(self, producer: bytes) -> Batch | None:
        """The producer's last batch, as far as its open commit knows it."""
        commit = self._open.get(producer)
        return None if commit is None else Batch(commit.batch, commit.published, commit.deleted)

    def copy(self, queues: set[bytes], producers: set[bytes]) -> None:
        """Carry them over. ``queues``: the numbers that are in the new store, ``producers``: the keys."""
        for producer, commit in self._open.items():
            commit.pinned = [part for part in commit.pinned if layout.number.pack(part.number) in queues]
            shelves = (self._copy_shelf(producer, shelf) for shelf in commit.shelves)
            commit.shelves = [shelf for shelf in shelves if shelf.at < shelf.end]
            family, key, value = unfinished.write(producer, commit)
            if value is not None:
                self._salvage.save("open commits", [(family, key, value)])
            if producer not in producers and self._survey.gaps("producers"):
                self._remember(producer)
        hidden = (
            gap for gap in self._survey.gaps("default") if gap.lower < layout.after(COMMIT) and gap.upper > COMMIT
        )
        if producers and any(hidden):
            self._salvage.lost.append(UNKNOWN)
            self._tell_orphans()

    def _copy_shelf(self, producer: bytes, shelf: Shelf) -> Shelf:
        """What is left of it; messages stand at its end, without what is lost between them."""
        number = layout.number.pack(shelf.number)
        indexes = [layout.pair.unpack(key)[1] for key, _ in self._staged(number)]
        missing = sorted(set(range(shelf.at, shelf.end)).difference(indexes))
        if missing:
            self._salvage.lost.append(
                f"{len(missing)} messages that producer {told(producer)} has committed and nobody had seen yet: of "
                f"{shelf.end} in a stage numbers {_ranges(missing)}, from 0"
            )
        begin = max(0, shelf.end - len(indexes))
        for index, (_, value) in enumerate(self._staged(number), begin):
            self._salvage.save("staged messages", [("staged", layout.pair.pack(shelf.number, index), value)])
        return Shelf(shelf.number, begin, begin + len(indexes))

    def _remember(self, producer: bytes) -> None:
        """Put the batch of a producer into the new store, so that a repeat is not done again."""
        expires = self._salvage.now + REMEMBERED
        key, value = producer + layout.number.pack(expires), layout.encode(self.batch(producer))
        self._salvage.save("producers", due.writes("producers", key, value, expires))

    def _tell_orphans(self) -> None:
        """What is staged and belongs to nothing that is known."""
        owned = {layout.number.pack(number) for number in self.stages} | self._salvage.dropped
        owned |= {layout.number.pack(layout.decode_stage(value).number) for _, value in self._scan("stages")}
        owned |= {note for key, note in self._scan("due") if due.named(key)[0] == "stages"}
        orphans: defaultdict[bytes, Counter[str]] = defaultdict(Counter)
        for key, value in self._scan("staged"):
            if key[:8] not in owned:
                orphans[key[:8]][layout.decode_staged(value).queue] += 1
        for number, queues in orphans.items():
            names = ", ".join(sorted(queues)[:SHOWN])
            self._salvage.top = max(self._salvage.top, layout.number.unpack(number)[0])
            self._salvage.lost.append(
                f"{queues.total()} staged messages for queues {names}, of a commit or a stage that is not known"
            )

    def _scan(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        return self._survey.scan(family, b"", TOP)

    def _staged(self, number: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._survey.scan("staged", number, layout.after(number))


def _ranges(numbers: list[int]) -> str:
    """Rising numbers, shortened: 1-3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
