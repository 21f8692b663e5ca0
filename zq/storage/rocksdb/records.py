# SPDX-License-Identifier: Apache-2.0
"""Records of the embedded store. Each is changed under its name's stripe."""

import os

from msgspec import Struct, msgpack

from zq.model import Page, Seconds
from zq.records import Record, RecordRef
from zq.storage.rocksdb import due, layout
from zq.storage.rocksdb.keeper import Keeper
from zq.storage.rocksdb.port import Store, Write
from zq.storage.rocksdb.stripes import Stripes


class StoredRecord(Struct, array_like=True):
    """A record's entry in ``records``."""

    value: bytes
    version: str
    expires: int | None


decode = msgpack.Decoder(StoredRecord).decode


class RecordController:
    """``zq.storage.api.RecordController`` on RocksDB."""

    def __init__(self, keeper: Keeper, stripes: Stripes) -> None:
        self._keeper = keeper
        self._stripes = stripes

    def get(self, ref: RecordRef, now: Seconds) -> Record | None:
        with self._keeper as (store, _):
            stored = _find(store, _key(ref))
        return _living(ref, stored, layout.ms(now))

    def put(
        self, ref: RecordRef, value: bytes, now: Seconds, expected: str | None = None, expires: Seconds | None = None
    ) -> bool:
        end = None if expires is None else layout.ms(expires)
        return self._change(ref, now, expected, StoredRecord(value, os.urandom(8).hex(), end))

    def list(self, project: str, kind: str, prefix: str, after: str, limit: int, now: Seconds) -> Page[Record]:
        owner, begin = _key(RecordRef(project, kind, "")), _key(RecordRef(project, kind, prefix))
        start = max(begin, _key(RecordRef(project, kind, after)) + b"\0") if after else begin
        items: list[Record] = []
        with self._keeper as (store, _):
            for key, value in store.scan("records", start, layout.after(begin)):
                ref = RecordRef(project, kind, key[len(owner) :].decode("utf-8", "surrogatepass"))
                item = _living(ref, decode(value), layout.ms(now))
                if item is not None:
                    items.append(item)
                if len(items) == limit:
                    break
        return Page(items, items[-1].ref.name if items else None)

    def delete(self, ref: RecordRef, now: Seconds, expected: str | None = None) -> bool:
        return self._change(ref, now, expected, None)

    def _change(self, ref: RecordRef, now: Seconds, expected: str | None, new: StoredRecord | None) -> bool:
        """Put another one in the record's place, or none; whether it was the expected one. None is not deleted."""
        key = _key(ref)
        with self._keeper as (store, _):
            with self._stripes.held(name(key)):
                old = _find(store, key)
                found = _living(ref, old, layout.ms(now))
                if (found is None and new is None) or expected not in (None, "" if found is None else found.version):
                    return False
                store.write([*_traces(key, old), *(writes(key, new) if new is not None else ())])
            store.settle()
        return True


def name(key: bytes) -> bytes:
    """What to hold while a record is changed."""
    return b"record " + key


def writes(key: bytes, record: StoredRecord) -> list[Write]:
    """All entries of a record."""
    value = layout.encode(record)
    return [("records", key, value)] if record.expires is None else due.writes("records", key, value, record.expires)


def expired(store: Store, key: bytes, moment: int) -> bool:
    """Whether there is a record that expires at this moment."""
    stored = _find(store, key)
    return stored is not None and stored.expires == moment


def _traces(key: bytes, record: StoredRecord | None) -> list[Write]:
    return [(family, place, None) for family, place, _ in writes(key, record)] if record is not None else []


def _key(ref: RecordRef) -> bytes:
    return (
        layout.project_prefix(ref.project) + layout.project_prefix(ref.kind) + ref.name.encode("utf-8", "surrogatepass")
    )


def _find(store: Store, key: bytes) -> StoredRecord | None:
    value = store.get("records", key)
    return None if value is None else decode(value)


def _living(ref: RecordRef, stored: StoredRecord | None, now: int) -> Record | None:
    if stored is None or (stored.expires is not None and stored.expires <= now):
        return None
    return Record(ref, stored.value, stored.version, None if stored.expires is None else stored.expires / 1000)
