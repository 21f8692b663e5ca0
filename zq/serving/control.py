# SPDX-License-Identifier: Apache-2.0
"""The control socket, through which ``zq-server`` commands reach a running server.

If a server has an embedded store open, a command such as ``zq-server token`` can reach the store only through the
socket. Requests through the socket have administrator rights. The Unix socket has mode 0600 and accepts only the
server's own user and root. Both users can read the store anyway.
"""

import atexit
import json
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from io import BytesIO
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.util import setup_testing_defaults

import msgspec

from zq.errors import Conflict, Invalid, StartRefused, Unavailable, ZqError
from zq.model.stats import Snapshot

LOG = logging.getLogger(__name__)
NO_SERVER: Final = "No server answers at the control socket {}."
NO_ACCESS: Final = "The control socket {} accepts only the server's user and root. Run the command as one of them."
NO_ANSWER: Final = "The server at the control socket {} did not answer in time."
DISCONNECTED: Final = "The server at the control socket {} ended the connection without an answer."
# Environment key that marks a request through the control socket; see ``zq.http.tenant``.
KEY: Final = "zq.operator"
# Maximum length in bytes of a Unix socket path.
MAX_PATH: Final = 107
# Timeout of a request in seconds.
TIMEOUT: Final = 30.0
# Layout of SO_PEERCRED: process, user, group.
CREDENTIALS: Final = struct.Struct("3i")
# Path of the snapshot request. A snapshot lives as long as its connection.
SNAPSHOT: Final = "/snapshot"
# Environment key of the connection's socket.
CONNECTION: Final = "zq.connection"
# Sent by the client after it has copied the complete snapshot.
SNAPSHOT_COPIED: Final = b"whole\n"
# Timeout of a snapshot in seconds, which includes flushing the store's memory to disk.
SNAPSHOT_TIMEOUT: Final = 600.0
# Maximum bytes that the server discards after a response, and maximum seconds for which it waits for them.
MAX_UNREAD: Final = 16 << 20
UNREAD_TIMEOUT: Final = 10.0
# Bytes that the server discards at once.
PIECE_SIZE: Final = 64 << 10
RUNNING: Final = "A backup of this store is already running. Try again after it has finished."
Application = Callable[..., Iterable[bytes]]
Snapshots = Callable[[], AbstractContextManager[Snapshot]]
# An operation of the serving process: from the body of a request to the JSON value of the response.
Operation = Callable[[bytes], object]


class NoServer(Unavailable):
    """No process listens at the control socket."""


def serve(
    path: str, app: Application, snapshot: Snapshots | None = None, operations: Mapping[str, Operation] | None = None
) -> None:
    """Serve the application at the Unix socket ``path`` in a background thread.

    An existing socket at the path is removed. If the socket cannot be created, the function logs a warning and returns.

    Args:
        app: The WSGI application, which serves all requests except snapshots and ``operations``.
        snapshot: Creates a snapshot of the store for ``zq-server backup``.
        operations: Functions that serve additional requests, by path.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        LOG.info("No control socket: this system cannot identify the peer of a Unix socket.")
        return
    if len(path.encode()) > MAX_PATH:
        LOG.warning(
            "No control socket: the path in [server] control must be at most %d bytes; it is %s.", MAX_PATH, path
        )
        return
    _remove_socket(path)
    try:
        server = _Server(path, _Handler)  # type: ignore[arg-type]
    except OSError as error:
        LOG.warning("Cannot create the control socket %s: %s.", path, error.strerror)
        return
    app = _Operations(app, operations or {})
    server.set_app(_Snapshots(app, snapshot) if snapshot else app)
    atexit.register(_remove_socket, path)
    threading.Thread(target=server.serve_forever, name="zq-control", daemon=True).start()


def _remove_socket(path: str) -> None:
    with suppress(OSError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)


def send(path: str, method: str, target: str, document: object = None, within: float = TIMEOUT) -> tuple[int, Any]:
    """Send a request through the control socket. Return the status and the decoded response.

    The timeout is ``within`` seconds. Raises ``NoServer`` if no server listens, and ``Unavailable`` if it does not
    answer.
    """
    connection = _Connection(path, within)
    try:
        body = None if document is None else json.dumps(document)
        connection.request(method, target, body)
        reply = connection.getresponse()
        content = reply.read()
        return reply.status, json.loads(content) if content else None
    except (OSError, HTTPException, ValueError) as error:
        raise _failure(path, error) from error
    finally:
        connection.close()


def operate(path: str, operation: str, document: object, within: float = TIMEOUT) -> Any:
    """Run an operation in the server at the control socket ``path``, and return the result.

    ``operation`` is the URL path of the operation. The timeout is ``within`` seconds. Raises ``StartRefused`` if the
    server rejects the operation, and ``Unavailable`` if no server answers.
    """
    status, answer = send(path, "POST", operation, document, within)
    if status != HTTPStatus.OK:
        raise StartRefused(answer["description"])
    return answer


def read_process(path: str) -> int:
    """Return the id of the process that serves the control socket. Raises ``Unavailable`` if no server answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
            found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        except OSError as error:
            raise _failure(path, error) from error
    process, _, _ = CREDENTIALS.unpack(found)
    return int(process)


@contextmanager
def snapshot(path: str) -> Iterator[Snapshot]:
    """Yield a snapshot of the store that the server at the control socket ``path`` has open.

    The server drops the snapshot when the ``with`` block ends or this process dies. After the backup is complete, the
    caller must set ``is_complete`` of the snapshot to ``True``. Otherwise, the server counts the backup as incomplete.

    Raises ``NoServer`` if no server listens, ``Unavailable`` if it does not answer, and ``StartRefused`` if it refuses.
    """
    connection = _Connection(path, SNAPSHOT_TIMEOUT)
    with ExitStack() as opened:
        opened.callback(connection.close)
        try:
            connection.request("POST", SNAPSHOT)
            ours = opened.enter_context(connection.sock.dup())
            reply = opened.enter_context(connection.getresponse())
            line = reply.readline()
        except (OSError, HTTPException) as error:
            raise _failure(path, error) from error
        if reply.status != HTTPStatus.OK:
            raise StartRefused(json.loads(line)["description"])
        made = msgspec.json.decode(line, type=Snapshot)
        try:
            yield made
        finally:
            with suppress(OSError, HTTPException):  # the server may have died
                ours.sendall(SNAPSHOT_COPIED if made.is_complete else b"")
                ours.shutdown(socket.SHUT_WR)
                reply.read()  # wait until the server has dropped the snapshot


def _failure(path: str, error: Exception) -> Unavailable:
    """Return the error to raise for a failed connection to the control socket."""
    if isinstance(error, PermissionError):
        return Unavailable(NO_ACCESS.format(path))
    if isinstance(error, TimeoutError):
        return Unavailable(NO_ANSWER.format(path))
    if isinstance(error, ConnectionRefusedError) or not isinstance(error, ConnectionError | HTTPException | ValueError):
        return NoServer(NO_SERVER.format(path))
    return Unavailable(DISCONNECTED.format(path))


def call(app: Application, method: str, target: str, document: object = None) -> tuple[int, Any]:
    """Send a request to an application in this process. Return the status and the decoded response."""
    path, _, query = target.partition("?")
    body = b"" if document is None else json.dumps(document).encode()
    environ: dict[str, Any] = {
        KEY: True,
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": BytesIO(body),
        "REMOTE_ADDR": "",
    }
    setup_testing_defaults(environ)
    begun: list[str] = []
    content = b"".join(app(environ, lambda status, _headers, _error=None: begun.append(status)))
    return int(begun[0][:3]), json.loads(content) if content else None


class _Operations:
    def __init__(self, app: Application, operations: Mapping[str, Operation]) -> None:
        self._app = app
        self._operations = operations

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        operation = self._operations.get(environ["PATH_INFO"])
        if operation is None:
            return self._app(environ, start_response)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, answer = HTTPStatus.OK, None
        try:
            answer = operation(body)
        except ZqError as refusal:
            status = HTTPStatus.BAD_REQUEST if isinstance(refusal, Invalid) else HTTPStatus.SERVICE_UNAVAILABLE
            answer = {"description": str(refusal)}
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]


class _Snapshots:
    """WSGI middleware that creates snapshots of the store for backups, one at a time.

    When the client closes its connection, the server drops the snapshot.
    """

    def __init__(self, app: Application, snapshot: Snapshots) -> None:
        self._app = app
        self._snapshot = snapshot
        self._free = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != SNAPSHOT:
            return self._app(environ, start_response)
        made = ExitStack()
        try:
            found = self._begin(made)
        except ZqError as refusal:
            made.close()
            status = HTTPStatus.CONFLICT if isinstance(refusal, Conflict) else HTTPStatus.SERVICE_UNAVAILABLE
            start_response(f"{status.value} {status.phrase}", [("Content-Type", "application/json")])
            return [json.dumps({"description": str(refusal)}).encode()]
        start_response("200 OK", [("Content-Type", "application/json")])
        return self._hold(made, found, environ[CONNECTION])

    def _begin(self, made: ExitStack) -> Snapshot:
        if not self._free.acquire(blocking=False):
            raise Conflict(RUNNING)
        made.callback(self._free.release)
        found = made.enter_context(self._snapshot())
        LOG.info("A backup is running; requests were paused for %.0f ms.", found.pause * 1000)
        return found

    def _hold(self, made: ExitStack, found: Snapshot, connection: socket.socket) -> Iterator[bytes]:
        with made:
            yield msgspec.json.encode(found) + b"\n"
            connection.settimeout(None)
            with suppress(OSError):  # the client died
                found.is_complete = connection.recv(len(SNAPSHOT_COPIED), socket.MSG_WAITALL) == SNAPSHOT_COPIED
            LOG.info("A backup has been made." if found.is_complete else "The backup is incomplete.")


class _Server(ThreadingMixIn, WSGIServer):
    """A WSGI server on a Unix socket that accepts connections only from the server process's user and from root."""

    address_family = socket.AF_UNIX
    daemon_threads = True

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        os.chmod(str(self.server_address), 0o600)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, _ = self.socket.accept()
        connection.settimeout(TIMEOUT)
        return connection, ("", 0)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        packed = request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        _, user, _ = CREDENTIALS.unpack(packed)
        return user in (os.geteuid(), 0)

    def handle_error(self, request: Any, client_address: Any) -> None:
        LOG.debug("Error in a request through the control socket.", exc_info=True)


class _Handler(WSGIRequestHandler):
    def get_environ(self) -> dict[str, Any]:
        return super().get_environ() | {KEY: True, CONNECTION: self.connection}

    def address_string(self) -> str:
        return ""

    def finish(self) -> None:
        """End the response, then discard the unread body of a refused request.

        If a Unix socket is closed with unread bytes, the client may get an error instead of the response.
        """
        super().finish()
        deadline, unread = time.monotonic() + UNREAD_TIMEOUT, MAX_UNREAD
        with suppress(OSError):  # the client has died or still sends
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(UNREAD_TIMEOUT)
            while unread > 0 and time.monotonic() < deadline and (piece := self.connection.recv(PIECE_SIZE)):
                unread -= len(piece)

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing, because the application logs requests."""


class _Connection(HTTPConnection):
    def __init__(self, path: str, within: float) -> None:
        super().__init__("localhost", timeout=within)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
