# SPDX-License-Identifier: Apache-2.0
"""The part of a salvage that is about keys, fences, stages, producers and documents."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from zq.storage.rocksdb import due, layout, records
from zq.storage.rocksdb.findings import TOP
from zq.storage.rocksdb.salvage_commits import OpenCommits

if TYPE_CHECKING:
    from zq.storage.rocksdb.salvage import Salvage


def named(key: bytes) -> str:
    """What a key of ``stages`` and ``producers`` names, for people."""
    prefix = layout.prefix_of(key)
    name = key[len(prefix) : -9].decode("utf-8", "replace")
    return f"{name} of project {layout.project_of(prefix)!r}"


class NamedThings:
    """``owners``: numbers of the histories and logs that keys go by; ``producers``: keys of those that were copied."""

    def __init__(self, salvage: "Salvage", owners: set[bytes], commits: OpenCommits) -> None:
        self._salvage = salvage
        self._rescue = salvage.rescue
        self._survey = salvage.rescue.survey
        self._owners = owners
        self._commits = commits
        self.producers: set[bytes] = set()

    def run(self) -> None:
        self._copy_keys()
        self._copy_stages()
        self._copy_producers()
        for key, value in self._rescue.entries("fences"):
            if value is not None:
                self._salvage.save("fences", [("fences", key, value)])
        for key, value in self._rescue.entries("records", self._due("records")):
            if value is None:
                self._salvage.lost.append(f"The document {key!r}")
            else:
                self._salvage.save("documents", records.writes(key, records.decode(value)))

    def _due(self, family: str) -> Callable[[], Iterator[bytes]]:
        """Keys of a family that are to expire."""

        def keys() -> Iterator[bytes]:
            for entry, _ in self._survey.scan("due", b"", TOP):
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
                told = key[8:-9].decode("utf-8", "replace")
                self._salvage.lost.append(f"The Idempotency-Key {told}: a repeat would be done again")
            else:
                self._salvage.save("keys", due.writes("keys", key, value, due.end_of(key)))

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
                self._salvage.top = max(self._salvage.top, stage.number)
                number = layout.number.pack(stage.number)
                if sum(1 for _ in self._staged(number)) == stage.count:
                    self._salvage.save("stages", due.writes("stages", key, value, due.end_of(key), number))
                    for place, staged in self._staged(number):
                        self._salvage.save("staged messages", [("staged", place, staged)])
                    continue
            self._salvage.lost.append(f"The stage {named(key)}, which must be staged again")

    def _staged(self, number: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._survey.scan("staged", number, layout.after(number))
