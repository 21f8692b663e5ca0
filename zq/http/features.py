# SPDX-License-Identifier: Apache-2.0
"""The interface of features: parts of the server, each in a folder of its own.

The core knows no feature. ``zq.serving.features`` lists the features; a server without one lacks its folder and its
lines in that list.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from zq.core.extensions import Extension
from zq.http.heads import CredentialCheck
from zq.limits import Limits
from zq.model import QueueRef

if TYPE_CHECKING:
    from zq.http.application import App

# The key of the environment that holds the id of the WebSocket connection which sends a request.
CONNECTION: Final = "zq.websocket.connection"
# A JSON object of the OpenAPI document.
Json = dict[str, Any]
# The parts of an ASGI connection.
Scope = dict[str, Any]
Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]

Options = TypeVar("Options")


def _accept(_options: Any, _settings: Any) -> None:
    """Refuse no combination of options."""


def _no_line(_options: Any, _url: str) -> str:
    return ""


class Listener(Struct, frozen=True):
    """The address of the server. ``is_loopback``: whether only this machine can reach it."""

    host: str
    port: int
    is_loopback: bool


def _no_warning(_options: Any, _listener: Listener) -> Sequence[str]:
    return ()


def _no_body(_options: Any) -> int:
    return 0


class Section(Struct, Generic[Options], frozen=True):
    """A section of the configuration that belongs to a feature.

    ``options``: those of oslo.config, as the server declares and documents them. ``read`` checks the values of a
    configuration and returns them as one struct. It raises ``StartRefused``. ``check`` raises ``StartRefused`` if the
    struct does not go with all settings of the server. ``others``: options of the feature in sections of the server, by
    section. ``line`` returns a line for the log of a server's start, "" for none; its second argument is the URL of the
    server as a client on this machine reaches it. ``check_exposure`` returns warnings about clients that are not
    authenticated, and raises ``StartRefused`` if the operator must accept them first. ``max_body`` returns the bytes of
    the largest body that a route of the feature takes.
    """

    name: str
    options: Sequence[Any]
    read: Callable[[Any], Options]
    check: Callable[[Options, Any], None] = _accept
    others: Mapping[str, Sequence[Any]] = {}
    line: Callable[[Options, str], str] = _no_line
    check_exposure: Callable[[Options, Listener], Sequence[str]] = _no_warning
    max_body: Callable[[Options], int] = _no_body


class Reloadable(Protocol):
    """A file that an option names."""

    def reload(self) -> None:
        """Read the file again. Raises ``StartRefused``; the former content then stays in force."""
        ...


class Page(Struct, frozen=True):
    """A page for people. ``path`` is relative to the root of the server; ``version`` changes with the page's files."""

    path: str
    version: str


class SocketHandler(Protocol):
    """The WebSocket connections at one path."""

    def refusal(self, scope: Scope) -> HTTPStatus | None:
        """Return the status that refuses a handshake, or ``None`` to accept it."""
        ...

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept the handshake and serve the connection until it closes."""
        ...

    def end(self) -> None:
        """Close all connections, since the server is stopping."""
        ...


class SocketEdge(Protocol):
    """The part of the server's edge that serves WebSocket connections. Call it in its event loop."""

    def run(self, work: Callable[[], Any], caller: bytes) -> Awaitable[Any]:
        """Run blocking work on a thread of the server, and return the result.

        One caller, as the network of its client, gets at most three quarters of the threads.
        """
        ...

    def bound(self, awaited: Any, deadline: Callable[[], float]) -> Awaitable[Any]:
        """Await within the current task. Raise ``TimeoutError`` soon after ``deadline()``, by the monotonic clock."""
        ...

    def call(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Call the WSGI application; blocks. From any thread."""
        ...

    def is_stopping(self) -> bool:
        """Return whether the server is about to end."""
        ...


class Feature:
    """A part of the server. Each default adds nothing to the server."""

    tags: Mapping[str, str] = {}
    """The tags of its operations in the OpenAPI document, with their descriptions."""
    open_paths: Collection[str] = ()
    """The paths whose operations need neither a client id nor a project."""
    path_parameters: Mapping[str, Json] = {}
    """The parameters of its operations' paths, as OpenAPI has them, if no other path has them."""
    extension: Extension = Extension()
    """Its additions to the rules of the core."""
    middleware: Sequence[object] = ()
    """Falcon middleware that processes a request before it is admitted and authenticated."""
    credentials: CredentialCheck | None = None
    """The check of requests that authenticate by means of the feature."""
    files: Sequence[Reloadable] = ()
    """The files that the server reads again when it reloads its options."""
    listeners: Sequence[Callable[[QueueRef], object]] = ()
    """Functions that are called with each queue that may have received messages, from any thread."""

    public_prefixes: Sequence[str] = ()
    """Prefixes of paths that GET and HEAD read without a credential; nothing of a project is there."""
    page: Page | None = None
    """The page to which the server leads browsers."""

    def operations(self, limits: Limits) -> Mapping[str, Mapping[str, Json]]:
        """Return the operations by tag and path, as OpenAPI has them."""
        return {}

    def schemas(self, limits: Limits) -> Mapping[str, Json]:
        """Return the schemas that its operations refer to."""
        return {}

    def add_routes(self, app: "App") -> None:
        """Add its resources to the application."""

    def resume(self) -> None:
        """Go on with background work that no server carries on. Called every second; must not take much longer."""

    def sockets(self, edge: SocketEdge) -> Mapping[str, SocketHandler]:
        """Return the handlers of WebSocket connections by path. Called once in each process, by its event loop."""
        return {}

    def start(self) -> None:
        """Start background work."""

    def stop(self) -> None:
        """Stop the background work."""
