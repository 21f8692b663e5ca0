# SPDX-License-Identifier: Apache-2.0
"""Documents: small keyed values, each replaced as a whole by compare-and-set on its version (extensions, section 8)."""

from collections.abc import Iterator
from functools import partial

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import OpenStore, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.conformance.test_tenants import PROJECTS
from zq.model.documents import Document, DocumentRef
from zq.storage.api import Storage

pytestmark = [pytest.mark.fresh_store, pytest.mark.pools]

ODD = ["", "a", "a/b", "a:b", "a\x00", "a\x00b", "a\x01", "\x7f", "\xe9", "e\u0301", "\uffff", "\U0001f600", "\ud800"]


class Documents:
    """The documents of a store, with a clock."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.clock = ManualClock(storage.now())

    def put(self, ref: DocumentRef, value: bytes = b"{}", expected: str | None = None, ttl: int | None = None) -> bool:
        expires = None if ttl is None else round(self.clock.now() + ttl, 3)
        return self.storage.documents.put(ref, value, self.clock.now(), expected, expires)

    def get(self, ref: DocumentRef) -> Document | None:
        return self.storage.documents.get(ref, self.clock.now())

    def one(self, ref: DocumentRef) -> Document:
        found = self.get(ref)
        assert found is not None
        return found

    def delete(self, ref: DocumentRef, expected: str | None = None) -> bool:
        return self.storage.documents.delete(ref, self.clock.now(), expected)

    def names(
        self, project: str = "acme", kind: str = "topic", prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[str]:
        """Return the names of one page, checked against ``get``."""
        page = self.storage.documents.list(project, kind, prefix, after, limit, self.clock.now())
        names = [document.ref.name for document in page.items]
        assert page.next == (names[-1] if names else None)
        assert page.items == [self.get(DocumentRef(project, kind, name)) for name in names]
        return names


def ref(name: str = "news", project: str = "acme", kind: str = "topic") -> DocumentRef:
    return DocumentRef(project, kind, name)


@pytest.fixture
def shelf(storage: Storage) -> Documents:
    return Documents(storage)


def test_a_document_is_returned_unchanged(shelf: Documents):
    for at, value in enumerate([b"", b"{}", b"\x00\xff", bytes(range(256)) * 2000]):
        assert shelf.get(ref(f"n{at}")) is None
        assert shelf.put(ref(f"n{at}"), value, ttl=60 if at % 2 else None)
        found = shelf.one(ref(f"n{at}"))
        assert found == Document(ref(f"n{at}"), value, found.version, shelf.clock.now() + 60 if at % 2 else None)
        assert found.version != ""


def test_a_put_with_another_expected_version_is_refused(shelf: Documents):
    """The expected version "" means that no document exists; ``None`` means any. A refused put changes nothing."""
    assert not shelf.put(ref(), b"0", expected="no-such-version")
    assert shelf.get(ref()) is None
    assert shelf.put(ref(), b"1", expected="")
    first = shelf.one(ref())
    assert not shelf.put(ref(), b"2", expected="", ttl=1)
    assert not shelf.put(ref(), b"2", expected=first.version + "x")
    assert shelf.one(ref()) == first
    assert shelf.put(ref(), b"2", expected=first.version, ttl=60)
    second = shelf.one(ref())
    assert not shelf.put(ref(), b"3", expected=first.version)
    assert shelf.one(ref()) == second
    assert shelf.put(ref(), b"3")
    assert (shelf.one(ref()).value, shelf.one(ref()).expires) == (b"3", None)


def test_a_version_never_repeats(shelf: Documents):
    """A new state has a new version, even with the same value or after a deletion or expiry."""
    versions = []
    for at in range(30):
        assert shelf.put(ref(), b"same", ttl=60 if at % 5 == 1 else None)
        versions.append(shelf.one(ref()).version)
        if at % 5 == 1:
            shelf.clock.advance(60)
        elif at % 5 == 3:
            assert shelf.delete(ref())
    assert len(set(versions)) == 30
    for version in versions[:-1]:
        assert not shelf.put(ref(), b"stale", expected=version)
        assert not shelf.delete(ref(), expected=version)


def test_a_delete_with_another_expected_version_is_refused(shelf: Documents):
    """The delete returns whether it has deleted a document."""
    assert not shelf.delete(ref())
    assert shelf.put(ref())
    assert not shelf.delete(ref(), expected="no-such-version")
    assert not shelf.delete(ref(), expected="")
    version = shelf.one(ref()).version
    assert shelf.delete(ref(), expected=version)
    assert not shelf.delete(ref(), expected=version)
    assert (shelf.get(ref()), shelf.names()) == (None, [])
    assert shelf.put(ref(), expected="")
    assert shelf.delete(ref())


def test_an_expired_document_is_hidden_from_every_verb(shelf: Documents):
    """After its expiry, the document can be created again. Maintenance keeps the new document."""
    for name in ("a", "b", "c"):
        assert shelf.put(ref(name), b"old", ttl=60)
    assert shelf.put(ref("d"), b"old", ttl=61)
    version = shelf.one(ref("a")).version
    shelf.clock.advance(59.999)
    assert shelf.names() == ["a", "b", "c", "d"]
    shelf.clock.advance(0.001)
    assert (shelf.get(ref("a")), shelf.names(), shelf.names(limit=1)) == (None, ["d"], ["d"])
    assert not shelf.put(ref("a"), b"new", expected=version)
    assert not shelf.delete(ref("a"))
    assert not shelf.delete(ref("a"), expected=version)
    assert shelf.put(ref("a"), b"new", expected="")
    assert shelf.put(ref("b"), b"new", ttl=600)
    while shelf.storage.maintain(shelf.clock.now()):
        pass
    assert shelf.names() == ["a", "b", "d"]
    assert [shelf.one(ref(name)).value for name in "abd"] == [b"new", b"new", b"old"]
    shelf.clock.advance(600)
    assert shelf.names() == ["a"]


def test_documents_are_listed_in_byte_order_from_any_marker(shelf: Documents):
    """Prefix, marker and limit combine; a marker need not exist; other kinds and projects are not listed."""
    names = sorted(
        {*ODD, "b", "b.a", "b.b", "b.", "ba", "B"} - {""}, key=lambda name: name.encode("utf-8", "surrogatepass")
    )
    for name in reversed(names):
        assert shelf.put(ref(name))
        for project, kind in (("acme", "topi"), ("acme", "topic/"), ("acm", "etopic"), ("acme\x00", "topic")):
            assert shelf.put(ref(name + "!", project, kind))
    assert shelf.names() == names
    for at, name in enumerate(names):
        assert shelf.names(after=name, limit=3) == names[at + 1 : at + 4]
    assert shelf.names(prefix="b") == ["b", "b.", "b.a", "b.b", "ba"]
    assert shelf.names(prefix="b", after="b.") == ["b.a", "b.b", "ba"]
    assert shelf.names(prefix="b.", after="a", limit=2) == ["b.", "b.a"]
    assert shelf.names(prefix="b", after="b.aa", limit=1) == ["b.b"]
    assert shelf.names(prefix="b", after="c") == shelf.names(prefix="bz") == shelf.names(prefix="[a-z]*") == []
    assert shelf.names(prefix="a\x00") == ["a\x00", "a\x00b"]


def test_documents_with_odd_names_are_distinct(shelf: Documents):
    refs = [DocumentRef(project, "topic", "b") for project in ["", *PROJECTS, "\udfff"]]
    refs += [DocumentRef("acme", kind, "b") for kind in ODD] + [DocumentRef("acme", "odd", name) for name in ODD[1:]]
    for at, each in enumerate(refs):
        assert shelf.put(each, b"%d" % at, expected="")
    for at, each in enumerate(refs):
        assert shelf.one(each).value == b"%d" % at
        assert shelf.names(each.project, each.kind) == sorted(
            (other.name for other in refs if other[:2] == each[:2]),
            key=lambda name: name.encode("utf-8", "surrogatepass"),
        )
    for each in refs[::2]:
        assert shelf.delete(each)
    assert [shelf.get(each) is not None for each in refs] == [at % 2 == 1 for at in range(len(refs))]


@ONE_OR_TWO_CONNECTIONS
def test_one_of_many_concurrent_changes_of_a_document_succeeds(shelf: Documents):
    for at in range(15):
        version = shelf.one(ref()).version if at else ""
        told = run_together(*(partial(shelf.put, ref(), b"%d" % own, version) for own in range(4)))
        assert sorted(told) == [False, False, False, True]
        assert shelf.one(ref()).value == b"%d" % told.index(True)
    version = shelf.one(ref()).version
    told = run_together(*[partial(shelf.delete, ref(), version)] * 3, partial(shelf.put, ref(), b"late", version))
    assert sorted(told) == [False, False, False, True]
    assert (shelf.get(ref()) is not None) == told[3]


@ONE_OR_TWO_CONNECTIONS
def test_concurrent_changes_of_a_document_are_all_kept(shelf: Documents):
    """Four writers increment a counter by compare-and-set with retries. No increment is lost."""
    assert shelf.put(ref(), b"0")

    def counter() -> None:
        for _ in range(10):
            while True:
                found = shelf.one(ref())
                if shelf.put(ref(), b"%d" % (int(found.value) + 1), found.version):
                    break

    run_together(*[counter] * 4)
    assert shelf.one(ref()).value == b"40"


@pytest.fixture
def reopened(open_store: OpenStore) -> Iterator[Documents]:
    shelf = Documents(open_store())
    yield shelf
    shelf.storage.close()


@pytest.mark.durable
def test_documents_survive_a_restart(open_store: OpenStore, reopened: Documents):
    """Values, versions, expiry times and deletions survive. Documents also expire while the store is closed."""
    shelf = reopened
    for at in range(50):
        assert shelf.put(ref(f"n{at:02}"), b"%d" % at, ttl=[None, 60, 600][at % 3])
    assert shelf.delete(ref("n00"))
    before = [shelf.get(ref(f"n{at:02}")) for at in range(50)]
    shelf.storage.close()
    shelf.storage = open_store()
    assert [shelf.get(ref(f"n{at:02}")) for at in range(50)] == before
    shelf.clock.advance(60)
    assert shelf.names() == [f"n{at:02}" for at in range(1, 50) if at % 3 != 1]
    shelf.clock.advance(540)
    assert shelf.names() == [f"n{at:02}" for at in range(1, 50) if at % 3 == 0]
