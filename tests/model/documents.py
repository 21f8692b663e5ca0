# SPDX-License-Identifier: Apache-2.0
"""Document verbs in any order, on a store and on a dictionary at the same time."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.model.pair import PICKS, Holder
from tests.model.timeline import Timeline
from zq.model import Page
from zq.model.documents import Document, DocumentRef

NAMES = ["a", "a.b", "a/", "b", "\x7f", "é", "\uffff", "\U0001f600"]
REFS = st.tuples(st.sampled_from([0, 0, 0, 1]), st.sampled_from(["k", "k", "k/"]), st.sampled_from(NAMES))
EXPECTED = st.sampled_from(["any", "any", "none", "right", "right", "right", "former", "unknown"])
LIVES = st.sampled_from([None, None, 1, 60, 600])
Picked = tuple[int, str, str]


class RecordMachine(Timeline):
    """A store and a dictionary, which must agree."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(holder)
        self.documents: dict[DocumentRef, Document] = {}
        self.versions: dict[DocumentRef, list[str]] = {}
        """All versions that each document has had."""

    def ends(self) -> set[float]:
        return {document.expires for document in self.documents.values() if document.expires is not None}

    def known(self, ref: DocumentRef) -> Document | None:
        document = self.documents.get(ref)
        return document if document and (document.expires is None or document.expires > self.now) else None

    def ref(self, picked: Picked) -> DocumentRef:
        project, kind, name = picked
        return DocumentRef(self.projects[project], kind, name)

    def expected(self, ref: DocumentRef, how: str) -> str | None:
        """Return a version that a caller may expect."""
        known = self.known(ref)
        former = [version for version in self.versions.get(ref, []) if known is None or version != known.version]
        right = known.version if known else ""
        return {"any": None, "none": "", "right": right, "former": former[-1] if former else "x"}.get(how, "unknown")

    def holds(self, ref: DocumentRef, expected: str | None) -> bool:
        known = self.known(ref)
        return expected is None or expected == (known.version if known else "")

    @rule(picked=REFS, value=st.binary(max_size=9), how=EXPECTED, lives=LIVES)
    def put(self, picked: Picked, value: bytes, how: str, lives: int | None) -> None:
        ref = self.ref(picked)
        expected, expires = self.expected(ref, how), None if lives is None else round(self.now + lives, 3)
        told = self.holder.storage.documents.put(ref, value, self.now, expected, expires)
        assert told == self.holds(ref, expected)
        if told:
            found = self.holder.storage.documents.get(ref, self.now)
            assert found is not None
            assert found.version not in ("", *self.versions.setdefault(ref, []))
            self.versions[ref].append(found.version)
            self.documents[ref] = Document(ref, value, found.version, expires)
        self.get(picked)

    @rule(picked=REFS)
    def get(self, picked: Picked) -> None:
        ref = self.ref(picked)
        assert self.holder.storage.documents.get(ref, self.now) == self.known(ref)

    @rule(picked=REFS, how=EXPECTED)
    def delete(self, picked: Picked, how: str) -> None:
        ref = self.ref(picked)
        expected = self.expected(ref, how)
        told = self.holder.storage.documents.delete(ref, self.now, expected)
        assert told == (self.known(ref) is not None and self.holds(ref, expected))
        if told:
            del self.documents[ref]
        self.get(picked)

    @rule(
        picked=REFS,
        prefix=st.sampled_from(["", "", "a", "a.", "é", "z"]),
        after=st.sampled_from(["", *NAMES, "a.c"]),
        limit=st.sampled_from([1, 2, 1000]),
    )
    def page(self, picked: Picked, prefix: str, after: str, limit: int) -> None:
        project, kind, _ = self.ref(picked)
        fitting = [ref for ref in self.documents if ref[:2] == (project, kind) and ref.name.startswith(prefix)]
        fitting = sorted(
            (ref for ref in fitting if ref.name.encode() > after.encode()), key=lambda ref: ref[2].encode()
        )
        documents = [document for ref in fitting if (document := self.known(ref))][:limit]
        told = self.holder.storage.documents.list(project, kind, prefix, after, limit, self.now)
        assert told == Page(documents, documents[-1].ref.name if documents else None)

    @rule()
    def agree_on_everything(self) -> None:
        for project in range(len(self.projects)):
            for kind in ("k", "k/"):
                self.page((project, kind, ""), "", "", 1000)


class RestartingRecordMachine(RecordMachine):
    """A machine whose store is closed and reopened at any time."""

    @precondition(lambda self: self.documents)
    @rule(really=PICKS)
    def restart(self, really: int) -> None:
        if really % 2 == 0:
            self.holder.reopen()
