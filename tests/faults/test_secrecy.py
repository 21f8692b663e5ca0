# SPDX-License-Identifier: Apache-2.0
"""Secrets that servers must not expose: bodies in logs, passwords in process lists, and temporary folders."""

import base64
import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.servers import ZqServer, ask, wait_for
from tests.stores import RedisServer

SECRET = "B0DYS3CRET"
METADATA = "M3TAS3CRET"


def forms(text: str) -> set[str]:
    """Return the forms in which a log may show the text: plain, hexadecimal, and base64 at any offset."""
    shown = {text, text.encode().hex()}
    for shift in range(3):
        coded = base64.b64encode(b"." * shift + text.encode()).decode()
        shown.add(coded[4 if shift else 0 : len(coded) // 4 * 4 - 4])  # the digits that depend on this text only
    return shown


@pytest.mark.store_of_the_day
def test_no_body_is_in_any_log_at_any_level(store_uri: str) -> None:
    """S13: With level DEBUG and every way that a body takes, the log may have zq's own DEBUG lines but no body."""
    config = "[log]\nlevel = DEBUG\nrequests = true\n[server]\ngraceful_timeout = 5\n"
    with ZqServer(store_uri, config=config) as server:
        told = {"messages": [{"body": SECRET}, {"body": {"key": SECRET}}]}
        asked = [
            ask(server.url, "PUT", "/v2/queues/q", {"note": METADATA, "_history_ttl": 600, "_dead_letter_queue": "d"}),
            ask(server.url, "POST", "/v2/queues/q/messages", told, headers={"Idempotency-Key": "k"}),
            ask(server.url, "POST", "/v2/queues/q/messages?stage=s", told),
            ask(server.url, "POST", "/v2/commits", {"producer": "p", "batch": 1, "publish": ["s"], "settle": []}),
            ask(server.url, "POST", "/v2/topics/t/messages", told),
            ask(server.url, "GET", "/v2/topics/t/messages"),
            ask(server.url, "POST", "/v2/queues/q/claims", {"ttl": 60, "grace": 60}),
            ask(server.url, "GET", "/v2/queues/q/messages?echo=true&include_claimed=true"),
            ask(server.url, "DELETE", "/v2/queues/q/messages?pop=1"),
            ask(server.url, "GET", "/v2/queues/q/history"),
            ask(server.url, "POST", "/v2/queues/q/messages", {"messages": SECRET}),
        ]
        assert [answer.status // 100 for answer in asked] == [2] * (len(asked) - 1) + [4]
        assert SECRET in json.dumps(asked[7].document) + json.dumps(asked[5].document)
        server.terminate()
        assert " request " in server.output
        assert [shown for text in (SECRET, METADATA) for shown in forms(text) if shown in server.output] == []


def test_what_a_log_would_show_is_looked_for() -> None:
    """The check of the previous test finds the form in which pymongo logs ``"BODYSECRET"``."""
    assert any(shown in "base64: IkJPRFlTRUNSRVQi" for shown in forms("BODYSECRET"))


def test_the_password_of_a_store_is_in_no_list_of_processes_and_in_no_log() -> None:
    """With the URI in the environment, neither master nor worker shows the password, even at DEBUG."""
    with (
        RedisServer(None, "--requirepass", SECRET) as store,
        ZqServer(
            "",
            config="[log]\nlevel = DEBUG\n",
            env={"OS_STORAGE__URI": store.uri.replace("redis://", f"redis://:{SECRET}@")},
            forked=False,
        ) as server,
    ):
        for pid in (server.pid, *server.worker_pids):
            assert SECRET not in Path(f"/proc/{pid}/cmdline").read_text()
        server.terminate()
        assert SECRET not in server.output


@pytest.mark.parametrize(
    ("printed", "is_secret"),
    [
        (f"token zq_{'a' * 10}_{'b' * 43}_{'c' * 6}", True),
        ("at redis://user:word@host", True),
        ("at redis://:word@host", True),
        ("Bearer eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJhIn0.c2lnbmF0dXJl", True),
        ("subscription whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", True),
        (f"SQS key ZQ7AAAAAAAAAAAAAAAAA {'aB3x' * 10}", True),
        ("at redis://***@host:6379/0, token zq_aaaaaaaaaa, from user@host", False),
        (f"commit {'c0ffee17' * 5}, SQS key ZQ7AAAAAAAAAAAAAAAAA, body {'x' * 40}", False),
    ],
)
def test_a_secret_in_the_output_of_any_test_server_fails_its_test(printed: str, is_secret: bool) -> None:
    """This applies to all secrets that have a form of their own (operations contract, 3)."""
    server = ZqServer("memory:", prefix=("sh", "-c", f"echo '{printed}' >&2"))
    server.launch().wait(60)
    with pytest.raises(AssertionError, match="has printed a secret") if is_secret else nullcontext():
        server.close()


@pytest.mark.parametrize("printed", ["signing", "former", "smtp", "master", "replaced", "proxy"])
def test_a_configured_secret_in_the_output_of_any_test_server_fails_its_test(printed: str, tmp_path: Path) -> None:
    """Secrets are values in the file or the environment, or in files, which tests replace."""
    keys, secrets = tmp_path / "keys", tmp_path / "secrets"
    secret = {name: f"{name}-{'0123456789' * 3}" for name in ("signing", "former", "smtp", "proxy")}
    secret |= {name: base64.b64encode(name.encode() * 4).decode() for name in ("master", "replaced")}
    keys.write_text(f"# comment\nfirst {secret['replaced']}\n")
    secrets.write_text(f"{secret['proxy']}\n")
    config = f"[signed_url]\nsecret_key = {secret['signing']}\nold_secret_keys = {'o' * 40}, {secret['former']}\n"
    config += f"[transport]\nmessage_encryption_key_file = {keys}\n"
    env = {"OS_NOTIFICATION__SMTP_USER_PASSWORD": secret["smtp"], "OS_AUTH__PROXY_SECRET_FILE": str(secrets)}
    for text, is_secret in ((secret[printed], True), (f"first key of {keys} and {secrets}", False)):
        server = ZqServer("memory:", config=config, env=env, prefix=("sh", "-c", f"echo '{text}' >&2"))
        server.launch().wait(60)
        keys.write_text(f"second {secret['master']}\n")
        with pytest.raises(AssertionError, match="has printed a secret") if is_secret else nullcontext():
            server.close()


def test_folders_of_killed_servers_are_cleared_at_the_next_start(tmp_path: Path) -> None:
    """Folders of live servers stay."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    env = {"TMPDIR": str(folder)}

    def left() -> list[str]:
        kinds = "zq-options-", "zq-starting-"
        return [entry.name for entry in folder.iterdir() if entry.name.startswith(kinds)]

    with ZqServer(f"rocksdb://{tmp_path}/a", env=env) as living, ZqServer(f"rocksdb://{tmp_path}/b", env=env) as killed:
        assert len(left()) == 2
        killed.kill()
        assert len(left()) == 2
        before = set(left())
        with ZqServer(f"rocksdb://{tmp_path}/c", env=env) as third:
            wait_for(lambda: len(left()) == 2, 60, "the folder of the killed server is gone")
            assert len(before & set(left())) == 1
            third.terminate()
        assert living.ready()
        assert len(left()) == 1
        living.terminate()
    assert left() == []
