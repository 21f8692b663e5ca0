# SPDX-License-Identifier: Apache-2.0
"""The servers that ``bench.table`` compares, each on its own empty store."""

import os
import sys
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench.empty import EmptyServer
from bench.zaqar import ZaqarServer, environment
from tests.abilities import able
from tests.binaries import Missing, binary
from tests.servers import Lost, Startable, ZqServer, ask, free_port, spawn, wait_for
from tests.stores import MongoServer, RedisServer

TICKS: Final = os.sysconf("SC_CLK_TCK")
# Threads of the limit and of the empty application. With fewer, the limit's posts share fewer syncs.
THREADS: Final = 16
STORES: Final = ("rocksdb", "redis", "mongodb")
ENGINES: Final = ("granian", "gunicorn")
NAMES: Final = ("zq", "limit", "empty", "zaqar")
ALSO: Final = {"embedded": "rocksdb"}
"""Other names of stores."""


class Side(NamedTuple):
    """A measured server, with its processes and those of its store."""

    name: str
    url: str
    leaders: tuple[int, ...]
    store: tuple[int, ...]


def choice(what: str, known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a parser of comma-separated names, which refuses other names than ``known``."""

    def read(given: str) -> list[str]:
        names = [ALSO.get(name.strip(), name.strip()) for name in given.split(",")]
        for name in names:
            if name not in known:
                raise ArgumentTypeError(f"{name!r} is no {what}: there are {', '.join(known)}.")
        return names

    return read


def available(stores: Sequence[str]) -> Iterator[str]:
    """Yield the stores whose servers are installed; print what is missing for the others."""
    for store in stores:
        try:
            if store == "mongodb":
                binary("mongod")
            elif store == "redis" and not able("redis-server"):
                binary("valkey-server")
            yield store
        except Missing as missing:
            print(f"{store} is left out: {missing}", file=sys.stderr)


class LimitServer(Startable):
    """``bench.limit_service`` in its own process."""

    def __init__(self, uri: str, engine: str) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._uri = uri
        self._command = {
            "gunicorn": f"gunicorn -k gthread -w 1 --threads {THREADS} --no-control-socket --keep-alive 65"
            f" --log-level warning -b 127.0.0.1:{self._port} bench.limit_service:app",
            "granian": f"granian --interface wsgi --workers 1 --blocking-threads {THREADS}"
            f" --log-level error --port {self._port} bench.limit_service:app",
        }[engine].split()

    def start(self) -> "LimitServer":
        self._process = spawn([sys.executable, "-m", *self._command], env={**os.environ, "LIMIT_STORE": self._uri})
        wait_for(self._answers, 30, "the limit answers")
        return self

    def _answers(self) -> bool:
        try:
            return ask(self.url, "GET", "/v2/queues/bq0/messages").status == 200
        except Lost:
            return False

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)


class Used(NamedTuple):
    """Seconds of processor time: of programs, and of the kernel on their behalf."""

    user: float
    system: float


def used_by(leaders: Sequence[int]) -> Used:
    """Return the processor time that the groups of these processes have used."""
    found = [*_group_members(leaders)]
    return Used(*(sum(int(fields[at]) for _, fields in found) / TICKS for at in (11, 12)))


def pids_of(leaders: Sequence[int]) -> list[int]:
    """Return the processes of the groups of these processes."""
    return [pid for pid, _ in _group_members(leaders)]


def _group_members(leaders: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """Yield each process with the fields of its ``stat`` after the command."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) in leaders:
                yield int(entry.name), fields


def seconds_of(leaders: Sequence[int]) -> float:
    return sum(used_by(leaders))


@contextmanager
def sides(store: str, engine: str, names: Sequence[str], processes: int) -> Iterator[list[Side]]:
    """Yield the servers, zq with ``processes`` processes. Zaqar has no embedded store and is omitted there."""
    with ExitStack() as stack:
        found = []
        for name in names:
            uri, plain, owners = stack.enter_context(on_store(store)) if name != "empty" else ("", "", ())
            if name == "zq":
                config = f"[server]\nworkers = {processes}\n"
                server = stack.enter_context(ZqServer(uri, engine=engine, config=config, forked=False))
                found.append(Side(name, server.url, (server.pid,), owners))
            elif name == "limit":
                limit = stack.enter_context(LimitServer(uri, engine))
                found.append(Side(name, limit.url, (limit.pid,), owners))
            elif name == "empty":
                found.append(Side(name, stack.enter_context(EmptyServer(engine)).url, (), ()))
            elif plain:
                peer = ZaqarServer(environment(), plain)
                found.append(Side(name, stack.enter_context(peer).url, (), owners))
        yield found


@contextmanager
def on_store(store: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield an empty store: its URI, the plain one for Zaqar, and its processes, if it has any."""
    if store == "rocksdb":
        with tempfile.TemporaryDirectory() as folder:
            yield f"rocksdb://{folder}/store", "", ()
    elif store == "redis":
        with RedisServer("redis-server" if able("redis-server") else None) as redis:
            yield redis.uri, redis.uri.removesuffix("/0"), (redis.pid,)
    else:
        with MongoServer(ttl_seconds=60) as mongo:
            yield mongo.uri, f"mongodb://{mongo.address}", (mongo.pid,)
