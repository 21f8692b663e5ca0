# SPDX-License-Identifier: Apache-2.0
"""Client sessions: authentication, and answers to frames."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID, uuid4
from wsgiref.util import setup_testing_defaults

import msgspec
from msgspec import Struct

from zq import wire
from zq.auth.signatures import parse_time
from zq.clock import Clock
from zq.errors import Invalid, ZqError
from zq.http.features import CONNECTION
from zq.model import QueueRef
from zq.storage.api import QueueController
from zq.websocket import frames
from zq.websocket.actions import Reply, Request, build_answer, build_request
from zq.websocket.pushes import Pusher, Subscriptions
from zq.wire import refusals

LOG = logging.getLogger(__name__)
# Seconds after the handshake within which a client must authenticate.
CREDENTIAL_TIMEOUT: Final = 5.0
# Seconds between two checks of a credential.
RECHECK_INTERVAL: Final = 10.0
# Seconds for which a signed request keeps an unauthenticated connection open.
SIGNED_TTL: Final = 60.0
# Client-ID of requests for actions that do not require a valid one (contract 14).
NO_CLIENT: Final = "0" * 32
SIGNED: Final = ("URL-Signature", "URL-Expires", "URL-Methods", "URL-Paths")
CREDENTIAL_NEEDED: Final = "A credential is required: send the action authenticate first."
WHOAMI_REQUEST: Final = Request("GET", "/v2/whoami")
CLOSE_EXPIRED: Final = 4003
CLOSE_POLICY: Final = 1008
CLOSE_TRY_LATER: Final = 1013
Application = Callable[..., Iterable[bytes]]


class ProjectLimit:
    """The limit on this process's sessions per project."""

    def __init__(self, per_project: int) -> None:
        self._per_project = per_project
        self._lock = threading.Lock()
        self._projects: dict[object, str] = {}

    def join(self, session: object, project: str) -> bool:
        """Assign the session to a project. Return False if the project has reached its limit. Thread-safe."""
        with self._lock:
            if self._projects.get(session) != project:
                if Counter(self._projects.values())[project] >= self._per_project:
                    return False
                self._projects[session] = project
        return True

    def leave(self, session: object) -> None:
        """Remove the session from its project. Thread-safe."""
        with self._lock:
            self._projects.pop(session, None)


class Service(Struct, frozen=True):
    """The components that all sessions share. ``strategy`` is the value of [DEFAULT] auth_strategy."""

    app: Application
    strategy: str
    clock: Clock
    queues: QueueController
    subscriptions: Subscriptions
    places: ProjectLimit


class CloseConnection(Exception):
    """Raised to close the connection with a close code and a reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def call(app: Application, peer: str, headers: Mapping[str, str], request: Request, connection: str) -> Reply:
    """Execute a request within this process and return the response. Blocks.

    If a new subscription has no subscriber, ``connection`` becomes the subscriber. Raises ``Invalid`` if a string
    cannot be encoded as UTF-8.
    """
    try:
        raw = b"" if request.document is None else msgspec.json.encode(request.document)
        env: dict[str, Any] = {
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path.encode().decode("latin-1"),
            "QUERY_STRING": urlencode(request.query),
            "wsgi.input": BytesIO(raw),
            "REMOTE_ADDR": peer,
            "SERVER_PROTOCOL": "HTTP/1.1",
            CONNECTION: connection,
        }
    except UnicodeEncodeError as error:
        raise Invalid("Bad request. A string contains half of a surrogate pair.") from error
    if raw:
        env |= {"CONTENT_LENGTH": str(len(raw)), "CONTENT_TYPE": "application/json"}
    env |= {"HTTP_" + name.upper().replace("-", "_"): value for name, value in headers.items()}
    setup_testing_defaults(env)
    begun: list[tuple[str, list[tuple[str, str]]]] = []
    pieces = app(env, lambda status, given, _error=None: begun.append((status, given)))
    try:
        content = b"".join(pieces)
    finally:
        getattr(pieces, "close", int)()
    status, given = begun[0]
    received = {name.lower(): value for name, value in given}
    document = msgspec.json.decode(content) if content and "json" in received.get("content-type", "json") else None
    return Reply(int(status[:3]), document, received.get("location", ""), received.get(refusals.HEADER.lower(), ""))


class Session:
    """The session of one connection. ``notify`` is called from any thread when ``pushes`` may have frames."""

    def __init__(self, service: Service, peer: str, handshake: Mapping[str, str], notify: Callable[[], object]) -> None:
        self._service = service
        self._id = uuid4().hex
        self._binary = False
        self.pushes = Pusher(service.subscriptions, notify)
        self._subscribed: tuple[QueueRef, str, bool] | None = None
        """The subscription that the last frame created: queue, id, and whether its frames are binary."""
        self._peer = peer
        self._handshake = handshake
        self._credential: dict[str, str] = {}
        self._expires: float | None = None
        self._open = service.strategy in ("", "proxy")
        self._recheck = time.monotonic() + RECHECK_INTERVAL
        self._deadline = time.monotonic() + CREDENTIAL_TIMEOUT

    def begin(self) -> None:
        """Check that the handshake came through the proxy, if the authentication strategy is ``proxy``.

        Raises ``CloseConnection`` if the check fails.
        """
        if self._service.strategy == "proxy" and self._call(WHOAMI_REQUEST, {}).status != 200:
            raise CloseConnection(CLOSE_POLICY, "This connection did not come through the proxy.")

    @property
    def is_known(self) -> bool:
        """Whether the client has authenticated or need not authenticate."""
        return self._open or bool(self._credential)

    def check(self) -> None:
        """Check whether the connection may stay open.

        Raises ``CloseConnection`` if the credential has expired, or if the client did not authenticate in time.
        """
        if self._credential:
            if self._expires is not None and self._service.clock.now() >= self._expires:
                raise CloseConnection(CLOSE_EXPIRED, "The credential has expired.")
        elif not self._open and time.monotonic() >= self._deadline:
            raise CloseConnection(CLOSE_POLICY, "The client did not authenticate in time.")

    def is_recheck_due(self) -> bool:
        """Return whether the credential must be verified again."""
        return bool(self._credential) and time.monotonic() >= self._recheck

    def recheck(self) -> None:
        """Verify the credential again. Blocks. Raises ``CloseConnection`` if the credential is no longer valid."""
        self._recheck = time.monotonic() + RECHECK_INTERVAL
        if self._call(WHOAMI_REQUEST, self._credential).status == 401:
            raise CloseConnection(CLOSE_EXPIRED, "The credential is no longer valid.")

    def end(self) -> None:
        """Delete the connection's subscriptions, including one that the last frame created. Blocks."""
        self.start_pushing()
        self.pushes.end()

    def start_pushing(self) -> None:
        """Start to push the messages of a new subscription.

        Call this method after the answer was sent, because no message may precede the answer.
        """
        subscribed, self._subscribed = self._subscribed, None
        if subscribed is not None:
            self.pushes.add(*subscribed)

    def handle(self, frame: str | bytes) -> str | bytes:
        """Return the answer to a frame, encoded like the frame. Blocks.

        Raises ``CloseConnection`` if the credential is no longer valid, or if the project has too many connections.
        """
        self._binary = binary = isinstance(frame, bytes)
        try:
            document = frames.decode(frame)
        except frames.FrameError as error:
            return frames.encode(frames.build_answer(frames.NO_REQUEST, 400, {"error": str(error)}), binary)
        try:
            status, body = self._answer_document(document)
        except CloseConnection:
            raise
        except Exception:  # a failed request must not close the connection
            LOG.critical("Unexpected error while answering a frame.", exc_info=True)
            sentence = "The request failed; see the server log for the cause."
            status, body = 500, {"exception": sentence, "error": sentence}
        return frames.encode(frames.build_answer(frames.echo(document), status, body), binary)

    def _answer_document(self, document: Any) -> tuple[int, Any]:
        try:
            action = frames.check(document)
        except Invalid as error:
            return 400, {"error": str(error)}
        headers, body = document["headers"], document.get("body") or {}
        if action == frames.AUTHENTICATE:
            return self._authenticate(headers)
        signed = any(name in headers for name in SIGNED)
        if signed and action not in frames.MESSAGES:
            return 403, {"error": "A signed URL permits only actions on messages."}
        if not signed and not self._open and not self._credential:
            return 403, {"error": CREDENTIAL_NEEDED}
        proxied = self._service.strategy == "proxy" and not signed
        if proxied and headers["X-Project-ID"] != self._handshake.get("X-Project-Id"):
            return 403, {"error": "X-Project-ID must be the project in the proxy's handshake headers."}
        try:
            return self._run_action(action, headers, body, signed)
        except ZqError as error:
            return 400, {"exception": str(error), "error": str(error)}

    def _authenticate(self, headers: Mapping[str, str]) -> tuple[int, Any]:
        """Replace the credential, or remove it if the new one is invalid. Return the status and body of the answer."""
        if self._open:
            return 200, {"message": "Authentified: no credential is needed here."}
        token, project = headers["X-Auth-Token"], headers["X-Project-ID"]
        if self._credential:  # failed attempts must not extend the deadline of an unauthenticated connection
            self._deadline = time.monotonic() + CREDENTIAL_TIMEOUT
        former, self._credential, self._expires = self._credential, {}, None
        keystone = self._service.strategy == "keystone"
        given = {"X-Auth-Token": token} if keystone else {"Authorization": f"Bearer {token}"}
        given["X-Project-ID"] = project
        reply = self._call(WHOAMI_REQUEST, given)
        if reply.status != 200 or former.get("X-Project-ID") not in (None, project):
            self.pushes.end()
        if reply.status != 200:
            return 401 if reply.status in (401, 403) else reply.status, _build_failure(reply)
        self._join(reply.document["project"])
        self._credential = given
        until = reply.document["expires"]
        self._expires = None if until is None else parse_time(until)
        self._recheck = time.monotonic() + RECHECK_INTERVAL
        return 200, {"message": "Authentified."}

    def _run_action(
        self, action: str, headers: Mapping[str, Any], body: dict[str, Any], signed: bool
    ) -> tuple[int, Any]:
        project = headers["X-Project-ID"]
        request = build_request(action, body)
        if request is None:  # there are no ids to read, but the permission to read must be checked
            queue = body["queue_name"]
            request = Request("GET", f"/v2/queues/{queue}/messages", [("limit", "1")])
            reply = self._call(request, self._headers(headers, signed))
            reply = Reply(reply.status, {"messages": []}) if reply.status == 200 else reply
        else:
            reply = self._call(request, self._headers(headers, signed, action in ("message_list", "message_post")))
        if reply.status == 401 or (signed and reply.status == 404 and not reply.error):
            if signed:
                return 403, {"error": "The signature is not valid for this request."}
            if self._credential:
                raise CloseConnection(CLOSE_EXPIRED, "The credential is no longer valid.")
            return 403, _build_failure(reply)
        if reply.status >= 400:
            return reply.status, _build_failure(reply)
        if signed:
            self._deadline = time.monotonic() + SIGNED_TTL
        elif not self._credential:
            self._join(project)
        return self._build_success(action, body, project, reply)

    def _build_success(self, action: str, body: dict[str, Any], project: str, reply: Reply) -> tuple[int, Any]:
        """Return the status and body of the answer to a successful request.

        Queue metadata in the answer contains only the stored keys, not the default values of unset keys.
        """
        if action == "queue_get":
            return 200, self._stored(project, body["queue_name"]) or {}
        if action == "subscription_create" and not self._is_new(project, body, reply):
            sentence = "The subscriber is already subscribed, and was asked to confirm again."
            return 409, _build_failure(Reply(409, {"description": sentence}))
        document = build_answer(action, body, reply)
        if action == "queue_get_stats" and self._stored(project, body["queue_name"]) is None:
            return 404, document
        if action == "queue_list":
            for each in document["queues"]:
                if "metadata" in each:
                    each["metadata"] = self._stored(project, each["name"]) or {}
        return reply.status, document

    def _is_new(self, project: str, body: dict[str, Any], reply: Reply) -> bool:
        """Return whether the action created a subscription.

        If the subscriber is this connection, also record the subscription for ``start_pushing``.
        """
        if body.get("subscriber") is not None:
            return "secret" in reply.document
        queue = QueueRef(project, body["queue_name"])
        self._subscribed = queue, reply.document["subscription_id"], self._binary
        return True

    def _stored(self, project: str, name: str) -> dict[str, Any] | None:
        stored = self._service.queues.get(QueueRef(project, name))
        return None if stored is None else wire.json_object(stored.metadata)

    def _headers(self, headers: Mapping[str, Any], signed: bool, checks_client: bool = True) -> dict[str, str]:
        """Convert the headers of a frame to the HTTP headers of the request.

        Args:
            signed: If true, the request has the signature in the frame; otherwise, the credential of the connection.
            checks_client: If false, an invalid client id is replaced with a valid one.
        """
        given = {"X-Project-ID": headers["X-Project-ID"], "Client-ID": headers["Client-ID"]}
        if not checks_client and not _is_uuid(given["Client-ID"]):
            given["Client-ID"] = NO_CLIENT
        if not signed:
            return self._credential | given
        for name in SIGNED:
            value = headers.get(name, "")
            parts = value if isinstance(value, list) else [value]
            if not all(isinstance(part, str) for part in parts):
                raise Invalid(f"Bad request. {name} must be a string or a list of strings.")
            given[name] = ",".join(parts)
        return given

    def _join(self, project: str) -> None:
        if not self._service.places.join(self, project):
            raise CloseConnection(CLOSE_TRY_LATER, "The project has the maximum number of connections.")

    def _call(self, request: Request, headers: Mapping[str, str]) -> Reply:
        given = {"Client-ID": NO_CLIENT, **self._handshake, **headers}
        return call(self._service.app, self._peer, given, request, self._id)


def _build_failure(reply: Reply) -> dict[str, Any]:
    said = reply.document if isinstance(reply.document, dict) else {}
    sentence = said.get("description") or said.get("title") or "The request was rejected."
    return {"exception": sentence, "error": sentence}


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
