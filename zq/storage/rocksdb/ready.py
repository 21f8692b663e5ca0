# SPDX-License-Identifier: Apache-2.0
"""Takes ready messages from the front of a queue, for claims and pops. The caller holds the queue's lock."""

from typing import NamedTuple

from zq.storage.rocksdb import layout
from zq.storage.rocksdb.change import Change
from zq.storage.rocksdb.layout import Record
from zq.storage.rocksdb.port import Store
from zq.storage.rocksdb.registry import QueueState

STEPS_PER_MESSAGE = 4
EXTRA_STEPS = 4096


class Ready(NamedTuple):
    """A ready message."""

    sequence: int
    record: Record
    body: bytes


def take(store: Store, state: QueueState, limit: int, now: int, change: Change) -> list[Ready]:
    """Up to ``limit`` ready messages in the order of (available, sequence), all of which ``change`` must deal with.

    Expired messages met on the way are removed by ``change``; a bounded number of entries is stepped over (L10).
    """
    sequences, expired, head = _scan(store, state, limit, now)
    change.advance(state, head)
    keys = [layout.pair.pack(state.number, sequence) for sequence in expired + sequences]
    stored = store.get_many("messages", keys)
    records = [None if value is None else layout.decode_record(value) for value in stored]
    for sequence, record in zip(expired, records, strict=False):
        if record is not None:
            change.remove(state, sequence, record)
    ready = []
    bodies = store.get_many("bodies", keys[len(expired) :])
    for sequence, record, body in zip(sequences, records[len(expired) :], bodies, strict=True):
        if record is not None and body is not None:
            ready.append(Ready(sequence, record, body))
    return ready


def _scan(store: Store, state: QueueState, limit: int, now: int) -> tuple[list[int], list[int], bytes]:
    """Sequences of up to ``limit`` live entries, of the expired ones in front of them, and where to begin next time."""
    live: list[int] = []
    expired: list[int] = []
    head = state.head
    patience = STEPS_PER_MESSAGE * limit + EXTRA_STEPS
    for key, value in store.scan("available", head, layout.pair.pack(state.number, now + 1)):
        sequence = layout.triple.unpack(key)[2]
        if layout.number.unpack(value)[0] > now:
            live.append(sequence)
        else:
            expired.append(sequence)
        head = key + b"\0"
        if len(live) == limit or len(live) + len(expired) == patience:
            break
    return live, expired, head
