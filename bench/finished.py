# SPDX-License-Identifier: Apache-2.0
"""A queue with a long history compared with one without: ``python -m bench.finished [driver] [records]``.

Storage verbs run in one thread with ten messages each: post, claim, settle in several ways, pop. The queues take turns,
so that other load of the machine affects both; results are medians. ``ratio``: the cost of a long history; ``to
claim``: the cost of the verb compared with a claim of ten.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.stores import Stores
from zq.model import ClaimRequest, Draft, Lease, Move, QueueRef, Release, Settlement, new_ids
from zq.storage import connect
from zq.storage.api import Storage

TEN = 10
BODY = b'{"some": "' + b"x" * 180 + b'"}'
ROUNDS = 120
BATCH = 1000
KEPT = 86_400


class Bench:
    """One queue of an open store."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.storage, self.queue = storage, QueueRef("bench", name)
        self.took: dict[str, list[float]] = {}

    def finish(self, count: int) -> None:
        """Finish ``count`` messages with history."""
        for _ in range(0, count, BATCH):
            self.post(BATCH)
            self.storage.messages.pop(self.queue, BATCH, self.storage.now(), KEPT)

    def post(self, count: int) -> None:
        now = self.storage.now()
        drafts = [Draft(id, BODY, 3600, 0, "bench") for id in new_ids(count, now)]
        self.storage.messages.post(self.queue, drafts, now)

    def claim(self) -> tuple[str, list[str]]:
        now = self.storage.now()
        (name,) = new_ids(1, now)
        claim = self.storage.claims.create(self.queue, ClaimRequest(Lease(name, 300, 60), TEN), now).claim
        assert claim is not None
        return name, [message.id for message in claim.messages]

    def timed(self, name: str, verb, *arguments):
        began = time.perf_counter()
        answer = verb(*arguments)
        self.took.setdefault(name, []).append(time.perf_counter() - began)
        return answer

    def turn(self) -> None:
        """Run each verb once, with ten messages."""
        self.timed("post", self.post, TEN)
        for name, terms in (
            ("settle: delete", lambda ids: Settlement(delete=ids)),
            ("settle: release", lambda ids: Settlement(release=[Release(id) for id in ids])),
            ("settle: move", lambda ids: Settlement(move=[Move(id, "next") for id in ids])),
        ):
            self.post(TEN)
            claim, ids = self.timed("claim", self.claim)
            self.timed(name, self.storage.claims.settle, self.queue, claim, terms(ids), self.storage.now())
        self.timed("pop", self.storage.messages.pop, self.queue, TEN, self.storage.now())


def main(driver: str, records: int) -> None:
    stores = Stores()
    with tempfile.TemporaryDirectory() as folder:
        storage = connect(stores.empty(driver, Path(folder), "a"))
        short, long = Bench(storage, "short"), Bench(storage, "long")
        long.finish(records)
        for _ in range(ROUNDS):
            short.turn()
            long.turn()
        print(f"| {driver}, ten messages, ms | no history | {records:,} records | ratio | to claim |")
        print("|---|---|---|---|---|")
        claim = median(short.took["claim"])
        for name, took in short.took.items():
            one, other = median(took), median(long.took[name])
            print(f"| {name} | {one * 1e3:.2f} | {other * 1e3:.2f} | {other / one:.2f} | {one / claim:.2f} |")
        storage.close()
    stores.close()


if __name__ == "__main__":
    given = sys.argv[1:] or ["rocksdb"]
    main(given[0], int(given[1]) if len(given) > 1 else 1_000_000)
