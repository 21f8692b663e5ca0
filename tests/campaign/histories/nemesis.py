# SPDX-License-Identifier: Apache-2.0
"""Faults of servers and stores during a history: each nemesis harms a deployment and repairs it.

``ZQ_NEMESES`` selects some by name, separated by commas (default: all for the store).
"""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import redis
from pymongo.errors import PyMongoError

from tests.campaign.histories.loiterers import furnish, loitering
from tests.campaign.histories.wire import Wire
from tests.servers import Lost, ZqServer, ask, wait_for
from tests.stores import MongoServer, RedisServer, StoreServer

WANTED = [name for name in os.environ.get("ZQ_NEMESES", "").split(",") if name]
# Seconds within which every server must be ready again on a busy machine.
MENDED_WITHIN = 90.0
# Seconds for which a process is stopped.
STOPPED = 2.0
CUTS = 4
# Seconds for which the responses of the store are late.
SLOWED = 2.5
LATE = 0.3
# Minimum seconds for which slow clients stay.
LOITERED = 2.0
# Seconds within which another request must be answered on a busy machine.
PATIENCE = 20.0
LASTING = ("--appendonly", "yes", "--appendfsync", "always")
ENGINES = ("gunicorn", "granian", "gunicorn")


@dataclass
class Deployment:
    """Servers on one store; ``wires`` are the test's proxies between servers and store, if any."""

    servers: list[ZqServer]
    store: StoreServer | None = None
    wires: list[Wire] = field(default_factory=list)
    sentinel: StoreServer | None = None
    """The Sentinel of the ``pair`` of a master and its replica."""
    pair: Sequence[RedisServer] = ()

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def mended(self) -> None:
        """Return when every server is ready again."""
        for server in self.servers:
            wait_for(server.ready, MENDED_WITHIN, f"{server.url} is ready again:\n{server.output[-2000:]}")


class Sentinel(RedisServer):
    """A Sentinel with a quorum of one that fails over only on request, because its timeout is long."""

    def __init__(self, master: RedisServer) -> None:
        super().__init__()
        self._config = self.folder / "sentinel.conf"
        self._config.write_text(
            f"port {self.port}\ndir {self.folder}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds main 60000\nsentinel failover-timeout main 10000\n"
        )

    def command(self) -> list[str]:
        return [self._binary, str(self._config), "--sentinel"]


def admin(server: StoreServer) -> redis.Redis:
    return redis.Redis(port=server.port, socket_timeout=5)


Nemesis = Callable[[Deployment], None]


def kill(deployment: Deployment) -> None:
    """Kill all processes of a zq server and restart it."""
    server = random.choice(deployment.servers)
    server.kill()
    server.start(MENDED_WITHIN)


def stop(deployment: Deployment) -> None:
    """Stop a zq server for a while, and resume it."""
    server = random.choice(deployment.servers)
    with server.frozen():
        time.sleep(STOPPED)


def loiter(deployment: Deployment) -> None:
    """Connect many slow clients to a server, and check that it answers others.

    gunicorn needs a buffering proxy against slow clients.
    """
    server = random.choice([server for server in deployment.servers if server.engine == "granian"])
    furnish(server.url)
    with loitering(server.url):
        time.sleep(LOITERED)
        for method, path, document in (
            ("GET", "/healthz", None),
            ("POST", "/v2/queues/beside/messages", {"messages": [{"body": 1}]}),
        ):
            # 503 is possible while the store recovers from an earlier nemesis.
            wait_for(lambda: is_served(server.url, method, path, document), MENDED_WITHIN, f"{method} {path} succeeds")  # noqa: B023


def is_served(url: str, method: str, path: str, document: object) -> bool:
    try:
        answer = ask(url, method, path, document, timeout=PATIENCE)
    except Lost as error:
        raise AssertionError(f"slow clients keep {method} {path} from being answered") from error
    assert answer.status < 300 or answer.status == 503, answer
    return answer.status < 300


def stop_store(deployment: Deployment) -> None:
    """Stop the store, so that it accepts connections but never answers."""
    assert deployment.store is not None
    with deployment.store.frozen():
        time.sleep(STOPPED)


def kill_store(deployment: Deployment) -> None:
    """Kill the store, which keeps acknowledged data, and restart it."""
    assert deployment.store is not None
    deployment.store.kill()
    deployment.store.start()


def cut(deployment: Deployment) -> None:
    """Break connections to the store, including connections with a response in flight."""
    for _ in range(CUTS):
        random.choice(deployment.wires).cut()
        time.sleep(0.2)


def slow(deployment: Deployment) -> None:
    """Delay all responses of the store to one of the servers."""
    with random.choice(deployment.wires).slowed(LATE):
        time.sleep(SLOWED)


def slow_start(deployment: Deployment) -> None:
    """Restart a server while all responses of the store to it are delayed, for a while longer."""
    server, wire = random.choice(list(zip(deployment.servers, deployment.wires, strict=True)))
    server.kill()
    with wire.slowed(LATE):
        server.launch()
        wait_for(lambda: alive(server), MENDED_WITHIN, f"{server.url} serves:\n{server.output[-2000:]}")
        time.sleep(SLOWED)


def alive(server: ZqServer) -> bool:
    with contextlib.suppress(Lost):
        return ask(server.url, "GET", "/healthz", timeout=5).status == 200
    return False


def step_down(deployment: Deployment) -> None:
    """Make the primary step down; a set with one member elects it again after a second."""
    store = deployment.store
    assert isinstance(store, MongoServer)
    with store.client() as client, contextlib.suppress(PyMongoError):
        client.admin.command({"replSetStepDown": 1, "secondaryCatchUpPeriodSecs": 0, "force": True})
    wait_for(store.answers, MENDED_WITHIN, "there is a primary")


def fail_over(deployment: Deployment) -> None:
    """Make the Sentinel promote the replica, as before a host's upgrade; the old master follows it."""
    old = next(server for server in deployment.pair if role(server) == "master")
    wait_for(lambda: ordered(deployment.sentinel), MENDED_WITHIN, "the Sentinel takes the order")
    wait_for(lambda: role(old) == "slave", MENDED_WITHIN, "the master has stepped down")
    wait_for(lambda: linked(old), MENDED_WITHIN, "it follows the new one")


def ordered(sentinel: StoreServer | None) -> bool:
    """Return whether the Sentinel accepted the failover: the replica must first be eligible."""
    assert sentinel is not None
    with admin(sentinel) as client, contextlib.suppress(redis.ResponseError):
        return bool(client.execute_command("SENTINEL", "FAILOVER", "main"))
    return False


def role(server: RedisServer) -> str:
    with admin(server) as client:
        return str(client.info("replication")["role"])


def linked(server: RedisServer) -> bool:
    with admin(server) as client:
        return client.info("replication").get("master_link_status") == "up"


OF_MONGODB: dict[str, Nemesis] = {
    **{"kill": kill, "stop": stop, "slow-clients": loiter},
    **{"stop-store": stop_store, "kill-store": kill_store, "step-down": step_down, "cut": cut, "slow": slow},
    "slow-start": slow_start,
}
# Nemeses of each kind of deployment. On ``mongodb-mixed``, only the first server draws sequences.
NEMESES: dict[str, dict[str, Nemesis]] = {
    "rocksdb": {"kill": kill, "stop": stop, "slow-clients": loiter},
    "mongodb": OF_MONGODB,
    "mongodb-mixed": OF_MONGODB,
    "redis": {
        **{"kill": kill, "stop": stop, "slow-clients": loiter},
        **{"stop-store": stop_store, "kill-store": kill_store, "cut": cut, "slow": slow},
        "slow-start": slow_start,
    },
    "redis-sentinel": {"failover": fail_over, "kill": kill},
}


def wanted(kind: str) -> dict[str, Nemesis]:
    return {name: nemesis for name, nemesis in NEMESES[kind].items() if not WANTED or name in WANTED}


def befall(deployment: Deployment, nemeses: dict[str, Nemesis], until: float, pause: float) -> list[str]:
    """Apply each nemesis once in random order, repeat until the time is over, and return their names in order."""
    came: list[str] = []
    while nemeses and (not came or time.monotonic() < until):
        for name in random.sample(sorted(nemeses), len(nemeses)):
            if len(came) >= len(nemeses) and time.monotonic() > until:
                break
            time.sleep(pause)
            try:
                nemeses[name](deployment)
                deployment.mended()
            except BaseException as error:
                error.add_note(f"Nemesis {name}, after {came}.")
                raise
            came.append(name)
    return came


@contextlib.contextmanager
def deployed(kind: str, folder: Path) -> Iterator[Deployment]:
    """Start servers on an empty store of a kind (see ``NEMESES``)."""
    with ExitStack() as stack:
        if kind == "rocksdb":
            yield Deployment([stack.enter_context(ZqServer(f"rocksdb://{folder}/store", engine="granian"))])
        elif kind == "redis-sentinel":
            yield watched(stack)
        else:
            mongodb = kind.startswith("mongodb")
            store = stack.enter_context(MongoServer() if mongodb else RedisServer(None, *LASTING))
            wires = [stack.enter_context(Wire(store.port)) for _ in ENGINES]
            form = "mongodb://127.0.0.1:{}/zq?directConnection=true" if mongodb else "redis://127.0.0.1:{}/0"
            env = {"OS_STORAGE:MONGODB__DRAWN_SEQUENCES": "false"} if kind == "mongodb-mixed" else {}
            servers = started(stack, [form.format(wire.port) for wire in wires], env)
            yield Deployment(servers, store, wires)


def watched(stack: ExitStack) -> Deployment:
    """Start a master, a replica, a Sentinel, and servers that use it."""
    master = stack.enter_context(RedisServer(None, *LASTING))
    replica = stack.enter_context(RedisServer(None, *LASTING, "--replicaof", "127.0.0.1", str(master.port)))
    wait_for(lambda: linked(replica), MENDED_WITHIN, "the replica follows")
    sentinel = stack.enter_context(Sentinel(master))
    with admin(sentinel) as client:
        wait_for(lambda: client.sentinel_slaves("main") != [], MENDED_WITHIN, "the Sentinel knows the replica")
    uri = f"redis://127.0.0.1:{sentinel.port}/0?master=main"
    return Deployment(started(stack, [uri] * len(ENGINES)), sentinel=sentinel, pair=(master, replica))


def started(stack: ExitStack, uris: Sequence[str], env: Mapping[str, str] = MappingProxyType({})) -> list[ZqServer]:
    """Start a server for each URI at the same time. ``env`` has variables of all servers except the first one."""
    servers: list[ZqServer] = []
    for uri, engine in zip(uris, ENGINES, strict=True):
        servers.append(ZqServer(uri, engine=engine, env=env if servers else {}))
        stack.callback(servers[-1].close)
        servers[-1].launch()
    Deployment(servers).mended()
    return servers
