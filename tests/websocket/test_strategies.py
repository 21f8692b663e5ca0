# SPDX-License-Identifier: Apache-2.0
"""Authentication over WebSocket by other strategies than ``token``, and its expiry (contract 14, tenancy 1)."""

import json
import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from jwt.algorithms import OKPAlgorithm
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.keystone import Keystone, User
from tests.servers import wait_for
from tests.websocket.connections import WITHIN, ask, closed, guarded, made, served

pytestmark = pytest.mark.slow

SECRET = "s" * 32
# Lifetime of a token in seconds.
LIVES = 10


def test_a_connection_ends_with_its_json_web_token(tmp_path: Path) -> None:
    """The connection is closed within two seconds of the token's expiry, whether it is busy or silent."""
    key, stranger = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [OKPAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "o"}]}))
    options = {
        "OS_DEFAULT__AUTH_STRATEGY": "jwt",
        "OS_AUTH__JWT_ISSUER": "https://id.example",
        "OS_AUTH__JWT_AUDIENCE": "zq",
        "OS_AUTH__JWT_JWKS": str(keys),
        "OS_AUTH__JWT_LEEWAY": "0",
    }
    with served(**options) as (url, _), connect(url) as busy:
        now = int(time.time())
        claims = {"iss": "https://id.example", "aud": "zq", "iat": now, "exp": now + LIVES, "zq_project": "acme"}

        def token(signer: ed25519.Ed25519PrivateKey) -> str:
            return jwt.encode(claims | {"sub": "ann"}, signer, "EdDSA", {"kid": "o"})

        for wrong in ({"X-Auth-Token": token(stranger)}, {"X-Auth-Token": token(key), "X-Project-ID": "other"}):
            assert ask(busy, "authenticate", **wrong)[0] == 401
        assert ask(busy, "authenticate", **{"X-Auth-Token": token(key)})[0] == 200
        assert ask(busy, "queue_list", **{"X-Project-ID": "other"})[0] == 403

        def work() -> None:
            while time.time() < now + LIVES + WITHIN:
                assert ask(busy, "queue_list")[0] == 200
                time.sleep(0.05)  # below the rate limit of a project

        with connect(url) as silent:
            assert ask(silent, "authenticate", **{"X-Auth-Token": token(key)})[0] == 200
            with pytest.raises(ConnectionClosed) as ended:
                work()
            assert ended.value.rcvd is not None
            assert ended.value.rcvd.code == 4003
            assert closed(silent) == 4003
        assert now + LIVES <= time.time() < now + LIVES + WITHIN


def test_tokens_of_keystone(tmp_path: Path) -> None:
    with Keystone(User("ann", "acme"), User("ben", "other")) as keystone:
        config = tmp_path / "zq.conf"
        config.write_text(keystone.config())
        with served(ZQ_CONFIG=str(config)) as (url, _), connect(url) as connection:
            assert ask(connection, "authenticate", **{"X-Auth-Token": "unknown"})[0] == 401
            assert ask(connection, "queue_list")[0] == 403
            assert ask(connection, "authenticate", **{"X-Auth-Token": keystone.token("ann")})[0] == 200
            assert ask(connection, "queue_create", {"queue_name": "orders"})[0] == 201
            both = {"X-Project-ID": "other", "X-Auth-Token": keystone.token("ben", lives=LIVES)}
            assert ask(connection, "authenticate", **both)[0] == 200
            assert ask(connection, "queue_list", None, **{"X-Project-ID": "other"}) == (200, {"queues": []})
            assert closed(connection) == 4003


def test_a_proxy_identifies_the_caller(tmp_path: Path) -> None:
    """The handshake has the proxy's secret and identity; frames may not name another project."""
    secrets = tmp_path / "secrets"
    secrets.write_text(f"{SECRET}\n")
    secrets.chmod(0o600)
    options = {"OS_DEFAULT__AUTH_STRATEGY": "proxy", "OS_AUTH__PROXY_SECRET_FILE": str(secrets)}
    with served(**options) as (url, _):
        said = {"X-ZQ-Proxy-Secret": SECRET, "X-Project-Id": "acme", "X-Roles": "Member"}
        with connect(url, additional_headers=said) as connection:
            assert ask(connection, "queue_create", {"queue_name": "orders"})[0] == 201
            assert ask(connection, "queue_list", **{"X-Project-ID": "other"})[0] == 403
        for wrong in ({}, said | {"X-ZQ-Proxy-Secret": "x" * 32}):
            with connect(url, additional_headers=wrong) as stranger:
                assert closed(stranger) == 1008


def test_the_caller_is_in_the_audit_log(tmp_path: Path) -> None:
    """Changes over a connection are audited like those of HTTP requests."""
    log = tmp_path / "audit.log"
    with guarded(tmp_path, OS_LOG__AUDIT=str(log)) as (server, url, admin), connect(url) as connection:
        token = made(server, admin, "acme", scopes=["consume:orders"])
        assert ask(connection, "authenticate", **{"X-Auth-Token": token["token"]})[0] == 200
        assert ask(connection, "queue_delete", {"queue_name": "orders"})[0] == 403

        def lines() -> list[dict[str, object]]:
            return [json.loads(line) for line in log.read_text().splitlines()]

        wait_for(lambda: any(line.get("project") == "acme" for line in lines()), 60, "a line")
        assert token["token"] not in log.read_text()
