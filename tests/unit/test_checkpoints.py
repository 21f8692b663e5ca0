# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and removals that are interrupted at any request: checkpoints stay complete, and no garbage remains."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from zq.errors import Unavailable
from zq.storage.object.checkpoints import (
    Checkpointer,
    CheckpointRules,
    Manifest,
    checkpoint_name,
    download,
    object_names,
)
from zq.storage.object.epochs import Head, Proof, RestorePoints, Span, log_name, read
from zq.storage.object.objects import Objects

KEEP = 100.0
# Records between two checkpoints.
STEP = 3


class Table(Objects):
    """An object store in memory whose server stops before one of its requests."""

    def __init__(self) -> None:
        self.there: dict[str, bytes] = {}
        self.left = -1

    def _ask(self) -> None:
        if self.left == 0:
            raise Unavailable
        self.left -= 1

    def put(self, name: str, value: bytes) -> bool:
        self._ask()
        self.there[name] = value
        return True

    def get(self, name: str) -> bytes | None:
        self._ask()
        return self.there.get(name)

    def exists(self, name: str) -> bool:
        return self.get(name) is not None

    def delete(self, name: str) -> None:
        self._ask()
        self.there.pop(name, None)


class Log:
    """A log that ships one record at a time."""

    by_position = False

    def __init__(self, objects: Table, epoch: int, position: int) -> None:
        self._objects = objects
        self._epoch = epoch
        self.acknowledged = position
        self.stored_bytes = 0

    def write(self, records: int) -> None:
        for _ in range(records):
            self.acknowledged += 1
            self._objects.there[log_name(self._epoch, self.acknowledged)] = b"record"

    def wait_for_cut(self, cut: int) -> int:
        return cut


class Database(NamedTuple):
    """A directory with a small file and two table files, one of which the previous checkpoint contains too."""

    log: Log
    name: str

    def snapshot(self, folder: Path) -> int:
        folder.mkdir()
        position = self.log.acknowledged
        for number in (position - STEP, position):
            (folder / f"{number}.sst").write_bytes(b"%s %d" % (self.name.encode(), number))
        (folder / "CURRENT").write_bytes(b"small")
        return position


class Owner:
    """An owner of the store during one epoch, until its server stops."""

    def __init__(self, objects: Table, folder: Path, epoch: int, clock: list[float]) -> None:
        self.epoch = epoch
        self._clock = clock
        kept: RestorePoints = read(objects, f"head/{epoch - 1}", Head) or Head()
        manifest = read(objects, checkpoint_name(kept.checkpoints[-1]), Manifest) if kept.checkpoints else None
        chain = [Span(each, max(positions(objects, each), default=0)) for each in range(1, epoch)]
        self.log = Log(objects, epoch, chain[-1].last if chain else 0)
        proof = Proof(objects, epoch, 1e9, lambda: 0.0)
        proof.check_fence()
        head = Head(removed=kept.removed, checkpoints=kept.checkpoints, unsettled=kept.unsettled)
        log: Any = self.log
        self.checkpointer = Checkpointer(
            *(objects, proof, log, Database(self.log, f"{epoch}"), folder / f"{epoch}"),
            *(head, chain, manifest, CheckpointRules(keep=KEEP), lambda: clock[0]),
        )

    def live(self, rounds: int) -> None:
        """Write records, make a checkpoint and remove old ones, in each round."""
        for _ in range(rounds):
            self._clock[0] += KEEP / 2
            self.log.write(STEP)
            self.checkpointer.make()
            self.checkpointer.remove()


def positions(objects: Table, epoch: int) -> list[int]:
    """Return the positions of an epoch's records that exist."""
    start = f"log/{epoch}/"
    return [int(name.removeprefix(start)) for name in objects.there if name.startswith(start)]


def whole(objects: Table, head: Head, folder: Path) -> None:
    """Assert that every checkpoint that the head names can be downloaded."""
    for mark in head.checkpoints:
        download(objects, mark, folder / checkpoint_name(mark).replace("/", "-"))


def superfluous(objects: Table, head: Head) -> Sequence[str]:
    """Return the objects of checkpoints that no checkpoint refers to."""
    manifests = [read(objects, checkpoint_name(mark), Manifest) for mark in head.checkpoints]
    named = {checkpoint_name(mark) for mark in head.checkpoints}
    named.update(name for manifest in manifests if manifest for name in object_names(manifest.files))
    return sorted(name for name in objects.there if name.startswith(("sst/", "checkpoint/")) and name not in named)


ROUNDS = 5


def test_a_server_that_ends_at_any_request_leaves_nothing_for_ever(tmp_path: Path) -> None:
    """The next server can restore each listed checkpoint, and removes what the first one left unfinished."""
    requests = 0
    while True:
        requests += 1
        objects, clock, folder = Table(), [1e9], tmp_path / f"{requests}"
        folder.mkdir()
        first = Owner(objects, folder, 1, clock)
        objects.left = requests
        try:
            first.live(ROUNDS)
        except Unavailable:
            ended = True
        else:
            ended = False
        objects.left = -1
        told = read(objects, "head/1", Head) or Head()
        (folder / "first").mkdir()
        whole(objects, told, folder / "first")
        second = Owner(objects, folder, 2, clock)
        second.live(1)
        head = second.checkpointer.head
        (folder / "second").mkdir()
        whole(objects, head, folder / "second")
        assert superfluous(objects, head) == [], f"left by a server that ended at request {requests}"
        assert head.unsettled == []
        if not ended:
            break
    assert requests > 40
    assert len(told.checkpoints) < ROUNDS, "some were removed"


def test_a_checkpoint_that_fails_is_made_later(tmp_path: Path) -> None:
    """Objects of the failed checkpoint are removed after the same server's next one, unless that one uses them."""
    objects, clock = Table(), [1e9]
    owner = Owner(objects, tmp_path, 1, clock)
    owner.live(1)
    owner.log.write(STEP)
    objects.left = 2  # before the new table file
    with pytest.raises(Unavailable):
        owner.checkpointer.make()
    objects.left = -1
    assert owner.checkpointer.head.unsettled
    owner.live(1)
    assert superfluous(objects, owner.checkpointer.head) == []
    assert owner.checkpointer.head.unsettled == []
