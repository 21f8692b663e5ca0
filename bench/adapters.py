# SPDX-License-Identifier: Apache-2.0
"""Other queues without an HTTP interface, as stores of ``bench.limit_service`` for ``bench.others``."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from bench.limit_service import COUNT, Message


class Streams:
    """Redis Streams with one stream and one consumer group per queue. Settled messages are deleted."""

    def __init__(self, uri: str) -> None:
        import redis

        self._redis = redis.Redis.from_url("redis" + uri.removeprefix("streams"))
        self._groups: set[str] = set()
        self._claims: dict[str, list[bytes]] = {}

    def post(self, queue: str, bodies: Sequence[bytes]) -> None:
        with self._redis.pipeline(transaction=True) as pipeline:
            for body in bodies:
                pipeline.xadd(queue, {b"m": body})
            pipeline.execute()

    def _read(self, queue: str, *, noack: bool) -> list[Message]:
        import redis

        if queue not in self._groups:
            with suppress(redis.ResponseError):
                self._redis.xgroup_create(queue, "zq", id="0", mkstream=True)
            self._groups.add(queue)
        found = self._redis.xreadgroup("zq", "zq", {queue: ">"}, count=COUNT, noack=noack)
        return [Message(place, fields[b"m"]) for place, fields in (found[0][1] if found else [])]

    def claim(self, queue: str, claim: str) -> list[Message]:
        found = self._read(queue, noack=False)
        self._claims[claim] = [message.place for message in found]
        return found

    def page(self, queue: str) -> list[Message]:
        return [Message(place, fields[b"m"]) for place, fields in self._redis.xrange(queue, count=COUNT)]

    def pop(self, queue: str) -> list[Message]:
        found = self._read(queue, noack=True)
        if found:
            self._redis.xdel(queue, *[message.place for message in found])
        return found

    def settle(self, queue: str, claim: str) -> None:
        if places := self._claims.pop(claim):
            self._redis.pipeline().xack(queue, "zq", *places).xdel(queue, *places).execute()


class Beanstalk:
    """beanstalkd with one tube per queue. Each message needs its own round trip."""

    def __init__(self, uri: str) -> None:
        self._port = int(uri.rpartition(":")[2])
        self._local = threading.local()

    def _at(self, queue: str) -> Any:
        import greenstalk

        tubes = self._local.__dict__
        if queue not in tubes:
            tubes[queue] = greenstalk.Client(("127.0.0.1", self._port), use=queue, watch=queue, encoding=None)
        return tubes[queue]

    def post(self, queue: str, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._at(queue).put(body)

    def page(self, queue: str) -> list[Message]:
        return []

    def pop(self, queue: str) -> list[Message]:
        import greenstalk

        found = []
        with suppress(greenstalk.TimedOutError):
            for _ in range(COUNT):
                job = self._at(queue).reserve(timeout=0)
                self._at(queue).delete(job)
                found.append(Message(job.id, job.body))
        return found


class Pgmq:
    """pgmq on PostgreSQL with one connection per thread. Claims last five minutes."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._local, self._lock = threading.local(), threading.Lock()
        self._queues: set[str] = set()
        self._claims: dict[str, list[int]] = {}

    def _do(self, statement: str, queue: str, *more: Any) -> list[Any]:
        import psycopg

        if not hasattr(self._local, "connection"):
            self._local.connection = psycopg.connect(self._uri, autocommit=True)
        if queue not in self._queues:
            with self._lock:
                self._local.connection.execute("SELECT pgmq.create(%s)", (queue,))
                self._queues.add(queue)
        return list(self._local.connection.execute(f"SELECT {statement}", (queue, *more)).fetchall())

    def post(self, queue: str, bodies: Sequence[bytes]) -> None:
        self._do("pgmq.send_batch(%s, %s::jsonb[])", queue, [body.decode() for body in bodies])

    def _take(self, call: str, queue: str) -> list[Message]:
        found = self._do(f"msg_id, message::text FROM pgmq.{call}", queue)
        return [Message(place, body.encode()) for place, body in found]

    def claim(self, queue: str, claim: str) -> list[Message]:
        found = self._take(f"read(%s, 300, {COUNT})", queue)
        self._claims[claim] = [message.place for message in found]
        return found

    def page(self, queue: str) -> list[Message]:
        return []

    def pop(self, queue: str) -> list[Message]:
        return self._take(f"pop(%s, {COUNT})", queue)

    def settle(self, queue: str, claim: str) -> None:
        self._do("pgmq.delete(%s, %s::bigint[])", queue, self._claims.pop(claim))
