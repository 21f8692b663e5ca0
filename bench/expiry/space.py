# SPDX-License-Identifier: Apache-2.0
"""Space that is reclaimed after every other message has expired: files of the embedded store, metrics of others."""

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import cast
from unittest import mock

from rocksdict import Options

from bench.expiry.crowd import FOR_GOOD, POST, QUEUE, opened, post, store
from zq.model.expiry import Expiry, Steps
from zq.storage.api import Storage
from zq.storage.ordered import layout
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb.tuning import Tuning

TTL = 60
WITHOUT = Expiry(compaction_filter=False, delete_on_read=False)
WITH = Expiry(compaction_filter_grace=0, delete_on_read=False)
KINDS = {
    # name: options, collector, sweep
    "neither": (WITHOUT, False, True),
    "collector": (WITHOUT, True, True),
    "filter and collector": (WITH, True, True),
    "filter, no sweep": (WITH, True, False),
}
IDLE = 5.0


def run(arguments: argparse.Namespace) -> None:
    (embedded if arguments.store == "rocksdb" else networked)(arguments)


def embedded(arguments: argparse.Namespace) -> None:
    count = arguments.messages
    print(f"\n| rocksdb: {count:,} messages, half expired, MB | loaded | swept | {IDLE:g} s later | compacted |")
    print("|---|---|---|---|---|")
    for name, (expiry, collector, swept) in KINDS.items():
        with store("rocksdb") as (uri, folder), collecting(collector), opened(uri, expiry) as storage:
            assert isinstance(storage, OrderedStorage)
            load(storage, count)
            flush(storage)
            sizes = [used(folder)]
            if swept:
                storage.maintain(storage.now(), None, Steps(1000, count))
            flush(storage)
            sizes.append(used(folder))
            time.sleep(IDLE)
            sizes.append(used(folder))
            compact(storage)
            sizes.append(used(folder))
        print(f"| {name} | {' | '.join(f'{size / 1e6:.1f}' for size in sizes)} |", flush=True)


def networked(arguments: argparse.Namespace) -> None:
    count = arguments.messages
    print(f"\n| {arguments.store}: {count:,} messages, half expired, MB | loaded | swept | expired ones loaded again |")
    print("|---|---|---|---|")
    with store(arguments.store) as (uri, _), opened(uri, WITHOUT) as storage:
        parts: dict[str, list[float]] = {}
        steps: list[Callable[[], object]] = [
            lambda: load(storage, count),
            lambda: storage.maintain(storage.now(), None, Steps(1000, count)),
            lambda: post(storage, QUEUE, [FOR_GOOD] * (count // 2), storage.now()),
        ]
        for step in steps:
            step()
            time.sleep(IDLE)
            for measure in storage.measures(storage.now()):
                if measure.name == "store_bytes":
                    parts.setdefault(measure.labels[0][1], []).append(measure.value)
    for part, sizes in parts.items():
        print(f"| {part} | {' | '.join(f'{size / 1e6:.1f}' for size in sizes)} |", flush=True)


def load(storage: Storage, count: int) -> None:
    """Post messages that expired a minute ago, alternating with as many live ones."""
    pattern = [TTL, FOR_GOOD] * (POST // 2)
    for _ in range(0, count, POST):
        post(storage, QUEUE, pattern, storage.now() - 2 * TTL)


def collecting(collector: bool) -> AbstractContextManager[object]:
    """Use RocksDB as the driver configures it, or without the compaction of files that are mostly tombstones."""
    if collector:
        return nullcontext()
    original = Tuning.family

    def deaf(tuning: Tuning, options: Options) -> Options:
        original(tuning, cast(Options, Deaf(options)))
        return options

    return mock.patch.object(Tuning, "family", deaf)


class Deaf:
    """RocksDB's options, except for the setting of that compaction."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def __getattr__(self, name: str) -> object:
        return (lambda *_: None) if "collector" in name else getattr(self._options, name)


def used(folder: Path) -> int:
    """Return the bytes of the files with messages, without the log."""
    total = 0
    for file in folder.rglob("*.sst"):
        with suppress(FileNotFoundError):  # a compaction has removed it
            total += file.stat().st_size
    return total


def flush(storage: OrderedStorage) -> None:
    """Flush all memtables to files."""
    with storage._handle as (store, _):
        for view in store._views.values():
            view.flush()


def compact(storage: OrderedStorage) -> None:
    with storage._handle as (store, _):
        for family in layout.FAMILIES:
            store.compact(family)
