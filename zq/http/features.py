# SPDX-License-Identifier: Apache-2.0
"""The interface of features: optional parts of the server, each in its own folder.

The core does not depend on features. ``zq.serving.features`` creates them.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from zq.core.extensions import Extension
from zq.http.heads import CredentialCheck
from zq.model import QueueRef
from zq.model.limits import Limits

if TYPE_CHECKING:
    from zq.http.application import App

# Environment key of the WebSocket connection id, for requests over WebSocket.
CONNECTION: Final = "zq.websocket.connection"
# A JSON object of the OpenAPI document.
Json = dict[str, Any]
# The arguments of an ASGI application.
Scope = dict[str, Any]
Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]

Options = TypeVar("Options", bound=Struct)


def _accept(options: Options, _settings: Any) -> Options:
    return options


def _no_line(_options: Any, _url: str) -> str:
    return ""


class Listener(Struct, frozen=True):
    """The address on which the server listens."""

    host: str
    port: int
    is_loopback: bool


def _no_warning(_options: Any, _listener: Listener) -> Sequence[str]:
    return ()


def _no_body(_options: Any) -> int:
    return 0


def _no_files(_options: Any) -> None:
    return None


class Section(Struct, Generic[Options], frozen=True):
    """A configuration section of a feature.

    Args:
        complete: Called with the options and the server's other settings. Returns the options with derived fields.
            Raises ``StartRefused`` if the options are not valid or conflict with the other settings.
        line: Called with the options and the server's URL on this machine. Returns a line for the startup log, or "".
        check_exposure: Returns warnings about unauthenticated access to the feature. Raises ``StartRefused`` if the
            operator has not allowed this access.
        max_body: Returns the maximum request body of the feature's routes in bytes.
        check_files: Raises ``StartRefused`` if a file that the options name is not valid.
    """

    name: str
    options: type[Options]
    complete: Callable[[Options, Any], Options] = _accept
    line: Callable[[Options, str], str] = _no_line
    check_exposure: Callable[[Options, Listener], Sequence[str]] = _no_warning
    max_body: Callable[[Options], int] = _no_body
    check_files: Callable[[Options], object] = _no_files


class Reloadable(Protocol):
    """A configuration file that can be read again at runtime."""

    def reload(self) -> None:
        """Read the configuration file again. If it is invalid, raise ``StartRefused`` and keep the previous content."""
        ...


class Page(Struct, frozen=True):
    """A web page of a feature, such as the console."""

    path: str
    version: str


class SocketHandler(Protocol):
    """The handler of WebSocket connections at one path."""

    def refusal(self, scope: Scope) -> HTTPStatus | None:
        """Return the error status for a handshake, or ``None`` to accept it."""
        ...

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept the handshake and serve the connection until it closes."""
        ...

    def end(self) -> None:
        """Close all connections because the server is stopping."""
        ...


class SocketEdge(Protocol):
    """The HTTP server functions that WebSocket handlers use. Only ``call`` may run outside the event loop."""

    def run(self, work: Callable[[], Any], caller: bytes) -> Awaitable[Any]:
        """Run blocking work on a worker thread. One caller may occupy at most three quarters of the threads."""
        ...

    def bound(self, awaited: Any, deadline: Callable[[], float]) -> Awaitable[Any]:
        """Await ``awaited`` with a timeout. Raises ``TimeoutError`` shortly after the deadline.

        ``deadline`` is called repeatedly, because the deadline may change. It returns the deadline as a monotonic time.
        """
        ...

    def call(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Call the WSGI application on the current thread. Blocks. Thread-safe."""
        ...

    def is_stopping(self) -> bool: ...


class Feature:
    """Base class of the server's optional features. Each method can be overridden, and does nothing by default."""

    tags: Mapping[str, str] = {}
    """Descriptions of the feature's OpenAPI tags, by tag."""
    open_paths: Collection[str] = ()
    """Paths that need neither a client id nor a project."""
    path_parameters: Mapping[str, Json] = {}
    """OpenAPI path parameters of the feature's paths, by name."""
    extension: Extension = Extension()
    """Metadata keys and documents that the feature adds to the core."""
    middleware: Sequence[object] = ()
    """Falcon middleware that runs before admission and authentication.

    Its method ``resume``, if any, is called with the request before each repeated poll of a long poll."""
    credentials: CredentialCheck | None = None
    """Authentication for the feature's routes that do not use the server's strategy."""
    files: Sequence[Reloadable] = ()
    """Configuration files that the server reads again on reload."""
    listeners: Sequence[Callable[[QueueRef], object]] = ()
    """Functions to call, on any thread, when a queue may have new messages."""

    public_prefixes: Sequence[str] = ()
    """Path prefixes for which GET and HEAD need no credential. The paths must not expose data of projects."""
    page: Page | None = None
    """The page to which ``/`` redirects browsers."""

    def operations(self, limits: Limits) -> Mapping[str, Mapping[str, Json]]:
        """Return OpenAPI operations by tag and path."""
        return {}

    def schemas(self, limits: Limits) -> Mapping[str, Json]:
        """Return the OpenAPI schemas of the operations."""
        return {}

    def add_routes(self, app: "App") -> None:
        """Add the feature's resources to the application."""

    def resume(self) -> None:
        """Continue background work that another server did not complete.

        The server calls this method every second. The method must return within a second.
        """

    def sockets(self, edge: SocketEdge) -> Mapping[str, SocketHandler]:
        """Return the WebSocket handlers by path. Called once per process, in the event loop."""
        return {}

    def start(self) -> None:
        """Start background work."""

    def stop(self) -> None:
        """Stop background work."""

    def finish(self) -> None:
        """Complete the shutdown of the feature. Called after the store was closed; must return within two seconds."""
