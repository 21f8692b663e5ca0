# SPDX-License-Identifier: Apache-2.0
"""Stores in an object store: posts by many threads, and how long another machine takes to have the store, with and
without having followed it.

``python -P -m tests.bench.objects swift|s3 [messages]``. Printed, never asserted.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.object.work import QUEUE, post
from tests.s3 import S3
from tests.swift import Swift
from zq.model import Draft, new_ids
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.object.following import Copy, Standby

SECONDS = 4.0
BODY = "x" * 200
LEASE = 2
# Seconds that a standby waits.
SILENCE = 8
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
            return connect(server.uri(prefix), {"cache": str(Path(folder, name)), "lease": LEASE, **options})

        for fencing in ("look", "position") if kind == "s3" else ("look",):
            print(f"fencing = {fencing}")
            storage = machine("posts", fencing, fencing=fencing)
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
        follow(machine, messages)
    assert threading.active_count() < 50


def follow(machine: Callable[..., Storage], messages: int) -> None:
    """Print how long a standby that has followed the log takes to serve, from the end of its waiting on."""
    ended, stop = [], Standby.stop

    def noted(standby: Standby) -> Copy | None:
        ended.append(time.monotonic())
        return stop(standby)

    Standby.stop = noted  # type: ignore[method-assign]
    rules = {"checkpoint_records": 1_000_000, "checkpoint_bytes": 1 << 40}
    for way, beat in (("a clean stop", 1), ("silence", 1000)):
        prefix = way.replace(" ", "")
        owner = machine("owner", prefix, owner_timeout=3 * beat, **rules)
        fill(owner, messages)
        with ThreadPoolExecutor(1) as other:
            standby = other.submit(machine, "standby", prefix, owner_timeout=SILENCE, **rules)
            time.sleep(SILENCE)
            if beat == 1:
                owner.close()
            taken = standby.result()
            print(f"{messages:,} messages, followed: a standby serves {time.monotonic() - ended[-1]:.2f} s after {way}")
        taken.close()
        owner.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
