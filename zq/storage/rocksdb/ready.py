# SPDX-License-Identifier: Apache-2.0
"""Takes ready messages from the front of a queue, for claims and pops. The caller holds the queue's lock."""

from collections.abc import Sequence
from typing import NamedTuple

from zq.errors import StoreDamaged
from zq.storage.rocksdb import layout
from zq.storage.rocksdb.change import Change
from zq.storage.rocksdb.damage import UNREADABLE
from zq.storage.rocksdb.layout import Record
from zq.storage.rocksdb.port import Store
from zq.storage.rocksdb.registry import QueueState

STEPS_PER_MESSAGE = 4
EXTRA_STEPS = 4096
MAX_DAMAGED = 64
"""Pages of messages none of which can be read that one claim steps over."""


class Ready(NamedTuple):
    """A ready message."""

    sequence: int
    record: Record
    body: bytes


def take(store: Store, state: QueueState, limit: int, now: int, change: Change) -> list[Ready]:
    """Up to ``limit`` ready messages in the order of (available, sequence), all of which ``change`` must deal with.

    Expired messages are stepped over, a bounded number of them (L10), and left to be removed. So are messages that
    cannot be read, as long as some can: a damaged block does not bring a queue to a stand.
    """
    damaged = False
    for _ in range(MAX_DAMAGED):
        keys, expired, head = _scan(store, state, limit, now)
        change.advance(state, head)
        if expired:
            state.around.leftovers.meet(expired, now)
        ready, unread = _read(store, keys)
        if ready or not unread:
            break
        damaged = True
        state.front = state.front.passed(head)  # nothing there can be taken, whatever becomes of the change
    if damaged and not ready:
        raise StoreDamaged(UNREADABLE)
    return ready


def _read(store: Store, keys: Sequence[bytes]) -> tuple[list[Ready], int]:
    """What can be read of the messages of these keys, and how many cannot."""
    ready, unread = [], 0
    values, bodies = (store.get_many(family, keys, spare=True) for family in ("messages", "bodies"))
    for key, value, body in zip(keys, values, bodies, strict=True):
        if value and body:
            ready.append(Ready(layout.pair.unpack(key)[1], layout.decode_record(value), layout.unsealed(body)))
        elif b"" in (value, body):
            unread += 1
    return ready, unread


def _scan(store: Store, state: QueueState, limit: int, now: int) -> tuple[list[bytes], list[bytes], bytes]:
    """Keys of up to ``limit`` live messages, of the expired ones in front of them, and where to begin next time."""
    live: list[bytes] = []
    expired: list[bytes] = []
    head, steps = state.front.head, 0
    patience = STEPS_PER_MESSAGE * limit + EXTRA_STEPS
    for key, value in state.front.entries(store, layout.pair.pack(state.number, now + 1)):
        head = key + b"\0"
        if state.pinned and layout.triple.unpack(key)[2] in state.pinned:
            steps += 1
            continue
        found = live if layout.number.unpack(value)[0] > now else expired
        found.append(key[:8] + key[16:])
        if len(live) == limit or len(live) + len(expired) + steps >= patience:
            break
    else:  # nothing else has come yet: next time not over what is being removed
        head = max(head, layout.pair.pack(state.number, now + 1))
    return live, expired, head
