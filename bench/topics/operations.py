# SPDX-License-Identifier: Apache-2.0
"""How many operations a store has carried out so far, by its own account."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis
from pymongo import MongoClient

from tests.servers import ZqServer, ask

VERBS = re.compile(r'^zq_storage_seconds_count\{[^}]*verb="topics\.[^}]*\} (\S+)', re.MULTILINE)


@contextmanager
def counter(uri: str, server: ZqServer) -> Iterator[Callable[[], float]]:
    """A function that tells the number: MongoDB's and Redis's commands; of the embedded store, calls of its verbs."""
    if uri.startswith("rocksdb:"):
        yield lambda: sum(map(float, VERBS.findall(ask(server.url, "GET", "/metrics").body.decode())))
    elif uri.startswith("redis:"):
        with redis.Redis.from_url(uri) as opened:
            yield lambda: opened.info("stats")["total_commands_processed"]
    else:
        with MongoClient(uri) as client:
            yield lambda: sum(client.admin.command("serverStatus")["opcounters"].values())
