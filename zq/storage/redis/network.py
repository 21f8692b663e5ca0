# SPDX-License-Identifier: Apache-2.0
"""Selection of the server for a key: a single server, a master behind Sentinels, or a cluster."""

import contextlib
import random
import threading
from typing import Any, Protocol

from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import AskError, ConnectionError, NoPermissionError

from zq.storage.redis.address import Address, Host
from zq.storage.redis.connections import VENDOR, Pool, connection_options, pool_to
from zq.storage.redis.failover import POLL_TIMEOUT, SentinelNetwork

Node: Any = ClusterNode
"""redis-py's cluster node, typed as ``Any`` because redis-py has no types for this class."""


class Network(Protocol):
    """The servers of a store, and the mapping from keys to servers."""

    name: str
    """Address for error messages, without credentials."""

    def pool(self, key: bytes) -> Pool:
        """Return the pool of the key's server. Raises ``RedisError`` if no server is available."""
        ...

    def any_pool(self) -> Pool:
        """Return the pool of any server. Raises ``RedisError`` if no server is available."""
        ...

    def pools(self) -> list[Pool]:
        """Return the pools of all servers. Raises ``RedisError`` if no server is available."""
        ...

    def relearn(self) -> None:
        """Reload the mapping from keys to servers. Ignore failures."""
        ...

    def relearn_later(self) -> None:
        """Reload the mapping from keys to servers in the background."""
        ...

    def is_current(self, pool: Pool) -> bool:
        """Return whether the pool is connected to the current master; a write to any other server may be lost.

        Raises ``RedisError`` if the current master is not known in time.
        """
        ...

    def redirected_pool(self, error: AskError) -> Pool:
        """Return the connection pool of the server to which an ASK reply redirects a request."""
        ...

    def close(self) -> None: ...


class SingleServer:
    """A store on a single server."""

    def __init__(self, pool: Pool, name: str) -> None:
        self.name = name
        self._pool = pool

    def pool(self, key: bytes) -> Pool:
        return self._pool

    def any_pool(self) -> Pool:
        return self._pool

    def pools(self) -> list[Pool]:
        return [self._pool]

    def relearn(self) -> None:
        """Do nothing: there is only one server."""

    def relearn_later(self) -> None:
        """Do nothing: there is only one server."""

    def is_current(self, pool: Pool) -> bool:
        return True

    def redirected_pool(self, error: AskError) -> Pool:
        raise error

    def close(self) -> None:
        self._pool.retire()


class Cluster:
    """A Redis cluster. redis-py's cluster client maps the cluster's slots to servers."""

    def __init__(self, address: Address, options: dict[str, Any]) -> None:
        self.name = address.name
        self._lock = threading.Lock()
        self._learning = threading.Lock()
        self._pools: dict[str, Pool] = {}
        self._address, self._options = address, options
        self._client: Any = None

    def pool(self, key: bytes) -> Pool:
        node = self._connected().get_node_from_key(key)
        if node is None:
            raise ConnectionError("No server owns the slot of the key.")
        return self._pool_to(node)

    def any_pool(self) -> Pool:
        return self._pool_to(random.choice(self._connected().get_primaries()))

    def pools(self) -> list[Pool]:
        return [self._pool_to(node) for node in self._connected().get_primaries()]

    def relearn(self) -> None:
        # Ignore failures: the next operation reloads the mapping again and reports the failure.
        with self._learning, contextlib.suppress(*VENDOR):
            self._connected().nodes_manager.initialize()

    def relearn_later(self) -> None:
        if not self._learning.locked():
            threading.Thread(target=self.relearn, name="zq-redis-cluster", daemon=True).start()

    def is_current(self, pool: Pool) -> bool:
        return True

    def redirected_pool(self, error: AskError) -> Pool:
        node = self._connected().get_node(host=error.host, port=error.port)
        if node is None:
            raise error
        return self._pool_to(node)

    def close(self) -> None:
        for pool in list(self._pools.values()):
            pool.retire()
        if self._client is not None:
            self._client.close()

    def _connected(self) -> Any:
        if self._client is None:
            with self._lock:
                if self._client is None:
                    nodes: Any = [Node(host, port) for host, port in self._address.hosts]
                    tls = {} if self._address.tls is None else self._address.tls | {"ssl": True}
                    self._client = RedisCluster(startup_nodes=nodes, **self._options, **tls)
        return self._client

    def _pool_to(self, node: Any) -> Pool:
        pool = self._pools.get(node.name)
        if pool is None:
            with self._lock:
                opened = pool_to(self._address, (node.host, node.port), self._options)
                pool = self._pools.setdefault(node.name, opened)
        return pool


def reach(address: Address, timeout: float) -> Network:
    """Return the ``Network`` for a store's address. This function does not connect to a server."""
    options = connection_options(timeout)
    own = options | address.credentials
    if address.cluster:
        return Cluster(address, own)
    own["db"] = address.db
    if address.master:
        return _sentinel_network(address, options, own, timeout)
    host = None if address.path else address.hosts[0]
    return SingleServer(pool_to(address, host, own), address.name)


def _sentinel_network(
    address: Address, options: dict[str, Any], own: dict[str, Any], timeout: float
) -> SentinelNetwork:
    quick = min(timeout / 8, POLL_TIMEOUT) / len(address.hosts)
    sentinels = options | address.sentinel_credentials
    sentinels |= {"socket_timeout": quick, "socket_connect_timeout": quick}
    masters = own | {"redis_connect_func": check_master}

    def to_sentinel(host: Host) -> Pool:
        return pool_to(address, host, sentinels)

    def to_master(host: Host) -> Pool:
        return pool_to(address, host, masters)

    return SentinelNetwork(address.name, address.master, address.hosts, to_sentinel, to_master, timeout)


def check_master(connection: Any) -> None:
    """Raise ``ConnectionError`` if a new connection leads to a server that is not a master.

    The role is read with INFO, because the Redis user may lack permission for ROLE. If the user lacks permission for
    INFO, accept any server.
    """
    connection.on_connect()
    connection.send_command("INFO", "replication")
    with contextlib.suppress(NoPermissionError):
        if b"role:master" not in connection.read_response(disable_decoding=True).splitlines():
            raise ConnectionError("The server that the Sentinels report is not a master.")
