# SPDX-License-Identifier: Apache-2.0
"""Documents (small keyed values) in Redis. The driver and ``documents.lua`` encode a document as a title and a value.

- Title: length of the kind, the kind, the name.
- Value: expiry in milliseconds (0 = never), length of the version, the version, the content.
"""

import os
from struct import Struct as Packing
from typing import Final, NamedTuple

from zq.model import Page, Seconds
from zq.model.documents import Document, DocumentRef, Guard
from zq.storage.redis import batches, layout, scripts
from zq.storage.redis.connections import Reply
from zq.storage.redis.store import Store

KIND: Final = Packing(">H")
DOCUMENT: Final = Packing(">QH")
# Sorts after every name, because no text contains this byte.
AFTER_ALL_NAMES: Final = b"\xff"
# Maximum number of titles read per round trip.
MAX_TITLES: Final = 1000


class DocumentController:
    """The Redis implementation of ``zq.storage.api.DocumentController``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, ref: DocumentRef, now: Seconds) -> Document | None:
        key = batches.documents(ref.project)[0]
        found = self._store.client.command(key, b"HGET", key, title(ref))
        document = None if found is None else _record(ref, found)
        return document if document is None or document.expires is None or document.expires > now else None

    def put(
        self,
        ref: DocumentRef,
        value: bytes,
        now: Seconds,
        expected: str | None = None,
        expires: Seconds | None = None,
        is_vital: bool = False,
    ) -> bool:
        moment, ends = layout.ms(now), 0 if expires is None else max(1, layout.ms(expires))
        self._store.register_project(ref.project)
        if ends:
            self._store.schedule_expiry(layout.project_ref(ref.project), ends, moment)
        version = os.urandom(8).hex().encode()
        terms = b"%d" % moment, title(ref), _expectation(expected), b"%d" % ends, packed(ends, version, value)
        script = scripts.DOCUMENT_PUT_VITAL if is_vital else scripts.DOCUMENT_PUT
        return bool(self._run(script, ref.project, *terms))

    def list(self, project: str, kind: str, prefix: str, after: str, limit: int, now: Seconds) -> Page[Document]:
        first, behind = (title(DocumentRef(project, kind, name)) for name in (prefix, after))
        start, end = b"[" + first if first > behind else b"(" + behind, b"(" + first + AFTER_ALL_NAMES
        found: Documents = []
        while len(found) < limit:
            want = min(limit - len(found), MAX_TITLES)
            terms = b"%d" % layout.ms(now), start, end, b"%d" % want
            last, *pairs = self._run(scripts.DOCUMENT_LIST, project, *terms)
            for key, packed in zip(pairs[::2], pairs[1::2], strict=True):
                name = layout.decode_text(key[KIND.size + len(layout.encode_text(kind)) :])
                found.append(_record(DocumentRef(project, kind, name), packed))
            if not last:
                break
            start = b"(" + last
        return Page(found, found[-1].ref.name if found else None)

    def delete(self, ref: DocumentRef, now: Seconds, expected: str | None = None) -> bool:
        terms = b"%d" % layout.ms(now), title(ref), _expectation(expected)
        return bool(self._run(scripts.DOCUMENT_DELETE, ref.project, *terms))

    def _run(self, script: scripts.Script, project: str, *arguments: bytes) -> Reply:
        return self._store.client.run(script, batches.documents(project), *arguments)


Documents = list[Document]


class Condition(NamedTuple):
    """The key and the arguments of the script part ``guarding``."""

    keys: layout.Block
    terms: tuple[bytes, bytes]


def condition(project: str, guard: Guard | None) -> Condition:
    """Return the condition of a script on the project. Without a guard, there is no condition."""
    terms = (b"", b"") if guard is None else (title(guard.ref), guard.value)
    return Condition(batches.documents(project)[:1], terms)


def title(ref: DocumentRef) -> bytes:
    """Encode the kind and the name of a document."""
    kind = layout.encode_text(ref.kind)
    return KIND.pack(len(kind)) + kind + layout.encode_text(ref.name)


def packed(expires: int, version: bytes, value: bytes) -> bytes:
    """Encode the stored value of a document.

    ``expires`` is the expiry in milliseconds, or 0 if the document never expires. ``value`` is the content.
    """
    return DOCUMENT.pack(expires, len(version)) + version + value


def unpacked(project: str, title: bytes, packed: bytes) -> Document:
    """Decode a document from its title and its stored value."""
    end = KIND.size + KIND.unpack_from(title)[0]
    return _record(
        DocumentRef(project, layout.decode_text(title[KIND.size : end]), layout.decode_text(title[end:])), packed
    )


def _expectation(version: str | None) -> bytes:
    return b"*" if version is None else b"=" + layout.encode_text(version)


def _record(ref: DocumentRef, packed: bytes) -> Document:
    expires, length = DOCUMENT.unpack_from(packed)
    value = DOCUMENT.size + length
    version = layout.decode_text(packed[DOCUMENT.size : value])
    return Document(ref, packed[value:], version, expires / 1000 if expires else None)
