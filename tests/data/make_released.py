# SPDX-License-Identifier: Apache-2.0
"""Make ``released.tar.xz``, ``released-stores.tar.xz`` and ``released.json``, of the last release.

The archives are stores of all durable drivers with all kinds of data, and their contents as the release reads them. The
JSON file has the fields of all structs that stores contain as arrays.

Run it in a worktree of the commit in ``tests/campaign/upgrade/released``, in the environment of the tests:
``PYTHONPATH=. python make_released.py FOLDER``. The files of this repository are of that commit.
"""

import importlib
import json
import pkgutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import bson
from msgspec import Struct, to_builtins
from redis import Redis

from tests.stores import MongoServer, RedisServer
from zq.auth.tokens import Grant, Tokens
from zq.clock import ManualClock
from zq.conformance.builders import Scene
from zq.conformance.test_parcels import contents, fill
from zq.model import QueueRef
from zq.model.expiry import Expiry
from zq.storage import mongodb, redis, rocksdb
from zq.storage.api import Storage
from zq.subscriptions.documents import SubscriptionDocuments
from zq.subscriptions.model import Source, Subscription

NOW = 1_764_000_000.0
JOBS = QueueRef("acme", "jobs")
LEFT_OUT = ("LOCK", "LOG", ".zq")
PACKAGES = [f"zq.{name}" for name in ("auth", "core", "figures", "model", "pools", "sqs", "storage", "subscriptions")]
TOKEN = ("released00", "0" * 43)
"""The id and the secret of the token in the stores."""


def find_arrays() -> dict[str, type[Struct]]:
    """Return the structs that are encoded as arrays, by module and name."""
    found = {}
    for package in map(importlib.import_module, PACKAGES):
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(each.name)
            for name, value in vars(module).items():
                is_own = isinstance(value, type) and issubclass(value, Struct) and value.__module__ == each.name
                if is_own and value.__struct_config__.array_like:
                    found[f"{each.name}.{name}"] = value
    return found


def fill_store(storage: Storage) -> dict[str, Any]:
    """Store all kinds of data, and return them as ``describe`` does."""
    scene = Scene(storage, ManualClock(NOW), JOBS)
    Tokens(storage.documents, scene.clock).create(Grant(project="acme", scopes=["observe:jobs"]), TOKEN[1], TOKEN[0])
    for kind, name in (("queue", "jobs"), ("topic", "news")):
        one = Subscription(f"{kind}-1", "https://example.org/", 86_400, NOW, {"a": "\u00e4"}, confirmed=0)
        SubscriptionDocuments(storage, scene.clock).change(
            Source("acme", kind, name), lambda all, one=one: (all.replace(one), None)
        )
    fill(scene)
    return describe(scene)


def describe(scene: Scene) -> dict[str, Any]:
    """Return all data of the project, in types of JSON, so that two versions of zq can be compared."""
    storage, names = scene.storage, ("jobs", "dead", "next", "ordered", "fair", "empty")
    found = {
        "items": contents(scene, storage.parcels),
        "messages": {name: scene.at(name).walk() for name in names},
        "counts": {name: storage.queues.stats(scene.at(name).queue, scene.now) for name in names},
        "claims": storage.claims.list("acme", "", 100, scene.now).items,
        "subscriptions": SubscriptionDocuments(storage, scene.clock).list_project("acme", "", 100),
        "tokens": Tokens(storage.documents, scene.clock).list("acme", "", 100).items,
        "now": scene.now,
    }
    return dict(json.loads(json.dumps(to_builtins(found))))


def find_differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Yield the differences of two descriptions. A later version may add members to objects."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in old.items():
            yield from find_differences(value, new.get(name), f"{place}/{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, pair in enumerate(zip(old, new, strict=True)):
            yield from find_differences(*pair, f"{place}/{at}")
    elif old != new:
        yield f"{place}: {old} became {new}"


def read_files(name: str = "released-stores.tar.xz") -> dict[str, bytes]:
    """Return the files of an archive, by default with the stores of Redis and MongoDB."""
    with tarfile.open(Path(__file__).with_name(name)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def read_descriptions() -> dict[str, dict[str, Any]]:
    """Return the contents of the stores of all drivers, as the released version read them."""
    return dict(json.loads(read_files()["contents.json"]))


def dump_mongodb(server: MongoServer) -> bytes:
    """Return the options, indexes and documents of all collections."""
    with server.client() as client:
        dumped = []
        for found in client["zq"].list_collections():
            collection = client["zq"][found["name"]]
            indexes = [index for index in collection.list_indexes() if index["name"] != "_id_"]
            documents = list(collection.find())
            dumped.append({"name": found["name"], "options": found["options"], "indexes": indexes, "all": documents})
        return bson.encode({"collections": dumped})


def load_mongodb(server: MongoServer, dump: bytes) -> None:
    """Create the collections of a dump."""
    with server.client() as client:
        for found in bson.decode(dump)["collections"]:
            collection = client["zq"].create_collection(found["name"], **found["options"])
            if found["indexes"]:
                client["zq"].command("createIndexes", found["name"], indexes=found["indexes"])
            if found["all"]:
                collection.insert_many(found["all"])


def main(target: Path) -> None:
    fields = {name: kind.__struct_fields__ for name, kind in sorted(find_arrays().items())}
    (target / "released.json").write_text(json.dumps(fields, indent=1) + "\n")
    described = {}
    with tempfile.TemporaryDirectory() as name:
        folder, expiry = Path(name), Expiry(compaction_filter=False)
        with closing(rocksdb.connect(f"rocksdb://{folder}/store", expiry, sync="always", max_clock_jump=0)) as storage:
            described["rocksdb"] = fill_store(storage)
        with tarfile.open(target / "released.tar.xz", "w:xz") as archive:
            for file in sorted((folder / "store").iterdir()):
                if not file.name.startswith(LEFT_OUT):
                    archive.add(file, file.name)
        # The format of redis-server is older than that of valkey-server, which reads both.
        with RedisServer("redis-server") as server:
            with closing(redis.connect(server.uri)) as storage:
                described["redis"] = fill_store(storage)
            with Redis.from_url(server.uri) as client:
                client.save()
            (folder / "dump.rdb").write_bytes((server.folder / "dump.rdb").read_bytes())
        with MongoServer() as mongod:
            with closing(mongodb.connect(mongod.uri)) as storage:
                described["mongodb"] = fill_store(storage)
            (folder / "mongodb.bson").write_bytes(dump_mongodb(mongod))
        (folder / "contents.json").write_text(json.dumps(described))
        with tarfile.open(target / "released-stores.tar.xz", "w:xz") as archive:
            for each in ("contents.json", "dump.rdb", "mongodb.bson"):
                archive.add(folder / each, each)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
