# SPDX-License-Identifier: Apache-2.0
"""The server feature for the administration of pools and flavors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import falcon

from zq.core import Broker
from zq.http.features import Feature, Json
from zq.model.limits import Limits
from zq.model.modes import Mode
from zq.pools import openapi
from zq.pools.catalogue import Pools
from zq.pools.mover import Mover, Server
from zq.pools.moves import Moves, PoolRelocation
from zq.pools.resources import (
    FLAVORS,
    POOLS,
    FlavorCollection,
    FlavorItem,
    MoveCollection,
    MoveItem,
    PoolCollection,
    PoolItem,
)
from zq.storage.api import Storage


class PoolsFeature(Feature):
    """The routes ``/v2/pools…`` and ``/v2/flavors…``.

    If ``moves`` is ``None``, there are no routes for moving queues to another pool.
    """

    tags = {
        "pools": "Pools and flavors. Servers without admin_mode and pooling respond with 404, "
        "and so do the paths of moves without [pooling:catalog] queue_moves."
    }
    path_parameters = openapi.PATH_PARAMETERS

    def __init__(self, pools: Pools, moves: Moves | None = None) -> None:
        self._pools = pools
        self._moves = moves

    def operations(self, limits: Limits) -> Mapping[str, Mapping[str, Json]]:
        moves = {} if self._moves is None else openapi.moves(limits)
        return {"pools": openapi.pools(limits) | moves | openapi.flavors(limits)}

    def schemas(self, limits: Limits) -> Mapping[str, Json]:
        return openapi.schemas(has_moves=self._moves is not None)

    def add_routes(self, app: "falcon.App[Any, Any]") -> None:
        app.add_route(POOLS, PoolCollection(self._pools))
        app.add_route(f"{POOLS}/{{pool}}", PoolItem(self._pools))
        if self._moves is not None:
            app.add_route(f"{POOLS}/{{pool}}/moves", MoveCollection(self._moves))
            app.add_route(f"{POOLS}/{{pool}}/moves/{{move}}", MoveItem(self._moves))
        app.add_route(FLAVORS, FlavorCollection(self._pools))
        app.add_route(f"{FLAVORS}/{{flavor}}", FlavorItem(self._pools))


class PoolsMoverFeature(Feature):
    """The background thread that moves queues between pools. It runs in each server with the option ``queue_moves``."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover

    @property
    def moves(self) -> Moves:
        return self._mover.moves

    def start(self) -> None:
        self._mover.start()

    def stop(self) -> None:
        self._mover.stop()


class ServerProcess(Protocol):
    """A server process that shares the store: its address (``host:port``), process id and version of zq."""

    @property
    def server(self) -> str: ...

    @property
    def process(self) -> int: ...

    @property
    def version(self) -> str: ...


def pools_mover_feature(
    relocation: PoolRelocation,
    catalogue: Storage,
    core: Broker,
    read_processes: Callable[[], Iterable[ServerProcess]],
) -> PoolsMoverFeature:
    """Create the feature that moves queues between pools.

    Args:
        catalogue: The store that contains the definitions of the pools.
        read_processes: Returns all server processes that use this store.
    """
    clock = core.waiters.clock

    def create_moves(wake: Callable[[], object]) -> Moves:
        return Moves(relocation, catalogue, clock, core.limits, wake)

    def find_servers() -> Sequence[Server]:
        return [Server(one.server.rpartition(":")[0], one.process, one.version) for one in read_processes()]

    def is_read_only() -> bool:
        return core.modes.current is Mode.READ_ONLY

    return PoolsMoverFeature(Mover(relocation, catalogue, clock, create_moves, find_servers, is_read_only))
