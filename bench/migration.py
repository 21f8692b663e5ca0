# SPDX-License-Identifier: Apache-2.0
"""Duration of ``zq-server migrate``: ``python -m bench.migration [messages] [redis|mongodb]``.

The command moves an embedded store, with messages of 200 bytes in ten queues, to a server that it starts.
"""

import sys
import tempfile
import time
from contextlib import closing
from typing import Final

from tests.stores import MongoServer, RedisServer
from zq.model import Draft, QueueRef, new_ids
from zq.serving.migrate_command import Options, Store, migrate
from zq.storage import connect

BATCH: Final = 1000
BODY: Final = b'"' + b"x" * 198 + b'"'
CLIENT: Final = "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f"


def main() -> None:
    """Print the output of the command, with seconds since its start."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    server = MongoServer() if sys.argv[2:] == ["mongodb"] else RedisServer()
    with tempfile.TemporaryDirectory() as folder, server:
        uri = server.uri_of("zq") if isinstance(server, MongoServer) else server.uri
        with (
            closing(connect(f"rocksdb://{folder}/store", {"sync": "never"})) as source,
            closing(connect(uri)) as target,
        ):
            now = source.now()
            for start in range(0, count, BATCH):
                new = [Draft(id, BODY, 86_400, 0, CLIENT) for id in new_ids(BATCH, now)]
                source.messages.post(QueueRef("acme", f"jobs-{start // BATCH % 10}"), new, now)
            began = time.monotonic()
            migrate(
                Store(source, ""),
                Store(target, ""),
                Options(),
                lambda line: print(f"{time.monotonic() - began:6.1f} s  {line}"),
            )


if __name__ == "__main__":
    main()
