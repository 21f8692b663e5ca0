# SPDX-License-Identifier: Apache-2.0
"""``auth_strategy = jwt`` with tokens of a third-party OpenID provider (tenancy 3)."""

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.servers import ZqServer, ask

pytestmark = [
    pytest.mark.slow,
    # The provider's libraries emit these warnings.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::authlib.deprecate.AuthlibDeprecationWarning"),
]

CLIENT, BACK = "zq", "http://127.0.0.1/back"
USER = {"zq": {"project": "acme", "roles": ["Member"], "scopes": ["*:queue/jobs"]}}


def signed_in(issuer: str, sub: str) -> str:
    """Return a user's id token from the code flow."""
    asked = {"client_id": CLIENT, "redirect_uri": BACK, "response_type": "code", "scope": "openid"}
    with httpx.Client(base_url=issuer) as browser:
        sent_back = browser.post("/oauth2/authorize", params=asked, data={"sub": sub})
        (code,) = parse_qs(urlsplit(sent_back.headers["location"]).query)["code"]
        given = {"grant_type": "authorization_code", "code": code, "redirect_uri": BACK}
        answer = browser.post("/oauth2/token", data=given, auth=(CLIENT, "any"))
    return str(answer.raise_for_status().json()["id_token"])


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_the_tokens_of_an_openid_provider_are_believed(engine: str, tmp_path: Path) -> None:
    """The provider's keys and claims are accepted; a user without a project is rejected."""
    from oidc_provider_mock import User, run_server_in_thread

    users = [User(sub="ann", claims=USER), User(sub="lost", claims={})]
    with run_server_in_thread(user_claims=users) as provider:
        issuer = f"http://localhost:{provider.server_port}"
        about = httpx.get(f"{issuer}/.well-known/openid-configuration").json()
        keys = tmp_path / "jwks.json"
        keys.write_text(httpx.get(about["jwks_uri"]).text)
        config = (
            f"[DEFAULT]\nauth_strategy = jwt\n[auth]\njwt_issuer = {about['issuer']}\njwt_audience = {CLIENT}\n"
            f"jwt_jwks = {keys}\njwt_project_claim = zq.project\njwt_roles_claim = zq.roles\n"
            "jwt_scope_claim = zq.scopes\n"
        )
        ann, lost = (signed_in(issuer, user.sub) for user in users)
    with ZqServer(f"rocksdb://{tmp_path}/store", engine=engine, config=config) as server:

        def status(token: str, method: str, path: str) -> int:
            return ask(server.url, method, path, headers={"Authorization": f"Bearer {token}"}).status

        whoami = ask(server.url, "GET", "/v2/whoami", headers={"Authorization": f"Bearer {ann}"}).document
        assert (whoami["project"], whoami["user"], whoami["scopes"]) == ("acme", "ann", ["*:queue/jobs"])
        assert status(ann, "PUT", "/v2/queues/jobs") == 201
        assert status(ann, "PUT", "/v2/queues/others") == 403
        assert status(lost, "GET", "/v2/queues") == 401
        head, body, signature = ann.split(".")
        forged = f"{head}.{body}.{signature[:-8]}{'A' * 8 if signature[-8:] != 'A' * 8 else 'B' * 8}"
        assert status(forged, "GET", "/v2/queues") == 401
        assert json.loads(keys.read_text())["keys"]
