# SPDX-License-Identifier: Apache-2.0
"""A WebSocket connection whose client stops reading: the server closes it after thirty seconds."""

import socket
import time

from websockets.sync.client import connect

from tests.servers import wait_for
from tests.websocket.connections import ask, served


def test_a_connection_that_reads_nothing_is_closed_and_its_subscription_ends() -> None:
    """The server answers the posts of another connection in the meantime."""
    q = {"queue_name": "orders"}
    with served() as (url, _), connect(url) as other, connect(url, max_queue=1) as slow:
        assert ask(slow, "subscription_create", q)[0] == 201
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.recv_bufsize = 1
        body = "x" * 250_000
        for _ in range(60):
            began = time.monotonic()
            assert ask(other, "message_post", q | {"messages": [{"body": body, "ttl": 300}]})[0] == 201
            assert time.monotonic() - began < 20, "the server closes the slow connection after thirty seconds"

        def ended() -> bool:
            return ask(other, "subscription_list", q) == (200, {"subscriptions": []})

        wait_for(ended, 60, "the subscription's end")
