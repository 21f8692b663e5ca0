# SPDX-License-Identifier: Apache-2.0
"""Size of a waiting message: bytes in the store and of the server's memory.

``python -m bench.weight [--stores rocksdb,redis,mongodb] [--count 100000] [--size 139]``. For Redis it is the memory,
and for MongoDB, after a checkpoint, the size of data and index files; the embedded store's folder, log and tables, is
measured after its server has stopped.
"""

import argparse
from pathlib import Path

import redis
from pymongo import MongoClient

from bench import table
from bench.http import fill
from bench.sides import STORES, available, choice, on_store
from tests.servers import ZqServer


def stored(store: str, uri: str) -> int:
    """Return the bytes that the store uses now."""
    if store == "redis":
        return int(redis.Redis.from_url(uri).info("memory")["used_memory"])
    if store == "mongodb":
        with MongoClient(uri) as client:
            client.admin.command("fsync")
            told = client.get_default_database("zq").command("collStats", "messages")
            return int(told["storageSize"] + told["totalIndexSize"])
    return sum(file.stat().st_size for file in Path(uri.removeprefix("rocksdb://")).rglob("*") if file.is_file())


def memory_of(pid: int) -> int:
    """Return the bytes of memory of a process and its children. Pages that they share count once."""
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    lines = [line.split() for each in pids for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()]
    return sum(int(line[1]) * 1024 for line in lines if line[0] == "Pss:")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default=",".join(STORES), type=choice("store", STORES))
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=139)
    arguments = parser.parse_args()
    print(f"| {arguments.count:,} messages of {arguments.size} bytes | bytes in the store | of the server's memory |")
    print("|---|--:|--:|")
    for store in available(arguments.stores):
        with on_store(store) as (uri, _, _):
            with ZqServer(uri, engine="granian", forked=False) as server:
                fill(server.url, "weighed", 1000, body=table.body(arguments.size), ttl=3600)
                before, memory = stored(store, uri), memory_of(server.pid)
                fill(server.url, "weighed", arguments.count, body=table.body(arguments.size), ttl=3600)
                more = memory_of(server.pid) - memory
                after = stored(store, uri)
            if store == "rocksdb":
                after = stored(store, uri)
            print(f"| {store} | {(after - before) / arguments.count:.0f} | {more / arguments.count:.0f} |", flush=True)


if __name__ == "__main__":
    main()
