# SPDX-License-Identifier: Apache-2.0
"""Options of the [websocket] configuration section."""

from typing import Annotated, Any, Final

from msgspec import Struct

from zq.errors import StartRefused
from zq.http.features import Section
from zq.model.options import Flag, Option

# The type of a maximum number of connections.
Connections = Annotated[int, Option(1, 10_000)]


class WebSocketOptions(Struct, frozen=True):
    """The options of the [websocket] section."""

    enabled: Flag = False
    """Serve WebSocket at /v2/ws on the port of [server]. Requires Granian."""
    allowed_origins: Annotated[tuple[str, ...], Option(sample=("https://console.example.org",))] = ()
    """Allowed Origin headers of handshakes, separated by commas. Handshakes without the header, as sent by programs,
    are always allowed."""
    max_connections: Connections = 500
    """Maximum WebSocket connections per process. At most half of them may lack a credential."""
    max_connections_per_address: Connections = 100
    """Maximum WebSocket connections per process from one IPv4 address or one IPv6 /64 network. Not applied with
    [server] behind_proxy."""
    max_connections_per_project: Connections = 100
    """Maximum WebSocket connections per process for one project."""


def _complete(options: WebSocketOptions, settings: Any) -> WebSocketOptions:
    """Return the options. Raises ``StartRefused`` if WebSocket is enabled, but the HTTP server does not support it."""
    if options.enabled and settings.server.engine != "granian":
        raise StartRefused("[websocket] enabled requires [server] engine = granian and the package granian.")
    return options


SECTION: Final = Section("websocket", WebSocketOptions, _complete)
