# SPDX-License-Identifier: Apache-2.0
"""The file of the keys by which bodies are encrypted, on a real server (F2)."""

import os
import signal
from base64 import b64encode
from pathlib import Path

import pytest

from tests.servers import ZqServer, ask, wait_for

pytestmark = pytest.mark.one_store

URL = "/v2/queues/cards/messages"
HEADERS = {"Client-ID": "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f", "X-Project-ID": "acme"}
OLD, NEW = (f"{name} {b64encode(bytes([number] * 32)).decode()}\n" for name, number in (("old", 1), ("new", 2)))


def test_keys_are_taken_over_at_hup_and_no_body_is_in_the_files(tmp_path: Path) -> None:
    """What the old key sealed is read beside what the new one seals; a wrong file changes nothing."""
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
        wait_for(lambda: "stays as it was" in server.output, 20, "the log says that the file is refused")
        assert bodies() == ["cleartext-one"]
        keys.write_text(NEW)
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: bodies() == [], 20, "the old key is gone")
        post("cleartext-two")
        keys.write_text(NEW + OLD)
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: bodies() == ["cleartext-one", "cleartext-two"], 20, "both keys are known")
    held = b"".join(file.read_bytes() for file in store.rglob("*") if file.is_file())
    assert b"cards" in held
    assert b"cleartext" not in held


def test_a_file_that_others_can_read_is_no_start(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(OLD)
    keys.chmod(0o644)
    env = {"OS_TRANSPORT__MESSAGE_ENCRYPTION_KEY_FILE": str(keys)}
    with pytest.raises(Exception, match="mode 0600"), ZqServer(f"rocksdb://{tmp_path}/store", env=env):
        pass
