# SPDX-License-Identifier: Apache-2.0
"""Groups of Redis servers whose master is replaced by a manual failover, and concurrent posts.

A failover loses the acknowledged messages that the new master lacks. A separate store, opened afterwards, reads the
messages, because a server that is still connected to the old master would find all of them.
"""

import contextlib
import itertools
import json
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import redis

from tests.servers import CLIENT, PROJECT, Startable, ZqServer, free_port, wait_for
from tests.stores import RedisServer
from zq.model import ListFilter, QueueRef
from zq.storage import connect

QUEUE = QueueRef(PROJECT, "jobs")
DEADLINE = 60.0
SLOTS = 16384
WRITERS = 6


class Sentinel(RedisServer):
    """A Sentinel that considers its master dead after ``patience`` ms, because busy machines have long pauses."""

    def __init__(self, binary: str | None, master: int, quorum: int = 1, patience: int = 5000) -> None:
        super().__init__(binary)
        config = self.folder / "sentinel.conf"
        config.write_text(
            f"port {self.port}\ndir {self.folder}\nbind 127.0.0.1\n"
            f"sentinel monitor main 127.0.0.1 {master} {quorum}\n"
            f"sentinel down-after-milliseconds main {patience}\nsentinel failover-timeout main 4000\n"
        )
        self._config = config

    def command(self) -> list[str]:
        return [self._binary, str(self._config), "--sentinel"]


def admin(server: RedisServer) -> redis.Redis:
    return redis.Redis(port=server.port, socket_timeout=5)


def _facts(server: RedisServer) -> dict[str, Any]:
    """Return the server's replication facts; an empty dictionary if it does not answer."""
    with admin(server) as client, contextlib.suppress(redis.RedisError):
        return dict(client.info("replication"))
    return {}


def role(server: RedisServer) -> str:
    return str(_facts(server).get("role", ""))


class Group(Startable):
    """Servers with the same data, of which one is the master; ``uri`` is for a store on them."""

    uri: str

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.servers: list[RedisServer] = []

    def close(self) -> None:
        self._stack.close()

    @property
    @abstractmethod
    def master(self) -> RedisServer:
        """Return the server that the Sentinels or the cluster consider the master."""

    @abstractmethod
    def order(self) -> bool:
        """Request a failover and return whether it was accepted."""

    def settled(self) -> bool:
        """Return whether one server is the master and all others have its data.

        The master already counts a replica as online before the replica has loaded the data.
        """
        master = self.master
        facts = [_facts(server) for server in self.servers if server is not master]
        ready = all(found.get("master_link_status") == "up" for found in facts)
        return ready and _facts(master).get("connected_slaves") == len(facts)


class SentinelGroup(Group):
    """A master with replicas and Sentinels; the store's URI contains ``told`` Sentinels.

    If ``stubborn``, the first master never becomes a replica, so that clients of it can still write after a failover.
    """

    def __init__(
        self,
        binary: str | None = None,
        *,
        replicas: int = 1,
        sentinels: int = 3,
        told: int = 3,
        stubborn: bool = False,
    ) -> None:
        super().__init__()
        self._own = ("--rename-command", "SLAVEOF", "", "--rename-command", "REPLICAOF", "") if stubborn else ()
        self._binary, self._replicas, self._count, self._told = binary, replicas, sentinels, told
        self.sentinels: list[Sentinel] = []

    def start(self) -> Self:
        enter = self._stack.enter_context
        first = enter(RedisServer(self._binary, "--repl-diskless-sync-delay", "0", *self._own))
        follow = ("--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", str(first.port))
        self.servers = [first, *(enter(RedisServer(self._binary, *follow)) for _ in range(self._replicas))]
        quorum = self._count // 2 + 1
        self.sentinels = [enter(Sentinel(self._binary, first.port, quorum)) for _ in range(self._count)]
        wait_for(self._known, DEADLINE, "every Sentinel knows the others and the replicas")
        wait_for(self.settled, DEADLINE, "the replicas follow")
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels[: self._told])
        self.uri = f"redis://{hosts}/0?master=main"
        return self

    @property
    def master(self) -> RedisServer:
        with admin(self.sentinels[-1]) as client:
            _, port = client.sentinel_get_master_addr_by_name("main")
        return next(server for server in self.servers if server.port == port)

    def order(self) -> bool:
        with admin(self.sentinels[-1]) as client:
            try:
                return bool(client.execute_command("SENTINEL", "FAILOVER", "main"))
            except redis.ResponseError:  # no replica is eligible yet
                return False

    def _known(self) -> bool:
        for sentinel in self.sentinels:
            with admin(sentinel) as client:
                peers, followers = client.sentinel_sentinels("main"), client.sentinel_slaves("main")
                if len(peers) < self._count - 1 or len(followers) < self._replicas:
                    return False
        return True


class ClusterGroup(Group):
    """A cluster with all slots on one master, and its replica."""

    def __init__(self, binary: str | None = None) -> None:
        super().__init__()
        self._binary = binary

    def start(self) -> Self:
        buses = [str(free_port()) for _ in range(2)]
        enabled = ("--cluster-enabled", "yes", "--repl-diskless-sync-delay", "0", "--cluster-port")
        for bus in buses:
            self.servers.append(self._stack.enter_context(RedisServer(self._binary, *enabled, bus)))
        first, second = (admin(server) for server in self.servers)
        first.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        second.execute_command("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port, buses[0])
        name = first.execute_command("CLUSTER", "MYID").decode()
        wait_for(lambda: self._follows(second, name), DEADLINE, "the replica is one")
        for client in (first, second):
            wait_for(lambda client=client: client.cluster("info")["cluster_state"] == "ok", DEADLINE, "it is whole")
        wait_for(self.settled, DEADLINE, "the replica follows")
        self.uri = "redis://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers) + "?cluster=true"
        return self

    @property
    def master(self) -> RedisServer:
        found = [server for server in self.servers if role(server) == "master"]
        return found[0] if len(found) == 1 else self.servers[0]

    def order(self) -> bool:
        replica = next(server for server in self.servers if server is not self.master)
        with admin(replica) as client, contextlib.suppress(redis.ResponseError):
            return bool(client.execute_command("CLUSTER", "FAILOVER"))
        return False

    def _follows(self, replica: redis.Redis, master: str) -> bool:
        with contextlib.suppress(redis.ResponseError):
            return bool(replica.execute_command("CLUSTER", "REPLICATE", master))
        return False


class Outcome(NamedTuple):
    """The result of a failover.

    ``acknowledged`` and ``lost`` are numbers of posts, ``outage`` is the longest time in seconds between two
    acknowledged posts, ``failed`` is the number of failed posts, and ``failing`` the time in which they occurred.
    """

    acknowledged: int
    lost: int
    outage: float
    failed: int
    failing: float


class Posts:
    """Threads that post to a server, each the next message as soon as the previous one is answered."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self._numbers = itertools.count(time.monotonic_ns())  # the queue has messages of earlier failovers, too
        self._stopped = threading.Event()
        self.acknowledged: list[tuple[float, int]] = []
        self.failed: list[tuple[float, str]] = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(WRITERS)]

    @contextlib.contextmanager
    def running(self) -> Iterator["Posts"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            for thread in self._threads:
                thread.join(30)

    def go_on(self, number: int = 200) -> None:
        """Return when `number` more posts are acknowledged."""
        enough = len(self.acknowledged) + number
        wait_for(lambda: len(self.acknowledged) >= enough, DEADLINE, "posts are acknowledged")

    def _run(self) -> None:
        connection = HTTPConnection(self._host, timeout=30)
        headers = {"Client-ID": CLIENT, "X-Project-ID": QUEUE.project}
        while not self._stopped.is_set():
            number = next(self._numbers)
            body = json.dumps({"messages": [{"body": number, "ttl": 3600}]})
            try:
                connection.request("POST", f"/v2/queues/{QUEUE.name}/messages", body, headers)
                answer = connection.getresponse()
                said = answer.read().decode()
                if answer.status == 201:
                    self.acknowledged.append((time.monotonic(), number))
                    continue
            except (OSError, HTTPException) as error:
                said = repr(error)
                connection.close()
            self.failed.append((time.monotonic(), said))
            self._stopped.wait(0.02)
        connection.close()


def stored(uri: str) -> list[int]:
    """Return the numbers of all messages that a newly opened store finds."""
    storage = connect(uri, {"timeout": 5.0})
    try:
        found, marker = [], 0
        while True:
            page = storage.messages.list(QUEUE, marker, 1000, ListFilter(claimed=True, delayed=True), storage.now())
            if not page.items:
                return found
            found += [int(message.body) for message in page.items]
            marker = page.items[-1].sequence
    finally:
        storage.close()


def replaced_under_load(group: Group, server: ZqServer) -> Outcome:
    """Post, fail over, and continue to post until the servers have had time to lose messages."""
    former = group.master
    posts = Posts(server.url)
    with posts.running():
        posts.go_on()
        wait_for(group.order, DEADLINE, "the order is taken")
        wait_for(lambda: group.master is not former, DEADLINE, "there is a new master")
        posts.go_on()
        time.sleep(1.5)  # a server unaware of the new master would still use the old one in this time
    return judged(group.uri, posts)


def judged(uri: str, posts: Posts) -> Outcome:
    """Return the outcome of finished posts."""
    return outcome(stored(uri), posts)


def outcome(found: Sequence[int], posts: Posts) -> Outcome:
    """Return the outcome of posts for the messages that were found."""
    assert len(found) == len(set(found)), "A post is there twice."
    missing = {number for _, number in posts.acknowledged} - set(found)
    moments = sorted(moment for moment, _ in posts.acknowledged)
    outage = max(later - earlier for earlier, later in itertools.pairwise(moments))
    failures = [moment for moment, _ in posts.failed]
    failing = max(failures) - min(failures) if failures else 0.0
    return Outcome(len(moments), len(missing), outage, len(failures), failing)
