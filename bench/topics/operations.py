# SPDX-License-Identifier: Apache-2.0
"""The number of operations of a store, from its own metrics."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis
from pymongo import MongoClient

from tests.servers import ZqServer, ask

VERBS = re.compile(r'^zq_storage_seconds_count\{[^}]*verb="topics\.[^}]*\} (\S+)', re.MULTILINE)


@contextmanager
def counter(uri: str, server: ZqServer) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the number: commands of MongoDB and Redis, or verbs of the embedded store."""
    if uri.startswith("rocksdb:"):
        yield lambda: sum(map(float, VERBS.findall(ask(server.url, "GET", "/metrics").body.decode())))
    elif uri.startswith("redis:"):
        with redis.Redis.from_url(uri) as opened:
            yield lambda: opened.info("stats")["total_commands_processed"]
    else:
        with MongoClient(uri) as client:
            yield lambda: sum(client.admin.command("serverStatus")["opcounters"].values())
