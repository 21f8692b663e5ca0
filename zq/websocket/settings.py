# SPDX-License-Identifier: Apache-2.0
"""Options of the configuration section [websocket]."""

from typing import Any, Final

from msgspec import Struct
from oslo_config import cfg

from zq.errors import StartRefused
from zq.http.features import Section

WEBSOCKET: Final[list[cfg.Opt]] = [
    cfg.BoolOpt("enabled", default=False, help="Serve WebSocket at /v2/ws on the port of [server]. Requires Granian."),
    cfg.ListOpt(
        "allowed_origins",
        default=[],
        sample_default=["https://console.example.org"],
        help="Allowed Origin headers of handshakes, separated by commas. Handshakes without the header, as sent by "
        "programs, are always allowed.",
    ),
    cfg.IntOpt(
        "max_connections",
        default=500,
        min=1,
        max=10_000,
        help="Maximum WebSocket connections per process. At most half of them may lack a credential.",
    ),
    cfg.IntOpt(
        "max_connections_per_address",
        default=100,
        min=1,
        max=10_000,
        help="Maximum WebSocket connections per process from one IPv4 address or one IPv6 /64 network. Not applied "
        "with [server] behind_proxy.",
    ),
    cfg.IntOpt(
        "max_connections_per_project",
        default=100,
        min=1,
        max=10_000,
        help="Maximum WebSocket connections per process for one project.",
    ),
]


class WebSocketOptions(Struct, frozen=True):
    """The options of the section [websocket]."""

    enabled: bool = False
    allowed_origins: tuple[str, ...] = ()
    max_connections: int = 500
    max_connections_per_address: int = 100
    max_connections_per_project: int = 100


def _read(conf: Any) -> WebSocketOptions:
    given = {option.dest: conf.websocket[option.dest] for option in WEBSOCKET}
    return WebSocketOptions(**given | {"allowed_origins": tuple(conf.websocket.allowed_origins)})


def _check(options: WebSocketOptions, settings: Any) -> None:
    """Raise ``StartRefused`` if the HTTP server does not support WebSocket."""
    if options.enabled and settings.engine != "granian":
        raise StartRefused("[websocket] enabled requires [server] engine = granian and the package granian.")


SECTION: Final = Section("websocket", WEBSOCKET, _read, _check)
