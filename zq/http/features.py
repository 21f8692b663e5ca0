# SPDX-License-Identifier: Apache-2.0
"""The interface of features: parts of the server that a folder of their own holds whole.

The core knows no feature. The composition of the server lists the features; a server without one lacks its folder and
its line in that list.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct

from zq.core.extensions import Extension
from zq.http.commands import Command
from zq.http.heads import CredentialCheck
from zq.limits import Limits

if TYPE_CHECKING:
    from zq.http.app import App

# A JSON object of the OpenAPI document.
Json = dict[str, Any]

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
    struct does not go with all settings of the server. ``line`` returns a line for the log of a server's start, "" for
    none; its second argument is the URL of the server as a client on this machine reaches it. ``check_exposure``
    returns warnings about clients that are not authenticated, and raises ``StartRefused`` if the operator must accept
    them first. ``max_body`` returns the bytes of the largest body that a route of the feature takes.
    """

    name: str
    options: Sequence[Any]
    read: Callable[[Any], Options]
    check: Callable[[Options, Any], None] = _accept
    line: Callable[[Options, str], str] = _no_line
    check_exposure: Callable[[Options, Listener], Sequence[str]] = _no_warning
    max_body: Callable[[Options], int] = _no_body


class Rereadable(Protocol):
    """A file that an option names."""

    def reload(self) -> None:
        """Read the file again. Raises ``StartRefused``; the former content then stays in force."""
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
    commands: Sequence[Command] = ()
    """Commands of ``zq-server``."""
    middleware: Sequence[object] = ()
    """Falcon middleware that processes a request before it is admitted and authenticated."""
    credentials: CredentialCheck | None = None
    """The check of requests that authenticate by means of the feature."""
    files: Sequence[Rereadable] = ()
    """The files that the server reads again when it reloads its options."""

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

    def start(self) -> None:
        """Begin what runs beside requests."""

    def stop(self) -> None:
        """End what ``start`` began."""
