# SPDX-License-Identifier: Apache-2.0
"""The limit: a queue service written for speed alone, on each store, behind the HTTP servers that zq uses.

The service has zq's durability and the wire format of the rows of ``bench.table``, and makes as few store calls as
possible. It has no tenants, message ids, expiry, limits or redelivery, and only one process may use a store.

``LIMIT_STORE=rocksdb:///FOLDER python -m granian --interface wsgi bench.limit_service:app``
"""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import count, islice
from time import time
from typing import Any, Final, NamedTuple, Protocol

import falcon
import msgspec

from zq.storage.concurrency import GroupCommit
from zq.storage.rocksdb.store import GroupSync

# Number of messages in a listing, a claim and a pop.
COUNT: Final = 10


class Message(NamedTuple):
    """A message. ``place`` identifies it in the store, and ``body`` is JSON."""

    place: Any
    body: bytes


class Limit(Protocol):
    """The operations of a store. The caller names the claims."""

    def post(self, queue: str, bodies: Sequence[bytes]) -> None: ...
    def page(self, queue: str) -> list[Message]: ...
    def claim(self, queue: str, claim: str) -> list[Message]: ...
    def pop(self, queue: str) -> list[Message]: ...
    def settle(self, queue: str, claim: str) -> None: ...


class Embedded:
    """RocksDB with one key per message, one key per claim, and one sync for all waiting requests."""

    def __init__(self, uri: str) -> None:
        from rocksdict import Options, Rdict, ReadOptions, WriteBatch, WriteOptions

        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._db = Rdict(uri.removeprefix("rocksdb://"), options)
        self._batch, self._bounds, self._options = WriteBatch, ReadOptions, WriteOptions()
        self._sync = GroupSync(lambda: self._db.flush_wal(True))
        self._queues: dict[str, Any] = {}
        self._claims: dict[str, list[bytes]] = {}

    def _queue(self, queue: str) -> Any:
        state = self._queues.get(queue)
        if state is None:
            state = {"lock": threading.Lock(), "last": 0, "head": 0, "name": queue.encode() + b"\0"}
            state = self._queues.setdefault(queue, state)
        return state

    def post(self, queue: str, bodies: Sequence[bytes]) -> None:
        state = self._queue(queue)
        batch = self._batch(raw_mode=True)
        with state["lock"]:
            for body in bodies:
                state["last"] += 1
                batch.put(state["name"] + state["last"].to_bytes(8, "big"), body)
            self._db.write(batch, self._options)
        self._sync.wait()

    def page(self, queue: str) -> list[Message]:
        state = self._queue(queue)
        bounds = self._bounds()
        bounds.set_iterate_upper_bound(state["name"] + b"\xff" * 8)
        items = self._db.items(False, state["name"] + state["head"].to_bytes(8, "big"), bounds)
        return list(map(Message._make, islice(items, COUNT)))

    def claim(self, queue: str, claim: str) -> list[Message]:
        return self._take(queue, claim)

    def pop(self, queue: str) -> list[Message]:
        return self._take(queue)

    def _take(self, queue: str, claim: str = "") -> list[Message]:
        state = self._queue(queue)
        with state["lock"]:
            found = self.page(queue)
            if not found:
                return found
            state["head"] = int.from_bytes(found[-1].place[-8:], "big") + 1
            batch, keys = self._batch(raw_mode=True), [message.place for message in found]
            if claim:
                batch.put(b"\0" + claim.encode(), b"".join(keys))
                self._claims[claim] = keys
            else:
                for key in keys:
                    batch.delete(key)
            self._db.write(batch, self._options)
        self._sync.wait()
        return found

    def settle(self, queue: str, claim: str) -> None:
        batch = self._batch(raw_mode=True)
        for key in self._claims.pop(claim):
            batch.delete(key)
        batch.delete(b"\0" + claim.encode())
        self._db.write(batch, self._options)
        self._sync.wait()


class Redis:
    """Redis with a list per queue and a list per claim.

    Each thread has its own connection and sends one packed command per request.
    """

    # Moves messages from a queue to a claim and returns them.
    CLAIM = (
        "local t = redis.call('LPOP', KEYS[1], ARGV[1]) "
        "if t then redis.call('RPUSH', KEYS[2], unpack(t)) end return t or {}"
    )

    def __init__(self, uri: str) -> None:
        import redis

        self._pool = redis.ConnectionPool.from_url(uri, max_connections=1000)
        self._thread = threading.local()
        self._claim: bytes = redis.Redis(connection_pool=self._pool).script_load(self.CLAIM).encode()

    def _send(self, *command: bytes) -> Any:
        try:
            connection = self._thread.connection
        except AttributeError:
            connection = self._thread.connection = self._pool.make_connection()
            connection.connect()
        parts = [b"$%d\r\n%b\r\n" % (len(part), part) for part in command]
        connection.send_packed_command([b"*%d\r\n%b" % (len(command), b"".join(parts))], check_health=False)
        return connection.read_response(disable_decoding=True)

    def post(self, queue: str, bodies: Sequence[bytes]) -> None:
        self._send(b"RPUSH", queue.encode(), *bodies)

    def page(self, queue: str) -> list[Message]:
        return self._messages(self._send(b"LRANGE", queue.encode(), b"0", b"%d" % (COUNT - 1)))

    def claim(self, queue: str, claim: str) -> list[Message]:
        keys = queue.encode(), claim.encode()
        return self._messages(self._send(b"EVALSHA", self._claim, b"2", *keys, b"%d" % COUNT))

    def pop(self, queue: str) -> list[Message]:
        return self._messages(self._send(b"LPOP", queue.encode(), b"%d" % COUNT) or [])

    def settle(self, queue: str, claim: str) -> None:
        self._send(b"DEL", claim.encode())

    def _messages(self, bodies: list[bytes]) -> list[Message]:
        return [Message(None, body) for body in bodies]


class MongoDB:
    """MongoDB with one document per message. One plain insert stores all waiting posts."""

    def __init__(self, uri: str) -> None:
        from pymongo import MongoClient, WriteConcern
        from pymongo.errors import CollectionInvalid

        database = MongoClient(uri, connectTimeoutMS=5000)["limit"]
        with suppress(CollectionInvalid):
            database.create_collection("messages")
        self._messages = database.get_collection("messages", write_concern=WriteConcern("majority", j=True))
        self._messages.create_index([("q", 1), ("c", 1), ("_id", 1)])
        self._messages.create_index("c", partialFilterExpression={"c": {"$gt": ""}})
        self._lock, self._last, self._heads = threading.Lock(), int(time() * 1e6), {}
        self._posts = GroupCommit[Any, None](self._store, capacity=256, timeout=10, linger=0.003)

    def _store(self, posts: Sequence[Any]) -> Sequence[None]:
        documents = []
        for queue, bodies in posts:
            for body in bodies:
                self._last += 1
                documents.append({"_id": self._last, "q": queue, "c": "", "b": body})
        self._messages.insert_many(documents, ordered=False)
        return [None] * len(posts)

    def post(self, queue: str, bodies: Sequence[bytes]) -> None:
        self._posts.submit((queue, bodies))

    def page(self, queue: str) -> list[Message]:
        return self._first(queue, 0)

    def _first(self, queue: str, after: int) -> list[Message]:
        found = self._messages.find({"q": queue, "c": "", "_id": {"$gt": after}}).sort("_id").limit(COUNT)
        return [Message(one["_id"], one["b"]) for one in found]

    def _next(self, queue: str) -> list[Message]:
        """Return the first messages that no earlier call has returned."""
        with self._lock:
            head = self._heads.setdefault(queue, [threading.Lock(), 0])
        with head[0]:
            found = self._first(queue, head[1])
            if found:
                head[1] = found[-1].place
        return found

    def claim(self, queue: str, claim: str) -> list[Message]:
        found = self._next(queue)
        self._messages.update_many({"_id": {"$in": [one.place for one in found]}}, {"$set": {"c": claim}})
        return found

    def pop(self, queue: str) -> list[Message]:
        found = self._next(queue)
        self._messages.delete_many({"_id": {"$in": [one.place for one in found]}})
        return found

    def settle(self, queue: str, claim: str) -> None:
        self._messages.delete_many({"c": claim})


class PostedMessage(msgspec.Struct):
    """One message of a post."""

    body: msgspec.Raw


class Post(msgspec.Struct):
    """The body of a post."""

    messages: list[PostedMessage]


DECODER: Final = msgspec.json.Decoder(Post)


class Messages:
    """``/v2/queues/{queue}/messages``"""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        posted = DECODER.decode(req.env["wsgi.input"].read(int(req.env["CONTENT_LENGTH"]))).messages
        self._limit.post(queue, [bytes(one.body) for one in posted])
        resp.status = falcon.HTTP_201
        link = f'"/v2/queues/{queue}/messages/0"'
        resp.data = f'{{"resources": [{",".join([link] * len(posted))}]}}'.encode()

    def on_get(self, _req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        resp.data = encode(queue, self._limit.page(queue))

    def on_delete(self, _req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        resp.data = encode(queue, self._limit.pop(queue))


class Claims:
    """``/v2/queues/{queue}/claims``"""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._numbers = count(1)

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        req.env["wsgi.input"].read(int(req.env["CONTENT_LENGTH"]))
        claim = f"{next(self._numbers):x}"
        resp.status = falcon.HTTP_201
        resp.set_header("Location", f"/v2/queues/{queue}/claims/{claim}")
        resp.data = encode(queue, self._limit.claim(queue, claim), f"?claim_id={claim}")


class Settle:
    """``/v2/queues/{queue}/claims/{claim}/settle``"""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit

    def on_post(self, _req: falcon.Request, resp: falcon.Response, queue: str, claim: str) -> None:
        self._limit.settle(queue, claim)
        resp.data = b"{}"


def encode(queue: str, messages: Sequence[Message], suffix: str = "") -> bytes:
    """Encode a response with the messages. All have the id 0."""
    head = f'{{"id":"0","href":"/v2/queues/{queue}/messages/0{suffix}","ttl":3600,"age":0,"body":'.encode()
    return b'{"messages":[' + b",".join([b"%b%b}" % (head, message.body) for message in messages]) + b"]}"


def open_limit(uri: str) -> Limit:
    """Open a store. ``uri`` has the form of zq's option."""
    from bench.adapters import Beanstalk, Pgmq, Streams

    kinds = {"redis": Redis, "mongodb": MongoDB, "rocksdb": Embedded}
    others = {"streams": Streams, "beanstalk": Beanstalk, "postgresql": Pgmq}
    limit: Limit = {**kinds, **others}[uri.partition(":")[0]](uri)
    return limit


def create_app(limit: Limit) -> falcon.App:
    application = falcon.App()
    application.add_route("/v2/queues/{queue}/messages", Messages(limit))
    application.add_route("/v2/queues/{queue}/claims", Claims(limit))
    application.add_route("/v2/queues/{queue}/claims/{claim}/settle", Settle(limit))
    return application


if "LIMIT_STORE" in os.environ:
    app = create_app(open_limit(os.environ["LIMIT_STORE"]))
