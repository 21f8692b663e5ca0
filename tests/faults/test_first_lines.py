# SPDX-License-Identifier: Apache-2.0
"""The first log lines of a server: its version and whom it trusts, or why it cannot listen."""

import re
import socket
from pathlib import Path

import pytest

from tests.faults.refusal import sentence_of
from tests.servers import ZqServer
from tests.stores import RedisServer
from zq import __version__
from zq.serving import settings, startup

PASSWORD = "s3cretPw"
LEVEL = "The store has level 1. Options that differ from their defaults: "


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_the_first_lines_say_what_starts_and_whom_it_believes(engine: str, tmp_path: Path) -> None:
    """The lines are log lines, and the engine's own lines follow."""
    with ZqServer(f"rocksdb://{tmp_path}/store", engine=engine) as server:
        lines = [re.sub(r"^\S+ INFO [\w.]+: ", "", line) for line in server.stderr.splitlines()]
    chosen = f"[server] port = {server.port}, [server] engine = {engine}, [storage] uri = rocksdb://{tmp_path}/store"
    assert f"{LEVEL}{chosen}, [metrics] port = 0, [metrics] on_main_port = True" in lines
    assert lines[:5] == [
        f"zq {__version__} starts with {engine} on http://127.0.0.1:{server.port}.",
        f"Store: rocksdb://{tmp_path}/store.",
        f"Console: http://127.0.0.1:{server.port}/console/.",
        "Project defaults: message TTL 3600 s, claim TTL 300 s, claim grace 60 s.",
        "Authentication is off; reachable from this machine only.",
    ]


def test_the_lines_say_what_was_chosen_and_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a relative store is absolute, and an IPv6 address is in brackets.

    The console's URL has a name that a browser can open. The address of metrics is logged once the server listens on
    it.
    """
    monkeypatch.setenv("OS_STORAGE__URI", f"redis://user:{PASSWORD}@[::1]:6379/0?password={PASSWORD}")
    monkeypatch.setenv("OS_SERVER__BIND", "::")
    said = "\n".join(startup.startup_lines(settings.load()))
    assert PASSWORD not in said
    for part in ("redis://***@[::1]", "http://[::]:8888.", "Console: http://localhost:8888/console/."):
        assert part in said
    assert "Metrics" not in said
    assert "reachable from other machines" in said
    monkeypatch.setenv("OS_STORAGE__URI", "rocksdb:var/zq")
    lines = "\n".join(startup.startup_lines(settings.load()))
    assert f"rocksdb:var/zq (directory {Path('var/zq').absolute()})" in lines


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_one_line_lists_the_options_that_were_set_without_secrets(engine: str) -> None:
    """Several workers on a shared store log no further line."""
    config = f"[server]\nworkers = 2\n[expiry]\nqueue_ttl = a*: 60\n[signed_url]\nsecret_key = {PASSWORD * 4}\n"
    with RedisServer(None, "--requirepass", PASSWORD) as store:
        uri = store.uri.replace("redis://", f"redis://:{PASSWORD}@")
        with ZqServer(uri, engine=engine, config=config) as server:
            assert server.terminate() == 0
            found = re.findall(f"{LEVEL}.*", server.stderr)
    assert len(found) == 1
    assert PASSWORD not in server.output
    options = f"{found[0].removeprefix(LEVEL)}, "
    assert "[signed_url] secret_key = ***, [server] port = " in options
    shown = f"[storage] uri = {store.uri.replace('redis://', 'redis://***@')}, [expiry] queue_ttl = a*: 60, "
    assert f"[server] workers = 2, {shown}" in options


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_port_in_use_is_one_sentence_at_once(engine: str, tmp_path: Path) -> None:
    """The exit code is that of every refused start. The log has no other line, and no store is created."""
    server = ZqServer(f"rocksdb://{tmp_path}/store", engine=engine)
    with socket.socket() as other:
        other.bind(("127.0.0.1", server.port))
        other.listen()
        sentence = sentence_of(server)
    assert sentence.startswith(f"zq-server: Another program listens on 127.0.0.1:{server.port}. ")
    assert server.output.splitlines() == [sentence]
    assert server.wait(1) == 2
    assert not (tmp_path / "store").exists()


def test_an_address_of_another_machine_cannot_be_listened_on(tmp_path: Path) -> None:
    """192.0.2.1 is reserved for documentation by RFC 5737."""
    env = {"OS_SERVER__TRUST_NETWORK": "true", "OS_SERVER__BEHIND_PROXY": "true"}
    server = ZqServer(f"rocksdb://{tmp_path}/store", "--bind", "192.0.2.1", env=env)
    assert f"cannot listen on 192.0.2.1:{server.port}: Cannot assign requested address." in sentence_of(server)
