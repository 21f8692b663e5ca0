# SPDX-License-Identifier: Apache-2.0
"""The interface of features: parts of the server, each in a folder of its own.

The core knows no feature. ``zq.serving.features`` lists the features; a server without one lacks its folder and its
lines in that list.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from zq.limits import Limits
from zq.model import QueueRef

if TYPE_CHECKING:
    import falcon

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


class Section(Struct, Generic[Options], frozen=True):
    """A section of the configuration that belongs to a feature.

    ``options``: those of oslo.config, as the server declares and documents them. ``read`` checks the values of a
    configuration and returns them as one struct. It raises ``StartRefused``. ``check`` raises ``StartRefused`` if the
    struct does not go with all settings of the server. ``others``: options of the feature in sections of the server, by
    section. ``line`` returns a line for the log of a server's start, "" for
    none; its second argument is the URL of the server as a client on this machine reaches it.
    """

    name: str
    options: Sequence[Any]
    read: Callable[[Any], Options]
    check: Callable[[Options, Any], None] = _accept
    others: Mapping[str, Sequence[Any]] = {}
    line: Callable[[Options, str], str] = _no_line


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
        """Serve one connection, from the acceptance of its handshake to its end."""
        ...

    def end(self) -> None:
        """Close all connections, since the server is stopping."""
        ...


class SocketEdge(Protocol):
    """The part of the server's edge that serves WebSocket connections. Call it in its event loop."""

    def run(self, work: Callable[[], Any]) -> Awaitable[Any]:
        """Run blocking work on a thread of the server, and return the result."""
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

    def add_routes(self, app: "falcon.App[Any, Any]") -> None:
        """Add its resources to the application."""

    def sockets(self, edge: SocketEdge) -> Mapping[str, SocketHandler]:
        """Return the handlers of WebSocket connections by path. Called once in each process, by its event loop."""
        return {}

    def start(self) -> None:
        """Start background work."""

    def stop(self) -> None:
        """Stop the background work."""
