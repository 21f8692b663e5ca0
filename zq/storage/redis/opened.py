# SPDX-License-Identifier: Apache-2.0
"""Commits that are decided and not done. Their lists, of claims first and then of stages, are worked off one by one.

Whoever is about to open a commit enters it at ``OPEN_KEY`` before: that is in another slot of a cluster, so it cannot
be the same step. An entry that is of no open commit is struck off after a while.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, msgpack

from zq.model import Commit, QueueRef, Unfinished
from zq.storage.redis import layout, scripts, stages
from zq.storage.redis.layout import OPEN_KEY, Block
from zq.storage.redis.port import Question
from zq.storage.redis.store import Store

CAPACITY: Final = 4 << 20
"""Bytes of bodies after which a step ends."""
MOST: Final = 100
"""Open commits that are looked at in one go."""
FORGOTTEN: Final = 60_000
"""Milliseconds after which an entry counts as one of nothing: no verb takes that long."""


class Open(Struct, array_like=True, frozen=True):
    """What is kept of an open commit: batch in digits; full name of each queue that claims are in, and the seconds of
    its history; each stage as it was kept. A list belongs to each."""

    batch: bytes
    claims: list[tuple[bytes, int]]
    stages: list[bytes]

    @property
    def phases(self) -> int:
        """How many lists there are."""
        return len(self.claims) + len(self.stages)

    @property
    def packed(self) -> bytes:
        return msgpack.encode(self)


class Entry(Struct, array_like=True, frozen=True):
    """An entry at ``OPEN_KEY``."""

    project: bytes
    producer: bytes
    batch: bytes


unpack = msgpack.Decoder(Open).decode
unpack_entry = msgpack.Decoder(Entry).decode


def announce(store: Store, commit: Commit, now: int) -> None:
    """Have the commit found, if it becomes open."""
    entry = Entry(layout.text(commit.project), layout.text(commit.producer), b"%d" % commit.batch)
    _enter(store, b"%d" % now, msgpack.encode(entry), b"", b"")


def unfinished(store: Store, now: int) -> Sequence[Unfinished]:
    """Open commits, of all projects. Strikes entries off that are of none."""
    bounds = OPEN_KEY, b"0", b"%d" % (MOST - 1), b"WITHSCORES"
    found = store.port.command(OPEN_KEY, b"ZRANGE", *bounds)
    open_ones = []
    for member, score in zip(found[::2], found[1::2], strict=True):
        entry = unpack_entry(member)
        project, producer = layout.string(entry.project), layout.string(entry.producer)
        packed, phase = _look(store, project, entry.producer)
        if packed is not None and unpack(packed).batch == entry.batch:
            block = layout.own(project, f"open:{phase}:{producer}")[0]
            left = store.port.each([Question(block, (b"LLEN", block)), Question(block, (b"LINDEX", block, b"0"))])
            progress = f"{entry.batch.decode()} {phase} {left[0]} {len(left[1] or b'')}"
            open_ones.append(Unfinished(project, producer, progress))
        elif float(score) < now - FORGOTTEN:  # unless it is announced anew between these lines
            _enter(store, b"0", b"", member, b"%d" % (now - FORGOTTEN))
    return open_ones


def carry_on(store: Store, project: str, producer: str, most: int, now: int) -> bool:
    """One slice; whether anything is left."""
    name, whole = layout.text(producer), layout.whole(project)
    packed, phase = _look(store, project, name)
    if packed is None:
        return False
    commit = unpack(packed)
    more, terms = _list(store, project, commit, phase, now)
    numbers = b"%d" % phase, b"%d" % commit.phases, b"%d" % most, b"%d" % CAPACITY
    keys = [layout.keys(whole).transactions, layout.opened(project, producer, phase), *more]
    return bool(store.run(scripts.CARRY, whole, b"%d" % now, name, packed, *numbers, *terms, more=keys))


def expect(store: Store, project: str, lives: Mapping[str, int], now: int) -> list[QueueRef]:
    """The queues of these names; the sweeper knows when what comes there expires: ``lives``, in ms, from now."""
    targets = [QueueRef(project, name) for name in lives]
    for target in targets:
        store.expect(target, now + lives[target.name], now)
    return targets


def _enter(store: Store, *terms: bytes) -> None:
    """Change the calendar of open commits as ``expect.lua`` says."""
    store.port.run(scripts.EXPECT, OPEN_KEY, 1, layout.wire(OPEN_KEY), *terms)


def _list(store: Store, project: str, commit: Open, phase: int, now: int) -> tuple[list[Block], list[bytes]]:
    """Keys and arguments for a slice of the list."""
    if phase < len(commit.claims):
        full, history = commit.claims[phase]
        queue = layout.queue_of(full)
        return [layout.keys(queue).target, *store.history(queue, history, now)], [b"1", b"%d" % history]
    lives = stages.least_lives(commit.stages[phase - len(commit.claims)])
    targets = expect(store, project, lives, now)
    terms = [b"0", b"%d" % len(targets), *(layout.full(target) for target in targets)]
    return [layout.keys(target).target for target in targets], terms


def _look(store: Store, project: str, producer: bytes) -> tuple[bytes | None, int]:
    """What is kept of the producer's open commit, if there is one, and how many lists of it are done."""
    keys = layout.keys(layout.whole(project))
    packed, phase = store.port.each(
        [Question(keys.anchor, (b"HGET", key, producer)) for key in (keys.open, keys.phase)]
    )
    return packed, int(phase or 0)
