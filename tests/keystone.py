# SPDX-License-Identifier: Apache-2.0
"""A simulation of Keystone: users with passwords and projects, tokens, roles, and a catalogue that contains zq.

It serves only what keystonemiddleware, keystoneauth and OpenStack's clients request of the Identity API v3.
"""

import json
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, NamedTuple, Self
from uuid import uuid4


class User(NamedTuple):
    """A user; with an empty ``project``, the user's tokens have no project."""

    name: str
    project: str
    roles: tuple[str, ...] = ("Member",)
    password: str = "secret"


SERVICE = User("zq", "5e7", ("service",))


class Keystone:
    """A server at ``url``; a context manager. ``seen`` counts the validations; if ``down`` is True, it answers 503."""

    def __init__(self, *users: User) -> None:
        self.users = {user.name: user for user in (SERVICE, *users)}
        self.tokens: dict[str, dict[str, Any]] = {}
        self.trusts: list[dict[str, Any]] = []
        self.ended: set[str] = set()
        """Trustors whose trusts have ended."""
        self.refused = 0
        """Number of rejected requests for a token of an ended trust."""
        self.endpoint = ""
        self.seen = 0
        self.down = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Pages", (_Pages,), {"owner": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def config(self) -> str:
        """Return the configuration of a zq server that uses this Keystone."""
        return (
            "[DEFAULT]\nauth_strategy = keystone\n[keystone_authtoken]\n"
            f"www_authenticate_uri = {self.url}/v3\nauth_url = {self.url}\nauth_type = password\n"
            f"username = {SERVICE.name}\npassword = {SERVICE.password}\nproject_name = {SERVICE.project}\n"
            "user_domain_name = Default\nproject_domain_name = Default\ntoken_cache_time = 1\n"
        )

    def token(self, name: str, lives: float = 3600) -> str:
        """Create a token of a user and return its id."""
        user, id, now = self.users[name], uuid4().hex, datetime.now(UTC)
        domain = {"id": "default", "name": "Default"}
        moment = "%Y-%m-%dT%H:%M:%S.%fZ"
        self.tokens[id] = {
            "methods": ["password"],
            "user": {"id": f"id-of-{name}", "name": name, "domain": domain, "password_expires_at": None},
            "audit_ids": [uuid4().hex[:22]],
            "issued_at": now.strftime(moment),
            "expires_at": (now + timedelta(seconds=lives)).strftime(moment),
        }
        if user.project:
            self.tokens[id] |= {
                "project": {"id": user.project, "name": user.project, "domain": domain},
                "roles": [{"id": role, "name": role} for role in user.roles],
                "is_domain": False,
                "catalog": [_service("identity", f"{self.url}/v3"), _service("messaging", self.endpoint)],
            }
        return id


def _service(kind: str, url: str) -> dict[str, Any]:
    endpoints = [
        {"id": f"{kind}-{face}", "interface": face, "region": "one", "region_id": "one", "url": url}
        for face in ("public", "internal", "admin")
    ]
    return {"id": kind, "type": kind, "name": kind, "endpoints": endpoints}


class _Pages(BaseHTTPRequestHandler):
    """The pages for versions, new tokens and the validation of tokens."""

    owner: ClassVar[Keystone]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.owner.down:
            self._answer(503, {"error": {"code": 503, "title": "Away", "message": "away"}})
        elif self.path.startswith("/v3/auth/tokens"):
            self.owner.seen += 1
            token = self.owner.tokens.get(self.headers.get("X-Subject-Token", ""))
            if self.headers.get("X-Auth-Token") not in self.owner.tokens:
                self._answer(401, {"error": {"code": 401, "title": "Unauthorized", "message": "no"}})
            elif token is None:
                self._answer(404, {"error": {"code": 404, "title": "Not Found", "message": "no token"}})
            else:
                self._answer(200, {"token": token})
        elif self.path.startswith(("/v3/services", "/v3/endpoints")):
            messaging = _service("messaging", self.owner.endpoint)
            whole = {"services": [messaging]} if "/services" in self.path else {"endpoints": messaging["endpoints"][:1]}
            self._answer(200, whole)
        else:
            version = {
                "id": "v3.14",
                "status": "stable",
                "links": [{"rel": "self", "href": f"{self.owner.url}/v3/"}],
                "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}],
            }
            whole = {"versions": {"values": [version]}} if self.path == "/" else {"version": version}
            self._answer(300 if self.path == "/" else 200, whole)

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v3/OS-TRUST/trusts":
            self._trust(document["trust"])
            return
        auth = document["auth"]
        asked = auth["identity"]["password"]["user"]
        user = self.owner.users.get(asked["name"])
        if user is None or user.password != asked["password"] or self.owner.down:
            self._answer(401, {"error": {"code": 401, "title": "Unauthorized", "message": "no"}})
            return
        # The id of a trust is the trustor's user name.
        trustor = auth.get("scope", {}).get("OS-TRUST:trust", {}).get("id", user.name)
        if trustor in self.owner.ended:
            self.owner.refused += 1
            self._answer(404, {"error": {"code": 404, "title": "Not Found", "message": "no trust"}})
            return
        id = self.owner.token(trustor)
        self._answer(201, {"token": self.owner.tokens[id]}, ("X-Subject-Token", id))

    def _trust(self, trust: dict[str, Any]) -> None:
        """Create a trust if the caller is the trustor and has the project and the roles."""
        token = self.owner.tokens.get(self.headers.get("X-Auth-Token", ""), {})
        own = (trust["trustor_user_id"], trust["project_id"], [role["name"] for role in trust["roles"]])
        user = token.get("user", {})
        roles = [role["name"] for role in token.get("roles", [])]
        if self.owner.down:
            self._answer(503, {"error": {"code": 503, "title": "Away", "message": "away"}})
            return
        if own != (user.get("id"), token.get("project", {}).get("id"), roles):
            self._answer(403, {"error": {"code": 403, "title": "Forbidden", "message": "no"}})
            return
        self.owner.trusts.append(trust)
        self._answer(201, {"trust": {**trust, "id": user["name"]}})

    def _answer(self, status: int, document: object, *headers: tuple[str, str]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests."""
