# SPDX-License-Identifier: Apache-2.0
"""The index ``due``: the expiry of history entries, idempotency keys, stages, producers, documents and batches.

An entry has the expiry, the family and the key of one record. It also has a *note*: the data with which active expiry
removes the record without reading it.
"""

from typing import Final

from zq.storage.ordered import layout
from zq.storage.ordered.layout import StoredEntry
from zq.storage.ordered.store import Store, Write

# Offset of the kind in a key of ``due``. The expiry precedes it.
KIND: Final = 8


def writes(family: str, key: bytes, value: bytes, expires: int, note: bytes = b"") -> list[Write]:
    """Return the writes that store an expiring record and its entry in ``due``."""
    return [(family, key, value), ("due", _entry(family, key, expires), note)]


def removals(family: str, key: bytes, expires: int) -> list[Write]:
    """Return the writes that remove an expiring record and its entry in ``due``."""
    return [(family, key, None), ("due", _entry(family, key, expires), None)]


def find_live(store: Store, family: str, prefix: bytes, now: int) -> tuple[bytes, bytes] | None:
    """Return the unexpired record (key, value) whose key consists of ``prefix`` and an expiry, or None."""
    return next(store.scan(family, prefix + layout.number.pack(now + 1), layout.prefix_end(prefix)), None)


def parse_expiry(key: bytes) -> int:
    """Return the expiry at the end of a record's key."""
    return int.from_bytes(key[-8:])


def parse_entry(entry: bytes) -> tuple[str, bytes]:
    """Return the family and the key of the record to which a key of ``due`` refers."""
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
    """Build the value of a history entry's entry in ``due``: sequence, message id, and size."""
    told = b"\0" + size_note(kept.size) if kept.size else b""
    return layout.number.pack(kept.sequence) + kept.record.id.encode("utf-8", "surrogatepass") + told


def history_traces(key: bytes, note: bytes) -> list[Write]:
    """Return the writes that remove the index entries of a history entry, given its key and its note in ``due``."""
    ids = layout.name_prefix(key[:8], note[8:].partition(b"\0")[0].decode("utf-8", "surrogatepass"))
    return [("sequences", key[:8] + note[:8], None), ("endings", ids + key[8:], None)]


def size_note(size: int) -> bytes:
    """Build the value of an idempotency key's entry in ``due``: the size of its result, or b"" if it is not usage."""
    return layout.number.pack(size) if size else b""


def parse_size(family: str, note: bytes) -> int:
    """Return the size in the note, in ``due``, of a record in ``history`` or ``keys``."""
    return int.from_bytes(note if family == "keys" else note[8:].partition(b"\0")[2])


def ending_prefix(history: int, message: str) -> bytes:
    return layout.name_prefix(layout.number.pack(history), message)
