# SPDX-License-Identifier: Apache-2.0
"""The file of encryption keys of a server (F2)."""

import os
import signal
import subprocess
import sys
from base64 import b64encode
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.servers import ZqServer, ask, wait_for
from tests.stores import RedisServer

pytestmark = pytest.mark.one_store

KINDS = ("queues", "topics")
URL = "/v2/queues/cards/messages"
HEADERS = {"Client-ID": "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f", "X-Project-ID": "acme"}
OLD, NEW = (f"{name} {b64encode(bytes([number] * 32)).decode()}\n" for name, number in (("old", 1), ("new", 2)))


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
def test_a_master_key_is_replaced_at_once(kind: str, tmp_path: Path) -> None:
    """``zq-server rekey`` runs in the server that has the embedded store open, or on the store itself.

    Afterwards no body in queues and topics needs the old key.
    """
    keys, config = tmp_path / "keys", tmp_path / "zq.conf"
    keys.write_text(OLD)
    keys.chmod(0o600)
    config.write_text(f"[transport]\nmessage_encryption_key_file = {keys}\n[server]\ncontrol = {tmp_path}/control\n")
    with ExitStack() as opened:
        uri = f"rocksdb://{tmp_path}/store" if kind == "rocksdb" else opened.enter_context(RedisServer()).uri
        server = opened.enter_context(ZqServer(uri, "--config", str(config)))

        def rekey() -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "zq.serving.server", "rekey", "--config", str(config), "--store", uri]
            return subprocess.run(command, capture_output=True, text=True, timeout=60)

        for kinds in ("queues", "topics"):
            path = f"/v2/{kinds}/cards"
            made = ask(server.url, "PUT", path, {"_enable_encrypt_messages": True}, headers=HEADERS)
            assert made.status == 201
            document = {"messages": [{"body": "cleartext"}]}
            assert ask(server.url, "POST", f"{path}/messages", document, headers=HEADERS).status == 201

        def bodies() -> list[list[str]]:
            found = [ask(server.url, "GET", f"/v2/{each}/cards/messages?echo=true", headers=HEADERS) for each in KINDS]
            return [[message["body"] for message in each.document["messages"]] for each in found]

        assert bodies() == [["cleartext"], ["cleartext"]]
        keys.write_text(NEW)
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: bodies() == [[], []], 60, "the old key is gone")
        refused = rekey()
        assert refused.returncode == 2
        assert "are still encrypted with other master keys" in refused.stderr
        keys.write_text(NEW + OLD)
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: bodies() == [["cleartext"], ["cleartext"]], 60, "both keys are known")
        done = rekey()
        assert (done.returncode, "1 projects" in done.stdout) == (0, True), done
        keys.write_text(NEW)
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: server.output.count("Reloaded") >= 3, 60, "the old key is gone again")
        assert bodies() == [["cleartext"], ["cleartext"]]
