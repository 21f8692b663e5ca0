# SPDX-License-Identifier: Apache-2.0
"""HTTP resources ``/v2/pools`` and ``/v2/flavors`` (contract sections 11, 12)."""

from math import ceil
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import falcon
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from zq import wire
from zq.http import query
from zq.http.context import Request
from zq.model.hidden import is_hidden
from zq.model.pools import MAX_WEIGHT, Pool
from zq.model.store_uri import mask_uri
from zq.pools.catalogue import Flavor, Pools
from zq.pools.moves import Move, Moves, Phase
from zq.wire import encoding

POOLS: Final = "/v2/pools"
FLAVORS: Final = "/v2/flavors"


class ShownPool(Struct, frozen=True):
    """A pool.

    Attributes:
        uri: URI of the store. Its credential and its options are masked.
        options: Options of the pool. Only in responses to requests with ``detailed=true``.
        has_queues: Whether the pool has queues, or had queues a few minutes ago, so that it cannot be deleted. Only in
            responses to requests with ``detailed=true``.
    """

    name: str
    uri: str
    weight: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_WEIGHT})]
    flavor: str | None
    href: str
    options: dict[str, Any] | UnsetType = UNSET
    has_queues: bool | UnsetType = UNSET


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


class ShownMove(Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """A move of a queue to another pool.

    Attributes:
        queues: Names of the queues that move together.
        from: Name of the former pool, or "" for the default pool.
        to: Name of the pool to which the queues move.
        messages: Number of messages to copy.
        copied: Number of copied messages, history entries, idempotency keys and queues.
        estimated_seconds: Estimated seconds for which the queues accept no changes.
        estimate: Whether ``estimated_seconds`` is based on the measured rate of an earlier move, or on an assumed rate.
        requested: Unix time of the request.
        ended: Unix time at which the move ended.
        error: The reason why the move has failed.
    """

    id: str
    project: str
    queue: str
    queues: list[str]
    source: str
    target: str
    phase: Phase
    messages: int
    copied: int
    estimated_seconds: int
    estimate: Literal["measured", "assumed"]
    requested: float
    href: str
    ended: float | UnsetType = UNSET
    error: str | UnsetType = UNSET


class _Resource:
    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def _format(self, name: str, pool: Pool, detailed: bool) -> ShownPool:
        shown = ShownPool(name, mask_uri(pool.uri), pool.weight, pool.flavor, _href(POOLS, name))
        if detailed:
            shown = structs.replace(shown, options=pool.options, has_queues=self._pools.has_queues(name))
        return shown


class PoolCollection(_Resource):
    """``/v2/pools``: a page of pools."""

    policy = {"GET": "pools:get_all"}

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        limit, detailed = query.integer(req, "limit"), query.boolean(req, "detailed")
        page = self._pools.list(query.text(req, "marker"), limit)
        shown = [self._format(name, pool, bool(detailed)) for name, pool in page.items]
        link = query.next_page_query(page.next, limit=limit, detailed=detailed)
        resp.set_header("Content-Location", req.relative_uri)
        resp.data = encoding.page("pools", shown, POOLS, link)


class PoolItem(_Resource):
    """``/v2/pools/{pool}``: one pool."""

    policy = {"GET": "pools:get", "PUT": "pools:create", "PATCH": "pools:update", "DELETE": "pools:delete"}

    def on_get(self, req: Request, resp: falcon.Response, pool: str) -> None:
        resp.data = wire.encode(self._format(pool, self._pools.get(pool), bool(query.boolean(req, "detailed"))))

    def on_put(self, req: Request, resp: falcon.Response, pool: str) -> None:
        self._pools.put(pool, query.body(req, required=True))
        resp.status = falcon.HTTP_201
        resp.set_header("Location", _href(POOLS, pool))

    def on_patch(self, req: Request, resp: falcon.Response, pool: str) -> None:
        resp.data = wire.encode(self._format(pool, self._pools.patch(pool, query.body(req, required=True)), False))

    def on_delete(self, _req: Request, resp: falcon.Response, pool: str) -> None:
        self._pools.delete(pool)
        resp.status = falcon.HTTP_204


class MoveCollection:
    """``/v2/pools/{pool}/moves``: the moves of queues to the pool."""

    policy = {"GET": "pools:get_all", "POST": "pools:move"}

    def __init__(self, moves: Moves) -> None:
        self._moves = moves

    def on_get(self, req: Request, resp: falcon.Response, pool: str) -> None:
        limit = query.integer(req, "limit")
        page = self._moves.list(pool, query.text(req, "marker"), limit)
        link = query.next_page_query(page.next, limit=limit)
        resp.data = encoding.page("moves", [*map(_format_move, page.items)], _href_of_moves(pool), link)

    def on_post(self, req: Request, resp: falcon.Response, pool: str) -> None:
        shown = _format_move(self._moves.start(pool, req.context.project, query.body(req, required=True)))
        resp.status = falcon.HTTP_202
        resp.set_header("Location", shown.href)
        resp.data = wire.encode(shown)


class MoveItem:
    """``/v2/pools/{pool}/moves/{move}``: one move."""

    policy = {"GET": "pools:get", "DELETE": "pools:move"}

    def __init__(self, moves: Moves) -> None:
        self._moves = moves

    def on_get(self, _req: Request, resp: falcon.Response, pool: str, move: str) -> None:
        resp.data = wire.encode(_format_move(self._moves.get(pool, move)))

    def on_delete(self, _req: Request, resp: falcon.Response, pool: str, move: str) -> None:
        self._moves.cancel(pool, move)
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


def _format_move(move: Move) -> ShownMove:
    return ShownMove(
        id=move.id,
        project=move.project,
        queue=move.queue,
        queues=[queue.name for queue in move.refs if not is_hidden(queue)],
        source=move.source,
        target=move.target,
        phase=move.phase,
        messages=move.messages,
        copied=move.copied,
        estimated_seconds=ceil(move.estimate),
        estimate="measured" if move.is_measured else "assumed",
        requested=move.requested,
        href=f"{_href_of_moves(move.target)}/{move.id}",
        ended=UNSET if move.ended is None else move.ended,
        error=move.error or UNSET,
    )


def _href_of_moves(pool: str) -> str:
    return f"{_href(POOLS, pool)}/moves"


def _format_flavor(flavor: Flavor) -> ShownFlavor:
    return ShownFlavor(flavor.name, _href(FLAVORS, flavor.name), flavor.pools, flavor.capabilities)


def _list_entry(flavor: Flavor, detailed: bool) -> ShownFlavor:
    capabilities = flavor.capabilities if detailed else UNSET
    return ShownFlavor(flavor.name, _href(FLAVORS, flavor.name), flavor.pools or UNSET, capabilities)


def _href(path: str, name: str) -> str:
    return f"{path}/{quote(name, safe='')}"
