# SPDX-License-Identifier: Apache-2.0
"""A server for tests, within their own process: the real application on an empty store, its clock in the test's hand.

Reference: ``api-ref/testing.md``. ``zq.testing.plugin`` makes fixtures of it.
"""

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
    from zq.auth.tokens import Grant, Tokens, TokenVerifier
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
    sentence = f"The package {error.name} is missing: pip install 'zq-queue[testing]' brings it."
    raise ModuleNotFoundError(sentence, name=error.name) from error

# The project of clients that are given no other.
PROJECT: Final = "test"
# Requests that may wait, and streams: each has a thread here, and a project gets a quarter of them.
PLACES: Final = 1000
# Seconds within which the server notices that it is to end.
POLL: Final = 0.05
# Seconds that a connection may stay silent, or take nothing of what it is sent.
PATIENCE: Final = 10.0


class Clock:
    """The server's time: the real one, and ahead of it by what it was advanced."""

    def __init__(self, read: Callable[[], Seconds], moved: Callable[[], object]) -> None:
        """Create the clock. ``moved`` is called after each jump."""
        self._read = read
        self._moved = moved
        self._lock = threading.Lock()
        self._ahead = self._last = 0.0

    def now(self) -> Seconds:
        """Seconds since 1970, never less than before."""
        with self._lock:
            self._last = max(self._last, round(self._read() + self._ahead, 3))
            return self._last

    def advance(self, seconds: float) -> None:
        """Leap ahead: what expires, lapses or becomes claimable within these seconds has done so on return.

        Requests that wait look again at once. Raises ``ValueError`` for a negative number: time runs forward only.
        """
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"A clock moves only forward, by a number of seconds; not by {seconds}.")
        with self._lock:
            self._ahead += seconds
        self._moved()

    def drift(self) -> Seconds:
        """None: the store has no other time."""
        return 0.0

    def uncertainty(self) -> Seconds:
        """None either."""
        return 0.0


class Server:
    """A server that runs: its ``url``, its ``clock``, and clients of it."""

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
        """Create a token for ``Client(..., token=...)``. ``scopes`` None allows everything in the project."""
        parse(scopes)
        grant = Grant(project=project, name="zq.testing", scopes=scopes, roles=roles, days=days)
        return self._tokens.create(grant).text

    def revoke(self, token: str) -> None:
        """End a token: the server refuses it within five seconds. No error for one that has ended."""
        self._tokens.revoke(token.split("_")[1], None)

    def client(self, project: str = PROJECT, **options: Any) -> Client:
        """Return a ``Client`` with these options, which is closed with the server at the latest."""
        return self._clients.enter_context(Client(self.url, project, **options))

    def async_client(self, project: str = PROJECT, **options: Any) -> AsyncClient:
        """Return an ``AsyncClient`` with these options. Use it with ``async with``: its event loop must close it."""
        return AsyncClient(self.url, project, **options)


@contextmanager
def server(
    *, auth_strategy: str = "", quota: Mapping[str, int] | None = None, store: str = "memory:", sqs: bool = False
) -> Generator[Server, None, None]:
    """Serve an empty store on a free port of this machine alone, from threads of this process; nothing of it is left.

    ``auth_strategy`` "token": callers need a token, as ``Server.token`` makes them. ``quota``: by the names of
    ``[quota]``, what each project may use then. ``store``: where messages are, if not in memory. ``sqs``: serve the
    protocol of Amazon SQS too, for any access key; a queue may be purged at any time.
    Any number may run at once. Raises ``ValueError`` for another strategy, or a quota without one.
    """
    if auth_strategy not in ("", "token") or (quota and not auth_strategy):
        raise ValueError('auth_strategy is "" or "token" here, and a quota needs "token".')
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
    """Return the features with SQS enabled."""
    from zq.sqs.feature import SqsFeature, sqs_feature
    from zq.sqs.settings import SqsOptions

    enabled = sqs_feature(SqsOptions(enabled=True, auth="none", purge_interval=0), broker)
    return [enabled if isinstance(each, SqsFeature) else each for each in features]


@contextmanager
def _serving(app: App) -> Generator[str, None, None]:
    """Serve an application and provide its URL; on exit, wait until all requests are answered."""
    with _HttpServer(("127.0.0.1", 0), _Connection) as http:
        http.set_app(lambda env, start: app(env, _hopless(start)))
        thread = threading.Thread(target=http.serve_forever, args=(POLL,), name="zq-testing", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()
            http.hang_up()


def _hopless(start: Callable[..., Any]) -> Callable[..., Any]:
    """Without ``Connection``, which ``wsgiref`` forbids applications: each connection ends after one answer anyway."""

    def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
        return start(status, [pair for pair in headers if pair[0].lower() != "connection"], *more)

    return started


class _HttpServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection; closing the server waits for them."""

    request_queue_size = 128

    def __init__(self, *args: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args)

    def server_bind(self) -> None:
        """Without its base's search for the name of this machine, which takes seconds on some."""
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
        """Ignore a broken connection, because the application reports its own errors."""

    def hang_up(self) -> None:
        """Read no more of any connection; what is being answered is answered."""
        for connection in list(self._open):
            with suppress(OSError):  # it has ended meanwhile
                connection.shutdown(socket.SHUT_RD)


class _Connection(WSGIRequestHandler):
    """One request; what the tests print is not mixed with a log of them."""

    timeout = PATIENCE

    def get_environ(self) -> dict[str, Any]:
        """With the socket where the application looks whether its caller is still there."""
        return {**super().get_environ(), "gunicorn.socket": self.connection}

    def log_message(self, *_: object) -> None:
        """Nothing."""
