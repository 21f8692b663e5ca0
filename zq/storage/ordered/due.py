# SPDX-License-Identifier: Apache-2.0
"""The index ``due``: the expiry of history entries, idempotency keys, stages, producers, documents and batches.

Each entry belongs to one record. The key of the entry consists of the record's expiry, family and key. The value of the
entry is called the *note*. It has all data that active expiry needs to remove the record without reading the record.
"""

from typing import Final

from zq.storage.ordered import layout
from zq.storage.ordered.layout import StoredEntry
from zq.storage.ordered.store import Store, Write

# Offset of the kind in a key of ``due``. The expiry precedes it.
KIND: Final = 8


def writes(family: str, key: bytes, value: bytes, expires: int, note: bytes = b"") -> list[Write]:
    """Return the writes that store an expiring record and its entry in ``due``. The entry has the value ``note``."""
    return [(family, key, value), ("due", _entry(family, key, expires), note)]


def removals(family: str, key: bytes, expires: int) -> list[Write]:
    """Return the writes that remove an expiring record and its entry in ``due``."""
    return [(family, key, None), ("due", _entry(family, key, expires), None)]


def find_live(store: Store, family: str, prefix: bytes, now: int) -> tuple[bytes, bytes] | None:
    """Find the unexpired record whose key is ``prefix`` followed by the expiry. Return its key and value, or None."""
    return next(store.scan(family, prefix + layout.number.pack(now + 1), layout.prefix_end(prefix)), None)


def parse_expiry(key: bytes) -> int:
    """Return the expiry in the last 8 bytes of a record's key, as Unix time in milliseconds."""
    return int.from_bytes(key[-8:])


def parse_entry(entry: bytes) -> tuple[str, bytes]:
    """Return (family, key) of the record to which an entry of ``due`` belongs. ``entry`` is the key of the entry."""
    return layout.FAMILY_OF[entry[KIND : KIND + 1]], entry[KIND + 1 :]


def _entry(family: str, key: bytes, expires: int) -> bytes:
    return layout.number.pack(expires) + layout.KIND_OF[family] + key


def history_writes(history: int, position: int, kept: StoredEntry) -> list[Write]:
    key = layout.pair.pack(history, position)
    return [
        *writes("history", key, layout.encode(kept), kept.expires, history_note(kept)),
        ("sequences", layout.pair.pack(history, kept.sequence), layout.number.pack(position)),
        ("endings", ending_prefix(history, kept.record.id) + layout.number.pack(position), b""),
    ]


def history_note(kept: StoredEntry) -> bytes:
    """Build the value that ``due`` stores for a history entry: the sequence, the message id, and the size in bytes."""
    told = b"\0" + size_note(kept.size) if kept.size else b""
    return layout.number.pack(kept.sequence) + kept.record.id.encode("utf-8", "surrogatepass") + told


def history_traces(key: bytes, note: bytes) -> list[Write]:
    """Return the writes that remove the index entries of the history entry with the key ``key``.

    The index ``sequences`` finds a history entry by message sequence, and ``endings`` finds it by message id. ``note``
    is the value that the index ``due`` stores for the history entry.
    """
    ids = layout.name_prefix(key[:8], note[8:].partition(b"\0")[0].decode("utf-8", "surrogatepass"))
    return [("sequences", key[:8] + note[:8], None), ("endings", ids + key[8:], None)]


def size_note(size: int) -> bytes:
    """Build the value that ``due`` stores for an idempotency key: the size of the key's result in bytes.

    If the size is 0, the value is b"".
    """
    return layout.number.pack(size) if size else b""


def parse_size(family: str, note: bytes) -> int:
    """Return the size in bytes of a history entry or of an idempotency key's result.

    ``note`` is the value that ``due`` stores for the entry or key.
    """
    return int.from_bytes(note if family == "keys" else note[8:].partition(b"\0")[2])


def ending_prefix(history: int, message: str) -> bytes:
    return layout.name_prefix(layout.number.pack(history), message)
