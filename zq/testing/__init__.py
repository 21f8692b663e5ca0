# SPDX-License-Identifier: Apache-2.0
"""An in-process server for tests: the real application with an empty store and a clock that tests can advance."""

import socket
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from zq.client import AsyncClient, Client
from zq.model import Seconds

try:
    from zq.auth.credentials import BearerStrategy
    from zq.auth.tokens import Grant, Tokens, TokenVerifier, parse_token
    from zq.core import Broker
    from zq.http.app import create_app
    from zq.http.application import App
    from zq.http.features import Feature
    from zq.model.quotas import Quota
    from zq.model.scopes import parse
    from zq.serving.features import EXTENSIONS, command_features
    from zq.storage import connect
except ModuleNotFoundError as error:
    if (error.name or "").startswith("zq"):
        raise
    sentence = f"The package {error.name} is missing. Install it with pip install 'zq-queue[testing]'."
    raise ModuleNotFoundError(sentence, name=error.name) from error

# Default project of clients.
PROJECT: Final = "test"
# Maximum number of long polls, and of streams. Each project may use a quarter of the maximum.
PLACES: Final = 1000
# Interval in seconds at which the server checks whether to stop.
POLL: Final = 0.05
# Seconds after which a connection without progress is closed.
PATIENCE: Final = 10.0


class Clock:
    """The server's clock: real time plus the seconds by which tests have advanced it."""

    def __init__(self, read: Callable[[], Seconds], moved: Callable[[], object]) -> None:
        self._read = read
        self._moved = moved
        self._lock = threading.Lock()
        self._ahead = self._last = 0.0

    def now(self) -> Seconds:
        """Return the Unix time in seconds, which never decreases."""
        with self._lock:
            self._last = max(self._last, round(self._read() + self._ahead, 3))
            return self._last

    def advance(self, seconds: float) -> None:
        """Advance the clock, and let waiting requests poll again. Raises ``ValueError`` for a negative number."""
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"A clock can only move forward: seconds must be 0 or greater, and finite, not {seconds}.")
        with self._lock:
            self._ahead += seconds
        self._moved()

    def drift(self) -> Seconds:
        return 0.0

    def uncertainty(self) -> Seconds:
        return 0.0


class Server:
    """A running server: its ``url``, its ``clock``, and its clients."""

    def __init__(self, url: str, clock: Clock, clients: ExitStack, tokens: Tokens) -> None:
        self.url = url
        self.clock = clock
        self._clients = clients
        self._tokens = tokens

    def __repr__(self) -> str:
        return f"Server({self.url})"

    def token(
        self, project: str = PROJECT, *, scopes: Sequence[str] | None = None, roles: Sequence[str] = (), days: int = 90
    ) -> str:
        """Create a token for ``Client(..., token=...)``. ``scopes=None`` allows everything in the project."""
        parse(scopes)
        grant = Grant(project=project, name="zq.testing", scopes=scopes, roles=roles, days=days)
        return self._tokens.create(grant).text

    def revoke(self, token: str) -> None:
        """Revoke a token, if it exists. The server rejects it within five seconds."""
        if parsed := parse_token(token):
            self._tokens.revoke(parsed[0], None)

    def client(self, project: str = PROJECT, **options: Any) -> Client:
        """Return a ``Client`` with these options. The server closes the client when it stops."""
        return self._clients.enter_context(Client(self.url, project, **options))

    def async_client(self, project: str = PROJECT, **options: Any) -> AsyncClient:
        """Return an ``AsyncClient`` with these options. Use ``async with`` to close the client in its event loop."""
        return AsyncClient(self.url, project, **options)


@contextmanager
def server(
    *, auth_strategy: str = "", quota: Mapping[str, int] | None = None, store: str = "memory:", sqs: bool = False
) -> Generator[Server, None, None]:
    """Serve an empty store on a free port of the loopback interface within a ``with`` block.

    The server runs in threads of this process. Several servers may run concurrently.

    Args:
        auth_strategy: "" = no authentication; "token" = clients need a token from ``Server.token``.
        quota: Limits of each project, named as in the section ``[quota]`` of the configuration. Requires "token".
        sqs: Whether to serve the SQS protocol too. The server then accepts any access key, and there is no minimum
            interval between purges.

    Raises ``ValueError`` for any other strategy, or for a quota without authentication.
    """
    if auth_strategy not in ("", "token") or (quota and not auth_strategy):
        raise ValueError('auth_strategy must be "" or "token"; with a quota, it must be "token".')
    with ExitStack() as ends:
        storage = connect(store)
        ends.callback(storage.close)
        clock = Clock(storage.now, lambda: broker.waiters.recheck())
        bounds = Quota().with_own(quota or {}) if auth_strategy else None
        broker = Broker(storage, clock, max_waiters=PLACES, max_streams=PLACES, quota=bounds, extensions=EXTENSIONS)
        ends.callback(broker.trail.finish)
        tokens = Tokens(storage.documents, clock)
        strategy = BearerStrategy(TokenVerifier(storage.documents, clock), bare=True) if auth_strategy else None
        features = command_features(broker)
        if sqs:
            features = _with_sqs(features, broker)
        app = create_app(broker, strategy=strategy, tokens=tokens, auth=auth_strategy, features=features)
        url = ends.enter_context(_serving(app))
        ends.callback(broker.end_waiting)
        yield Server(url, clock, ends.enter_context(ExitStack()), tokens)


def _with_sqs(features: Sequence[Feature], broker: Broker) -> list[Feature]:
    from zq.sqs.feature import SqsFeature, sqs_feature
    from zq.sqs.settings import SqsOptions

    enabled = sqs_feature(SqsOptions(enabled=True, auth="none", purge_interval=0), broker)
    return [enabled if isinstance(each, SqsFeature) else each for each in features]


@contextmanager
def _serving(app: App) -> Generator[str, None, None]:
    """Serve the application and yield its URL. On exit, wait until all requests are answered."""
    with _HttpServer(("127.0.0.1", 0), _Connection) as http:
        http.set_app(lambda env, start: app(env, _drop_connection_headers(start)))
        thread = threading.Thread(target=http.serve_forever, args=(POLL,), name="zq-testing", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()
            http.hang_up()


def _drop_connection_headers(start: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a WSGI ``start_response`` function to remove ``Connection`` headers, which ``wsgiref`` rejects.

    The headers are not needed, because each connection ends after one response.
    """

    def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
        return start(status, [pair for pair in headers if pair[0].lower() != "connection"], *more)

    return started


class _HttpServer(ThreadingMixIn, WSGIServer):
    """A server with one thread per connection. Its ``server_close`` waits for all connections."""

    request_queue_size = 128

    def __init__(self, *args: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args)

    def server_bind(self) -> None:
        """Bind without a reverse lookup of the host name, which takes seconds on some machines."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of connections. The application reports its own errors."""

    def hang_up(self) -> None:
        """Stop reading from all connections. Requests that were read are still answered."""
        for connection in list(self._open):
            with suppress(OSError):  # the client has disconnected
                connection.shutdown(socket.SHUT_RD)


class _Connection(WSGIRequestHandler):
    """A connection for one request. Requests are not logged, to keep the output of tests clean."""

    timeout = PATIENCE

    def get_environ(self) -> dict[str, Any]:
        """Return the WSGI environment, which includes the connection's socket.

        The application needs the socket to detect a disconnected client.
        """
        return {**super().get_environ(), "gunicorn.socket": self.connection}

    def log_message(self, *_: object) -> None:
        pass
