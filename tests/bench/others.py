# SPDX-License-Identifier: Apache-2.0
"""zq on its embedded store beside what users might pick instead, in turns, 16 connections, 8 queues, durable queues.

``python -m tests.bench.others [--rounds 3] [--seconds 2]`` needs wrk on PATH, and takes what it finds of redis-server,
beanstalkd (with ``pip install greenstalk``) and rabbitmq-server. Redis Streams and beanstalkd speak no HTTP: they stand
behind the application and the engine of ``tests.bench.limit_service``. RabbitMQ is asked over its own HTTP API. None of
them lists a page, has a delayed message without a plug-in, or moves one atomically, so there are rows for posts and for
taking ten.

Left out: pgmq is no package of a registry, ElasticMQ is a program for Java, and moto imitates SQS for tests, not speed.
"""

import argparse
import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from statistics import median
from typing import Any, Final

from tests.bench import table
from tests.bench.limit_service import COUNT, Message
from tests.servers import Lost, ask, free_port, spawn, wait_for
from tests.stores import RedisServer

FIRST: Final = table.Case(connections=16, size=100, queues=8, tenants=1, backlog=0, processes=1)
ROWS: Final = [row for row in table.ROWS if row.name in ("post 1", "post 10", "claim+settle 10", "pop 10")]
RABBITMQ: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one on PATH changes the user
GUEST: Final = "Basic " + base64.b64encode(b"guest:guest").decode()

PUBLISH: Final = json.dumps(
    {
        "properties": {"delivery_mode": 2},
        "routing_key": "bq0",
        "payload": json.dumps(table.body(FIRST.size)),
        "payload_encoding": "string",
    }
)
GET: Final = '{"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"}'


class Streams:
    """Redis Streams: a stream and a group for each queue; what is settled is deleted."""

    def __init__(self, uri: str) -> None:
        import redis

        self._redis = redis.Redis.from_url("redis" + uri.removeprefix("streams"))
        self._groups: set[str] = set()
        self._claims: dict[str, list[bytes]] = {}

    def post(self, queue: str, bodies: Sequence[tuple[str, bytes]]) -> None:
        with self._redis.pipeline(transaction=True) as pipeline:
            for identity, body in bodies:
                pipeline.xadd(queue, {b"m": identity.encode() + body})
            pipeline.execute()

    def _read(self, queue: str, *, noack: bool) -> list[Message]:
        import redis

        if queue not in self._groups:
            with suppress(redis.ResponseError):
                self._redis.xgroup_create(queue, "zq", id="0", mkstream=True)
            self._groups.add(queue)
        found = self._redis.xreadgroup("zq", "zq", {queue: ">"}, count=COUNT, noack=noack)
        entries = found[0][1] if found else []
        return [Message(place, fields[b"m"][:32].decode(), fields[b"m"][32:]) for place, fields in entries]

    def claim(self, queue: str, claim: str) -> list[Message]:
        found = self._read(queue, noack=False)
        self._claims[claim] = [message.place for message in found]
        return found

    def page(self, queue: str) -> list[Message]:
        found = self._redis.xrange(queue, count=COUNT)
        return [Message(place, fields[b"m"][:32].decode(), fields[b"m"][32:]) for place, fields in found]

    def pop(self, queue: str) -> list[Message]:
        found = self._read(queue, noack=True)
        if found:
            self._redis.xdel(queue, *[message.place for message in found])
        return found

    def settle(self, queue: str, claim: str) -> None:
        if places := self._claims.pop(claim):
            self._redis.pipeline().xack(queue, "zq", *places).xdel(queue, *places).execute()


class Beanstalk:
    """beanstalkd: a tube for each queue, a job for each message, one after the other."""

    def __init__(self, uri: str) -> None:
        self._port = int(uri.rpartition(":")[2])
        self._local = threading.local()

    def _at(self, queue: str) -> Any:
        import greenstalk

        tubes = self._local.__dict__
        if queue not in tubes:
            tubes[queue] = greenstalk.Client(("127.0.0.1", self._port), use=queue, watch=queue, encoding=None)
        return tubes[queue]

    def post(self, queue: str, bodies: Sequence[tuple[str, bytes]]) -> None:
        for identity, body in bodies:
            self._at(queue).put(identity.encode() + body)

    def page(self, queue: str) -> list[Message]:
        return []

    def pop(self, queue: str) -> list[Message]:
        import greenstalk

        found = []
        with suppress(greenstalk.TimedOutError):
            for _ in range(COUNT):
                job = self._at(queue).reserve(timeout=0)
                self._at(queue).delete(job)
                found.append(Message(job.id, job.body[:32].decode(), job.body[32:]))
        return found


@contextmanager
def beanstalkd() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each job is on disk before it is acknowledged, as with zq."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        process = spawn(["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", folder, "-f", "0"])
        try:
            yield f"beanstalk://127.0.0.1:{port}", (process.pid,)
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def rabbitmq() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Its HTTP API, and one durable queue."""
    management, port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = f"listeners.tcp.1 = 127.0.0.1:{port}\nmanagement.tcp.port = {management}\n"
        with open(f"{folder}/rabbitmq.conf", "w") as file:
            file.write(config + "management.tcp.ip = 127.0.0.1\n")
        with open(f"{folder}/plugins", "w") as file:
            file.write("[rabbitmq_management].\n")
        os.chmod(folder, 0o777)
        places = {
            "CONFIG_FILE": "rabbitmq.conf",
            "ENABLED_PLUGINS_FILE": "plugins",
            "MNESIA_BASE": "db",
            "LOG_BASE": "log",
        }
        env = {f"RABBITMQ_{name}": f"{folder}/{place}" for name, place in places.items()}
        node = {"RABBITMQ_NODENAME": f"bench{port}@localhost", "RABBITMQ_DIST_PORT": str(free_port())}
        process = spawn([RABBITMQ], env={**os.environ, **env, **node, "HOME": folder}, stdout=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{management}"
        headers = {"Authorization": GUEST, "Content-Type": "application/json"}

        def answers() -> bool:
            try:
                return ask(url, "GET", "/api/overview", headers=headers).status == 200
            except Lost:
                return False

        try:
            wait_for(answers, 90, "RabbitMQ answers")
            ask(url, "PUT", "/api/queues/%2F/bq0", {"durable": True}, headers=headers)
            yield url, (process.pid,)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)
            subprocess.run(["epmd", "-kill"], check=False, capture_output=True)  # its names, which it leaves behind


def of_rabbitmq(row: table.Row) -> table.Row | None:
    """The row in RabbitMQ's words; there is no claim over HTTP, and a post is of one message."""
    words = {
        "post 1": row._replace(posts=0, path="/api/exchanges/%2F/amq.default/publish", terms=PUBLISH),
        "pop 10": row._replace(method="POST", path="/api/queues/%2F/bq0/get", terms=GET),
    }
    return words.get(row.name)


def stock(side: table.Side, row: table.Row, seconds: float) -> None:
    """Let there be more than can be taken."""
    if side.name != "rabbitmq":
        table.stock(side._replace(name="zq" if side.name == "zq" else "limit"), row, FIRST, seconds)
    elif row.drain:
        table.load(side, of_rabbitmq(ROWS[0]) or row, FIRST, 5 * seconds)


@contextmanager
def sides() -> Iterator[list[table.Side]]:
    """zq, and what is here of the others."""
    with ExitStack() as stack:
        found = stack.enter_context(table.sides("rocksdb", "granian", ["zq"], FIRST))
        if binary := shutil.which("redis-server"):
            redis = stack.enter_context(RedisServer(binary, "--appendonly", "yes", "--appendfsync", "always"))
            uri = "streams" + redis.uri.removeprefix("redis")
            limit = stack.enter_context(table.LimitServer(uri, "granian"))
            found.append(table.Side("Redis Streams", limit.url, (limit.pid,), (redis.pid,)))
        if shutil.which("beanstalkd"):
            uri, pids = stack.enter_context(beanstalkd())
            limit = stack.enter_context(table.LimitServer(uri, "granian"))
            found.append(table.Side("beanstalkd", limit.url, (limit.pid,), pids))
        if os.path.exists(RABBITMQ):
            url, pids = stack.enter_context(rabbitmq())
            found.append(table.Side("rabbitmq", url, pids, ()))
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2)
    arguments = parser.parse_args()
    os.environ["AUTHORIZATION"] = GUEST
    with sides() as found:
        names = [side.name for side in found]
        print("| requests/s (p99 ms) | " + " | ".join(names) + " |\n|---|" + "--:|" * len(names))
        for row in ROWS:
            rounds: dict[str, list[table.Measured]] = {name: [] for name in names}
            for _ in range(arguments.rounds):
                for side in found:
                    asked = of_rabbitmq(row) if side.name == "rabbitmq" else row
                    if asked is None or (side.name == "beanstalkd" and row.name.startswith("claim")):
                        continue
                    stock(side, row, arguments.seconds)
                    rounds[side.name].append(table.load(side, asked, FIRST, arguments.seconds))
            print(f"| {row.name} | " + " | ".join(map(cell, rounds.values())) + " |", flush=True)


def cell(rounds: Sequence[table.Measured]) -> str:
    """What is told of a side."""
    if not rounds:
        return ""
    failed = sum(each.failed for each in rounds)
    told = f"{median(each.per_second for each in rounds):.0f} ({median(each.p99 for each in rounds):.0f})"
    return told + (f", {failed} failed" if failed else "")


if __name__ == "__main__":
    main()
