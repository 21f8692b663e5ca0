# SPDX-License-Identifier: Apache-2.0
"""WebSocket as a feature of the server."""

from collections.abc import Mapping
from typing import Final

from zq.clock import Clock
from zq.http.features import Feature, SocketEdge, SocketHandler
from zq.storage.api import QueueController
from zq.websocket.connections import Bounds, Connections
from zq.websocket.pushes import Subscriptions
from zq.websocket.session import Places, Service
from zq.websocket.settings import WebSocketOptions

PATH: Final = "/v2/ws"
# Bytes that a frame may have in addition to the largest post, for its action, headers and names.
ENVELOPE: Final = 16 * 1024


class WebSocketFeature(Feature):
    """The connections at ``/v2/ws``, unless the options disable them."""

    def __init__(
        self,
        options: WebSocketOptions,
        strategy: str,
        behind_proxy: bool,
        max_post: int,
        clock: Clock,
        queues: QueueController,
        subscriptions: Subscriptions,
    ) -> None:
        """``strategy``: the value of [DEFAULT] auth_strategy. ``max_post``: bytes of the largest post of messages."""
        self._options = options
        self._strategy = strategy
        per_address = None if behind_proxy else options.max_connections_per_address
        self._bounds = Bounds(options.max_connections, per_address, max_post + ENVELOPE)
        self._clock = clock
        self._queues = queues
        self._subscriptions = subscriptions

    def sockets(self, edge: SocketEdge) -> Mapping[str, SocketHandler]:
        if not self._options.enabled:
            return {}
        service = Service(
            edge.call,
            self._strategy,
            self._clock,
            self._queues,
            self._subscriptions,
            Places(self._options.max_connections_per_project),
        )
        return {PATH: Connections(edge, service, self._bounds, self._options.allowed_origins)}
