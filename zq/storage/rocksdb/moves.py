# SPDX-License-Identifier: Apache-2.0
"""Messages on their way from one queue to others. The caller holds the locks of all of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from zq.model import Move, Outcome, QueueRef
from zq.storage.rocksdb import layout
from zq.storage.rocksdb.change import Change, End
from zq.storage.rocksdb.layout import Record
from zq.storage.rocksdb.listing import Found
from zq.storage.rocksdb.port import Store
from zq.storage.rocksdb.registry import QueueState

Targets = dict[str, QueueState | None]
"""Queues of the project by name; None for one that does not exist."""


class Routes(NamedTuple):
    """Where messages come from, where they may go, for how long a record is kept where they were."""

    source: QueueState
    targets: Targets
    history: int
    now: int

    def missing(self, moves: Iterable[Move]) -> list[QueueRef]:
        """Queues that the moves need and that do not exist."""
        return [ref for ref in targets(self.source.ref, moves) if self.targets[ref.name] is None]

    def carry_all(self, store: Store, change: Change, found: Mapping[str, Found], moves: Sequence[Move]) -> list[Move]:
        """Take messages, by id, to the ends of other queues, in the order of the moves; which of them went.

        One whose body has gone had expired while the verb was under way.
        """
        keys = [layout.pair.pack(self.source.number, found[move.id][0]) for move in moves]
        carried = []
        for move, value in zip(moves, store.get_many("bodies", keys), strict=True):
            if value is not None:
                self.carry(change, *found[move.id], layout.unsealed(value), move)
                carried.append(move)
        return carried

    def carry(self, change: Change, sequence: int, record: Record, body: bytes, move: Move) -> None:
        """Take a message from its queue to the other one's end."""
        target = self.targets[move.to]
        assert target is not None, "whoever carries has asked for what is missing"
        outcome = Outcome.DEAD_LETTERED if move.reason else Outcome.MOVED
        change.finish(self.source, sequence, record, End(outcome, self.history, self.now))
        moved = _moved(record, move, self.source.ref.name, self.now)
        change.insert(target, moved, body if move.body is None else move.body, self.now, move.delay * 1000)


def targets(queue: QueueRef, moves: Iterable[Move]) -> list[QueueRef]:
    """The queues that the moves name, each once."""
    return [QueueRef(queue.project, name) for name in dict.fromkeys(move.to for move in moves)]


def by_name(refs: Sequence[QueueRef], states: Sequence[QueueState | None]) -> Targets:
    """Queues that were locked together."""
    return {ref.name: state for ref, state in zip(refs, states, strict=True)}


def _moved(record: Record, move: Move, origin: str, now: int) -> Record:
    """The record that a message has after the move; its place is given where it joins."""
    ttl = record.ttl if move.ttl is None else move.ttl
    return Record(
        id=record.id,
        created=record.created if move.reason else now,
        expires=now + ttl * 1000,
        available=now,
        ttl=ttl,
        client=record.client,
        checksum=record.checksum if move.body is None else move.checksum,
        origin=origin if move.reason else "",
        origin_count=record.count if move.reason else 0,
        reason=move.reason,
    )
