# SPDX-License-Identifier: Apache-2.0
"""The part of a salvage that is about commits: open ones, stages, producers, fences; and keys and documents.

A slice takes out of a stage what it publishes, in one write: all that still lies there has not been published. What
claims held stays reserved, so that it is not handed out again; of that, what is lost was to be deleted.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from zq.storage.ordered import documents, due, layout, stages
from zq.storage.ordered.layout import ADVANCED, COMMIT, Batch
from zq.storage.ordered.salvage_copy import Copy
from zq.storage.ordered.stages import OpenCommit, StageRest
from zq.storage.ordered.store import TOP

# Milliseconds for which a producer is remembered of which only the open commit is left: the default of
# ``producer_ttl``.
REMEMBERED: Final = 30 * 86_400_000
# Queues that one sentence names at most.
SHOWN: Final = 5
UNKNOWN: Final = (
    "Commits that were open, if there were any: what they were to delete is handed out again, and what they were to "
    "publish is missing"
)


def described(producer: bytes) -> str:
    """A producer for people."""
    prefix = layout.prefix_of(producer)
    return f"{producer[len(prefix) : -1].decode('utf-8', 'replace')} of project {layout.project_of(prefix)!r}"


class OpenCommits:
    """``reserved``: sequences that are to be deleted, by the numbers of their queues, as ``unfinished.reserved``."""

    def __init__(self, salvage: Copy) -> None:
        self._salvage = salvage
        self._rescue = salvage.rescue
        self._open: dict[bytes, OpenCommit] = {}
        """By the key of the producer."""
        self.reserved: defaultdict[int, set[int]] = defaultdict(set)
        for key, value in salvage.rescue.entries("default"):
            if value is not None and key.startswith(COMMIT):
                self._open[key[len(COMMIT) :]] = stages.decode_commit(value)
        for commit in self._open.values():
            for part in commit.reserved:
                self.reserved[part.number].update(part.sequences)
            numbers = [part.number for part in commit.reserved] + [rest.number for rest in commit.rests]
            salvage.raise_top(*numbers)
        self.stages = {rest.number for commit in self._open.values() for rest in commit.rests}
        """Numbers of the stages that they have taken."""

    def batch(self, producer: bytes) -> Batch | None:
        """The producer's last batch, as far as its open commit knows it."""
        commit = self._open.get(producer)
        return None if commit is None else Batch(commit.batch, commit.published, commit.deleted)

    def copy(self, queues: set[bytes], producers: set[bytes]) -> None:
        """Carry them over. ``queues``: the numbers that are in the new store, ``producers``: the keys."""
        for producer, commit in self._open.items():
            commit.reserved = [part for part in commit.reserved if layout.number.pack(part.number) in queues]
            rests = (self._copy_rest(producer, rest) for rest in commit.rests)
            commit.rests = [rest for rest in rests if rest.at < rest.end]
            family, key, value = stages.commit_write(producer, commit)
            if value is not None:
                self._salvage.save("open commits", [(family, key, value)])
            if producer not in producers and self._rescue.gaps("producers"):
                self._remember(producer)
        if producers and self._rescue.gaps("default").overlap(COMMIT, layout.after(COMMIT)):
            self._salvage.lost.append(UNKNOWN)
            self._report_orphans()

    def _copy_rest(self, producer: bytes, rest: StageRest) -> StageRest:
        """What is left of it; messages stand at its end, without what is lost between them."""
        number = layout.number.pack(rest.number)
        indexes = [layout.pair.unpack(key)[1] for key, _ in self._staged(number)]
        missing = sorted(set(range(rest.at, rest.end)).difference(indexes))
        if missing:
            self._salvage.lost.append(
                f"{len(missing)} messages that producer {described(producer)} has committed and nobody had seen yet: "
                f"of {rest.end} in a stage numbers {_ranges(missing)}, from 0"
            )
        begin = max(0, rest.end - len(indexes))
        size = 0
        for index, (_, value) in enumerate(self._staged(number), begin):
            size += layout.decode_staged(value).draft.size
            self._salvage.save("staged messages", [("staged", layout.pair.pack(rest.number, index), value)])
        return StageRest(rest.number, begin, begin + len(indexes), size)

    def _remember(self, producer: bytes) -> None:
        """Put the batch of a producer into the new store, so that a repeat is not done again."""
        expires = self._salvage.now + REMEMBERED
        key, value = producer + layout.number.pack(expires), layout.encode(self.batch(producer))
        self._salvage.save("producers", due.writes("producers", key, value, expires))

    def _report_orphans(self) -> None:
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
            self._salvage.raise_top(layout.number.unpack(number)[0])
            self._salvage.lost.append(
                f"{queues.total()} staged messages for queues {names}, of a commit or a stage that is not known"
            )

    def _scan(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        return self._rescue.scan(family, b"", TOP)

    def _staged(self, number: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._rescue.scan("staged", number, layout.after(number))


def _ranges(numbers: list[int]) -> str:
    """Rising numbers, shortened: 1-3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def named(key: bytes) -> str:
    """What a key of ``stages`` and ``producers`` names, for people."""
    prefix = layout.prefix_of(key)
    name = key[len(prefix) : -9].decode("utf-8", "replace")
    return f"{name} of project {layout.project_of(prefix)!r}"


class NamedThings:
    """``owners``: numbers of the histories and logs that keys go by; ``producers``: keys of those that were copied."""

    def __init__(self, salvage: Copy, owners: set[bytes], commits: OpenCommits) -> None:
        self._salvage = salvage
        self._rescue = salvage.rescue
        self._owners = owners
        self._commits = commits
        self.producers: set[bytes] = set()
        self.kept: Counter[bytes] = Counter()
        """Bytes that answers count, by the numbers of the owners."""

    def run(self) -> None:
        self._copy_keys()
        self._copy_stages()
        self._copy_producers()
        for key, value in self._rescue.entries("fences"):
            if value is not None:
                self._salvage.save("fences", [("fences", key, value)])
        advanced = self._rescue.scan("default", ADVANCED, layout.after(ADVANCED))
        self._salvage.write(("default", key, value) for key, value in advanced)
        for key, value in self._rescue.entries("records", self._due("records")):
            if value is None:
                self._salvage.lost.append(f"The document {key!r}")
            else:
                self._salvage.save("records", documents.writes(key, documents.decode(value)))

    def _due(self, family: str) -> Callable[[], Iterator[bytes]]:
        """Keys of a family that are to expire."""

        def keys() -> Iterator[bytes]:
            for entry, _ in self._rescue.scan("due", b"", TOP):
                kind, key = due.named(entry)
                if kind == family:
                    yield key

        return keys

    def _copy_keys(self) -> None:
        for key, value in self._rescue.entries("keys", self._due("keys")):
            if key[:8] in self._salvage.dropped:
                continue
            if key[:8] not in self._owners:
                self._salvage.strays[f"Idempotency-Keys of number {key[:8].hex()}"] += 1
            elif value is None:
                name = key[8:-9].decode("utf-8", "replace")
                self._salvage.lost.append(f"The Idempotency-Key {name}: a repeat would be done again")
            else:
                size = layout.decode_known(value).size
                self.kept[key[:8]] += size
                self._salvage.save("keys", due.writes("keys", key, value, due.end_of(key), due.size_note(size)))

    def _copy_producers(self) -> None:
        """The open commit of a producer, if it has one, knows its batch too."""
        for key, value in self._rescue.entries("producers", self._due("producers")):
            batch = self._commits.batch(key[:-8])
            if value is None and batch is not None:
                value = layout.encode(batch)
            if value is None:
                self._salvage.lost.append(f"The last batch of producer {named(key)}: a repeat would be done again")
            else:
                self.producers.add(key[:-8])
                self._salvage.save("producers", due.writes("producers", key, value, due.end_of(key)))

    def _copy_stages(self) -> None:
        """A stage is whole or lost: a commit would publish a part of it as if it were all.

        If the log of writes is damaged, one may be here that an open commit has taken: it is that one's.
        """
        for key, value in self._rescue.entries("stages", self._due("stages")):
            stage = None if value is None else layout.decode_stage(value)
            if stage is not None and value is not None:
                if stage.number in self._commits.stages:
                    continue
                self._salvage.raise_top(stage.number)
                number = layout.number.pack(stage.number)
                if sum(1 for _ in self._staged(number)) == stage.count:
                    self._salvage.save("stages", due.writes("stages", key, value, due.end_of(key), number))
                    for place, staged in self._staged(number):
                        self._salvage.save("staged messages", [("staged", place, staged)])
                    continue
            self._salvage.lost.append(f"The stage {named(key)}, which must be staged again")

    def _staged(self, number: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._rescue.scan("staged", number, layout.after(number))
