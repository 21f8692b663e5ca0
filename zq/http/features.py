# SPDX-License-Identifier: Apache-2.0
"""The interface of features: parts of the server that a folder of their own holds whole.

The core knows no feature. The composition of the server lists the features; a server without one lacks its folder and
its line in that list.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from zq.limits import Limits

if TYPE_CHECKING:
    import falcon

# A JSON object of the OpenAPI document.
Json = dict[str, Any]

Options = TypeVar("Options")


def _accept(_options: Any, _settings: Any) -> None:
    """Refuse no combination of options."""


def _no_line(_options: Any, _url: str) -> str:
    return ""


class Section(Struct, Generic[Options], frozen=True):
    """A section of the configuration that belongs to a feature.

    ``options``: those of oslo.config, as the server declares and documents them. ``read`` checks the values of a
    configuration and returns them as one struct. It raises ``StartRefused``. ``check`` raises ``StartRefused`` if the
    struct does not go with all settings of the server. ``line`` returns a line for the log of a server's start, "" for
    none; its second argument is the URL of the server as a client on this machine reaches it.
    """

    name: str
    options: Sequence[Any]
    read: Callable[[Any], Options]
    check: Callable[[Options, Any], None] = _accept
    line: Callable[[Options, str], str] = _no_line


class Feature:
    """A part of the server. Each default adds nothing to the server."""

    tags: Mapping[str, str] = {}
    """The tags of its operations in the OpenAPI document, with their descriptions."""
    open_paths: Collection[str] = ()
    """The paths whose operations need neither a client id nor a project."""

    def operations(self, limits: Limits) -> Mapping[str, Mapping[str, Json]]:
        """Return the operations by tag and path, as OpenAPI has them."""
        return {}

    def schemas(self, limits: Limits) -> Mapping[str, Json]:
        """Return the schemas that its operations refer to."""
        return {}

    def add_routes(self, app: "falcon.App[Any, Any]") -> None:
        """Add its resources to the application."""

    def start(self) -> None:
        """Begin what runs beside requests."""

    def stop(self) -> None:
        """End what ``start`` began."""
