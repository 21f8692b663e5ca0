# SPDX-License-Identifier: Apache-2.0
"""The three kinds of Redis: one server, a master that Sentinels know, a cluster. See ``port.Network``.

A verb has ``timeout`` seconds: a quarter each for a free connection, for the TCP connection and for the handshake's
answers; whatever is left of the whole is for its own answer. redis-py's own repeats are off.
"""

import contextlib
import random
import threading
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import AskError, ConnectionError, NoPermissionError
from redis.retry import Retry

from zq.storage.redis.address import Address
from zq.storage.redis.failover import QUICK, Watched
from zq.storage.redis.lines import CONNECTIONS, RETIRED, VENDOR, Line, Lines
from zq.storage.redis.port import Network
from zq.storage.redis.sentinel import Host

Node: Any = ClusterNode
"""redis-py leaves it without types."""


class Single:
    """One server."""

    def __init__(self, client: Any, name: str) -> None:
        self.name = name
        self._lines = lines_of(client)

    def lines(self, key: bytes) -> Lines:
        return self._lines

    def own_line(self) -> Line:
        return self._lines.own()

    def relearn(self) -> None:
        """Nothing to learn."""

    def doubt(self) -> None:
        """As little."""

    def still(self, lines: Lines) -> bool:
        return True

    def asked(self, error: AskError) -> Lines:
        raise error

    def close(self) -> None:
        self._lines.close()


class Cluster:
    """Many servers; the slot of a key tells which."""

    def __init__(self, address: Address, options: dict[str, Any]) -> None:
        self.name = address.name
        self._lock = threading.Lock()
        self._learning = threading.Lock()
        self._lines: dict[str, Lines] = {}
        self._address, self._options = address, options
        self._client: Any = None

    def lines(self, key: bytes) -> Lines:
        node = self._connected().get_node_from_key(key)
        if node is None:
            raise ConnectionError("Nobody serves the slot of the key.")
        return self._lines_to(node)

    def own_line(self) -> Line:
        return self._lines_to(random.choice(self._connected().get_primaries())).own()

    def relearn(self) -> None:
        # A failure now is no news: the next verb asks again, and tells.
        with self._learning, contextlib.suppress(*VENDOR):
            self._connected().nodes_manager.initialize()

    def doubt(self) -> None:
        if not self._learning.locked():
            threading.Thread(target=self.relearn, name="zq-redis-cluster", daemon=True).start()

    def still(self, lines: Lines) -> bool:
        return True

    def asked(self, error: AskError) -> Lines:
        node = self._connected().get_node(host=error.host, port=error.port)
        if node is None:
            raise error
        return self._lines_to(node)

    def close(self) -> None:
        for lines in list(self._lines.values()):
            lines.close()
        if self._client is not None:
            self._client.close()

    def _connected(self) -> Any:
        if self._client is None:
            with self._lock:
                if self._client is None:
                    nodes: Any = [Node(host, port) for host, port in self._address.hosts]
                    self._client = RedisCluster(startup_nodes=nodes, **self._options)
        return self._client

    def _lines_to(self, node: Any) -> Lines:
        lines = self._lines.get(node.name)
        if lines is None:
            with self._lock:
                lines = self._lines.setdefault(node.name, lines_of(self._client.get_redis_connection(node)))
        return lines


def lines_of(client: Any) -> Lines:
    """Connections as the client's pool would make them; ours keeps and counts them, and lets the listener's go."""
    pool = client.connection_pool
    return Lines(lambda: pool.connection_class(**pool.connection_kwargs))


def reach(address: Address, timeout: float) -> Network:
    """The network behind an address. Nothing is sent yet."""
    options: dict[str, Any] = {
        "socket_timeout": timeout / 4,
        "socket_connect_timeout": timeout / 4,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,
        "protocol": 2,
        "client_name": "zq",
        "max_connections": CONNECTIONS,
    }
    own = options | address.credentials | {"db": address.db}
    if address.cluster:
        return Cluster(address, own_tls(address, options | address.credentials))
    if address.master:
        return watched(address, options, own, timeout)
    if address.path:
        return Single(redis.Redis(unix_socket_path=address.path, **own), address.name)
    [(host, port)] = address.hosts
    return Single(redis.Redis(host=host, port=port, **own_tls(address, own)), address.name)


def watched(address: Address, options: dict[str, Any], own: dict[str, Any], timeout: float) -> Watched:
    """The network of a master behind Sentinels."""
    quick = min(timeout / 8, QUICK) / len(address.hosts)
    sentinels = options | address.sentinel_credentials
    sentinels |= {"socket_timeout": quick, "socket_connect_timeout": quick}

    def connection(host: Host) -> Line:
        return lines_of(redis.Redis(host=host[0], port=host[1], **own_tls(address, sentinels))).own()

    def to_master(host: Host) -> Lines:
        def greet(line: Any) -> None:
            line.on_connect()
            check_role(line)
            if lines.retired:
                raise ConnectionError(RETIRED)

        options = own_tls(address, own) | {"redis_connect_func": greet}
        lines = lines_of(redis.Redis(host=host[0], port=host[1], **options))
        return lines

    return Watched(address.name, address.master, address.hosts, connection, to_master, timeout)


def check_role(line: Any) -> None:
    """Whoever is taken for the master must say that it is one. The user may call INFO, but maybe not ROLE."""
    line.send_command("INFO", "replication")
    with contextlib.suppress(NoPermissionError):
        if b"role:master" not in line.read_response(disable_decoding=True).splitlines():
            raise ConnectionError("The server that the Sentinels name is no master.")


def own_tls(address: Address, options: dict[str, Any]) -> dict[str, Any]:
    return options if address.tls is None else options | address.tls | {"ssl": True}
