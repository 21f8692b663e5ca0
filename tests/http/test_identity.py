# SPDX-License-Identifier: Apache-2.0
"""The credential determines the caller, whatever the rest of the request says (tenancy 1; attack A1, A2, A4)."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.commands import new_token, run
from tests.http.api import Api
from tests.http.stores import BrokenStore, down
from tests.servers import ZqServer, ask, wait_for
from tests.tables import every_row
from zq.auth import create_strategy
from zq.auth.credentials import BURST, BearerStrategy
from zq.auth.proxy import ProxySecrets, read_secrets
from zq.auth.tokens import Grant, Tokens, TokenVerifier, format_token
from zq.clock import ManualClock
from zq.errors import NotAuthenticated, StartRefused, TooManyRequests
from zq.model.identity import AuthOptions, Identity
from zq.storage.api import Storage

Compose = Callable[..., Api]
SECRET = "s" * 32
OTHER_SECRET = "t" * 40
NEEDED = "A credential is required: Authorization: Bearer <token>."
NOT_VALID = "The credential is not valid."


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Return the file of secrets that a proxy and zq share."""
    file = tmp_path / "secrets"
    file.write_text(f"{SECRET}\n{OTHER_SECRET}\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def proxied(compose: Compose, secrets: Path) -> Api:
    """Return a client of a server that trusts a proxy."""
    return compose(app={"proxy": ProxySecrets(lambda: str(secrets))})


@pytest.fixture
def tokens(storage: Storage, clock: ManualClock) -> Tokens:
    """Return the tokens in the shared store."""
    return Tokens(storage.documents, clock)


@pytest.fixture
def guarded(compose: Compose, storage: Storage, clock: ManualClock) -> Api:
    """Return a client of a server whose callers have tokens."""
    return compose(app={"strategy": BearerStrategy(TokenVerifier(storage.documents, clock), bare=True)})


@pytest.fixture
def token(tokens: Tokens, guarded: Api) -> str:
    """Return a token for the whole project of ``guarded``."""
    return tokens.create(Grant(project=guarded.project)).text


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# Strategy "token", and behaviour common to all strategies.


@every_row("path", ["/v2/queues", "/v2/", "/v2/openapi.json", "/nowhere", "/v2/queues/*/x", "/metrics"])
@every_row("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_without_a_credential_nothing_is_answered(guarded: Api, method: str, path: str) -> None:
    """Tenancy 1, first row: The server answers 401 before routing and before any other check."""
    refused = guarded.call(method, path, 401, headers={"Accept": "text/plain", "Client-ID": "?"})
    assert refused.json == {"title": "Unauthorized", "description": NEEDED}
    assert refused.headers["WWW-Authenticate"] == 'Bearer realm="zq"'
    assert refused.headers["X-Zq-Error"] == "NotAuthenticated"


def test_what_tells_of_all_projects_is_for_administrators(guarded: Api, token: str, tokens: Tokens) -> None:
    """/metrics names queues of all projects: no tenant's credential opens it."""
    refused = guarded.get("/metrics", 403, bearer(token))
    assert refused.json["description"].startswith("This credential does not allow admin:server on ")
    admin = tokens.create(Grant(project="admin", roles=["admin"])).text
    asked = bearer(admin) | {"X-Project-ID": None, "Accept": "application/openmetrics-text;q=0.9,*/*;q=0.1"}
    page = guarded.get("/metrics", 200, asked)  # type: ignore[arg-type]
    assert page.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_open_routes_require_no_credential(guarded: Api) -> None:
    """The open routes are the probes and the versions."""
    nobody = {"Client-ID": None, "X-Project-ID": None}
    guarded.get("/healthz", 200, nobody)
    guarded.get("/readyz", 200, nobody)
    guarded.call("HEAD", "/readyz", 200, headers=nobody)
    guarded.get("/", 300, nobody)
    guarded.post("/", 401, headers=nobody)


@every_row(
    "value",
    [
        *("Bearer", "Bearer ", "Bearer x", "Basic eDp5", "zq_", "Bearer zq_a_b_c", "Bearer " + "zq_" + "a" * 61),
        *("Bearer zq_0123456789_" + "0" * 43 + "_000000", "Bearer \xe9"),
    ],
)
def test_every_invalid_credential_gets_the_same_error(guarded: Api, value: str) -> None:
    """Tenancy 1, second row: The error is always the same."""
    refused = guarded.get("/v2/queues", 401, {"Authorization": value})
    assert refused.json == {"title": "Unauthorized", "description": NOT_VALID}
    assert refused.headers["WWW-Authenticate"] == 'Bearer realm="zq", error="invalid_token"'


def test_a_token_names_the_project(guarded: Api, token: str, tokens: Tokens, project_suffix: str) -> None:
    """Either header may carry the token, and no other header names a project. Two tokens name two projects."""
    other = tokens.create(Grant(project=f"other{project_suffix}")).text
    guarded.put("/v2/queues/mine", 201, headers={"X-Project-ID": None, **bearer(token)})
    for headers in (bearer(token), {"X-Auth-Token": token}, {"Authorization": f"bEARER {token}"}):
        shown = guarded.get("/v2/queues", 200, {"X-Project-ID": None, **headers}).json
        assert [queue["name"] for queue in shown["queues"]] == ["mine"]
    assert guarded.get("/v2/queues", 200, {"X-Project-ID": None, **bearer(other)}).json["queues"] == []


def test_another_project_than_the_credentials_is_refused(guarded: Api, token: str, project_suffix: str) -> None:
    """The server answers 403 with a fixed error; the request may name the credential's own project."""
    guarded.get("/v2/queues", 200, bearer(token))
    for path, rule in (("/v2/queues/q", "queues:get"), ("/v2/queues", "queues:get_all"), ("/v2/openapi.json", "GET")):
        refused = guarded.tenant("victim").get(path, 403, bearer(token)).json
        assert refused == {
            "title": "Not authorized",
            "description": f"This credential does not allow {rule} on project victim{project_suffix}.",
        }


@pytest.mark.parametrize("name", ["X-Tenant-Id", "X-Tenant", "X-Project-ID"])
def test_no_header_changes_the_project(guarded: Api, token: str, name: str) -> None:
    """A1: This holds for every header that can name a project."""
    guarded.get("/v2/queues", 403, {"X-Project-ID": None, name: "victim", **bearer(token)})


@every_row(
    "name", ["X-Roles", "X-User-Id", "X-Domain-Id", "X-Project-Name", "X-Service-Roles", "X-Identity-Status", "X-User"]
)
def test_identity_headers_of_clients_are_removed(
    compose: Compose, storage: Storage, clock: ManualClock, token: str, name: str
) -> None:
    """A1: Code behind the check cannot read these headers."""
    asked: list[frozenset[str]] = []

    def policy(rule: str, identity: Identity) -> bool:
        asked.append(identity.roles)
        return True

    strategy = BearerStrategy(TokenVerifier(storage.documents, clock), bare=True)
    api = compose(app={"strategy": strategy, "policy": policy, "trusts_network": True})
    for _ in range(2):  # the second time, header names are cached
        answered = api.get("/v2/queues", 200, {name: "admin", **bearer(token)})
        assert "HTTP_" + name.upper().replace("-", "_") not in answered.request.environ
    assert set(asked) == {frozenset({"member"})}


def test_a_token_that_ends_is_refused(
    compose: Compose, storage: Storage, clock: ManualClock, tokens: Tokens, project_suffix: str
) -> None:
    """Expired, revoked and mistyped tokens get 401 once the cached entry expires."""
    moment = [time.monotonic()]
    strategy = BearerStrategy(TokenVerifier(storage.documents, clock), bare=True, monotonic=lambda: moment[0])
    api = compose(app={"strategy": strategy})
    made = tokens.create(Grant(project=api.project))
    short = tokens.create(Grant(project=api.project, expires=clock.now() + 60))
    assert short.token.stored.expires == clock.now() + 60
    for text in (made.text, short.text):
        api.get("/v2/queues", 200, bearer(text))
    tokens.revoke(made.token.id)
    api.get("/v2/queues", 200, bearer(made.text))
    moment[0] += 5
    api.get("/v2/queues", 401, bearer(made.text))
    clock.advance(61)
    api.get("/v2/queues", 401, bearer(short.text))


def test_a_store_that_does_not_answer_is_503(gate: Callable[..., Api], clock: ManualClock) -> None:
    """Tenancy 1: The server answers 503 if the token is not cached. It refuses a malformed token without a lookup."""
    strategy = BearerStrategy(TokenVerifier(BrokenStore(down).documents, clock), bare=True)  # type: ignore[arg-type]
    api = gate(strategy=strategy)
    api.get("/v2/queues", 503, bearer(format_token("0" * 10, "0" * 43)))
    api.get("/v2/queues", 401, bearer("zq_" + "0" * 61))


def test_an_address_that_fails_too_often_is_not_looked_up(
    compose: Compose, storage: Storage, clock: ManualClock, token: str
) -> None:
    """The server answers 429 for the address after a burst.

    Cached credentials stay valid, and later the address may retry.
    """
    moment = [1000.0]
    strategy = BearerStrategy(TokenVerifier(storage.documents, clock), bare=True, monotonic=lambda: moment[0])
    api = compose(app={"strategy": strategy})
    known, bad = {"X-Project-ID": None, **bearer(token)}, bearer("zq_x")
    one, other = api.unchecked(REMOTE_ADDR="10.0.0.1"), api.unchecked(REMOTE_ADDR="10.0.0.2")
    one.get("/v2/queues", 200, known)
    for _ in range(BURST):
        one.get("/v2/queues", 401, bad)
    refused = one.get("/v2/queues", 429, bad)
    assert refused.json["title"] == "Too many requests"
    assert refused.headers["Retry-After"] == "1"
    one.get("/v2/queues", 429, {})
    one.get("/v2/queues", 200, known)
    other.get("/v2/queues", 401, bad)
    moment[0] += 0.2
    one.get("/v2/queues", 401, bad)


@pytest.mark.parametrize("ends", [False, True])
def test_a_credential_that_was_valid_is_looked_up_whatever_its_address_did(
    compose: Compose, storage: Storage, clock: ManualClock, tokens: Tokens, ends: bool
) -> None:
    """The credential is valid beyond its cache entry; a revoked credential gets 401 once and is then limited."""
    moment = [1000.0]
    strategy = BearerStrategy(TokenVerifier(storage.documents, clock), bare=True, monotonic=lambda: moment[0])
    api = compose(app={"strategy": strategy})
    made = tokens.create(Grant(project=api.project))
    for _ in range(3):
        api.get("/v2/queues", 200, bearer(made.text))
        strategy.forget({made.token.id})
        for _ in range(2 * BURST):
            api.get("/v2/queues", None, bearer("zq_x"))
        moment[0] += 5.1
        for _ in range(2 * BURST):
            api.get("/v2/queues", None, bearer("zq_x"))
        api.get("/v2/queues", 429, bearer("zq_x"))
        assert strategy.cached_validity({"HTTP_AUTHORIZATION": f"Bearer {made.text}"}, "127.0.0.1") is None
    api.get("/v2/queues", 200, bearer(made.text))
    if ends:
        tokens.revoke(made.token.id)
        moment[0] += 5.1
        for _ in range(2 * BURST):
            api.get("/v2/queues", None, bearer("zq_x"))
        api.get("/v2/queues", 401, bearer(made.text))
        moment[0] += 1.1
        for _ in range(2 * BURST):
            api.get("/v2/queues", None, bearer("zq_x"))
        api.get("/v2/queues", 429, bearer(made.text))


def test_a_token_of_keystone_that_was_valid_is_looked_up_whatever_its_address_did() -> None:
    """The middleware checks the token; a token that it refuses is limited afterwards."""
    pytest.importorskip("keystonemiddleware")
    from zq.auth.keystone import Keystone

    keystone = Keystone(None, ManualClock(1.0))
    valid, answers = {"good"}, []

    def middleware(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        if environ["HTTP_X_AUTH_TOKEN"] in valid:
            environ |= {"HTTP_X_IDENTITY_STATUS": "Confirmed", "HTTP_X_PROJECT_ID": "acme"}
            return list(keystone._run_application(environ, start_response))
        start_response("401 Unauthorized", [])
        return []

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("429" if isinstance(environ["zq.keystone"], TooManyRequests) else "200", [])
        return []

    keystone._middleware = middleware  # type: ignore[assignment]
    wrapped = keystone.wrap(app, lambda _: None, lambda _: "10.0.0.1", lambda *_: None)

    def asked(token: str) -> str:
        environ = {"PATH_INFO": "/v2/queues", "HTTP_X_AUTH_TOKEN": token}
        list(wrapped(environ, lambda status, *_: answers.append(status[:3])))
        return answers[-1]

    assert asked("good") == "200"
    assert [asked("bad") for _ in range(BURST + 1)][-1] == "429"
    assert asked("good") == "200"
    valid.clear()
    assert [asked("good"), asked("good")] == ["401", "429"]


def test_behind_a_proxy_the_forwarded_address_counts(compose: Compose, storage: Storage, clock: ManualClock) -> None:
    """The client's address is the last one, which the proxy adds."""
    strategy = BearerStrategy(TokenVerifier(storage.documents, clock), bare=True, monotonic=lambda: 1000.0)
    api = compose(app={"strategy": strategy, "behind_proxy": True})
    for _ in range(BURST):
        api.get("/v2/queues", 401, {"X-Forwarded-For": "1.1.1.1, 9.9.9.9"})
    api.get("/v2/queues", 429, {"X-Forwarded-For": "2.2.2.2,9.9.9.9"})
    api.get("/v2/queues", 401, {"X-Forwarded-For": "9.9.9.9, 1.1.1.1"})


def test_a_body_that_nobody_read_closes_the_connection(guarded: Api, token: str) -> None:
    """Tenancy 1, below the table: This holds for 401 and 403."""
    content = {"messages": [{"body": 1}]}
    assert guarded.post("/v2/queues/q/messages", 401, content).headers["Connection"] == "close"
    refused = guarded.tenant("victim").post("/v2/queues/q/messages", 403, content, bearer(token))
    assert refused.headers["Connection"] == "close"


@pytest.mark.one_store
def test_a_signed_request_needs_no_credential_and_is_not_valid(gate: Callable[..., Api], clock: ManualClock) -> None:
    """Contract 1.3: The request bypasses the strategy, but no key is configured. An empty signature is invalid too."""
    api = gate(strategy=BearerStrategy(bare=True))
    api.get("/v2/queues", 404, {"URL-Signature": "x", "X-Roles": "admin"})
    api.get("/v2/queues", 404, {"URL-Signature": ""})


# Strategy "proxy".


def test_a_proxy_with_its_secret_is_trusted(proxied: Api) -> None:
    """Either line of the file is valid, and the proxy's headers determine the project."""
    for secret in (SECRET, OTHER_SECRET):
        proxied.get("/v2/queues", 200, {"X-ZQ-Proxy-Secret": secret})
        refused = proxied.get("/v2/queues", 400, {"X-ZQ-Proxy-Secret": secret, "X-Project-ID": None}).json
        assert refused["title"] == "Project-Id Missing"
        doubled = {"X-ZQ-Proxy-Secret": secret, "X-Project-ID": "a,b"}
        assert proxied.get("/v2/queues", 400, doubled).json["description"] == "X-Project-ID must be given once."


@every_row("secret", [None, "", "s", SECRET + "s", SECRET.upper(), f"{SECRET}\xe9"])
def test_a_proxy_without_a_valid_secret_is_refused(proxied: Api, secret: str | None) -> None:
    """A2: Without a secret of the file, the server answers 401 with the strategy's challenge."""
    refused = proxied.get("/v2/queues", 401, {"X-ZQ-Proxy-Secret": secret})
    assert refused.headers["WWW-Authenticate"] == "ZQ-Proxy"
    assert refused.json["title"] == "Unauthorized"


def test_a_proxy_names_the_roles(compose: Compose, secrets: Path) -> None:
    """``health:get`` requires the role of administrators."""
    api = compose(app={"proxy": ProxySecrets(lambda: str(secrets)), "admin_mode": True})
    api.get("/v2/health", 403, {"X-ZQ-Proxy-Secret": SECRET})
    api.get("/v2/health", 200, {"X-ZQ-Proxy-Secret": SECRET, "X-Roles": "Member, ADMIN"})


@pytest.mark.one_store
def test_a_file_of_secrets_is_checked(tmp_path: Path) -> None:
    """Tenancy 1: Mode, number of lines and lengths are checked; each error names the file."""
    file = tmp_path / "secrets"
    for text, mode in (
        (SECRET, 0o644),
        (SECRET, 0o660),
        ("", 0o600),
        ("short\n", 0o600),
        (f"{SECRET}\nshort", 0o600),
        (f"{SECRET}\n" * 3, 0o600),
    ):
        file.write_text(text)
        file.chmod(mode)
        with pytest.raises(StartRefused, match="proxy_secret_file"):
            read_secrets(str(file))
    with pytest.raises(StartRefused, match="must name a file"):
        read_secrets("")
    with pytest.raises(StartRefused, match="cannot be read"):
        read_secrets(str(tmp_path / "nowhere"))


@pytest.mark.one_store
def test_secrets_are_read_again(secrets: Path) -> None:
    """HUP reloads the file; a refused file changes nothing."""
    proxy = ProxySecrets(lambda: str(secrets))
    secrets.write_text("n" * 32)
    proxy.reload()
    proxy.check({"HTTP_X_ZQ_PROXY_SECRET": "n" * 32}, "")
    secrets.write_text("short")
    with pytest.raises(StartRefused):
        proxy.reload()
    proxy.check({"HTTP_X_ZQ_PROXY_SECRET": "n" * 32}, "")


@pytest.mark.one_store
def test_a_cached_credential_costs_little(storage: Storage, clock: ManualClock, tokens: Tokens) -> None:
    """A cached credential needs no access to the store; ``bench/identity.py`` measures the microseconds."""
    strategy = create_strategy(lambda: AuthOptions(strategy="token"), storage.documents, clock)
    assert isinstance(strategy, BearerStrategy)
    text = tokens.create(Grant(project=f"cost-{os.getpid()}")).text
    env: dict[str, Any] = {"HTTP_AUTHORIZATION": f"Bearer {text}"}
    first = strategy.authenticate(env, "")
    assert all(strategy.authenticate(env, "") is first for _ in range(10))


# Long requests.


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, compose: Compose, storage: Storage, clock: ManualClock) -> Api:
    """Return a client of a server that rechecks credentials every tenth of a second and caches none."""
    monkeypatch.setattr("zq.core.waiting.RECHECK_INTERVAL", 0.1)
    monkeypatch.setattr("zq.core.publishing.RECHECK_INTERVAL", 0.1)
    monkeypatch.setattr("zq.http.streams.HEARTBEAT", 0.1)
    monkeypatch.setattr("zq.http.streams.CHECK_INTERVAL", 0.05)
    moments = iter(range(10, 10**9, 10))
    verifier = TokenVerifier(storage.documents, clock)
    return compose(app={"strategy": BearerStrategy(verifier, bare=True, monotonic=lambda: float(next(moments)))})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", "/v2/queues/q/claims?wait=20"), ("GET", "/v2/queues/q/messages?wait=20")),
        *(("PUT", "/v2/queues/q/claims/a.b?wait=20"), ("GET", "/v2/topics/t/messages?wait=20")),
    ],
)
def test_a_request_that_waits_ends_with_its_credential(impatient: Api, tokens: Tokens, method: str, path: str) -> None:
    """The server answers 401 long before the wait ends (tenancy 2), and the slot becomes free."""
    made = tokens.create(Grant(project=impatient.project))
    threading.Timer(0.3, tokens.revoke, [made.token.id]).start()
    begun = time.monotonic()
    impatient.call(method, path, 401, headers=bearer(made.text))
    assert time.monotonic() - begun < 18


def test_a_request_that_waits_is_answered_if_its_credential_stays(impatient: Api, tokens: Tokens) -> None:
    """The server rechecks the credential repeatedly; then the request gets the new message."""
    text = tokens.create(Grant(project=impatient.project)).text
    post = partial(impatient.post, "/v2/queues/q/messages", 201, {"messages": [{"body": 7}]}, bearer(text))
    threading.Timer(0.5, post).start()
    claimed = impatient.call("POST", "/v2/queues/q/claims?wait=20", 201, headers=bearer(text)).json
    assert [message["body"] for message in claimed["messages"]] == [7]


def test_a_stream_ends_with_its_credential(impatient: Api, tokens: Tokens) -> None:
    """The stream ends at a heartbeat (tenancy 2)."""
    made = tokens.create(Grant(project=impatient.project))
    threading.Timer(0.3, tokens.revoke, [made.token.id]).start()
    headers = bearer(made.text) | {"Accept": "text/event-stream"}
    begun = time.monotonic()
    assert impatient.unchecked().get("/v2/stream", 200, headers).body
    assert time.monotonic() - begun < 60


# Servers in processes of their own.

CLIENT = b"30387f00c63a4a30ac1f3e2cf1b0c3a1"
NAMES = ["X-Project-ID", "X-Tenant-Id", "X-Tenant", "X-Project-Name", "X-Roles", "X-User-Id", "X-Domain-Id"]
NAMES += ["X-Service-Project-Id", "X-Identity-Status", "Authorization", "X-Auth-Token", "X-ZQ-Proxy-Secret"]


def raw(server: ZqServer, *lines: bytes) -> bytes:
    """Return the response to a listing of queues with these header lines."""
    head = [b"GET /v2/queues HTTP/1.1", b"Host: 127.0.0.1", b"Client-ID: " + CLIENT, *lines, b"Connection: close"]
    got = b""
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.sendall(b"\r\n".join([*head, b"", b""]))
        while piece := connection.recv(65536):
            got += piece
    return got


@pytest.fixture(scope="module", params=["gunicorn", "granian"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ZqServer, bytes, bytes]]:
    """Return a server with tokens, the token of an attacker, and that of a victim with a queue."""
    store = f"rocksdb://{tmp_path_factory.mktemp('identity')}/store"
    with ZqServer(store, engine=request.param, config="[DEFAULT]\nauth_strategy = token\n") as server:
        attacker, victim = (new_token(store, project).encode() for project in ("attacker", "victim"))
        headers = {"Authorization": f"Bearer {victim.decode()}", "X-Project-ID": "victim"}
        assert ask(server.url, "PUT", "/v2/queues/secrets", headers=headers).status == 201
        yield server, attacker, victim


@pytest.mark.slow
@pytest.mark.one_store
@every_row("name", NAMES)
def test_no_spelling_of_a_header_changes_the_project(served: tuple[ZqServer, bytes, bytes], name: str) -> None:
    """A1, both engines: The server refuses the request or shows only the attacker's own queues.

    The header has hyphens or underscores, precedes or follows the credential, and occurs once or twice.
    """
    server, attacker, victim = served
    own = b"Authorization: Bearer " + attacker
    assert b'{"queues":[]' in raw(server, own)
    assert b"secrets" in raw(server, b"Authorization: Bearer " + victim)
    value = {"Authorization": b"Bearer zq_0", "X-Auth-Token": b"zq_0", "X-Roles": b"admin"}.get(name, b"victim")
    one = name.encode()
    for spelled in (one, one.replace(b"-", b"_"), one.replace(b"-", b"_", 1), one.upper(), one.lower()):
        line = spelled + b": " + value
        for lines in ((line, own), (own, line), (line, line, own), (own, line, line), (line, own, line)):
            got = raw(server, *lines)
            assert b"secrets" not in got
            assert got[9:12] in (b"200", b"400", b"401", b"403"), got
            assert got[9:12] != b"200" or b'{"queues":[]' in got


@pytest.mark.one_store
@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            "auth_strategy = basic",
            "auth_strategy must be empty, proxy, token, jwt, token,jwt or keystone; it is 'basic'.",
        ),
        ("auth_strategy = proxy", "[auth] proxy_secret_file must name a file for auth_strategy = proxy."),
        ("auth_strategy = jwt", "[auth] jwt_issuer must be set for auth_strategy = jwt."),
        (
            "auth_strategy = jwt\n[auth]\njwt_issuer = i\njwt_audience = a\njwt_jwks = f\njwt_algorithms = HS256",
            "[auth] jwt_algorithms must be one or more of ",
        ),
    ],
)
def test_a_strategy_that_cannot_be_is_refused_at_the_start(config: str, sentence: str, tmp_path: Path) -> None:
    """The command exits with code 2 and one error message."""
    file = tmp_path / "zq.conf"
    file.write_text(f"[DEFAULT]\n{config}\n")
    done = run("--store", f"rocksdb://{tmp_path}/s", "--config", file)
    assert done.code == 2
    assert sentence in done.error
    assert done.error.count("zq-server: ") == 1


@pytest.mark.one_store
def test_modules_behind_the_check_read_no_identity_header() -> None:
    """Tenancy 1: Only the modules that remove these headers contain their names."""
    may = {"zq.http.tenant", "zq.http.authentication", "zq.http.heads", "zq.sqs.authentication"}
    root = Path(__file__).parent.parent.parent / "zq"
    words = re.compile(r"HTTP_(?:X_(?:PROJECT|TENANT|ROLES|USER|DOMAIN|SERVICE|AUTH)|AUTHORIZATION)|get_header\(\"X-")
    found = {
        ".".join(file.relative_to(root.parent).with_suffix("").parts)
        for file in root.rglob("*.py")
        if words.search(file.read_text())
    }
    assert {module for module in found if not module.startswith("zq.auth.")} <= may


@pytest.mark.slow
@pytest.mark.one_store
@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_server_believes_a_proxy_and_reads_its_secrets_again(engine: str, tmp_path: Path, secrets: Path) -> None:
    """HUP reloads the secrets; a refused file changes nothing and is logged."""
    config = f"[DEFAULT]\nauth_strategy = proxy\n[auth]\nproxy_secret_file = {secrets}\n"
    with ZqServer(f"rocksdb://{tmp_path}/store", engine=engine, config=config) as server:

        def status(secret: str, **headers: str) -> int:
            return ask(server.url, "GET", "/v2/queues", headers={"X-ZQ-Proxy-Secret": secret, **headers}).status

        assert [status(SECRET), status(OTHER_SECRET), status("x" * 32), status("")] == [200, 200, 401, 401]
        secrets.write_text("n" * 32)
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: status("n" * 32) == 200, 60, "the new secret counts")
        assert status(SECRET) == 401
        secrets.write_text("short")
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: "File not reloaded" in server.output, 60, "the log says so")
        assert status("n" * 32) == 200


@pytest.mark.one_store
def test_why_a_credential_is_not_valid_is_for_the_audit_log(
    storage: Storage, clock: ManualClock, tokens: Tokens
) -> None:
    """The caller always gets the same error; the log has the reason, without the secret."""
    strategy = BearerStrategy(TokenVerifier(storage.documents, clock), bare=True)
    text = tokens.create(Grant(project="why")).text
    id, secret = text.split("_")[1:3]
    tokens.revoke(id)
    reasons = set()
    for given in (text, text[:-1], format_token(id, "0" * 43), "Basic"):
        with pytest.raises(NotAuthenticated, match="The credential is not valid") as refused:
            strategy.authenticate({"HTTP_AUTHORIZATION": f"Bearer {given}"}, "")
        reasons.add(refused.value.why)
        assert secret not in refused.value.why
    assert reasons == {
        f"The token {id} is unknown, revoked or expired.",
        "The format or checksum of the token is not valid.",
        "The format of the credential is unknown.",
    }


@pytest.mark.slow
@pytest.mark.one_store
@pytest.mark.parametrize(("strategy", "library"), [("token", "jwt"), ("token", "keystonemiddleware"), ("", "jwt")])
def test_a_library_is_imported_by_its_strategy_alone(strategy: str, library: str) -> None:
    """Tenancy 3: The libraries are large."""
    program = (
        "import sys, time\nfrom zq.auth import create_strategy\nfrom zq.clock import ManualClock\n"
        "from zq.model.identity import AuthOptions\nimport zq.serving.server\n"
        f"create_strategy(lambda: AuthOptions(strategy={strategy!r}), None, ManualClock(1.0))\n"
        f"sys.exit({library!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
