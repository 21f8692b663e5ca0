# SPDX-License-Identifier: Apache-2.0
"""Records of the MongoDB store: ``{_id: "r" P length of the kind:kind/name, s, v: version, b: value, e: expiry}``.

They are listed by ``_id``, which sorts as bytes do; all of a kind in a project have one shard key.
"""

import os
from collections.abc import Mapping
from typing import Any, Final

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from pymongo.errors import DuplicateKeyError

from zq.model import Page, Seconds
from zq.records import Record, RecordRef
from zq.storage.mongodb import layout
from zq.storage.mongodb.layout import Document
from zq.storage.mongodb.port import Port

ABOVE_ALL: Final = "\u0100"
"""Greater than every character of a stored text."""


class RecordController:
    """``zq.storage.extensions.RecordController`` on MongoDB."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def get(self, ref: RecordRef, now: Seconds) -> Record | None:
        with self._port.verb():
            found = self._port.find({**_identity(ref), **_living(now)})
        return _record(ref, found[0]) if found else None

    def put(
        self, ref: RecordRef, value: bytes, now: Seconds, expected: str | None = None, expires: Seconds | None = None
    ) -> bool:
        record: Document = {"s": _shard(ref.project, ref.kind), "v": os.urandom(8).hex(), "b": Binary(value)}
        if expires is not None:
            record["e"] = DatetimeMS(layout.ms(expires))
        with self._port.verb():
            if expected is None:
                self._port.upsert(_identity(ref), record)
                return True
            if expected:
                changed = self._port.update([{"q": {**_identity(ref), **_version(expected, now)}, "u": record}])
            else:
                changed = self._create(ref, record, now)
            # A first attempt, before the connection broke, may have done it.
            return bool(changed or self._port.find({**_identity(ref), "v": record["v"]}))

    def list(self, project: str, kind: str, prefix: str, after: str, limit: int, now: Seconds) -> Page[Record]:
        shard = _shard(project, kind)
        begins = shard + layout.text(prefix)
        names = {"$gt": shard + layout.text(after), "$gte": begins, "$lt": begins + ABOVE_ALL}
        where: Document = {"_id": names, **_living(now)}
        if self._port.sharded:
            where["s"] = shard
        with self._port.verb():
            found = self._port.find(where, limit=limit, sort={"_id": 1}, hint="_id_")
        refs = [RecordRef(project, kind, layout.original(one["_id"][len(shard) :])) for one in found]
        records = [_record(ref, one) for ref, one in zip(refs, found, strict=True)]
        return Page(records, refs[-1].name if refs else None)

    def delete(self, ref: RecordRef, now: Seconds, expected: str | None = None) -> bool:
        what = _living(now) if expected is None else _version(expected, now)
        with self._port.verb():
            # By a command that the server knows again when it is repeated: nothing is left that would tell.
            return self._port.messages.find_one_and_delete({**_identity(ref), **what}, {"_id": 1}) is not None

    def _create(self, ref: RecordRef, record: Document, now: Seconds) -> bool:
        expired = {**_identity(ref), "e": {"$lte": DatetimeMS(layout.ms(now))}}
        try:
            return bool(self._port.update([{"q": expired, "u": record, "upsert": True}]))
        except DuplicateKeyError:  # there is a living one, or somebody else has made it meanwhile
            return False


def _shard(project: str, kind: str) -> str:
    """What the ``_id`` of every record of this kind begins with; whatever the names contain, no two are the same."""
    stored = layout.text(kind)
    return f"r{layout.project_prefix(project)}{len(stored)}:{stored}/"


def _identity(ref: RecordRef) -> Document:
    shard = _shard(ref.project, ref.kind)
    return {"_id": shard + layout.text(ref.name), "s": shard}


def _living(now: Seconds) -> Document:
    return {"e": {"$not": {"$lte": DatetimeMS(layout.ms(now))}}}


def _version(expected: str, now: Seconds) -> Document:
    return {"v": layout.text(expected), **_living(now)}


def _record(ref: RecordRef, found: Mapping[str, Any]) -> Record:
    expires = found.get("e")
    return Record(ref, bytes(found["b"]), found["v"], None if expires is None else int(expires) / 1000)
