# SPDX-License-Identifier: Apache-2.0
"""Stores in an object store: posts by many threads, and how long another machine takes to have the store.

``python -P -m tests.bench.objects swift|s3 [messages]``. Printed, never asserted.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.object.work import QUEUE, post
from tests.s3 import S3
from tests.swift import Swift
from zq.model import Draft, new_ids
from zq.storage import connect
from zq.storage.api import Storage

SECONDS = 4.0
BODY = "x" * 200
# Messages of a post that fills a store.
FILLING = 100


def posts(storage: Storage, threads: int) -> None:
    """Print how many posts of one message so many threads get done."""
    took: list[float] = []
    end = time.monotonic() + SECONDS

    def run(_: int) -> None:
        while (began := time.monotonic()) < end:
            post(storage, BODY)
            took.append(time.monotonic() - began)

    with ThreadPoolExecutor(threads) as posting:
        list(posting.map(run, range(threads)))
    print(f"{threads:>4} threads: {len(took) / SECONDS:,.0f} posts/s, p50 {statistics.median(took) * 1000:.1f} ms")


def fill(storage: Storage, messages: int) -> None:
    body = json.dumps(BODY).encode()

    def run(_: int) -> None:
        now = storage.now()
        drafts = [Draft(id, body, 86400, 0, "bench") for id in new_ids(FILLING, now)]
        storage.messages.post(QUEUE, drafts, now)

    with ThreadPoolExecutor(8) as posting:
        list(posting.map(run, range(messages // FILLING)))


def main(kind: str, messages: int) -> None:
    with Swift() if kind == "swift" else S3() as server, tempfile.TemporaryDirectory() as folder:
        os.environ.update(server.environment)

        def machine(name: str, prefix: str, **options: object) -> Storage:
            return connect(server.uri(prefix), {"cache": str(Path(folder, name)), "lease": 2, **options})

        storage = machine("posts", "posts")
        for threads in (1, 16, 64):
            posts(storage, threads)
        storage.close()
        for way, records in (("log alone", 1_000_000), ("checkpoint", 100)):
            storage = machine("first", way.replace(" ", ""), checkpoint_records=records, checkpoint_bytes=1 << 40)
            fill(storage, messages)
            if records == 100:
                time.sleep(3)
            storage.close()
            began = time.monotonic()
            storage = machine("second", way.replace(" ", ""))
            print(f"{messages:,} messages, {way}: another machine has them after {time.monotonic() - began:.2f} s")
            storage.close()
    assert threading.active_count() < 50


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
