# SPDX-License-Identifier: Apache-2.0
"""The server feature for the administration of pools and flavors."""

from collections.abc import Mapping
from typing import Any

import falcon

from zq.http.features import Feature, Json
from zq.model.limits import Limits
from zq.pools import openapi
from zq.pools.catalogue import Pools
from zq.pools.resources import FLAVORS, POOLS, FlavorCollection, FlavorItem, PoolCollection, PoolItem


class PoolsFeature(Feature):
    """The routes ``/v2/pools…`` and ``/v2/flavors…``."""

    tags = {"pools": "Pools and flavors. Servers without admin_mode and pooling respond with 404."}

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def operations(self, limits: Limits) -> Mapping[str, Mapping[str, Json]]:
        return {"pools": openapi.pools(limits) | openapi.flavors(limits)}

    def schemas(self, limits: Limits) -> Mapping[str, Json]:
        return openapi.schemas()

    def add_routes(self, app: "falcon.App[Any, Any]") -> None:
        app.add_route(POOLS, PoolCollection(self._pools))
        app.add_route(f"{POOLS}/{{pool}}", PoolItem(self._pools))
        app.add_route(FLAVORS, FlavorCollection(self._pools))
        app.add_route(f"{FLAVORS}/{{flavor}}", FlavorItem(self._pools))
