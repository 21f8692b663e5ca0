# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys that a queue knows. The caller holds the queue's lock."""

from typing import Any

from msgspec import msgpack

from zq.errors import KeyReused, Repeated
from zq.model import Once
from zq.storage.rocksdb import due, layout
from zq.storage.rocksdb.change import Change
from zq.storage.rocksdb.layout import Known
from zq.storage.rocksdb.port import Store
from zq.storage.rocksdb.registry import QueueState


def check_key(store: Store, state: QueueState | None, once: Once | None, answer: Any, now: int) -> None:
    """Raises ``Repeated`` (with an ``answer``, a type) or ``KeyReused`` if the queue knows the key."""
    if once is None or state is None:
        return
    found = due.living(store, "keys", _prefix(state, once), now)
    if found is not None:
        known = layout.decode_known(found[1])
        if known.digest != once.digest:
            raise KeyReused("The Idempotency-Key was given before, to another request.")
        store.settle()  # the first attempt may still be waiting for its own, and this answer promises as much
        raise Repeated(msgpack.decode(known.answer, type=answer))


def remember_key(change: Change, state: QueueState, once: Once | None, answer: Any, now: int) -> None:
    """Let the queue know the key, and what it was answered, as part of the change."""
    if once is not None:
        expires = now + once.window * 1000
        key = _prefix(state, once) + layout.number.pack(expires)
        change.also(*due.writes("keys", key, layout.encode(Known(once.digest, layout.encode(answer))), expires))


def _prefix(state: QueueState, once: Once) -> bytes:
    return layout.ended(layout.number.pack(state.history), once.key)
