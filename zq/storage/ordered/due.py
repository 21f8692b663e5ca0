# SPDX-License-Identifier: Apache-2.0
"""What expires besides messages: history entries, idempotency keys, stages, producers, documents, batches.

Each has an entry in ``due``, from which alone active expiry knows what to remove. It takes no lock: nothing is ever
written a second time under a key that is due.
"""

from typing import Final

from zq.storage.ordered import layout
from zq.storage.ordered.layout import StoredEntry
from zq.storage.ordered.store import Store, Write

# Where in a key of ``due`` the kind stands, behind the moment.
KIND: Final = 8


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


def history_writes(history: int, position: int, kept: StoredEntry) -> list[Write]:
    """A new record."""
    key = layout.pair.pack(history, position)
    return [
        *writes("history", key, layout.encode(kept), kept.expires, history_note(kept)),
        ("sequences", layout.pair.pack(history, kept.sequence), layout.number.pack(position)),
        ("endings", ending_prefix(history, kept.record.id) + layout.number.pack(position), b""),
    ]


def history_note(kept: StoredEntry) -> bytes:
    """What ``due`` says of a record: sequence, id, and what is subtracted once it is removed."""
    told = b"\0" + size_note(kept.size) if kept.size else b""
    return layout.number.pack(kept.sequence) + kept.record.id.encode("utf-8", "surrogatepass") + told


def history_traces(key: bytes, note: bytes) -> list[Write]:
    """The removal of what leads to a record, by its key and what its entry in ``due`` says."""
    ids = layout.ended(key[:8], note[8:].partition(b"\0")[0].decode("utf-8", "surrogatepass"))
    return [("sequences", key[:8] + note[:8], None), ("endings", ids + key[8:], None)]


def size_note(size: int) -> bytes:
    """What ``due`` says of a key whose answer counts so much; nothing for one that does not count."""
    return layout.number.pack(size) if size else b""


def size_of(family: str, note: bytes) -> int:
    """What an entry in ``due`` says that is subtracted once its ``history`` or ``keys`` entry is removed."""
    return int.from_bytes(note if family == "keys" else note[8:].partition(b"\0")[2])


def ending_prefix(history: int, message: str) -> bytes:
    """Where the records of a message begin."""
    return layout.ended(layout.number.pack(history), message)
