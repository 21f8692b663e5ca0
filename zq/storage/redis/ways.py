# SPDX-License-Identifier: Apache-2.0
"""Moves as the scripts read them, and the sweeper told what comes to their targets."""

from collections.abc import Sequence
from typing import NamedTuple

from zq.model import Move, QueueRef
from zq.storage.redis import layout
from zq.storage.redis.layout import Block
from zq.storage.redis.store import BURIAL, Store


class Ways(NamedTuple):
    """Where messages go."""

    targets: list[QueueRef]
    terms: list[bytes]
    """What ``read_targets`` and ``read_ways`` read."""

    @property
    def blocks(self) -> list[Block]:
        return [layout.keys(target).target for target in self.targets]


def announced(store: Store, project: str, moves: Sequence[Move], moment: int) -> Ways:
    """The ways of moves, of which the sweeper knows now: to be called before the messages move."""
    numbers: dict[str, int] = {}
    terms: list[bytes] = []
    expiries: dict[str, int] = {}
    for move in moves:
        number = numbers.setdefault(move.to, len(numbers) + 1)
        ttl = -1 if move.ttl is None else move.ttl
        soonest = moment + (BURIAL if move.ttl is None else move.ttl * 1000)
        expiries[move.to] = min(soonest, expiries.get(move.to, soonest))
        terms += [layout.text(move.id), b"%d" % number, b"%d" % ttl, b"%d" % move.delay]
        terms += [layout.text(move.reason), layout.text(move.checksum)]
        terms += [b"0"] if move.body is None else [b"1", move.body]
    targets = [QueueRef(project, name) for name in numbers]
    for target in targets:
        store.expect(target, expiries[target.name], moment)
    return Ways(targets, [layout.full(target) for target in targets] + terms)


def arrived(store: Store, targets: Sequence[QueueRef], blob: bytes, moment: int) -> bytes:
    """Tells the sweeper of what has come, by the front of a reply; the rest of the reply."""
    at = 0
    for target in targets:
        earliest = layout.MOMENT.unpack_from(blob, at)[0]
        at += layout.MOMENT.size
        if earliest:
            store.expect(target, earliest, moment)
    return blob[at:]
