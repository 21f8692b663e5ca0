# SPDX-License-Identifier: Apache-2.0
"""Tokens on servers with every store: revocation on all servers, waiting requests, and secrecy.

The criteria are tenancy 2 and 10 and attack B1 and B3.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from pymongo import MongoClient

from tests.commands import run, run_apart
from tests.reader import SHELL, succeed
from tests.servers import Answer, Lost, ZqServer, ask, soon, wait_for
from tests.stores import Stores

pytestmark = pytest.mark.store_of_the_day
CONFIG = "[DEFAULT]\nauth_strategy = token\n[log]\nrequests = true\nlevel = DEBUG\n"
QUEUES = "/v2/queues"


class Deployment:
    """Servers on a store. ``folder`` contains an embedded store."""

    def __init__(self, uri: str, servers: list[ZqServer], folder: Path) -> None:
        self.uri = uri
        self.servers = servers
        self.folder = folder

    def command(self, *arguments: str) -> str:
        """Run ``zq-server token`` and return its output."""
        done = run("token", *arguments, "--store", self.uri)
        assert done.code == 0, done.error
        return done.said.strip()

    def token(self, *arguments: str) -> str:
        return self.command("create", "--project", "acme", *arguments)

    def dump(self) -> bytes:
        """Return the whole content of the store."""
        if self.uri.startswith("mongodb:"):
            client: MongoClient = MongoClient(self.uri)
            with client:
                tables = client.get_default_database()
                return repr([list(tables[name].find()) for name in tables.list_collection_names()]).encode()
        if self.uri.startswith("redis:"):
            with redis.Redis.from_url(self.uri) as client:
                return b"".join(client.dump(key) or b"" for key in client.scan_iter())
        return b"".join(file.read_bytes() for file in self.folder.rglob("*") if file.is_file())


@pytest.fixture(scope="module", params=["rocksdb", "mongodb", "redis"])
def deployment(
    request: pytest.FixtureRequest, stores: Stores, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """Return servers on a store: gunicorn and Granian on a shared store, Granian on the embedded store."""
    folder = tmp_path_factory.mktemp("credentials")
    uri = stores.empty(request.param, folder, "c")
    engines = ["granian"] if request.param == "rocksdb" else ["gunicorn", "granian"]
    with ExitStack() as ends:
        servers = [ends.enter_context(ZqServer(uri, engine=engine, config=CONFIG)) for engine in engines]
        yield Deployment(uri, servers, folder)


def called(server: ZqServer, token: str, method: str = "GET", path: str = QUEUES, document: object = None) -> Answer:
    headers = {"Authorization": f"Bearer {token}", "X-Project-ID": "acme"}
    return ask(server.url, method, path, document, headers=headers, timeout=60)


def test_a_token_that_is_revoked_is_refused_everywhere(deployment: Deployment) -> None:
    """The token is refused within five seconds by servers with both engines; another token stays valid."""
    other = deployment.token("--name", "other")
    tokens: list[str] = []

    def revoke() -> None:
        tokens.append(deployment.token())
        for server in deployment.servers:
            assert called(server, tokens[-1]).status == 200
            assert called(server, other).status == 200
        deployment.command("revoke", tokens[-1][3:13])

    def refused() -> None:
        for server in deployment.servers:
            wait_for(lambda server=server: called(server, tokens[-1]).status == 401, 60, "it is refused")

    soon(6.5, refused, before=revoke)  # five seconds, and a margin for a busy machine
    assert all(called(server, other).status == 200 for server in deployment.servers)


def held(server: ZqServer, headers: dict[str, str]) -> tuple[float, float]:
    """Return the number of waiting requests and of open streams of a server."""
    lines = ask(server.url, "GET", "/metrics", headers=headers).body.decode().splitlines()
    figures = dict(line.rsplit(" ", 1) for line in lines if line.startswith(("zq_waiters ", "zq_streams ")))
    return float(figures["zq_waiters"]), float(figures["zq_streams"])


def test_what_waits_ends_with_its_token(deployment: Deployment) -> None:
    """A waiting request gets 401, and a stream ends, before the 30 seconds of the wait are over."""
    token = deployment.token()
    ended: dict[str, object] = {}

    def hold(name: str, server: ZqServer, method: str, path: str) -> None:
        headers = {"Authorization": f"Bearer {token}", "X-Project-ID": "acme", "Accept": "*/*"}
        try:
            ended[name] = ask(server.url, method, path, headers=headers, timeout=60).status
        except Lost as lost:
            ended[name] = lost

    threads = [
        threading.Thread(target=hold, args=(f"{kind} {number}", server, method, path))
        for number, server in enumerate(deployment.servers)
        for kind, method, path in (
            ("claim", "POST", "/v2/queues/q/claims?wait=30"),
            ("list", "GET", "/v2/queues/q/messages?wait=30"),
            ("topic", "GET", "/v2/topics/t/messages?wait=30"),
            ("stream", "GET", "/v2/stream"),
        )
    ]
    for thread in threads:
        thread.start()
    admin = {"Authorization": f"Bearer {deployment.command('create', '--admin')}", "X-Project-ID": "admin"}
    for server in deployment.servers:
        wait_for(lambda server=server: held(server, admin) == (3, 1), 60, "three requests and a stream wait")
    assert ended == {}
    deployment.command("revoke", token[3:13])
    for thread in threads:
        thread.join(60)
    assert ended == {
        f"{kind} {number}": 200 if kind == "stream" else 401
        for number in range(len(deployment.servers))
        for kind in ("claim", "list", "topic", "stream")
    }


def test_tokens_are_managed_while_the_servers_run(deployment: Deployment) -> None:
    """Tokens are managed over HTTP and on the command line, which uses the control socket of an embedded store."""
    admin = deployment.command("create", "--admin")
    token = deployment.token("--name", "ci", "--scope", "produce:orders.*", "--days", "3")
    assert f"{token[3:13]} (ci) of acme: member; produce:orders.*;" in deployment.command("list", "--project", "acme")
    twin = deployment.command("rotate", token[3:13])
    assert twin[3:13] != token[3:13]
    unknown = run("token", "revoke", "abcdefghij", "--store", deployment.uri)
    assert unknown == (2, "", "zq-server: There is no token with this id.\n")
    headers = {"X-Auth-Token": admin, "X-Project-ID": "admin"}
    for server in deployment.servers:
        listed = ask(server.url, "GET", "/v2/admin/tokens?project=acme&limit=100", headers=headers).document
        assert {token[3:13], twin[3:13]} <= {each["id"] for each in listed["tokens"]}


def test_a_secret_is_nowhere(deployment: Deployment) -> None:
    """The secret is neither in the store nor in logs or metrics."""
    tokens = [deployment.token() for _ in range(2)]
    admin = deployment.command("create", "--admin")
    headers = {"Authorization": f"Bearer {admin}", "X-Project-ID": "admin"}
    for server in deployment.servers:
        for token in tokens:
            assert called(server, token, "PUT", "/v2/queues/q").status in (201, 204)
            assert called(server, token[:-1] + ("x" if token[-1] != "x" else "y")).status == 401
        assert ask(server.url, "GET", "/metrics", headers=headers).status == 200
    seen = deployment.dump()
    assert tokens[0][3:13].encode() in seen, "the ids are there"
    for server in deployment.servers:
        seen += server.output.encode() + ask(server.url, "GET", "/metrics", headers=headers).body
    for token in tokens:
        assert token[14:57].encode() not in seen


def test_a_store_that_the_first_token_creates_is_named(tmp_path: Path) -> None:
    uri = f"rocksdb://{tmp_path}/typo"
    for named in (f"Created the store {uri}. Servers on other stores reject this credential.\n", ""):
        done = run_apart("token", "create", "--admin", "--store", uri)
        assert (done.code, done.said[:3], done.error) == (0, "zq_", named)


def test_the_command_line_has_lines_in_the_audit_log(tmp_path: Path) -> None:
    """This also holds if no server has the store open."""
    told = tmp_path / "audit.log"
    lines = (
        f"export OS_STORAGE__URI=rocksdb://{tmp_path}/store OS_LOG__AUDIT={told}\nzq-server token create --project p\n"
    )
    token = succeed([*SHELL, lines + "zq-server token revoke --jti a/b"], tmp_path).strip()
    objects = [json.loads(line)["object"] for line in told.read_text().splitlines()]
    assert objects == [f"token {token[3:13]}", "token a/b"]
