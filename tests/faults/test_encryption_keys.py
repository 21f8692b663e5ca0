# SPDX-License-Identifier: Apache-2.0
"""The file of encryption keys of a server (F2)."""

import os
import signal
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from msgspec import msgpack

from tests.commands import Done, run_apart
from tests.faults.killed import MODULE as KILLED
from tests.faults.killed import kill_at
from tests.servers import ZqServer, ask, wait_for
from tests.stores import RedisServer
from zq.auth.master_keys import read_keys
from zq.clock import StoreClock
from zq.core.data_keys import DATA_KEYS_KIND, DataKeys, ProjectKeys, RekeyResult
from zq.core.encryption import Sealing
from zq.storage import connect
from zq.storage.api import DocumentController

pytestmark = pytest.mark.one_store

PROJECTS = [f"p{number}" for number in range(6)]
KINDS = ("queues", "topics")
URL = "/v2/queues/cards/messages"
HEADERS = {"Client-ID": "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f", "X-Project-ID": "acme"}
OLD, NEW, OTHER = (
    f"{name} {b64encode(bytes([number] * 32)).decode()}\n" for name, number in (("old", 1), ("new", 2), ("old", 3))
)


class Rotation(NamedTuple):
    """A file with the old master key, a configuration file that names it, and the URI of a store."""

    keys: Path
    config: Path
    uri: str

    def rekey(self, **options: Any) -> Done:
        return run_apart("rekey", "--config", self.config, "--store", self.uri, **options)


@pytest.fixture
def rotation(kind: str, tmp_path: Path) -> Iterator[Rotation]:
    keys, config = tmp_path / "keys", tmp_path / "zq.conf"
    keys.write_text(OLD)
    keys.chmod(0o600)
    config.write_text(f"[transport]\nmessage_encryption_key_file = {keys}\n[server]\ncontrol = {tmp_path}/control\n")
    if kind == "rocksdb":
        yield Rotation(keys, config, f"rocksdb://{tmp_path}/store")
    else:
        with RedisServer() as server:
            yield Rotation(keys, config, server.uri)


def test_keys_are_taken_over_at_hup_and_no_body_is_in_the_files(tmp_path: Path) -> None:
    """Bodies of the old and of the new key are readable; an invalid file changes nothing."""
    keys, store = tmp_path / "keys", tmp_path / "store"
    keys.write_text(OLD)
    keys.chmod(0o600)
    config = f"[transport]\nmessage_encryption_key_file = {keys}\n"
    with ZqServer(f"rocksdb://{store}", config=config) as server:

        def post(body: str) -> None:
            document = {"messages": [{"body": body}]}
            assert ask(server.url, "POST", URL, document, headers=HEADERS).status == 201

        def bodies() -> list[str] | None:
            answer = ask(server.url, "GET", f"{URL}?echo=true", headers=HEADERS)
            assert answer.status == 200
            return [message["body"] for message in answer.document["messages"]]

        created = ask(server.url, "PUT", "/v2/queues/cards", {"_enable_encrypt_messages": True}, headers=HEADERS)
        assert created.status == 201
        post("cleartext-one")
        keys.write_text("nonsense")
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: "File not reloaded" in server.output, 60, "the log says that the file is refused")
        assert bodies() == ["cleartext-one"]
        keys.write_text(NEW)
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: bodies() == [], 60, "the old key is gone")
        post("cleartext-two")
        keys.write_text(NEW + OLD)
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: bodies() == ["cleartext-one", "cleartext-two"], 60, "both keys are known")
    held = b"".join(file.read_bytes() for file in store.rglob("*") if file.is_file())
    assert b"cards" in held
    assert b"cleartext" not in held


def test_a_key_file_that_others_can_read_is_refused_at_the_start(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(OLD)
    keys.chmod(0o644)
    env = {"OS_TRANSPORT__MESSAGE_ENCRYPTION_KEY_FILE": str(keys)}
    with pytest.raises(Exception, match="mode 0600"), ZqServer(f"rocksdb://{tmp_path}/store", env=env):
        pass


@pytest.mark.store_of_the_day
@pytest.mark.parametrize("kind", ["rocksdb", "redis"])
def test_a_master_key_is_replaced_at_once(rotation: Rotation) -> None:
    """``zq-server rekey`` runs in the server that has the embedded store open, or on the store itself.

    Afterwards no body in queues and topics needs the old key.
    """
    keys, config, uri = rotation
    with ZqServer(uri, "--config", str(config)) as server:
        for kinds in ("queues", "topics"):
            path = f"/v2/{kinds}/cards"
            made = ask(server.url, "PUT", path, {"_enable_encrypt_messages": True}, headers=HEADERS)
            assert made.status == 201
            document = {"messages": [{"body": "cleartext"}]}
            assert ask(server.url, "POST", f"{path}/messages", document, headers=HEADERS).status == 201

        def bodies() -> list[list[str]]:
            found = [ask(server.url, "GET", f"/v2/{each}/cards/messages?echo=true", headers=HEADERS) for each in KINDS]
            return [[message["body"] for message in each.document["messages"]] for each in found]

        def reload(text: str, expected: list[list[str]]) -> None:
            count = server.output.count("Reloaded")
            keys.write_text(text)
            os.kill(server.pid, signal.SIGHUP)
            wait_for(lambda: server.output.count("Reloaded") > count, 60, "the server has reloaded the keys")
            assert bodies() == expected

        assert bodies() == [["cleartext"], ["cleartext"]]
        reload(NEW, [[], []])
        refused = rotation.rekey()
        assert (refused.code, refused.said) == (2, "")
        assert refused.error.endswith("so nothing has changed. Add the lines of these keys: old.\n")
        reload(NEW + OTHER, [[], []])
        incomplete = rotation.rekey()
        assert (incomplete.code, "1 of these projects also have data keys" in incomplete.said) == (1, True), incomplete
        reload(NEW + OLD, [["cleartext"], ["cleartext"]])
        done = rotation.rekey()
        assert (done.code, "1 projects" in done.said) == (0, True), done
        reload(NEW, [["cleartext"], ["cleartext"]])


@pytest.mark.store_of_the_day
@pytest.mark.parametrize("kind", ["rocksdb", "redis"])
def test_a_rekey_that_is_killed_is_completed_by_its_repetition(kind: str, rotation: Rotation) -> None:
    """The kills hit the command, and the server that has the embedded store open.

    Afterwards the new master key alone opens all messages, and each project has one new data key.
    """
    keys, config, uri = rotation

    def masters() -> list[list[str]]:
        with closing(connect(uri)) as storage:
            page = storage.documents.list("", DATA_KEYS_KIND, "", "", 100, storage.now())
            held = [msgpack.decode(document.value, type=ProjectKeys) for document in page.items]
        return [[master for master, _ in each.keys.values()] for each in held]

    with ZqServer(uri, "--config", str(config)) as server:
        for project in PROJECTS:
            owner = HEADERS | {"X-Project-ID": project}
            made = ask(server.url, "PUT", "/v2/queues/cards", {"_enable_encrypt_messages": True}, headers=owner)
            assert made.status == 201
            assert ask(server.url, "POST", URL, {"messages": [{"body": project}]}, headers=owner).status == 201
    keys.write_text(NEW + OLD)
    done, left = 0, len(PROJECTS)
    for call, target in ((1, "command"), (3, "command"), (2, "server")):
        dying = kill_at("zq.core.data_keys:DataKeys", "_rotate", call)
        if target == "server" and kind == "rocksdb":
            with ZqServer(uri, "--config", str(config), env=dying, module=KILLED):
                assert rotation.rekey().code == 2
        else:
            assert rotation.rekey(module=KILLED, env=dying).code == -signal.SIGKILL
        done, left = done + call - 1, left - call + 1
        assert sorted(masters()) == [*[["new", "new"]] * done, *[["old"]] * left]
    assert rotation.rekey().said.startswith("The keys of 6 projects ")
    assert masters() == [["new", "new"]] * len(PROJECTS)
    keys.write_text(NEW)
    with ZqServer(uri, "--config", str(config)) as server:
        for project in PROJECTS:
            found = ask(server.url, "GET", f"{URL}?echo=true", headers=HEADERS | {"X-Project-ID": project})
            assert [message["body"] for message in found.document["messages"]] == [project]


class InterruptedPages:
    """Documents whose ``list`` calls ``run`` before the given call. Calls are counted from 1."""

    def __init__(self, documents: DocumentController, call: int, run: Callable[[], object]) -> None:
        self._documents = documents
        self._left = call
        self._run = run

    def __getattr__(self, name: str) -> object:
        return getattr(self._documents, name)

    def list(self, *given: Any) -> object:
        self._left -= 1
        if self._left == 0:
            self._run()
        return self._documents.list(*given)


@pytest.mark.parametrize("kind", ["redis"])
def test_a_rekey_finds_a_key_that_a_server_without_the_new_master_key_adds(
    rotation: Rotation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server adds the first data key of a project that the pass has already gone by."""
    monkeypatch.setattr("zq.core.data_keys.PAGE_SIZE", 2)
    with closing(connect(rotation.uri)) as first, closing(connect(rotation.uri)) as second:
        late = Sealing(DataKeys(second.documents, StoreClock(second.now), read_keys(str(rotation.keys))))
        for project in PROJECTS:
            late.seal(project, "m", b"1")
        rotation.keys.write_text(NEW + OLD)
        bodies: list[bytes] = []
        # The first pass, which only checks the keys, reads four pages; the second one has then read two.
        pages = InterruptedPages(first.documents, 7, lambda: bodies.append(late.seal("early", "m", b"2")))
        keys = DataKeys(cast("DocumentController", pages), StoreClock(first.now), read_keys(str(rotation.keys)))
        assert keys.rekey() == RekeyResult("new", 7, 0)
        rotation.keys.write_text(NEW)
        alone = Sealing(DataKeys(first.documents, StoreClock(first.now), read_keys(str(rotation.keys))))
        assert [alone.open("early", "m", body) for body in bodies] == [b"2"]
