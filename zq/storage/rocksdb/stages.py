# SPDX-License-Identifier: Apache-2.0
"""Stages: messages that nobody sees until a commit publishes them. The caller holds the stage's name."""

from collections.abc import Iterator, Sequence

from zq.errors import StageFull
from zq.model import Draft
from zq.storage.rocksdb import due, layout
from zq.storage.rocksdb.layout import Stage, Staged
from zq.storage.rocksdb.port import Store, Write
from zq.storage.rocksdb.readable import Readable
from zq.storage.rocksdb.registry import Registry


def prefix(project: str, stage: str) -> bytes:
    """Where the stage's key begins; its end follows."""
    return layout.ended(layout.project_prefix(project), stage)


def name(prefix: bytes) -> bytes:
    """What to hold while the stage is used."""
    return b"stage " + prefix


def find(store: Store, prefix: bytes, now: int) -> tuple[bytes, Stage] | None:
    """The stage and its key, if it lives."""
    found = due.living(store, "stages", prefix, now)
    return None if found is None else (found[0], layout.decode_stage(found[1]))


def open_until(store: Store, registry: Registry, prefix: bytes, now: int, expires: int) -> tuple[bytes, Stage]:
    """The stage and its key; a new one, which nothing is written of yet, if none lives."""
    return find(store, prefix, now) or (prefix + layout.number.pack(expires), Stage(registry.new_number()))


def addition(key: bytes, stage: Stage, queue: str, drafts: Sequence[Draft], most: tuple[int, int]) -> list[Write]:
    """Drafts for a queue put behind what is staged; ``most``: bytes and messages. Raises ``StageFull``."""
    size = stage.size + sum(len(draft.body) for draft in drafts)
    grown = Stage(stage.number, stage.count + len(drafts), size)
    if size > most[0] or grown.count > most[1]:
        raise StageFull("The stage would hold more than it may.")
    writes = due.writes("stages", key, layout.encode(grown), due.end_of(key), layout.number.pack(stage.number))
    for index, draft in enumerate(drafts, stage.count):
        writes.append(("staged", layout.pair.pack(stage.number, index), layout.encode(Staged(queue, draft))))
    return writes


def messages(store: Readable, stage: Stage) -> Iterator[Staged]:
    """What is staged, in the order of staging."""
    bounds = layout.number.pack(stage.number), layout.number.pack(stage.number + 1)
    return (layout.decode_staged(value) for _, value in store.scan("staged", *bounds))


def item(value: bytes) -> Staged:
    """A staged message."""
    return layout.decode_staged(value)


def removal(key: bytes, stage: Stage) -> list[Write]:
    """Forget a stage; the sweeper gives the space of its messages back."""
    dropped = layout.DROPPED + layout.number.pack(stage.number)
    return [*due.traces("stages", key, due.end_of(key)), ("default", dropped, b"")]


def removal_of_all(store: Store, prefix: bytes) -> list[Write]:
    """Forget every stage of this name, the living one and what expired."""
    found = store.scan("stages", prefix, layout.after(prefix))
    return [write for key, value in found for write in removal(key, layout.decode_stage(value))]
