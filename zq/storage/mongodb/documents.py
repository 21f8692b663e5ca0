# SPDX-License-Identifier: Apache-2.0
"""Keyed documents in MongoDB.

Layout: ``{_id: "r" P length of the kind:kind/name, s, v: version, b: value, e: expiry}``. P is the project's prefix.
``f`` counts the guarded operations (``Guard``) since the last change of the document.

Listings are in the order of ``_id``, which is the byte order of the names. All documents of one kind in a project have
the same shard key.
"""

import os
from collections.abc import Mapping
from typing import Any, Final

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from pymongo.errors import DuplicateKeyError

from zq.errors import Fenced
from zq.model import Page, Seconds
from zq.model.documents import Document, DocumentRef, Guard
from zq.storage.mongodb import layout
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.layout import BsonDocument

# A character that is greater than every character of a stored text.
LAST_CHARACTER: Final = "\u0100"


class DocumentController:
    """The MongoDB implementation of ``zq.storage.api.DocumentController``."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    def get(self, ref: DocumentRef, now: Seconds) -> Document | None:
        with self._client.verb():
            found = self._client.find({**_identity(ref), **_living(now)})
        return _to_document(ref, found[0]) if found else None

    def put(
        self,
        ref: DocumentRef,
        value: bytes,
        now: Seconds,
        expected: str | None = None,
        expires: Seconds | None = None,
        is_vital: bool = False,
    ) -> bool:
        document: BsonDocument = {"s": _shard(ref.project, ref.kind), "v": os.urandom(8).hex(), "b": Binary(value)}
        if expires is not None:
            document["e"] = DatetimeMS(layout.ms(expires))
        with self._client.verb():
            if expected is None:
                self._client.repeat(lambda: self._client.upsert(_identity(ref), document))
                return True
            if expected:
                step = {"q": {**_identity(ref), **_version(expected, now)}, "u": document}
                changed = self._client.repeat(lambda: self._client.update([step]))
            else:
                changed = self._create(ref, document, now)
            # An earlier attempt may have succeeded before the connection was lost.
            return bool(changed or self._client.find({**_identity(ref), "v": document["v"]}))

    def list(self, project: str, kind: str, prefix: str, after: str, limit: int, now: Seconds) -> Page[Document]:
        shard = _shard(project, kind)
        begins = shard + layout.encode_text(prefix)
        names = {"$gt": shard + layout.encode_text(after), "$gte": begins, "$lt": begins + LAST_CHARACTER}
        where = {"_id": names, **_living(now), **self._client.shards([shard])}
        with self._client.verb():
            found = self._client.find(where, limit=limit, sort={"_id": 1}, hint="_id_")
        refs = [DocumentRef(project, kind, layout.decode_text(one["_id"][len(shard) :])) for one in found]
        documents = [_to_document(ref, one) for ref, one in zip(refs, found, strict=True)]
        return Page(documents, refs[-1].name if refs else None)

    def delete(self, ref: DocumentRef, now: Seconds, expected: str | None = None) -> bool:
        what = _living(now) if expected is None else _version(expected, now)
        with self._client.verb():
            # This PyMongo helper is a retryable write: MongoDB recognizes a repeated command. A repetition of a plain
            # command could not determine whether the first attempt had deleted the document.
            return self._client.messages.find_one_and_delete({**_identity(ref), **what}, {"_id": 1}) is not None

    def _create(self, ref: DocumentRef, document: BsonDocument, now: Seconds) -> bool:
        expired = {**_identity(ref), "e": {"$lte": DatetimeMS(layout.ms(now))}}
        try:
            return bool(self._client.update([{"q": expired, "u": document, "upsert": True}]))
        except DuplicateKeyError:  # a live document exists, or another server has just created it
            return False


def adoption(document: Document) -> BsonDocument:
    """Return the update statement that imports a document and keeps its version."""
    ref, version = document.ref, layout.encode_text(document.version)
    stored: BsonDocument = {"s": _shard(ref.project, ref.kind), "v": version, "b": Binary(document.value)}
    if document.expires is not None:
        stored["e"] = DatetimeMS(layout.ms(document.expires))
    return {"q": _identity(ref), "u": stored, "upsert": True}


def check_guard(client: StoreClient, session: Session, guard: Guard) -> None:
    """Raise ``Fenced`` if the document of the guard has another value.

    The transaction also writes the document, so it conflicts with every change of the document.
    """
    identity = _identity(guard.ref)
    if guard.value:
        touched = {"q": {**identity, "b": Binary(guard.value)}, "u": {"$inc": {"f": 1}}, "hint": "_id_"}
        if not client.update([touched], session):
            raise Fenced
    elif client.find(identity, fields={"_id": 1}, session=session):
        raise Fenced
    else:
        client.insert([{**identity, "v": "", "b": Binary(b"")}], session)
        client.delete([{"q": identity, "limit": 1}], session)


def drop(client: StoreClient, ref: DocumentRef) -> None:
    """Delete the document if it exists, without waiting for durability."""
    with client.verb():
        client.delete([{"q": _identity(ref), "limit": 1}], durable=False)


def _shard(project: str, kind: str) -> str:
    stored = layout.encode_text(kind)
    return f"r{layout.project_prefix(project)}{len(stored)}:{stored}/"


def _identity(ref: DocumentRef) -> BsonDocument:
    shard = _shard(ref.project, ref.kind)
    return {"_id": shard + layout.encode_text(ref.name), "s": shard}


def _living(now: Seconds) -> BsonDocument:
    return {"e": {"$not": {"$lte": DatetimeMS(layout.ms(now))}}}


def _version(expected: str, now: Seconds) -> BsonDocument:
    return {"v": layout.encode_text(expected), **_living(now)}


def _to_document(ref: DocumentRef, found: Mapping[str, Any]) -> Document:
    expires = found.get("e")
    return Document(ref, bytes(found["b"]), found["v"], None if expires is None else int(expires) / 1000)
