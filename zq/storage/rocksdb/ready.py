# SPDX-License-Identifier: Apache-2.0
"""Takes ready messages from the front of a queue, for claims and pops. The caller holds the queue's lock."""

from collections.abc import Sequence
from typing import NamedTuple

from zq.errors import StoreDamaged
from zq.model import UNBOUNDED
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


def take(
    store: Store, state: QueueState, limit: int, now: int, change: Change, most_bytes: int = UNBOUNDED
) -> list[Ready]:
    """Up to ``limit`` ready messages, with up to ``most_bytes`` of bodies unless it is one message, in the order of
    (available, sequence), all of which ``change`` must deal with.

    Expired messages are stepped over, a bounded number of them (L10), and left to be removed. So are messages that
    cannot be read, as long as some can: a damaged block does not bring a queue to a stand.
    """
    damaged = False
    for _ in range(MAX_DAMAGED):
        entries, expired, head = _scan(store, state, limit, now)
        if expired:
            state.around.leftovers.meet(expired, now)
        ready, unread, rest = _read(store, entries, most_bytes)
        change.advance(state, rest or head)
        if ready or not unread:
            break
        damaged = True
        state.front = state.front.passed(head)  # nothing there can be taken, whatever becomes of the change
    if damaged and not ready:
        raise StoreDamaged(UNREADABLE)
    return ready


def _read(store: Store, entries: Sequence[bytes], most_bytes: int) -> tuple[list[Ready], int, bytes]:
    """What can be read of the messages of these entries, how many cannot, and the first entry whose body is too much;
    ``b""`` = none is."""
    ready: list[Ready] = []
    unread, left = 0, most_bytes
    keys = [entry[:8] + entry[16:] for entry in entries]
    values, bodies = (store.each(family, keys, spare=True) for family in ("messages", "bodies"))
    for entry, value, stored in zip(entries, values, bodies, strict=True):
        if value and stored:
            body = layout.unsealed(stored)
            left -= len(body)
            if left < 0 and ready:
                return ready, unread, entry
            ready.append(Ready(layout.triple.unpack(entry)[2], layout.decode_record(value), body))
        elif b"" in (value, stored):
            unread += 1
    return ready, unread, b""


def _scan(store: Store, state: QueueState, limit: int, now: int) -> tuple[list[bytes], list[bytes], bytes]:
    """Entries of up to ``limit`` live messages, keys of the expired ones in front of them, and where to begin next
    time."""
    live: list[bytes] = []
    expired: list[bytes] = []
    head, steps = state.front.head, 0
    patience = STEPS_PER_MESSAGE * limit + EXTRA_STEPS
    for key, value in state.front.entries(store, layout.pair.pack(state.number, now + 1)):
        head = key + b"\0"
        if state.pinned and layout.triple.unpack(key)[2] in state.pinned:
            steps += 1
            continue
        if layout.number.unpack(value)[0] > now:
            live.append(key)
        else:
            expired.append(key[:8] + key[16:])
        if len(live) == limit or len(live) + len(expired) + steps >= patience:
            break
    else:  # nothing else has come yet: next time not over what is being removed
        head = max(head, layout.pair.pack(state.number, now + 1))
    return live, expired, head
