# SPDX-License-Identifier: Apache-2.0
"""Stores full of messages that expire at chosen times, filled by the driver itself."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.servers import PROJECT
from tests.stores import Stores
from zq.model import Draft, QueueRef, Seconds, new_ids
from zq.model.expiry import Expiry
from zq.storage import connect
from zq.storage.api import Storage

QUEUE = QueueRef(PROJECT, "jobs")
# Messages in one post.
POST = 500
# A lifetime in seconds that no run reaches.
FOR_GOOD = 10_000_000
# Options that make filling a store faster.
UNSAFE: dict[str, dict[str, object]] = {"rocksdb": {"sync": "never"}, "mongodb": {"journal": False}}


@contextlib.contextmanager
def store(driver: str) -> Iterator[tuple[str, Path]]:
    """Yield the URI of an empty store, and the folder of an embedded one."""
    stores = Stores()
    try:
        with tempfile.TemporaryDirectory(prefix="zq-bench-") as folder:
            yield stores.empty(driver, Path(folder), "a"), Path(folder)
    finally:
        stores.close()


@contextlib.contextmanager
def opened(uri: str, expiry: Expiry | None = None) -> Iterator[Storage]:
    """Open the store with options that are not safe in a power failure."""
    storage = connect(uri, UNSAFE.get(uri.split(":")[0]), expiry)
    try:
        yield storage
    finally:
        storage.close()


def post(storage: Storage, queue: QueueRef, ttls: list[int], now: Seconds) -> None:
    """Post a message of about 200 bytes for each TTL, with bodies that hardly compress."""
    for start in range(0, len(ttls), POST):
        part = ttls[start : start + POST]
        drafts = [
            Draft(id, b'{"event": "backup", "pad": "%s"}' % os.urandom(80).hex().encode(), ttl, 0, "bench")
            for id, ttl in zip(new_ids(len(part), now), part, strict=True)
        ]
        storage.messages.post(queue, drafts, now)


def fill(storage: Storage, queue: QueueRef, count: int, now: Seconds, ttl: int = FOR_GOOD) -> None:
    """Post ``count`` messages with the same TTL."""
    for start in range(0, count, 100 * POST):
        post(storage, queue, [ttl] * min(100 * POST, count - start), now)
