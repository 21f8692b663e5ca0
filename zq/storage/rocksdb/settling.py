# SPDX-License-Identifier: Apache-2.0
"""What becomes of held messages at the end of their claim's work. The caller holds the locks of all queues."""

from zq.model import Outcome, Settled, Settlement
from zq.storage.rocksdb.change import Change, End
from zq.storage.rocksdb.holding import give_back
from zq.storage.rocksdb.listing import Found
from zq.storage.rocksdb.moves import Routes
from zq.storage.rocksdb.port import Store


def settle(store: Store, change: Change, routes: Routes, held: dict[str, Found], settlement: Settlement) -> Settled:
    """Do with the held messages (by id) as they are settled, and say what was done."""
    named = [*settlement.delete, *(r.id for r in settlement.release), *(move.id for move in settlement.move)]
    deleted = [message for message in settlement.delete if message in held]
    if settlement.rest:
        spared = set(named)
        deleted += [message for message in held if message not in spared]
    end = End(Outcome.DELETED, settlement.history, routes.now)
    for message in deleted:
        change.finish(routes.source, *held[message], end)
    released = [release for release in settlement.release if release.id in held]
    for release in released:
        give_back(change, routes.source, held[release.id], release.delay, routes.now)
    moves = routes.carry_all(store, change, held, [move for move in settlement.move if move.id in held])
    buried = sum(1 for move in moves if move.reason)
    kept = held.keys() - {move.id for move in settlement.move} | {move.id for move in moves}
    lost = [message for message in named if message not in kept]
    return Settled(len(deleted), len(released), len(moves) - buried, buried, lost)
