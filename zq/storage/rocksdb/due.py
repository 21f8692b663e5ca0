# SPDX-License-Identifier: Apache-2.0
"""What expires besides messages: records of history, idempotency keys, stages, producers.

Each has an entry in ``due``, from which alone the sweeper knows what to remove. It takes no lock: nothing is ever
written a second time under a key that is due.
"""

from typing import Final

from zq.storage.rocksdb import layout
from zq.storage.rocksdb.port import Store, Write

KIND: Final = 8
"""Where in a key of ``due`` the kind stands, behind the moment."""


def writes(family: str, key: bytes, value: bytes, expires: int, note: bytes = b"") -> list[Write]:
    """An entry that expires; ``note``: what else must be known to remove it."""
    return [(family, key, value), ("due", _entry(family, key, expires), note)]


def traces(family: str, key: bytes, expires: int) -> list[Write]:
    """The removal of such an entry."""
    return [(family, key, None), ("due", _entry(family, key, expires), None)]


def living(store: Store, family: str, prefix: bytes, now: int) -> tuple[bytes, bytes] | None:
    """(key, value) of the one entry whose key is ``prefix`` and an end that is to come."""
    return next(store.scan(family, prefix + layout.number.pack(now + 1), layout.after(prefix)), None)


def end_of(key: bytes) -> int:
    """The end that such a key closes with."""
    return int.from_bytes(key[-8:])


def named(entry: bytes) -> tuple[str, bytes]:
    """(family, key) of what an entry of ``due`` is about."""
    return layout.FAMILY_OF[entry[KIND : KIND + 1]], entry[KIND + 1 :]


def _entry(family: str, key: bytes, expires: int) -> bytes:
    return layout.number.pack(expires) + layout.KIND_OF[family] + key
