# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys that a queue, or the log of a project's topics, knows. The caller holds its lock."""

from typing import Any, Protocol

from msgspec import msgpack

from zq.errors import KeyReused, Repeated
from zq.model import Once
from zq.storage.rocksdb import due, layout
from zq.storage.rocksdb.change import Change
from zq.storage.rocksdb.layout import Known
from zq.storage.rocksdb.port import Store, Write


class Owner(Protocol):
    """Whose keys they are; ``history`` is the number that they go by."""

    @property
    def history(self) -> int: ...


def check_key(store: Store, owner: Owner | None, once: Once | None, answer: Any, now: int) -> None:
    """Raises ``Repeated`` (with an ``answer``, a type) or ``KeyReused`` if the owner knows the key."""
    if once is None or owner is None:
        return
    found = due.living(store, "keys", _prefix(owner, once), now)
    if found is not None:
        known = layout.decode_known(found[1])
        if known.digest != once.digest:
            raise KeyReused("The Idempotency-Key was given before, to another request.")
        store.settle()  # the first attempt may still be waiting for its own, and this answer promises as much
        raise Repeated(msgpack.decode(known.answer, type=answer))


def remember_key(change: Change, owner: Owner, once: Once | None, answer: Any, now: int) -> None:
    """Let the owner know the key, and what it was answered, as part of the change."""
    change.also(*key_writes(owner, once, answer, now))


def key_writes(owner: Owner, once: Once | None, answer: Any, now: int) -> list[Write]:
    """The same, for whoever writes no messages of a queue."""
    if once is None:
        return []
    expires = now + once.window * 1000
    key = _prefix(owner, once) + layout.number.pack(expires)
    return due.writes("keys", key, layout.encode(Known(once.digest, layout.encode(answer))), expires)


def _prefix(owner: Owner, once: Once) -> bytes:
    return layout.ended(layout.number.pack(owner.history), once.key)
