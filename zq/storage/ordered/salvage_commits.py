# SPDX-License-Identifier: Apache-2.0
"""The salvage of commits, stages, producers, fences, idempotency keys and documents from a damaged store.

A stage is a set of messages that a producer has stored and that a commit publishes. A commit publishes a message and
removes it from the stage in one write, so no message in a stage has been published yet.

An open commit is recorded but not completed. Messages that an open commit will delete stay reserved, so that they are
not delivered again.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from zq.storage.ordered import due, layout, stages
from zq.storage.ordered.entries import record_entries
from zq.storage.ordered.layout import ADVANCED, COMMIT, Batch
from zq.storage.ordered.salvage_copy import SalvageState
from zq.storage.ordered.stages import OpenCommit, UnpublishedRange
from zq.storage.ordered.store import LAST_KEY

# TTL in milliseconds of a producer whose record is lost: the default of ``producer_ttl``.
PRODUCER_TTL_MS: Final = 30 * 86_400_000
# Maximum number of queues that one entry of the list of losses names.
MAX_SHOWN: Final = 5
UNKNOWN: Final = (
    "Unfinished commits, if there were any, are lost: messages that they had yet to delete are delivered again, and "
    "messages that they had yet to publish are missing"
)


def describe_producer(producer: bytes) -> str:
    """Return the producer's name and project for the list of losses."""
    prefix = layout.extract_project_prefix(producer)
    return f"{producer[len(prefix) : -1].decode('utf-8', 'replace')} of project {layout.decode_project(prefix)!r}"


class CommitSalvage:
    """A part of the salvage of a damaged store: copies open commits (recorded but not completed) to the new store."""

    def __init__(self, salvage: SalvageState) -> None:
        self._salvage = salvage
        self._source = salvage.source
        self._open: dict[bytes, OpenCommit] = {}
        """The open commits, by producer key."""
        self.reserved: defaultdict[int, set[int]] = defaultdict(set)
        for key, value in salvage.source.entries("default"):
            if value is not None and key.startswith(COMMIT):
                self._open[key[len(COMMIT) :]] = stages.decode_commit(value)
        for commit in self._open.values():
            for part in commit.reserved:
                self.reserved[part.number].update(part.sequences)
            numbers = [part.number for part in commit.reserved] + [rest.number for rest in commit.rests]
            salvage.raise_top(*numbers)
        self.stages = {rest.number for commit in self._open.values() for rest in commit.rests}
        """The numbers of the stages that open commits own."""

    def batch(self, producer: bytes) -> Batch | None:
        """Return the producer's last batch from its open commit, or None if it has no open commit.

        An open commit is recorded but not completed. ``producer`` is the key of the producer's record without the
        expiry.
        """
        commit = self._open.get(producer)
        return None if commit is None else Batch(commit.batch, commit.published, commit.deleted)

    def copy(self, queues: set[bytes], producers: set[bytes]) -> None:
        """Copy the open commits (recorded but not completed) to the new store.

        ``queues`` has the numbers of the queues in the new store. ``producers`` has the keys of the producers' records
        in the new store, without the expiry at the end of each key.
        """
        for producer, commit in self._open.items():
            commit.reserved = [part for part in commit.reserved if layout.number.pack(part.number) in queues]
            rests = (self._copy_rest(producer, rest) for rest in commit.rests)
            commit.rests = [rest for rest in rests if rest.at < rest.end]
            family, key, value = stages.commit_write(producer, commit)
            if value is not None:
                self._salvage.save("open commits", [(family, key, value)])
            if producer not in producers and self._source.gaps("producers"):
                self._remember(producer)
        if producers and self._source.gaps("default").overlap(COMMIT, layout.prefix_end(COMMIT)):
            self._salvage.lost.append(UNKNOWN)
            self._report_orphans()

    def _copy_rest(self, producer: bytes, rest: UnpublishedRange) -> UnpublishedRange:
        """Copy the readable messages of a partly published stage, renumbered without gaps. Return the new range."""
        number = layout.number.pack(rest.number)
        indexes = [layout.pair.unpack(key)[1] for key, _ in self._staged(number)]
        missing = sorted(set(range(rest.at, rest.end)).difference(indexes))
        if missing:
            self._salvage.lost.append(
                f"{len(missing)} messages that producer {describe_producer(producer)} committed are lost and cannot be "
                f"published: {_ranges(missing)} of the {rest.end} messages in a stage, counted from 0"
            )
        begin = max(0, rest.end - len(indexes))
        size = 0
        for index, (_, value) in enumerate(self._staged(number), begin):
            size += layout.decode_staged(value).draft.size
            self._salvage.save("staged messages", [("staged", layout.pair.pack(rest.number, index), value)])
        return UnpublishedRange(rest.number, begin, begin + len(indexes), size)

    def _remember(self, producer: bytes) -> None:
        """Restore the record of a producer from its open commit (recorded but not completed).

        Without this record, a repeated commit would take effect again.
        """
        expires = self._salvage.now + PRODUCER_TTL_MS
        key, value = producer + layout.number.pack(expires), layout.encode(self.batch(producer))
        self._salvage.save("producers", record_entries("producers", key, value))

    def _report_orphans(self) -> None:
        owned = {layout.number.pack(number) for number in self.stages} | self._salvage.dropped
        owned |= {layout.number.pack(layout.decode_stage(value).number) for _, value in self._scan("stages")}
        owned |= {note for key, note in self._scan("due") if due.parse_entry(key)[0] == "stages"}
        orphans: defaultdict[bytes, Counter[str]] = defaultdict(Counter)
        for key, value in self._scan("staged"):
            if key[:8] not in owned:
                orphans[key[:8]][layout.decode_staged(value).queue] += 1
        for number, queues in orphans.items():
            names = ", ".join(sorted(queues)[:MAX_SHOWN])
            self._salvage.raise_top(layout.number.unpack(number)[0])
            self._salvage.lost.append(
                f"{queues.total()} staged messages for queues {names} are lost: their commit or stage is unknown"
            )

    def _scan(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        return self._source.scan(family, b"", LAST_KEY)

    def _staged(self, number: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._source.scan("staged", number, layout.prefix_end(number))


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers as ranges, for example ``1-3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def describe_key(key: bytes) -> str:
    """Return the name and project in a key of ``stages`` or ``producers``, as text for the list of losses."""
    prefix = layout.extract_project_prefix(key)
    name = key[len(prefix) : -9].decode("utf-8", "replace")
    return f"{name} of project {layout.decode_project(prefix)!r}"


class NamedRecordSalvage:
    """A part of the salvage of a damaged store: copies idempotency keys, stages, producers, fences and documents."""

    def __init__(self, salvage: SalvageState, owners: set[bytes], commits: CommitSalvage) -> None:
        self._salvage = salvage
        self._source = salvage.source
        self._owners = owners
        self._commits = commits
        self.producers: set[bytes] = set()
        self.kept: Counter[bytes] = Counter()
        """The bytes of idempotency results, by the number of the owner."""

    def run(self) -> None:
        self._copy_keys()
        self._copy_stages()
        self._copy_producers()
        for key, value in self._source.entries("fences"):
            if value is not None:
                self._salvage.save("fences", [("fences", key, value)])
        advanced = self._source.scan("default", ADVANCED, layout.prefix_end(ADVANCED))
        self._salvage.write(("default", key, value) for key, value in advanced)
        for key, value in self._source.entries("records", self._due("records")):
            if value is None:
                self._salvage.lost.append(f"The document {key!r} is lost")
            else:
                self._salvage.save("records", record_entries("records", key, value))

    def _due(self, family: str) -> Callable[[], Iterator[bytes]]:
        def keys() -> Iterator[bytes]:
            for entry, _ in self._source.scan("due", b"", LAST_KEY):
                kind, key = due.parse_entry(entry)
                if kind == family:
                    yield key

        return keys

    def _copy_keys(self) -> None:
        for key, value in self._source.entries("keys", self._due("keys")):
            if key[:8] in self._salvage.dropped:
                continue
            if key[:8] not in self._owners:
                self._salvage.strays[f"Idempotency-Keys of number {key[:8].hex()}"] += 1
            elif value is None:
                name = key[8:-9].decode("utf-8", "replace")
                self._salvage.lost.append(f"The Idempotency-Key {name} is lost: a repeated request takes effect again")
            else:
                self.kept[key[:8]] += layout.decode_known(value).size
                self._salvage.save("keys", record_entries("keys", key, value))

    def _copy_producers(self) -> None:
        for key, value in self._source.entries("producers", self._due("producers")):
            batch = self._commits.batch(key[:-8])
            if value is None and batch is not None:
                value = layout.encode(batch)
            if value is None:
                self._salvage.lost.append(
                    f"The last batch of producer {describe_key(key)} is lost: a repeated commit takes effect again"
                )
            else:
                self.producers.add(key[:-8])
                self._salvage.save("producers", record_entries("producers", key, value))

    def _copy_stages(self) -> None:
        """Copy the complete stages.

        Drop each incomplete stage, because a commit would publish only a part of its messages.

        Skip the stages that belong to an open commit, which ``CommitSalvage`` copies. Such a stage has no entry in
        ``stages`` unless the write-ahead log is damaged.
        """
        for key, value in self._source.entries("stages", self._due("stages")):
            stage = None if value is None else layout.decode_stage(value)
            if stage is not None and value is not None:
                if stage.number in self._commits.stages:
                    continue
                self._salvage.raise_top(stage.number)
                number = layout.number.pack(stage.number)
                if sum(1 for _ in self._staged(number)) == stage.count:
                    self._salvage.save("stages", record_entries("stages", key, value))
                    for place, staged in self._staged(number):
                        self._salvage.save("staged messages", [("staged", place, staged)])
                    continue
            self._salvage.lost.append(f"The stage {describe_key(key)} is lost: stage its messages again")

    def _staged(self, number: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._source.scan("staged", number, layout.prefix_end(number))
