# SPDX-License-Identifier: Apache-2.0
"""The interface of features: optional parts of the server, each in its own folder.

The core does not depend on features. ``zq.serving.features`` lists them. To remove a feature, delete its folder and its
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

# Environment key of the id of the WebSocket connection through which a request was sent.
CONNECTION: Final = "zq.websocket.connection"
# A JSON object of the OpenAPI document.
Json = dict[str, Any]
# The arguments of an ASGI application.
Scope = dict[str, Any]
Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]

Options = TypeVar("Options", bound=Struct)


def _accept(options: Options, _settings: Any) -> Options:
    """Accept every combination of options."""
    return options


def _no_line(_options: Any, _url: str) -> str:
    return ""


class Listener(Struct, frozen=True):
    """The address on which the server listens.

    Attributes:
        is_loopback: Whether only this machine can reach the address.
    """

    host: str
    port: int
    is_loopback: bool


def _no_warning(_options: Any, _listener: Listener) -> Sequence[str]:
    return ()


def _no_body(_options: Any) -> int:
    return 0


class Section(Struct, Generic[Options], frozen=True):
    """A configuration section of a feature.

    Args:
        options: The struct that declares the options, as described in ``zq.model.options``.
        complete: Returns the options with further fields. Raises ``StartRefused`` if they are not valid or conflict
            with the server's other settings, which are the second argument.
        line: Returns a line for the server's startup log, or "". The second argument is the server's URL for clients on
            this machine.
        check_exposure: Returns warnings about unauthenticated clients. Raises ``StartRefused`` if the operator must
            accept them first.
        max_body: Returns the maximum request body in bytes over all routes of the feature.
    """

    name: str
    options: type[Options]
    complete: Callable[[Options, Any], Options] = _accept
    line: Callable[[Options, str], str] = _no_line
    check_exposure: Callable[[Options, Listener], Sequence[str]] = _no_warning
    max_body: Callable[[Options], int] = _no_body


class Reloadable(Protocol):
    """A configuration file that can be read again at runtime."""

    def reload(self) -> None:
        """Read the file again. Raises ``StartRefused``, and keeps the former content in that case."""
        ...


class Page(Struct, frozen=True):
    """A web page for people.

    Attributes:
        path: Path relative to the server's root.
        version: Version of the page's files.
    """

    path: str
    version: str


class SocketHandler(Protocol):
    """The handler of WebSocket connections at one path."""

    def refusal(self, scope: Scope) -> HTTPStatus | None:
        """Return the status with which to refuse a handshake, or ``None`` to accept it."""
        ...

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept the handshake and serve the connection until it is closed."""
        ...

    def end(self) -> None:
        """Close all connections before the server stops."""
        ...


class SocketEdge(Protocol):
    """The edge's interface to WebSocket handlers. All methods except ``call`` must run in the edge's event loop."""

    def run(self, work: Callable[[], Any], caller: bytes) -> Awaitable[Any]:
        """Run blocking work on a worker thread and return the result.

        One caller, identified by the client's network, may occupy at most three quarters of the threads.
        """
        ...

    def bound(self, awaited: Any, deadline: Callable[[], float]) -> Awaitable[Any]:
        """Await in the current task. Raises ``TimeoutError`` soon after the monotonic time ``deadline()``."""
        ...

    def call(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Call the WSGI application on the current thread. Blocks; thread-safe."""
        ...

    def is_stopping(self) -> bool:
        """Return whether the server is stopping."""
        ...


class Feature:
    """An optional part of the server. The defaults add nothing to the server."""

    tags: Mapping[str, str] = {}
    """OpenAPI tags of the feature's operations, with descriptions."""
    open_paths: Collection[str] = ()
    """Paths of operations that need neither a client id nor a project."""
    path_parameters: Mapping[str, Json] = {}
    """OpenAPI path parameters that only this feature's paths use."""
    extension: Extension = Extension()
    """Rules that the feature adds to the core."""
    middleware: Sequence[object] = ()
    """Falcon middleware that runs before admission and authentication."""
    credentials: CredentialCheck | None = None
    """Credential check of requests that use the feature's own authentication."""
    files: Sequence[Reloadable] = ()
    """Files that the server reads again on reload."""
    listeners: Sequence[Callable[[QueueRef], object]] = ()
    """Functions that are called on any thread with each queue that may have received messages."""

    public_prefixes: Sequence[str] = ()
    """Path prefixes that GET and HEAD may read without a credential. They must not expose data of projects."""
    page: Page | None = None
    """The page to which the server redirects browsers."""

    def operations(self, limits: Limits) -> Mapping[str, Mapping[str, Json]]:
        """Return OpenAPI operations by tag and path."""
        return {}

    def schemas(self, limits: Limits) -> Mapping[str, Json]:
        """Return the OpenAPI schemas that the operations refer to."""
        return {}

    def add_routes(self, app: "App") -> None:
        """Add the feature's resources to the application."""

    def resume(self) -> None:
        """Resume background work that no server is working on.

        Called every second; must return within about a second.
        """

    def sockets(self, edge: SocketEdge) -> Mapping[str, SocketHandler]:
        """Return the WebSocket handlers by path. Called once per process, in its event loop."""
        return {}

    def start(self) -> None:
        """Start background work."""

    def stop(self) -> None:
        """Stop background work."""
