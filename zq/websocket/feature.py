# SPDX-License-Identifier: Apache-2.0
"""The server feature for WebSocket access."""

from collections.abc import Mapping
from typing import Final

from zq.clock import Clock
from zq.http.features import Feature, SocketEdge, SocketHandler
from zq.storage.api import QueueController
from zq.websocket.connections import ConnectionLimits, Connections
from zq.websocket.pushes import Subscriptions
from zq.websocket.session import ProjectLimit, Service
from zq.websocket.settings import WebSocketOptions

PATH: Final = "/v2/ws"
# Maximum size of a frame in bytes without the posted messages: action, headers and field names.
ENVELOPE: Final = 16 * 1024


class WebSocketFeature(Feature):
    """The WebSocket endpoint ``/v2/ws``, if enabled."""

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
        """Create the feature. If ``behind_proxy`` is true, there is no limit on the connections per client address."""
        self._options = options
        self._strategy = strategy
        per_address = None if behind_proxy else options.max_connections_per_address
        self._bounds = ConnectionLimits(options.max_connections, per_address, max_post + ENVELOPE)
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
            ProjectLimit(self._options.max_connections_per_project),
        )
        return {PATH: Connections(edge, service, self._bounds, self._options.allowed_origins)}
