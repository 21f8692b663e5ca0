# SPDX-License-Identifier: Apache-2.0
"""Deliveries a second of one server: ``python -m bench.deliveries [store ...]``, stores as in ``tests/stores.py``.

A backlog is delivered to a local subscriber that responds at once, with one subscription and with several. The command
prints deliveries a second and the server's processor time for each.
"""

import asyncio
import json
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path

from bench.neighbours import seconds_of
from tests.servers import ZqServer, ask, wait_for
from tests.sink import CONFIG
from tests.stores import Stores

DELIVERIES = 4000
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Counting(asyncio.Protocol):
    """A server that answers each request and counts the requests."""

    count = 0
    bodies = b'"Notification"'

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        came = data.count(self.bodies)
        Counting.count += came
        self._transport.write(ANSWER * came)


def serve(port: "Future[int]") -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Counting, "127.0.0.1", 0)
        port.set_result(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def measure(server: ZqServer, port: int, subscriptions: int) -> None:
    queue = f"jobs-{subscriptions}"
    for number in range(subscriptions):
        subscriber = {"subscriber": f"http://127.0.0.1:{port}/{number}"}
        assert ask(server.url, "POST", f"/v2/queues/{queue}/subscriptions", subscriber).status == 201
    document = {"messages": [{"body": {"n": number}} for number in range(DELIVERIES // subscriptions)]}
    before = Counting.count
    spent, began = seconds_of(server), time.monotonic()
    assert ask(server.url, "POST", f"/v2/queues/{queue}/messages", document).status == 201
    wait_for(lambda: Counting.count >= before + DELIVERIES, 120, "all deliveries")
    took, spent = time.monotonic() - began, seconds_of(server) - spent
    each = json.dumps({"subscriptions": subscriptions, "a second": round(DELIVERIES / took)})
    print(f"  {each}, {1000 * spent / DELIVERIES:.2f} ms of the server's processor time each", flush=True)


def main() -> None:
    port: Future[int] = Future()
    threading.Thread(target=serve, args=(port,), daemon=True).start()
    stores = Stores()
    try:
        for name in sys.argv[1:] or ["rocksdb", "redis", "mongodb"]:
            with tempfile.TemporaryDirectory() as folder:
                uri = stores.empty(name, Path(folder), "a")
                config = f"{CONFIG}require_confirmation = false\n[transport]\nmax_messages_per_post = 10000\n"
                with ZqServer(uri, config=config) as server:
                    print(name, flush=True)
                    for subscriptions in (1, 10, 20):
                        measure(server, port.result(), subscriptions)
    finally:
        stores.close()


if __name__ == "__main__":
    main()
