# SPDX-License-Identifier: Apache-2.0
"""The section [websocket]: where WebSocket is served, and what bounds its connections."""

from typing import Any, Final

from msgspec import Struct
from oslo_config import cfg

WEBSOCKET: Final[list[cfg.Opt]] = [
    cfg.StrOpt("bind", default="127.0.0.1", help="Address at which WebSocket is served."),
    cfg.PortOpt(
        "port",
        default=0,
        sample_default=9000,
        help="Port at which zq-server serves WebSocket besides; 0: it does not, and zq-websocket takes 9000.",
    ),
    cfg.ListOpt(
        "allowed_origins",
        default=[],
        sample_default=["https://console.example.org"],
        help="Values that the header Origin of a handshake may have; one without it, as programs send it, may come. "
        "Between several a comma.",
    ),
    cfg.IntOpt("max_connections", default=500, min=1, max=10_000, help="WebSocket connections of one process."),
    cfg.IntOpt(
        "max_connections_per_project", default=100, min=1, max=10_000, help="Those of one process for one project."
    ),
]


class WebSocketOptions(Struct, frozen=True):
    """The options of the section. ``port`` 0: none was chosen."""

    bind: str
    port: int
    allowed_origins: tuple[str, ...]
    max_connections: int
    max_connections_per_project: int


def websocket_options(conf: Any) -> WebSocketOptions:
    """What the options say."""
    given = {option.dest: conf.websocket[option.dest] for option in WEBSOCKET}
    return WebSocketOptions(
        **given | {"bind": conf.websocket.bind.strip("[]"), "allowed_origins": tuple(conf.websocket.allowed_origins)}
    )
