# SPDX-License-Identifier: Apache-2.0
"""Documents in an ordered store. A thread that changes a document holds the striped lock of the document's key."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct, msgpack

from zq.errors import Fenced
from zq.model import Page, Seconds
from zq.model.documents import Document, DocumentRef, Guard
from zq.storage.concurrency import StripedLocks
from zq.storage.ordered import due, layout
from zq.storage.ordered.handle import StoreHandle
from zq.storage.ordered.store import Store, Write


class StoredDocument(Struct, array_like=True):
    """A document's entry in ``records``. ``expires`` is in Unix milliseconds; None = never."""

    value: bytes
    version: str
    expires: int | None


decode = msgpack.Decoder(StoredDocument).decode


class DocumentController:
    """The implementation of ``zq.storage.api.DocumentController`` over an ordered store."""

    def __init__(self, handle: StoreHandle, stripes: StripedLocks) -> None:
        self._handle = handle
        self._stripes = stripes

    def get(self, ref: DocumentRef, now: Seconds) -> Document | None:
        with self._handle as (store, _):
            stored = _find(store, _key(ref))
        return _build_live(ref, stored, layout.ms(now))

    def put(
        self,
        ref: DocumentRef,
        value: bytes,
        now: Seconds,
        expected: str | None = None,
        expires: Seconds | None = None,
        is_vital: bool = False,
    ) -> bool:
        end = None if expires is None else layout.ms(expires)
        return self._change(ref, now, expected, StoredDocument(value, os.urandom(8).hex(), end))

    def list(self, project: str, kind: str, prefix: str, after: str, limit: int, now: Seconds) -> Page[Document]:
        owner, begin = _key(DocumentRef(project, kind, "")), _key(DocumentRef(project, kind, prefix))
        start = max(begin, _key(DocumentRef(project, kind, after)) + b"\0") if after else begin
        items: list[Document] = []
        with self._handle as (store, _):
            for key, value in store.scan("records", start, layout.prefix_end(begin)):
                ref = DocumentRef(project, kind, key[len(owner) :].decode("utf-8", "surrogatepass"))
                item = _build_live(ref, decode(value), layout.ms(now))
                if item is not None:
                    items.append(item)
                if len(items) == limit:
                    break
        return Page(items, items[-1].ref.name if items else None)

    def delete(self, ref: DocumentRef, now: Seconds, expected: str | None = None) -> bool:
        return self._change(ref, now, expected, None)

    def _change(self, ref: DocumentRef, now: Seconds, expected: str | None, new: StoredDocument | None) -> bool:
        """Replace a document, or delete it if ``new`` is None. Return whether the document was changed.

        Do nothing if the document does not have the version ``expected``. If ``expected`` is "", the document must not
        exist. If ``expected`` is None, any version is accepted.
        """
        key = _key(ref)
        with self._handle as (store, _):
            with self._stripes.locked(lock_name(key)):
                old = _find(store, key)
                found = _build_live(ref, old, layout.ms(now))
                if (found is None and new is None) or expected not in (None, "" if found is None else found.version):
                    return False
                store.write([*_traces(key, old), *(document_writes(key, new) if new is not None else ())])
            store.wait_durable()
        return True


def adopt(store: Store, document: Document) -> None:
    """Import a document from another store, and keep its version. The caller holds the document's lock."""
    key, expires = _key(document.ref), None if document.expires is None else layout.ms(document.expires)
    new = StoredDocument(document.value, document.version, expires)
    store.write([*_traces(key, _find(store, key)), *document_writes(key, new)])


@contextmanager
def guarded(
    store: Store, stripes: StripedLocks, guard: Guard | None, refs: Sequence[DocumentRef] = ()
) -> Iterator[None]:
    """Hold the locks of the guard's document and of the documents ``refs`` within a ``with`` block.

    Raises ``Fenced`` if the guard's document has another value than the guard.
    """
    guards = [] if guard is None else [guard]
    with stripes.locked(*(lock_name(_key(ref)) for ref in (*refs, *(one.ref for one in guards)))):
        for one in guards:
            found = _find(store, _key(one.ref))
            if (b"" if found is None else found.value) != one.value:
                raise Fenced
        yield


def lock_name(key: bytes) -> bytes:
    return b"document " + key


def document_writes(key: bytes, document: StoredDocument) -> list[Write]:
    """Return the writes that store a document and, if it expires, its entry in the index ``due``."""
    value = layout.encode(document)
    return (
        [("records", key, value)] if document.expires is None else due.writes("records", key, value, document.expires)
    )


def has_expiry(store: Store, key: bytes, moment: int) -> bool:
    """Return whether the document with this key exists and expires at ``moment`` (Unix time in milliseconds)."""
    stored = _find(store, key)
    return stored is not None and stored.expires == moment


def _traces(key: bytes, document: StoredDocument | None) -> list[Write]:
    return (
        [(family, place, None) for family, place, _ in document_writes(key, document)] if document is not None else []
    )


def _key(ref: DocumentRef) -> bytes:
    return (
        layout.project_prefix(ref.project) + layout.project_prefix(ref.kind) + ref.name.encode("utf-8", "surrogatepass")
    )


def _find(store: Store, key: bytes) -> StoredDocument | None:
    value = store.get("records", key)
    return None if value is None else decode(value)


def _build_live(ref: DocumentRef, stored: StoredDocument | None, now: int) -> Document | None:
    if stored is None or (stored.expires is not None and stored.expires <= now):
        return None
    return Document(ref, stored.value, stored.version, None if stored.expires is None else stored.expires / 1000)
