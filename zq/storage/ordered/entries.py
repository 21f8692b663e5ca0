# SPDX-License-Identifier: Apache-2.0
"""The index entries of each type of record. All code that writes, removes or checks index entries uses these functions.

The functions perform no I/O.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from zq.storage.ordered import documents, due, layout, logs
from zq.storage.ordered.layout import IndexFields, NewMessage
from zq.storage.ordered.store import Write

# Size in bytes of a number in a key.
NUMBER_SIZE: Final = layout.number.size
# Bound once, because the functions below run for each message of an operation, and attribute lookups are slow.
_pack: Final = layout.number.pack

# Functions from an index entry (key, value) to the message's key in ``messages``, by index family.
MESSAGE_OF: Final[dict[str, Callable[[bytes, bytes], bytes]]] = {
    "bodies": lambda key, _: key,
    "available": lambda key, _: key[:NUMBER_SIZE] + key[2 * NUMBER_SIZE :],
    "expiry": lambda key, _: key[NUMBER_SIZE:],
    "ids": lambda _, value: value,
}
# Functions from an index entry (key, value) to the history entry's key in ``history``, by index family.
HISTORY_OF: Final[dict[str, Callable[[bytes, bytes], bytes]]] = {
    "sequences": lambda key, value: key[:NUMBER_SIZE] + value,
    "endings": lambda key, _: key[:NUMBER_SIZE] + key[-NUMBER_SIZE:],
}


def message_entries(project: bytes, key: bytes, record: NewMessage, is_removed: bool = False) -> list[Write]:
    """Return the writes that store the index entries of a message. If ``is_removed`` is true, the writes remove them.

    The indexes ``lines`` (message groups) and ``claims`` are not included. ``project`` is the project's key prefix.
    """
    expires = _pack(record.expires)
    entries: list[Write] = [
        ("expiry", expires + key, None if is_removed else b""),
        ("ids", project + record.id.encode("utf-8", "surrogatepass"), None if is_removed else key),
    ]
    if record.indexed:
        place = key[:NUMBER_SIZE] + _pack(record.available) + key[NUMBER_SIZE:]
        entries.append(("available", place, None if is_removed else expires))
    return entries


def message_removal(project: bytes, key: bytes, record: NewMessage) -> list[Write]:
    """Return the writes that remove a message, its body, and the index entries that ``message_entries`` returns."""
    writes = message_entries(project, key, record, is_removed=True)
    if record.body is None:
        writes.append(("bodies", key, None))
    writes.append(("messages", key, None))
    return writes


def message_changes(key: bytes, old: IndexFields, new: NewMessage) -> list[Write]:
    """Return the writes that update the index entries of a changed message."""
    expires, available = new.expires, new.available
    writes: list[Write] = []
    if old.expires != expires:
        writes.append(("expiry", _pack(old.expires) + key, None))
        writes.append(("expiry", _pack(expires) + key, b""))
    elif old.available == available and old.indexed == new.indexed:
        return writes
    if old.indexed and (old.available != available or not new.indexed):
        writes.append(("available", key[:NUMBER_SIZE] + _pack(old.available) + key[NUMBER_SIZE:], None))
    if new.indexed:
        writes.append(("available", key[:NUMBER_SIZE] + _pack(available) + key[NUMBER_SIZE:], _pack(expires)))
    return writes


def record_entries(family: str, key: bytes, value: bytes) -> list[Write]:
    """Return the writes that store a record other than a message, together with its index entries.

    Raises ``MsgspecError`` or ``ValueError`` if the value is damaged.
    """
    return _RECORD_ENTRIES[family](key, value)


def removal(entries: Iterable[Write]) -> list[Write]:
    return [(family, key, None) for family, key, _ in entries]


def difference(old: Sequence[Write], new: Sequence[Write]) -> list[Write]:
    """Return the writes that turn the index entries ``old`` into ``new``. Unchanged entries are not written."""
    kept = {(family, key) for family, key, _ in new}
    gone = [entry for entry in old if entry[:2] not in kept]
    return [*removal(gone), *(entry for entry in new if entry not in old)]


def _history_entries(key: bytes, value: bytes) -> list[Write]:
    number, position = layout.pair.unpack(key)
    return due.history_writes(number, position, layout.decode_entry(value))


def _key_entries(key: bytes, value: bytes) -> list[Write]:
    note = due.size_note(layout.decode_known(value).size)
    return due.writes("keys", key, value, due.parse_expiry(key), note)


def _stage_entries(key: bytes, value: bytes) -> list[Write]:
    note = layout.number.pack(layout.decode_stage(value).number)
    return due.writes("stages", key, value, due.parse_expiry(key), note)


def _producer_entries(key: bytes, value: bytes) -> list[Write]:
    return due.writes("producers", key, value, due.parse_expiry(key))


def _document_entries(key: bytes, value: bytes) -> list[Write]:
    return documents.document_writes(key, documents.decode(value))


_RECORD_ENTRIES: Final[dict[str, Callable[[bytes, bytes], list[Write]]]] = {
    "history": _history_entries,
    "keys": _key_entries,
    "stages": _stage_entries,
    "producers": _producer_entries,
    "batches": logs.batch_entries,
    "records": _document_entries,
}
