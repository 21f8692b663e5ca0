# SPDX-License-Identifier: Apache-2.0
"""zq on its embedded store compared with other queue services, with 16 connections and 8 durable queues.

``python -m bench.others [--rounds 3] [--seconds 2] [--sides NAME,...] [--json FILE]`` needs wrk on PATH, and prints
which services are not installed. Redis Streams, beanstalkd and pgmq on PostgreSQL have no HTTP interface: they run
behind the application and the engine of ``bench.limit_service``. RabbitMQ is measured over its own HTTP API. SQS is
simulated by moto, which is made for tests, not for speed, and keeps everything in memory. None of these services lists
a page or moves a message atomically, so there are rows only for posts and for taking ten messages.

ElasticMQ is not included: it needs Java, and no registry of Python, npm or Debian has it.
"""

import argparse
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import quote

from bench import table
from bench.sides import LimitServer, Side, choice
from bench.sides import sides as servers
from bench.zaqar import environment
from tests.abilities import able, demand
from tests.servers import Lost, ask, free_port, spawn, wait_for
from tests.stores import RedisServer

NAMES: Final = ("Redis Streams", "beanstalkd", "pgmq", "RabbitMQ", "moto (SQS)")
MOTO: Final = ("moto[server]==5.2.5",)
FIRST: Final = table.Case(connections=16, size=100, queues=8, tenants=1, backlog=0, processes=1)
NAMED: Final = ("post 1", "post 10", "claim 10", "claim+settle 10", "pop 10")
ROWS: Final = [row for row in table.ROWS if row.name in NAMED]
RABBITMQ: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the program on PATH changes the user
FORM: Final = "application/x-www-form-urlencoded"
CREDENTIAL: Final = "x/20260101/us-east-1/sqs/aws4_request"  # moto selects the service by it, without verification
SIGNED: Final = f"AWS4-HMAC-SHA256 Credential={CREDENTIAL}, SignedHeaders=host, Signature=0"
GUEST: Final = "Basic " + base64.b64encode(b"guest:guest").decode()
ASKED_BY: Final[Mapping[str, Mapping[str, str]]] = {
    "moto (SQS)": {"AUTHORIZATION": SIGNED, "CONTENT_TYPE": FORM},
    "RabbitMQ": {"AUTHORIZATION": GUEST},
}
"""Variables of ``load.lua`` for the requests to each service."""
PUBLISH: Final = json.dumps(
    {
        "properties": {"delivery_mode": 2},
        "routing_key": "bq0",
        "payload": json.dumps(table.body(FIRST.size)),
        "payload_encoding": "string",
    }
)
GET: Final = '{"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"}'


@contextmanager
def postgresql(programs: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Run PostgreSQL with pgmq's tables and functions from its Python package; commits are durable, as by default."""
    import pgmq.sql
    import psycopg

    port = free_port()
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder:
        if as_user:
            shutil.chown(folder, "postgres")
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
        initdb = [str(programs / "initdb"), "-A", "trust", "-U", "postgres", f"{folder}/data"]
        subprocess.run([*as_user, *initdb], check=True, **quiet)
        settings = [word for name in ("listen_addresses=127.0.0.1", f"port={port}") for word in ("-c", name)]
        server = [str(programs / "postgres"), "-D", f"{folder}/data", "-k", folder, *settings]
        process = spawn([*as_user, *server], **quiet)
        uri = f"postgresql://postgres@127.0.0.1:{port}/postgres"

        def answers() -> bool:
            with suppress(psycopg.OperationalError), psycopg.connect(uri) as connection:
                connection.execute(Path(pgmq.sql.__path__[0], "pgmq.sql").read_bytes())
                return True
            return False

        try:
            wait_for(answers, 60, "PostgreSQL answers")
            yield uri, (process.pid,)
        finally:
            process.send_signal(signal.SIGINT)  # a fast shutdown, which does not wait for clients
            process.wait(60)


def moto_environment() -> Path:
    """Return the folder of an environment for moto, which has many dependencies."""
    return environment(Path.home() / ".cache" / "zq-moto", MOTO, "moto_server")


@contextmanager
def moto() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Run moto with queues of SQS in memory."""
    port = free_port()
    program = moto_environment() / "bin" / "moto_server"
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = spawn([str(program), "-p", str(port)], **quiet)
    url, headers = f"http://127.0.0.1:{port}", {"Authorization": SIGNED, "Content-Type": FORM}

    def made(name: str) -> bool:
        with suppress(Lost):
            return ask(url, "POST", f"/?Action=CreateQueue&QueueName={name}", headers=headers).status == 200
        return False

    try:
        for number in range(FIRST.queues):
            wait_for(lambda: made(f"bq{number}"), 60, "moto answers")  # noqa: B023 (called before the next one)
        yield url, (process.pid,)
    finally:
        process.terminate()
        process.wait(20)


def of_moto(row: table.Row) -> table.Row | None:
    """Return the row in SQS's query protocol, `None` if there is none: deletes need receipts, which no row has."""
    text = quote(json.dumps(table.body(FIRST.size)))
    entry = "&SendMessageBatchRequestEntry.{0}.Id=m{0}&SendMessageBatchRequestEntry.{0}.MessageBody={1}"
    words = {
        "post 1": f"SendMessage&MessageBody={text}",
        "post 10": "SendMessageBatch" + "".join(entry.format(number, text) for number in range(1, 11)),
        "claim 10": "ReceiveMessage&MaxNumberOfMessages=10&VisibilityTimeout=300",
    }
    if row.name not in words:
        return None
    return row._replace(method="POST", posts=0, path="/123456789012/bq{n}", terms=f"Action={words[row.name]}")


@contextmanager
def beanstalkd() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Run beanstalkd, which writes each job to disk before acknowledging it, like zq."""
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
    """Run RabbitMQ with its HTTP API and one durable queue."""
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
            subprocess.run(["epmd", "-kill"], check=False, capture_output=True)  # RabbitMQ leaves epmd running


def of_rabbitmq(row: table.Row) -> table.Row | None:
    """Return the row for RabbitMQ: over HTTP it has no claims, and a post has one message."""
    words = {
        "post 1": row._replace(posts=0, path="/api/exchanges/%2F/amq.default/publish", terms=PUBLISH),
        "pop 10": row._replace(method="POST", path="/api/queues/%2F/bq0/get", terms=GET),
    }
    return words.get(row.name)


def load(side: Side, row: table.Row, seconds: float) -> table.Measured:
    """Load the side with its own headers."""
    return table.load(side, row, FIRST, seconds, **ASKED_BY.get(side.name, {}))


def stock(side: Side, row: table.Row, seconds: float) -> None:
    """Post more messages than the row can take."""
    if side.name in WORDS:
        posts = next(words for words in map(WORDS[side.name], (ROWS[1], ROWS[0])) if words)
        if row.drain:
            load(side, posts, 5 * seconds)
    else:
        table.stock(side, row, FIRST, seconds)


WORDS: Final[dict[str, Callable[[table.Row], table.Row | None]]] = {"RabbitMQ": of_rabbitmq, "moto (SQS)": of_moto}
NO_CLAIMS: Final = ("beanstalkd",)
"""Services without claims over HTTP: a job must be deleted on the connection that reserved it."""


def asked(side: Side, row: table.Row) -> table.Row | None:
    """Return the row for the side, `None` if the side does not support it."""
    if side.name in NO_CLAIMS and row.name.startswith("claim"):
        return None
    return WORDS.get(side.name, lambda it: it)(row)


def missing() -> dict[str, str]:
    """Return the services that are not installed, and how to install them."""
    needed = {
        "Redis Streams": (able("redis-server"), "redis-server: apt-get install redis-server"),
        "beanstalkd": (shutil.which("beanstalkd"), "beanstalkd: apt-get install beanstalkd"),
        "pgmq": (postgresql_programs(), "PostgreSQL: apt-get install postgresql"),
        "RabbitMQ": (os.path.exists(RABBITMQ), "rabbitmq-server: apt-get install rabbitmq-server"),
    }
    modules = {"beanstalkd": "greenstalk", "pgmq": "pgmq"}
    found = {name: how for name, (there, how) in needed.items() if not there}
    for name, module in modules.items():
        if name not in found and find_spec(module) is None:
            found[name] = f"{module}: pip install {module}"
    try:
        moto_environment()
    except subprocess.CalledProcessError:
        found["moto (SQS)"] = f"{MOTO[0]}, which pip could not install from the package index"
    return found


def postgresql_programs() -> Path | None:
    """Return the folder of initdb and postgres, which Debian does not install on PATH."""
    candidates = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    if on_path := shutil.which("initdb"):
        candidates.insert(0, Path(on_path).parent)
    return next((folder for folder in candidates if (folder / "postgres").exists()), None)


@contextmanager
def sides(names: Sequence[str]) -> Iterator[list[Side]]:
    """Yield zq and the named other services."""
    with ExitStack() as stack:
        found = stack.enter_context(servers("rocksdb", "granian", ["zq"], FIRST.processes))

        def behind_limit(name: str, uri: str, pids: tuple[int, ...]) -> None:
            limit = stack.enter_context(LimitServer(uri, "granian"))
            found.append(Side(name, limit.url, (limit.pid,), pids))

        if "Redis Streams" in names:
            options = ("--appendonly", "yes", "--appendfsync", "always")
            redis = stack.enter_context(RedisServer("redis-server", *options))
            behind_limit("Redis Streams", "streams" + redis.uri.removeprefix("redis"), (redis.pid,))
        if "beanstalkd" in names:
            behind_limit("beanstalkd", *stack.enter_context(beanstalkd()))
        if "pgmq" in names and (programs := postgresql_programs()):
            behind_limit("pgmq", *stack.enter_context(postgresql(programs)))
        for name, start in (("RabbitMQ", rabbitmq), ("moto (SQS)", moto)):
            if name in names:
                url, pids = stack.enter_context(start())
                found.append(Side(name, url, pids, ()))
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--sides", type=choice("side", NAMES), default=",".join(NAMES), help="beside zq; all")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    demand("wrk")
    gone = {name: how for name, how in missing().items() if name in arguments.sides}
    for name, how in gone.items():
        print(f"{name} is left out, for want of {how}", file=sys.stderr)
    told = []
    with sides([name for name in arguments.sides if name not in gone]) as found:
        names = [side.name for side in found]
        print("| requests/s (p99 ms) | " + " | ".join(names) + " |\n|---|" + "--:|" * len(names))
        for row in ROWS:
            rounds = measured(found, row, arguments.rounds, arguments.seconds)
            print(f"| {row.name} | " + " | ".join(map(cell, rounds.values())) + " |", flush=True)
            figures = {name: table.Measured.middle(its)._asdict() for name, its in rounds.items() if its}
            told.append({"row": row.name, **FIRST._asdict(), "figures": figures})
    if arguments.json:
        arguments.json.write_text(json.dumps(told, indent=1))


def measured(found: Sequence[Side], row: table.Row, count: int, seconds: float) -> dict[str, list[table.Measured]]:
    """Measure the sides in turn and return the rounds of each."""
    rounds: dict[str, list[table.Measured]] = {side.name: [] for side in found}
    for turn in range(count):
        for side in found:
            if words := asked(side, row):
                if row.drain or not turn:
                    stock(side, row, seconds)
                rounds[side.name].append(load(side, words, seconds))
    return rounds


def cell(rounds: Sequence[table.Measured]) -> str:
    """Return the table cell of a side."""
    if not rounds:
        return ""
    failed = sum(each.failed for each in rounds)
    told = f"{median(each.per_second for each in rounds):.0f} ({median(each.p99 for each in rounds):.0f})"
    told += ", ran dry" if any(each.dry for each in rounds) else ""
    return told + (f", {failed} failed" if failed else "")


if __name__ == "__main__":
    main()
