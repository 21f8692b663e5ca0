# SPDX-License-Identifier: Apache-2.0
"""HTTP resources ``/v2/pools`` and ``/v2/flavors`` (contract sections 11, 12)."""

from typing import Annotated, Any, Final
from urllib.parse import quote

import falcon
from msgspec import UNSET, Meta, Struct, UnsetType

from zq import wire
from zq.http import query
from zq.http.context import Request
from zq.model.pools import MAX_WEIGHT, Pool
from zq.model.store_uri import mask_uri
from zq.pools.catalogue import Flavor, Pools
from zq.wire import encoding

POOLS: Final = "/v2/pools"
FLAVORS: Final = "/v2/flavors"


class ShownPool(Struct, frozen=True):
    """A pool.

    Attributes:
        uri: URI of the store. Its credential and its options are masked.
        options: Options of the pool. Only in responses to requests with ``detailed=true``.
    """

    name: str
    uri: str
    weight: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_WEIGHT})]
    flavor: str | None
    href: str
    options: dict[str, Any] | UnsetType = UNSET


class ShownFlavor(Struct, frozen=True):
    """A flavor.

    Attributes:
        pool_list: Names of the pools. Absent in a listing if the flavor has no pools.
        capabilities: Capabilities of the pools. Absent in a listing without ``detailed=true``.
    """

    name: str
    href: str
    pool_list: list[str] | UnsetType = UNSET
    capabilities: list[str] | UnsetType = UNSET


class _Resource:
    def __init__(self, pools: Pools) -> None:
        self._pools = pools


class PoolCollection(_Resource):
    """``/v2/pools``: a page of pools."""

    policy = {"GET": "pools:get_all"}

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        limit, detailed = query.integer(req, "limit"), query.boolean(req, "detailed")
        page = self._pools.list(query.text(req, "marker"), limit)
        shown = [_format_pool(name, pool, bool(detailed)) for name, pool in page.items]
        link = query.next_page_query(page.next, limit=limit, detailed=detailed)
        resp.set_header("Content-Location", req.relative_uri)
        resp.data = encoding.page("pools", shown, POOLS, link)


class PoolItem(_Resource):
    """``/v2/pools/{pool}``: one pool."""

    policy = {"GET": "pools:get", "PUT": "pools:create", "PATCH": "pools:update", "DELETE": "pools:delete"}

    def on_get(self, req: Request, resp: falcon.Response, pool: str) -> None:
        resp.data = wire.encode(_format_pool(pool, self._pools.get(pool), bool(query.boolean(req, "detailed"))))

    def on_put(self, req: Request, resp: falcon.Response, pool: str) -> None:
        self._pools.put(pool, query.body(req, required=True))
        resp.status = falcon.HTTP_201
        resp.set_header("Location", _href(POOLS, pool))

    def on_patch(self, req: Request, resp: falcon.Response, pool: str) -> None:
        resp.data = wire.encode(_format_pool(pool, self._pools.patch(pool, query.body(req, required=True)), False))

    def on_delete(self, _req: Request, resp: falcon.Response, pool: str) -> None:
        self._pools.delete(pool)
        resp.status = falcon.HTTP_204


class FlavorCollection(_Resource):
    """``/v2/flavors``: a page of the project's flavors."""

    policy = {"GET": "flavors:get_all"}

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        limit, detailed = query.integer(req, "limit"), query.boolean(req, "detailed")
        page = self._pools.list_flavors(req.context.project, query.text(req, "marker"), limit)
        shown = [_list_entry(flavor, bool(detailed)) for flavor in page.items]
        link = query.next_page_query(page.next, limit=limit, detailed=detailed)
        resp.data = encoding.page("flavors", shown, FLAVORS, link)


class FlavorItem(_Resource):
    """``/v2/flavors/{flavor}``: one flavor."""

    policy = {"GET": "flavors:get", "PUT": "flavors:create", "PATCH": "flavors:update", "DELETE": "flavors:delete"}

    def on_get(self, req: Request, resp: falcon.Response, flavor: str) -> None:
        resp.data = wire.encode(_format_flavor(self._pools.get_flavor(req.context.project, flavor)))

    def on_put(self, req: Request, resp: falcon.Response, flavor: str) -> None:
        self._pools.put_flavor(req.context.project, flavor, query.body(req, required=True))
        resp.status = falcon.HTTP_201
        resp.set_header("Location", _href(FLAVORS, flavor))

    def on_patch(self, req: Request, resp: falcon.Response, flavor: str) -> None:
        changed = self._pools.patch_flavor(req.context.project, flavor, query.body(req, required=True))
        resp.data = wire.encode(_format_flavor(changed))

    def on_delete(self, req: Request, resp: falcon.Response, flavor: str) -> None:
        self._pools.delete_flavor(req.context.project, flavor)
        resp.status = falcon.HTTP_204


def _format_pool(name: str, pool: Pool, detailed: bool) -> ShownPool:
    options = pool.options if detailed else UNSET
    return ShownPool(name, mask_uri(pool.uri), pool.weight, pool.flavor, _href(POOLS, name), options)


def _format_flavor(flavor: Flavor) -> ShownFlavor:
    return ShownFlavor(flavor.name, _href(FLAVORS, flavor.name), flavor.pools, flavor.capabilities)


def _list_entry(flavor: Flavor, detailed: bool) -> ShownFlavor:
    capabilities = flavor.capabilities if detailed else UNSET
    return ShownFlavor(flavor.name, _href(FLAVORS, flavor.name), flavor.pools or UNSET, capabilities)


def _href(path: str, name: str) -> str:
    return f"{path}/{quote(name, safe='')}"
