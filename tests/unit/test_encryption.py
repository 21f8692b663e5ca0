# SPDX-License-Identifier: Apache-2.0
"""Encryption of bodies, and the key file."""

import os
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import msgpack

from zq.auth.master_keys import MasterKeys, read_keys
from zq.clock import ManualClock
from zq.core.data_keys import DATA_KEYS_KIND, DataKeys, ProjectKeys, RekeyResult
from zq.core.encryption import MARK, Sealing
from zq.errors import Conflict, Invalid, MessageUnreadable, StartRefused, Unavailable
from zq.model.documents import DocumentRef
from zq.storage import connect
from zq.storage.api import DocumentController

KEYS = {"one": bytes(range(32)), "two": bytes(range(32, 64))}
TEXT = b64encode(KEYS["one"]).decode()


def file_of(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "keys"
    path.write_text(text)
    os.chmod(path, mode)
    return str(path)


@pytest.fixture
def documents() -> Iterator[DocumentController]:
    storage = connect("memory:")
    yield storage.documents
    storage.close()


def keys_of(documents: DocumentController, masters: dict[str, bytes]) -> DataKeys:
    """Return the data keys of one server."""
    return DataKeys(documents, ManualClock(1_800_000_000), masters)


def test_a_body_is_decrypted_only_for_its_message(documents: DocumentController) -> None:
    """A body can be decrypted only with its own project and message id (F1)."""
    sealing = Sealing(keys_of(documents, KEYS))
    sealed = sealing.seal("p", "m", b'{"a": 1}')
    assert sealed.startswith(MARK + b"\x011")
    sealing.seal("q", "m", b"2")
    assert sealing.open("p", "m", sealed) == b'{"a": 1}'
    for project, id in [("q", "m"), ("p", "n"), ("p\x00m", "")]:
        with pytest.raises(MessageUnreadable):
            sealing.open(project, id, sealed)


def test_no_bit_can_be_changed_and_no_byte_cut_off(documents: DocumentController) -> None:
    """Any damage to the stored body is reported as 503, never as an unexpected error (F1)."""
    sealing = Sealing(keys_of(documents, KEYS))
    sealed = sealing.seal("p", "m", b'"body"')
    changed = [sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :] for at in range(1, len(sealed))]
    for damaged in [*changed, *(sealed[:end] for end in range(1, len(sealed))), MARK + b"\xff" * 300]:
        with pytest.raises(MessageUnreadable):
            sealing.open("p", "m", damaged)


def test_plain_bodies_are_returned_unchanged_and_without_a_key_nothing_is_encrypted(
    documents: DocumentController,
) -> None:
    sealing = Sealing(keys_of(documents, {}))
    assert sealing.open("p", "m", b"[1]") == b"[1]"
    with pytest.raises(Unavailable):
        sealing.seal("p", "m", b"[1]")
    with pytest.raises(Invalid):
        sealing.keys.rekey()


def test_no_key_is_stored_in_plain(documents: DocumentController) -> None:
    """A stored data key is useless without the master key, and in place of another project's key."""
    sealing = Sealing(keys_of(documents, {"one": KEYS["one"]}))
    sealed = sealing.seal("p", "m", b"1")
    stored = documents.get(DocumentRef("", DATA_KEYS_KIND, "p"), 1_800_000_000)
    assert stored is not None
    documents.put(DocumentRef("", DATA_KEYS_KIND, "q"), stored.value, 1_800_000_000)
    for master in ({"one": KEYS["two"]}, {"two": KEYS["one"]}):
        with pytest.raises(MessageUnreadable):
            Sealing(keys_of(documents, master)).open("p", "m", sealed)
    assert keys_of(documents, {"one": KEYS["one"]}).find_cipher("q", "1") is None


def test_after_a_rekey_the_old_master_key_is_not_needed(documents: DocumentController) -> None:
    """After a rekey, the new master key opens all bodies; servers with only the old one cannot read later bodies."""
    old, both = ({name: KEYS[name] for name in names} for names in (("one",), ("two", "one")))
    before = Sealing(keys_of(documents, old))
    sealed = {f"p{number}": before.seal(f"p{number}", "m", b"1") for number in range(150)}
    assert keys_of(documents, both).rekey() == RekeyResult("two", 150, 0)
    after = Sealing(keys_of(documents, {"two": KEYS["two"]}))
    assert {after.open(project, "m", body) for project, body in sealed.items()} == {b"1"}
    newer = after.seal("p7", "m", b"2")
    assert newer.startswith(MARK + b"\x012")
    before.keys.replace(both)
    assert before.open("p7", "m", newer) == b"2"
    before.keys.replace(old)
    with pytest.raises(MessageUnreadable):
        before.open("p7", "m", newer)
    assert before.open("p7", "n", before.seal("p7", "n", b"3")) == b"3"  # before rotates its own data key
    held = read_all(documents)
    with pytest.raises(Conflict, match="these keys: one"):
        keys_of(documents, {"two": KEYS["two"]}).rekey()
    assert read_all(documents) == held
    assert keys_of(documents, both).rekey() == RekeyResult("two", 150, 0)
    changed = {project for project, value in read_all(documents).items() if value != held[project]}
    assert changed == {"p7"}


def read_all(documents: DocumentController) -> dict[str, bytes]:
    """Return the stored data keys of each project."""
    page = documents.list("", DATA_KEYS_KIND, "", "", 1000, 1_800_000_000)
    return {document.ref.name: document.value for document in page.items}


def key_counts(documents: DocumentController) -> set[int]:
    """Return the numbers of data keys that the projects have."""
    return {len(msgpack.decode(value, type=ProjectKeys).keys) for value in read_all(documents).values()}


def test_a_second_rekey_adds_a_key_to_each_project_even_if_a_key_is_damaged(documents: DocumentController) -> None:
    """The file has a wrong key in place of a lost one. The project that used the lost key is counted."""
    for project, master in (("p", "one"), ("q", "two")):
        Sealing(keys_of(documents, {master: KEYS[master]})).seal(project, "m", b"1")
    assert keys_of(documents, {"two": KEYS["two"], "one": bytes(32)}).rekey() == RekeyResult("two", 2, 1)
    assert key_counts(documents) == {2}
    assert keys_of(documents, {"two": KEYS["two"], "one": KEYS["one"]}).rekey() == RekeyResult("two", 2, 0)
    assert key_counts(documents) == {2, 3}
    assert keys_of(documents, {"two": KEYS["two"]}).rekey() == RekeyResult("two", 2, 0)
    assert key_counts(documents) == {3, 4}


class Interrupted(Exception):
    """The end of a rekey in a test."""


class FailingDocuments:
    """Documents whose ``put`` fails at one call, before or after the document is stored."""

    def __init__(self, documents: DocumentController, call: int, stored: bool) -> None:
        self._documents = documents
        self._left = call
        self._stored = stored

    def __getattr__(self, name: str) -> object:
        return getattr(self._documents, name)

    def put(self, *given: Any, **named: Any) -> bool:
        self._left -= 1
        if self._left == 0 and not self._stored:
            raise Interrupted
        done = self._documents.put(*given, **named)
        if self._left == 0:
            raise Interrupted
        return done


@pytest.mark.parametrize(("call", "stored"), [(1, False), (2, True), (3, False), (5, True)])
def test_an_interrupted_rekey_is_completed_by_the_next_one(
    documents: DocumentController, monkeypatch: pytest.MonkeyPatch, call: int, stored: bool
) -> None:
    """Both master keys open all bodies after the interruption, and the new one alone does after the repetition.

    Each project has one new data key, unless nothing was left to complete.
    """
    monkeypatch.setattr("zq.core.data_keys.PAGE_SIZE", 2)
    before = Sealing(keys_of(documents, {"one": KEYS["one"]}))
    sealed = {f"p{number}": before.seal(f"p{number}", "m", b"1") for number in range(5)}
    both, new = {"two": KEYS["two"], "one": KEYS["one"]}, {"two": KEYS["two"]}

    def opened(masters: dict[str, bytes]) -> list[bytes]:
        after = Sealing(keys_of(documents, masters))
        return [after.open(project, "m", body) for project, body in sealed.items()]

    with pytest.raises(Interrupted):
        keys_of(cast("DocumentController", FailingDocuments(documents, call, stored)), both).rekey()
    assert opened(both) == [b"1"] * 5
    assert keys_of(documents, both).rekey() == RekeyResult("two", 5, 0)
    assert opened(new) == [b"1"] * 5
    assert key_counts(documents) == {3 if (call, stored) == (5, True) else 2}


class GrowingDocuments:
    """Documents of a rekey. After each page, a server adds a project whose name the pass has already gone by."""

    def __init__(self, documents: DocumentController, server: Sealing) -> None:
        self._documents = documents
        self._server = server
        self._pages = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._documents, name)

    def list(self, *given: Any) -> object:
        page = self._documents.list(*given)
        self._pages += 1
        self._server.seal(f"p{900 - self._pages}", "m", b"1")
        return page


def test_a_rekey_ends_with_projects_left_while_a_server_adds_keys_of_the_old_master_key(
    documents: DocumentController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zq.core.data_keys.PAGE_SIZE", 2)
    server = Sealing(keys_of(documents, {"one": KEYS["one"]}))
    server.seal("p900", "m", b"1")
    growing = cast("DocumentController", GrowingDocuments(documents, server))
    assert keys_of(growing, {"two": KEYS["two"], "one": KEYS["one"]}).rekey().left


def test_servers_that_seal_at_once_have_the_same_keys(documents: DocumentController) -> None:
    """Each server can decrypt what any of them encrypts, also while the keys are rotated."""
    servers = [Sealing(keys_of(documents, KEYS)) for _ in range(4)]
    sealed: list[bytes] = []

    def work(server: Sealing) -> None:
        for _ in range(20):
            sealed.append(server.seal("p", "m", b"1"))
            if len(sealed) % 10 == 0:
                server.keys.rekey()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, servers))
    assert len(sealed) == 80
    assert {server.open("p", "m", body) for server in servers for body in sealed} == {b"1"}


def test_keys_are_read_in_order_and_again(tmp_path: Path) -> None:
    path = file_of(tmp_path, f"# ours\n\none {TEXT}\n two  {b64encode(KEYS['two']).decode()}\n")
    assert list(read_keys(path).items()) == list(KEYS.items())
    seen: list[object] = []
    file = MasterKeys(path, seen.append)
    file_of(tmp_path, f"three {TEXT}\n")
    file.reload()
    assert seen == [{"three": KEYS["one"]}]
    assert read_keys("") == {}


@pytest.mark.parametrize(
    ("text", "mode", "fault"),
    [
        (f"one {TEXT}", 0o644, "mode 0600"),
        ("", 0o600, "contains no key"),
        ("one", 0o600, "line 1"),
        (f"\none {TEXT[:-4]}", 0o600, "line 2"),
        (f"o/e {TEXT}", 0o600, "line 1"),
        (f"one !{TEXT[1:]}", 0o600, "line 1"),
        (f"one {TEXT}\none {TEXT}", 0o600, "repeats an id"),
    ],
)
def test_an_invalid_key_file_is_refused_at_the_start(tmp_path: Path, text: str, mode: int, fault: str) -> None:
    """The error names the line of the file and never contains the key (F2)."""
    with pytest.raises(StartRefused, match=fault) as refused:
        read_keys(file_of(tmp_path, text, mode))
    assert TEXT[:8] not in str(refused.value)
