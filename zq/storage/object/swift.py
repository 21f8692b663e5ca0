# SPDX-License-Identifier: Apache-2.0
"""Objects in OpenStack Swift, with authentication by Keystone v3 or Swift v1.

Swift checks ``If-None-Match`` when a request arrives, not when the object is stored, so objects are unsuitable for
leader election. Containers are suitable: if several clients create a container, at most one receives status 201. Reads
query all replicas (``X-Newest``).
"""

import hashlib
import http.client
import json
import threading
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

from zq.errors import StartRefused, Unavailable
from zq.model import store_uri
from zq.storage.object.objects import TIMEOUT, Objects, ObjectStoreRejection, Requests

NEWEST_HEADERS: Final = {"X-Newest": "true"}
NO_POSITIONS: Final = (
    "[storage:object] fencing = position requires an object store with conditional writes, which Swift does not have. "
    "Use fencing = look."
)
SHAPE: Final = (
    "The URI of a Swift store must be swift://container/prefix, with ?auth=v1 for Swift v1 authentication, not {!r}."
)
NO_SIGN_IN: Final = (
    "The authentication response of the object store lacks the token or the account URL. Check the auth URL."
)


class Response(NamedTuple):
    """An HTTP response. The names of ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Account(NamedTuple):
    """The URL of a Swift account, and a token for it."""

    url: str
    token: str


class Http(threading.local):
    """An HTTP client with a persistent connection per server and thread."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._open: dict[tuple[str, str], http.client.HTTPConnection] = {}

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Response:
        """Send a request. If the server has closed the connection, reconnect once."""
        parts = urlsplit(url)
        where = parts.scheme, parts.netloc
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        while True:
            kept = self._open.pop(where, None)
            connection = kept or _connection(*where)
            try:
                connection.request(method, path, body, dict(headers))
                response = connection.getresponse()
                reply = Response(
                    response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
                )
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._requests.count(method, "none")
                if kept is None or isinstance(error, TimeoutError):
                    raise Unavailable from error
            else:
                self._requests.count(method, reply.status)
                self._open[where] = connection
                return reply

    def close(self) -> None:
        """Close this thread's connections."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()


def _connection(scheme: str, netloc: str) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    return kind(netloc, timeout=TIMEOUT)


class SwiftObjects(Objects):
    """The objects of one container below a prefix."""

    def __init__(self, uri: str, environment: Mapping[str, str]) -> None:
        """Parse the URI. Raises ``StartRefused`` if the URI is invalid or an environment variable is missing."""
        parts = store_uri.split(uri)
        self._container, self._prefix = parts.netloc, parts.path.strip("/")
        options = parse_qs(parts.query, keep_blank_values=True)
        version = options.pop("auth", ["v3"])
        if not self._container or not self._prefix or options or version not in (["v1"], ["v3"]):
            raise StartRefused(SHAPE.format(uri))
        self._sign_in = _V1(environment) if version == ["v1"] else _V3(environment)
        self.requests = Requests()
        self._http = Http(self.requests)
        self._lock = threading.Lock()
        self._account: Account | None = None
        digest = hashlib.sha256(self._prefix.encode()).hexdigest()[:16]
        self._election = f"{self._container}-zq-{digest}"

    def prepare(self) -> None:
        """Create the container if it does not exist.

        Raises ``StartRefused`` if the container has versioning, because deletions would not free space.
        """
        self._expect(self.send("PUT", quote(self._container)), 201, 202)
        headers = self._expect(self.send("HEAD", quote(self._container)), 200, 204).headers
        if "x-versions-location" in headers or headers.get("x-versions-enabled", "").lower() == "true":
            raise StartRefused(
                f"The container {self._container} has versioning enabled. Use a container without versioning."
            )

    def put(self, name: str, value: bytes) -> bool:
        reply = self.send("PUT", self.path(name), {"Content-Type": "application/octet-stream"}, value)
        return self._expect(reply, 201, 202).status == 201

    def put_new(self, name: str, value: bytes) -> bool:
        """Store the value unless the object exists. Several concurrent calls may return True."""
        headers = {"Content-Type": "application/octet-stream", "If-None-Match": "*"}
        return self._expect(self.send("PUT", self.path(name), headers, value), 201, 202, 412).status == 201

    def prove_exclusive(self) -> None:
        raise StartRefused(NO_POSITIONS)

    def get(self, name: str) -> bytes | None:
        reply = self._expect(self.send("GET", self.path(name), NEWEST_HEADERS), 200, 404)
        return reply.body if reply.status == 200 else None

    def exists(self, name: str) -> bool:
        return self._expect(self.send("HEAD", self.path(name), NEWEST_HEADERS), 200, 404).status == 200

    def delete(self, name: str) -> None:
        self._expect(self.send("DELETE", self.path(name)), 204, 404)

    def elect(self, number: int) -> bool:
        return self._expect(self.send("PUT", quote(f"{self._election}-{number}")), 201, 202).status == 201

    def has_election(self, number: int) -> bool:
        return self._expect(self.send("HEAD", quote(f"{self._election}-{number}")), 200, 204, 404).status != 404

    def close(self) -> None:
        self._http.close()

    def path(self, name: str) -> str:
        """Return the URL path of an object, relative to the account's URL."""
        return quote(f"{self._container}/{self._prefix}/{name}")

    def send(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Response:
        """Send a request. If the token has expired, sign in again and repeat the request once."""
        account = self._get_account(None)
        for attempt in range(2):
            reply = self._http.send(
                method, f"{account.url}/{path}", {"X-Auth-Token": account.token, **(headers or {})}, body
            )
            if reply.status != 401 or attempt:
                break
            account = self._get_account(account)
        return reply

    def _get_account(self, former: Account | None) -> Account:
        """Return the account's URL and token. Sign in on the first call, and again if the token has expired.

        ``former`` is the account whose token has expired, or None.
        """
        with self._lock:
            if self._account is None or self._account == former:
                try:
                    self._account = self._sign_in(self._http)
                except (LookupError, TypeError, ValueError) as error:
                    raise ObjectStoreRejection(NO_SIGN_IN) from error
            return self._account

    @staticmethod
    def _expect(reply: Response, *statuses: int) -> Response:
        if reply.status in statuses:
            return reply
        sentence = f"The object store responded with status {reply.status}."
        raise ObjectStoreRejection(sentence) if 400 <= reply.status < 500 or reply.status == 507 else Unavailable


class _V1:
    """Authentication with Swift v1, by the environment variables ``ST_AUTH``, ``ST_USER`` and ``ST_KEY``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._url = _variable(environment, "ST_AUTH")
        self._headers = {
            "X-Auth-User": _variable(environment, "ST_USER"),
            "X-Auth-Key": _variable(environment, "ST_KEY"),
        }

    def __call__(self, http: Http) -> Account:
        reply = _accepted(http.send("GET", self._url, self._headers))
        return Account(reply.headers["x-storage-url"], reply.headers["x-auth-token"])


class _V3:
    """Authentication with Keystone v3, for a user or an application credential in the ``OS_*`` variables."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._url = _variable(environment, "OS_AUTH_URL").rstrip("/").removesuffix("/v3") + "/v3/auth/tokens"
        self._region = environment.get("OS_REGION_NAME", "")
        self._interface = environment.get("OS_INTERFACE", "public")
        self._body = json.dumps({"auth": _identity(environment)}).encode()

    def __call__(self, http: Http) -> Account:
        reply = _accepted(http.send("POST", self._url, {"Content-Type": "application/json"}, self._body))
        catalog = json.loads(reply.body)["token"].get("catalog", [])
        endpoints = [
            endpoint["url"]
            for service in catalog
            if service["type"] == "object-store"
            for endpoint in service["endpoints"]
            if endpoint["interface"] == self._interface
            and self._region in ("", endpoint.get("region_id"), endpoint.get("region"))
        ]
        if not endpoints:
            raise ObjectStoreRejection(
                "Keystone's catalog has no object store with the interface and region of the environment variables."
            )
        return Account(endpoints[0].rstrip("/"), reply.headers["x-subject-token"])


def _accepted(reply: Response) -> Response:
    if reply.status in (200, 201, 204):
        return reply
    sentence = f"Authentication at the object store failed with status {reply.status}."
    raise ObjectStoreRejection(sentence) if reply.status < 500 else Unavailable


def _identity(environment: Mapping[str, str]) -> dict[str, Any]:
    credential = environment.get("OS_APPLICATION_CREDENTIAL_ID")
    if credential:
        secret = _variable(environment, "OS_APPLICATION_CREDENTIAL_SECRET")
        named = {"id": credential, "secret": secret}
        return {"identity": {"methods": ["application_credential"], "application_credential": named}}
    user = {
        "name": _variable(environment, "OS_USERNAME"),
        "password": _variable(environment, "OS_PASSWORD"),
        "domain": _domain(environment, "OS_USER_DOMAIN"),
    }
    project = {
        "name": _variable(environment, "OS_PROJECT_NAME"),
        "domain": _domain(environment, "OS_PROJECT_DOMAIN"),
    }
    return {
        "identity": {"methods": ["password"], "password": {"user": user}},
        "scope": {"project": project},
    }


def _domain(environment: Mapping[str, str], name: str) -> dict[str, str]:
    identifier = environment.get(f"{name}_ID")
    return {"id": identifier} if identifier else {"name": environment.get(f"{name}_NAME", "Default")}


def _variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise StartRefused(f"A Swift store requires the environment variable {name}.")
    return value
