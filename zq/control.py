# SPDX-License-Identifier: Apache-2.0
"""The control socket: how ``zq-server token`` reaches a server that has an embedded store open.

A Unix socket of mode 0600, on which only this process's user and root are heard: who can read the store may administer
it. The same application answers as elsewhere, and takes every request for the operator's.
"""

import atexit
import json
import logging
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from io import BytesIO
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.util import setup_testing_defaults

from zq.errors import Unavailable

LOG = logging.getLogger(__name__)
# The key of the environment that marks a request as the operator's; see ``zq.http.tenant``.
KEY: Final = "zq.operator"
# Bytes of the longest path that a Unix socket can have.
MAX_PATH: Final = 107
# Seconds for a request.
WITHIN: Final = 30.0
# What the kernel says of the other side: process, user, group.
CREDENTIALS: Final = struct.Struct("3i")
Application = Callable[..., Iterable[bytes]]


def serve(path: str, app: Application) -> None:
    """Answer at this path from now on. The store is this process's: a socket that is there is a former one's."""
    if not hasattr(socket, "SO_PEERCRED"):
        LOG.info("There is no control socket: this system does not say who is at the other side of one.")
        return
    if len(path.encode()) > MAX_PATH:
        LOG.warning("There is no control socket: [server] control must be at most %d bytes; it is %s.", MAX_PATH, path)
        return
    _forget(path)
    try:
        server = _Server(path, _Handler)  # type: ignore[arg-type]
    except OSError as error:
        LOG.warning("There is no control socket at %s: %s.", path, error.strerror)
        return
    server.set_app(app)
    atexit.register(_forget, path)
    threading.Thread(target=server.serve_forever, name="zq-control", daemon=True).start()


def _forget(path: str) -> None:
    """Remove a socket; what is none is not ours, whatever the option says."""
    with suppress(OSError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)


def ask(path: str, method: str, target: str, document: object = None) -> tuple[int, Any]:
    """Status and JSON of an answer. Raises ``Unavailable`` if nobody listens at this path."""
    connection = _Connection(path)
    try:
        body = None if document is None else json.dumps(document)
        connection.request(method, target, body)
        reply = connection.getresponse()
        content = reply.read()
        return reply.status, json.loads(content) if content else None
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(f"No server answers at the control socket {path}.") from error
    finally:
        connection.close()


def call(app: Application, method: str, target: str, document: object = None) -> tuple[int, Any]:
    """The same of an application in this process."""
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


class _Server(ThreadingMixIn, WSGIServer):
    """Hears its own user and root."""

    address_family = socket.AF_UNIX
    daemon_threads = True

    def server_bind(self) -> None:
        """By a name in the file system, for its owner alone."""
        self.socket.bind(self.server_address)
        os.chmod(str(self.server_address), 0o600)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, _ = self.socket.accept()
        connection.settimeout(WITHIN)
        return connection, ("", 0)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether the other side may be heard."""
        told = request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        _, user, _ = CREDENTIALS.unpack(told)
        return user in (os.geteuid(), 0)

    def handle_error(self, request: Any, client_address: Any) -> None:
        LOG.debug("A request through the control socket was not answered.", exc_info=True)


class _Handler(WSGIRequestHandler):
    """Leaves no lines, and names nobody's host."""

    def get_environ(self) -> dict[str, Any]:
        return super().get_environ() | {KEY: True}

    def address_string(self) -> str:
        return ""

    def log_message(self, format: str, *args: Any) -> None:
        """The application logs what matters."""


class _Connection(HTTPConnection):
    """To a path instead of a host."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=WITHIN)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
