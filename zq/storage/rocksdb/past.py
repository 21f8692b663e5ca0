# SPDX-License-Identifier: Apache-2.0
"""The entries of a record of history, written and removed together."""

from zq.storage.rocksdb import due, layout
from zq.storage.rocksdb.layout import Past
from zq.storage.rocksdb.port import Write


def writes(history: int, position: int, kept: Past) -> list[Write]:
    """A new record."""
    key = layout.pair.pack(history, position)
    return [
        *due.writes("history", key, layout.encode(kept), kept.expires, note(kept)),
        ("sequences", layout.pair.pack(history, kept.sequence), layout.number.pack(position)),
        ("endings", ending_prefix(history, kept.record.id) + layout.number.pack(position), b""),
    ]


def note(kept: Past) -> bytes:
    """What ``due`` says of a record."""
    return layout.number.pack(kept.sequence) + kept.record.id.encode("utf-8", "surrogatepass")


def traces(key: bytes, note: bytes) -> list[Write]:
    """The removal of what leads to a record, by its key and what its entry in ``due`` says."""
    ids = layout.ended(key[:8], note[8:].decode("utf-8", "surrogatepass"))
    return [("sequences", key[:8] + note[:8], None), ("endings", ids + key[8:], None)]


def ending_prefix(history: int, message: str) -> bytes:
    """Where the records of a message begin."""
    return layout.ended(layout.number.pack(history), message)
