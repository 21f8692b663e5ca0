# SPDX-License-Identifier: Apache-2.0
"""The limit: a queue service written for speed alone, on each store, behind the engines that zq uses.

It has no tenants, no clocks but one, no expiry, no limits and no laws: a claim never lapses, one process owns the
queues. What it has is zq's durability, the fewest calls of the store that keep messages in order, and the same wire
format for the rows of ``bench.table``. What zq does beside costs what zq / limit is short of 1.

``LIMIT_STORE=rocksdb:///FOLDER python -m granian --interface wsgi bench.limit_service:app``
"""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from time import time
from typing import Any, Final, NamedTuple, Protocol
from uuid import uuid4

import falcon
import msgspec

from zq.storage.concurrency import GroupCommit
from zq.storage.rocksdb.store import GroupSync

COUNT: Final = 10
"""Messages of a listing, a claim and a pop."""


class Message(NamedTuple):
    """One of a queue: ``place`` is what the store knows it by, ``body`` is JSON."""

    place: Any
    id: str
    body: bytes


class Limit(Protocol):
    """What a store does. A claim is named by its caller."""

    def post(self, queue: str, bodies: Sequence[tuple[str, bytes]]) -> None: ...
    def page(self, queue: str) -> list[Message]: ...
    def claim(self, queue: str, claim: str) -> list[Message]: ...
    def pop(self, queue: str) -> list[Message]: ...
    def settle(self, queue: str, claim: str) -> None: ...


class Embedded:
    """One key for a message, one for a claim, one sync for all who wait."""

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

    def post(self, queue: str, bodies: Sequence[tuple[str, bytes]]) -> None:
        state = self._queue(queue)
        batch = self._batch(raw_mode=True)
        with state["lock"]:
            for identity, body in bodies:
                state["last"] += 1
                batch.put(state["name"] + state["last"].to_bytes(8, "big"), identity.encode() + body)
            self._db.write(batch, self._options)
        self._sync.wait()

    def _first(self, state: Any) -> list[Message]:
        bounds = self._bounds()
        bounds.set_iterate_upper_bound(state["name"] + b"\xff" * 8)
        items = self._db.items(False, state["name"] + state["head"].to_bytes(8, "big"), bounds)
        return [Message(key, value[:32].decode(), value[32:]) for key, value in islice(items, COUNT)]

    def page(self, queue: str) -> list[Message]:
        return self._first(self._queue(queue))

    def claim(self, queue: str, claim: str) -> list[Message]:
        return self._take(queue, lambda batch, found: batch.put(b"\0" + claim.encode(), b"".join(found)), claim)

    def pop(self, queue: str) -> list[Message]:
        return self._take(queue, lambda batch, found: [batch.delete(key) for key in found])

    def _take(self, queue: str, write: Any, claim: str = "") -> list[Message]:
        state = self._queue(queue)
        with state["lock"]:
            found = self._first(state)
            if not found:
                return found
            state["head"] = int.from_bytes(found[-1].place[-8:], "big") + 1
            batch, keys = self._batch(raw_mode=True), [message.place for message in found]
            write(batch, keys)
            if claim:
                self._claims[claim] = keys
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
    """A list for a queue, a string for a claim."""

    CLAIM = (
        "local t = redis.call('LPOP', KEYS[1], ARGV[1]) "
        "if t then redis.call('RPUSH', KEYS[2], unpack(t)) end return t or {}"
    )

    def __init__(self, uri: str) -> None:
        import redis

        self._redis = redis.Redis.from_url(uri)
        self._claim = self._redis.register_script(self.CLAIM)

    def post(self, queue: str, bodies: Sequence[tuple[str, bytes]]) -> None:
        self._redis.rpush(queue, *[identity.encode() + body for identity, body in bodies])

    def page(self, queue: str) -> list[Message]:
        return self._messages(self._redis.lrange(queue, 0, COUNT - 1))

    def claim(self, queue: str, claim: str) -> list[Message]:
        return self._messages(self._claim(keys=[queue, claim], args=[COUNT]))

    def pop(self, queue: str) -> list[Message]:
        return self._messages(self._redis.lpop(queue, COUNT) or [])

    def settle(self, queue: str, claim: str) -> None:
        self._redis.delete(claim)

    def _messages(self, values: list[bytes]) -> list[Message]:
        return [Message(None, value[:32].decode(), value[32:]) for value in values]


class MongoDB:
    """A document for a message; posts, and what is taken, in plain commands, those of all who wait together."""

    def __init__(self, uri: str) -> None:
        from pymongo import MongoClient, WriteConcern
        from pymongo.errors import CollectionInvalid

        database = MongoClient(uri, connectTimeoutMS=5000)["limit"]
        with suppress(CollectionInvalid):
            database.create_collection("messages")
        self._messages = database.get_collection("messages", write_concern=WriteConcern("majority", j=True))
        self._messages.create_index([("q", 1), ("c", 1), ("k", 1)])
        self._messages.create_index("c", partialFilterExpression={"c": {"$gt": ""}})
        self._lock, self._last, self._heads = threading.Lock(), time() * 1e6, {}
        self._posts = GroupCommit[Any, None](self._store, capacity=256, timeout=10, linger=0.003)

    def _store(self, posts: Sequence[Any]) -> Sequence[None]:
        documents = []
        for queue, bodies in posts:
            for identity, body in bodies:
                self._last += 1
                documents.append({"_id": identity, "q": queue, "c": "", "k": self._last, "b": body})
        self._messages.insert_many(documents, ordered=False)
        return [None] * len(posts)

    def post(self, queue: str, bodies: Sequence[tuple[str, bytes]]) -> None:
        self._posts.submit((queue, bodies))

    def _first(self, queue: str, after: float = 0) -> list[Message]:
        found = self._messages.find({"q": queue, "c": "", "k": {"$gt": after}}).sort("k").limit(COUNT)
        return [Message(one["k"], one["_id"], one["b"]) for one in found]

    def page(self, queue: str) -> list[Message]:
        return self._first(queue)

    def _taken(self, queue: str) -> list[Message]:
        with self._lock:
            lock = self._heads.setdefault(queue, [threading.Lock(), 0])
        with lock[0]:
            found = self._first(queue, lock[1])
            if found:
                lock[1] = found[-1].place
        return found

    def claim(self, queue: str, claim: str) -> list[Message]:
        found = self._taken(queue)
        self._messages.update_many({"_id": {"$in": [one.id for one in found]}}, {"$set": {"c": claim}})
        return found

    def pop(self, queue: str) -> list[Message]:
        found = self._taken(queue)
        self._messages.delete_many({"_id": {"$in": [one.id for one in found]}})
        return found

    def settle(self, queue: str, claim: str) -> None:
        self._messages.delete_many({"c": claim})


class Posted(msgspec.Struct):
    """One message of a post."""

    body: msgspec.Raw
    ttl: int = 3600
    delay: int = 0


class Posts(msgspec.Struct):
    """A post."""

    messages: list[Posted]


DECODER: Final = msgspec.json.Decoder(Posts)


class Messages:
    """``/v2/queues/{queue}/messages``"""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        posted = DECODER.decode(req.env["wsgi.input"].read(int(req.env["CONTENT_LENGTH"]))).messages
        bodies = [(uuid4().hex, bytes(one.body)) for one in posted]
        self._limit.post(queue, bodies)
        resp.status = falcon.HTTP_201
        resp.data = msgspec.json.encode({"resources": [f"/v2/queues/{queue}/messages/{one}" for one, _ in bodies]})

    def on_get(self, _req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        resp.data = shown(queue, self._limit.page(queue))

    def on_delete(self, _req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        resp.data = shown(queue, self._limit.pop(queue))


class Claims:
    """``/v2/queues/{queue}/claims``"""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        req.env["wsgi.input"].read(int(req.env["CONTENT_LENGTH"]))
        claim = uuid4().hex
        resp.status = falcon.HTTP_201
        resp.set_header("Location", f"/v2/queues/{queue}/claims/{claim}")
        resp.data = shown(queue, self._limit.claim(queue, claim), f"?claim_id={claim}")


class Settle:
    """``/v2/queues/{queue}/claims/{claim}/settle``"""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit

    def on_post(self, _req: falcon.Request, resp: falcon.Response, queue: str, claim: str) -> None:
        self._limit.settle(queue, claim)
        resp.data = b"{}"


def shown(queue: str, messages: Sequence[Message], suffix: str = "") -> bytes:
    """An answer with these messages."""
    place = f"/v2/queues/{queue}/messages/"
    return msgspec.json.encode(
        {
            "messages": [
                {"id": one.id, "href": place + one.id + suffix, "ttl": 3600, "age": 0, "body": msgspec.Raw(one.body)}
                for one in messages
            ]
        }
    )


def made(uri: str) -> falcon.App:
    """The application on a store: a URI as zq takes it."""
    from bench.adapters import Beanstalk, Pgmq, Streams

    kinds = {"redis": Redis, "mongodb": MongoDB, "rocksdb": Embedded}
    others = {"streams": Streams, "beanstalk": Beanstalk, "postgresql": Pgmq}
    limit: Limit = {**kinds, **others}[uri.partition(":")[0]](uri)
    application = falcon.App()
    application.add_route("/v2/queues/{queue}/messages", Messages(limit))
    application.add_route("/v2/queues/{queue}/claims", Claims(limit))
    application.add_route("/v2/queues/{queue}/claims/{claim}/settle", Settle(limit))
    return application


if "LIMIT_STORE" in os.environ:
    app = made(os.environ["LIMIT_STORE"])
