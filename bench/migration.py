# SPDX-License-Identifier: Apache-2.0
"""Downtime of a move to another store: ``python -m bench.migration [source [target [messages]]]``.

``source`` and ``target`` are ``rocksdb``, ``redis`` or ``mongodb``; by default, an embedded store moves to Redis. The
store has messages of 200 bytes in ten queues. The downtime begins when the old server gets SIGTERM, and ends when the
new server is ready.
"""

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from typing import Final

from tests.servers import MODULE, ZqServer
from tests.stores import MongoServer, RedisServer
from zq.model import Draft, QueueRef, new_ids
from zq.storage import connect

BATCH: Final = 1000
BODY: Final = b'"' + b"x" * 198 + b'"'
CLIENT: Final = "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f"


def main() -> None:
    """Print the output of the command, with seconds since the stop of the old server."""
    source, target, count = [*sys.argv[1:], *("rocksdb", "redis", "1000000")[len(sys.argv) - 1 :]]
    with ExitStack() as servers:
        uris = [start(kind, servers) for kind in (source, target)]
        fill(uris[0], int(count))
        with ZqServer(uris[0]) as old:
            began = time.monotonic()
            old.terminate()
        report(began, "The old server has stopped.")
        command = [sys.executable, "-m", MODULE, "migrate", *uris]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                report(began, line.rstrip())
        if process.returncode != 0:
            sys.exit(process.returncode)
        with ZqServer(uris[1]):
            report(began, "The new server is ready.")


def start(kind: str, servers: ExitStack) -> str:
    """Start the server of a new store, if it needs one, and return the store's URI."""
    if kind == "rocksdb":
        return f"rocksdb://{servers.enter_context(tempfile.TemporaryDirectory())}/store"
    server = servers.enter_context(MongoServer() if kind == "mongodb" else RedisServer())
    return server.uri


def fill(uri: str, count: int) -> None:
    options = {"sync": "never"} if uri.startswith("rocksdb") else {}
    with closing(connect(uri, options)) as storage:
        now = storage.now()
        for at in range(0, count, BATCH):
            new = [Draft(id, BODY, 86_400, 0, CLIENT) for id in new_ids(BATCH, now)]
            storage.messages.post(QueueRef("acme", f"jobs-{at // BATCH % 10}"), new, now)


def report(began: float, line: str) -> None:
    print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)


if __name__ == "__main__":
    main()
