# SPDX-License-Identifier: Apache-2.0
"""A process that posts, claims, sweeps and compacts until it is killed: ``python -m tests.campaign.faults.churn URI``.

All families are compacted continuously with the filter, in parallel to all other work. A line of JSON reports what has
been acknowledged: ids of messages with a ttl of an hour, by queue, and the number of messages that the filter has
dropped.
"""

import json
import sys
import threading
from functools import partial

from msgspec import structs

from zq.clock import ManualClock
from zq.conformance.builders import Scene, drafts, ids_of
from zq.model import QueueRef
from zq.model.expiry import Expiry, Steps
from zq.storage.ordered import layout
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import connect

OPTIONS = Expiry(compaction_filter_grace=0)
# Seconds by which the clock is late: messages with a ttl of a minute have then already expired.
BEHIND = 61.0


def main(uri: str) -> None:
    storage = connect(uri, expiry=OPTIONS)
    threading.Thread(target=compact, args=(storage,), daemon=True).start()
    one, two = (partial(Scene, storage, queue=QueueRef("acme", name)) for name in ("one", "two"))
    while True:
        now, past = ManualClock(storage.now()), ManualClock(storage.now() - BEHIND)
        post(one(past), 100, 60)
        living = post(one(past), 10, 3600)
        post(one(past), 100, 62)
        post(two(now), 10, 2)
        claim = two(now).claim(10, ttl=3600)
        held = ids_of(claim.messages) if claim else []
        post(two(past), 100, 60)
        storage.maintain(storage.now(), None, Steps(20, 100))
        with storage._handle as (store, _):
            dropped = store.totals()["filtered"]
        sys.stdout.write(json.dumps({"one": living, "two": held, "dropped": dropped}) + "\n")
        sys.stdout.flush()


def post(scene: Scene, count: int, ttl: int) -> list[str]:
    """Post messages whose bodies are stored separately, where the filter applies, and return their ids."""
    body = layout.SHORT * b"1" + b"1"
    new = [structs.replace(draft, body=body) for draft in drafts(count, scene.now, ttl=ttl)]
    scene.storage.messages.post(scene.queue, new, scene.now)
    return ids_of(new)


def compact(storage: OrderedStorage) -> None:
    while True:
        with storage._handle as (store, _):
            for family in ("bodies", "messages", "expiry"):
                store.compact(family)


if __name__ == "__main__":
    main(sys.argv[1])
