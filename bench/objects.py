# SPDX-License-Identifier: Apache-2.0
"""Stores in an object store: posts by many threads, and the duration of a takeover by another machine.

``python -m bench.objects [near far far-puts swift swift-3 s3 az] [--seconds N] [--messages N N]``. ``near`` is a
dictionary, ``far`` a dictionary with a latency of 30 ms, and ``far-puts`` one with that latency for puts only. The
command asserts nothing. The table has the processor time of a post in this process and in the store's, which depends
less on other load of the machine than the rate.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tests.dictionary import Dictionary
from tests.object.work import QUEUE, post
from tests.servers import wait_for
from tests.stores import IN_OBJECTS, object_store
from zq.model import Draft, new_ids
from zq.storage import object as driver
from zq.storage.api import Storage
from zq.storage.object.epochs import Head, newest, read
from zq.storage.object.following import Standby, StandbyCopy
from zq.storage.object.objects import Objects
from zq.storage.ordered.storage import OrderedStorage

CLIENTS = (1, 16, 64)
UPLOADS = (1, 4)
BODY = "x" * 200
LEASE = 2.0
# Seconds without a sign of the owner after which a standby takes over.
SILENCE = 8.0
# Stores with a latency: seconds of a put, and of a look.
DELAYS = {"near": (0.0, 0.0), "far": (0.03, 0.03), "far-puts": (0.03, 0.0)}


class Counted:
    """Objects with a count of the log's puts."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.puts = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._objects, name)

    def put(self, name: str, value: bytes) -> bool:
        self.puts += name.startswith("log/")
        return self._objects.put(name, value)

    def put_new(self, name: str, value: bytes) -> bool:
        self.puts += name.startswith("log/")
        return self._objects.put_new(name, value)


class Place(NamedTuple):
    """A place for stores. ``pids``: the processes of its server."""

    name: str
    objects: Callable[[str], Objects]
    pids: list[int]
    folder: Path

    def machine(self, store: str, name: str, **options: object) -> tuple[OrderedStorage, Counted]:
        """Open the store on a machine with an empty disk."""
        counted = Counted(self.objects(store))
        with mock.patch.object(driver, "objects_of", return_value=counted):
            options = {"cache": str(self.folder / f"{store}-{name}"), "lease": LEASE, "takeover": "now", **options}
            return driver.connect(f"swift://bench/{store}", **options), counted  # type: ignore[arg-type]


@contextmanager
def place(name: str) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="zq-bench-") as folder:
        if name in DELAYS:
            stores: dict[str, Objects] = {}
            yield Place(name, lambda store: stores.setdefault(store, Dictionary(*DELAYS[name])), [], Path(folder))
            return
        with object_store(name) as server:
            os.environ.update(server.environment)
            real = driver.objects_of
            yield Place(name, lambda store: real(server.uri(store)), server.pids, Path(folder))


def processor_time(pids: list[int]) -> float:
    """Return the processor time of the processes in seconds."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field) for each in fields for field in each[11:13]) / os.sysconf("SC_CLK_TCK")


def posts(storage: Storage, counted: Counted, pids: list[int], clients: int, seconds: float) -> str:
    """Post messages with ``clients`` threads, and return the cells of the result."""
    took: list[float] = []
    end = time.monotonic() + seconds
    before = counted.puts, time.process_time(), processor_time(pids)

    def run(_: int) -> None:
        while (began := time.monotonic()) < end:
            post(storage, BODY)
            took.append(time.monotonic() - began)

    with ThreadPoolExecutor(clients) as posting:
        list(posting.map(run, range(clients)))
    uploads = counted.puts - before[0]
    own, theirs = (
        (now - then) / len(took) * 1e6
        for now, then in zip((time.process_time(), processor_time(pids)), before[1:], strict=True)
    )
    return (
        f"{len(took) / seconds:,.0f} | {statistics.median(took) * 1000:.1f} | {len(took) / max(1, uploads):.1f} | "
        f"{own:,.0f} | {theirs:,.0f}"
    )


def table_of_posts(where: Place, seconds: float) -> None:
    print("\n| Store | fencing | uploads | clients | posts/s | p50 ms | posts an upload | µs zq | µs store |")
    print("|---|---|---|---|---|---|---|---|---|")
    ways = [("look", uploads) for uploads in UPLOADS]
    for fencing, uploads in ways if where.objects("any").exclusive is False else [*ways, ("position", UPLOADS[-1])]:
        storage, counted = where.machine(f"posts-{fencing}-{uploads}", "only", uploads=uploads, fencing=fencing)
        for clients in CLIENTS:
            line = posts(storage, counted, where.pids, clients, seconds)
            print(f"| {where.name} | {fencing} | {uploads} | {clients} | {line} |", flush=True)
        storage.close()


def fill(storage: Storage, messages: int, each: int) -> None:
    """Post ``messages`` messages, ``each`` at a time."""
    body = json.dumps(BODY).encode()

    def run(_: int) -> None:
        now = storage.now()
        drafts = [Draft(id, body, 86400, 0, "bench") for id in new_ids(each, now)]
        storage.messages.post(QUEUE, drafts, now)

    with ThreadPoolExecutor(8) as posting:
        list(posting.map(run, range(messages // each)))


def table_of_restores(where: Place, messages: list[int], each: int) -> None:
    """Print how long a machine with an empty disk takes to open the store, without an owner's lease."""
    print("\n| Store | messages | from | records | s after a clean stop | s beside a living owner, less its lease |")
    print("|---|---|---|---|---|---|")
    for number in messages:
        for way in ("log", "checkpoint"):
            store, many = f"restore-{number}-{way}", {"checkpoint_records": 1_000_000, "checkpoint_bytes": 1 << 40}
            storage, counted = where.machine(store, "first", **many)
            fill(storage, number, each)
            storage.close()
            if way == "checkpoint":
                checkpoint(where, store)
            took = []
            for turn in ("second", "third"):
                began = time.monotonic()
                storage, _ = where.machine(store, turn, **many)
                took.append(time.monotonic() - began)
                if turn == "second":
                    living = storage
            storage.close()
            living.close()
            print(
                f"| {where.name} | {number:,} | {way} | {counted.puts:,} | {took[0]:.2f} | {took[1] - LEASE:.2f} |",
                flush=True,
            )


def table_of_standbys(where: Place, messages: list[int], each: int) -> None:
    """Print how long a standby that has followed the log takes, from the end of its wait."""
    print("\n| Store | messages | followed | s after a clean stop | s after silence, less the lease |")
    print("|---|---|---|---|---|")
    for number in messages:
        took = [followed(where, f"followed-{number}-{beat}", number, each, beat) for beat in (1, 1000)]
        print(f"| {where.name} | {number:,} | yes | {took[0]:.2f} | {took[1] - LEASE:.2f} |", flush=True)


def followed(where: Place, store: str, messages: int, each: int, beat: int) -> float:
    """Return the seconds of the takeover.

    ``beat``: seconds between two signs of the owner, which stops if that is short.
    """
    ended: list[float] = []
    stop = Standby.stop

    def noted(standby: Standby) -> StandbyCopy | None:
        ended.append(time.monotonic())
        return stop(standby)

    many = {"checkpoint_records": 1_000_000, "checkpoint_bytes": 1 << 40}
    owner, _ = where.machine(store, "owner", owner_timeout=3 * beat, **many)
    fill(owner, messages, each)
    with mock.patch.object(Standby, "stop", noted), ThreadPoolExecutor(1) as other:
        waits = {"takeover": "wait", "owner_timeout": SILENCE, **many}
        standby = other.submit(where.machine, store, "standby", **waits)
        time.sleep(SILENCE)
        if beat == 1:
            owner.close()
        taken, _ = standby.result()
        served = time.monotonic()
    taken.close()
    owner.close()
    return served - ended[-1]


def checkpoint(where: Place, store: str) -> None:
    """Make a checkpoint of the whole store."""
    storage, _ = where.machine(store, "checkpointer", checkpoint_records=1)
    post(storage, BODY)
    objects = where.objects(store)

    def made() -> bool:
        head = read(objects, f"head/{newest(objects)}", Head)
        return head is not None and bool(head.checkpoints)

    wait_for(made, 300, "a checkpoint")
    storage.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.objects")
    parser.add_argument("places", nargs="*", default=["near", "far", "far-puts", "swift", "swift-3", "s3"])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--messages", type=int, nargs="*", default=[100_000])
    parser.add_argument("--each", type=int, default=100, help="messages of a post that fills a store")
    arguments = parser.parse_args()
    for name in arguments.places:
        assert name in DELAYS or name in IN_OBJECTS, f"{name} is none of {', '.join((*DELAYS, *IN_OBJECTS))}"
        with place(name) as where:
            if arguments.seconds:
                table_of_posts(where, arguments.seconds)
            table_of_standbys(where, arguments.messages, arguments.each)
            table_of_restores(where, arguments.messages, arguments.each)


if __name__ == "__main__":
    main()
