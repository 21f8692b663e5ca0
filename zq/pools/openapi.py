# SPDX-License-Identifier: Apache-2.0
"""OpenAPI operations and schemas of ``/v2/pools`` and ``/v2/flavors``."""

from typing import Any, Final

from zq.http.openapi.operations import (
    NAME_SCHEMA,
    TEXT,
    Json,
    answer,
    body,
    flag,
    in_path,
    integer,
    operation,
    query,
    reference,
)
from zq.http.openapi.structs import answer_schemas, page_schema
from zq.model.limits import DEFAULT_PAGE, Limits
from zq.pools.catalogue import FLAVOR_CHANGE, NEW_FLAVOR, NEW_POOL, POOL_CHANGE
from zq.pools.moves import NEW_MOVE
from zq.pools.resources import ShownFlavor, ShownMove, ShownPool

PATH_PARAMETERS: Final = {"move": in_path("move", NAME_SCHEMA, "The id of a move.")}


def pools(limits: Limits) -> Json:
    """Return the OpenAPI path items for pools, as a mapping from path to operations."""
    detailed = flag("detailed", "Include each pool's options.")
    one = {200: "Pool"}
    return {
        "/v2/pools": {
            "get": operation(
                "list_pools",
                "List pools",
                {200: answer("A page.", "PoolPage", "Content-Location")},
                parameters=_paging(limits.max_pools_per_page, "pools", detailed),
            )
        },
        "/v2/pools/{pool}": {
            "get": operation("get_pool", "Get a pool", one, parameters=[detailed], errors=[404]),
            "put": operation(
                "put_pool",
                "Create or replace a pool",
                {201: answer("Created.", "", "Location")},
                body=body("NewPool", required=True),
                errors=[409],
            ),
            "patch": operation(
                "update_pool", "Change a pool", one, body=body("PoolChange", required=True), errors=[404, 409]
            ),
            "delete": operation("delete_pool", "Delete a pool without queues", {204: ""}),
        },
    }


def moves(limits: Limits) -> Json:
    """Return the OpenAPI path items for moves of queues, as a mapping from path to operations."""
    return {
        "/v2/pools/{pool}/moves": {
            "get": operation(
                "list_moves",
                "List the moves of queues to a pool",
                {200: "MovePage"},
                parameters=_paging(limits.max_pools_per_page, "moves"),
            ),
            "post": operation(
                "move_queue",
                "Move a queue to a pool",
                {202: answer("Requested; the estimate is in the body.", "Move", "Location")},
                body=body("NewMove", required=True),
                errors=[404, 409],
            ),
        },
        "/v2/pools/{pool}/moves/{move}": {
            "get": operation("get_move", "Get a move", {200: "Move"}, errors=[404]),
            "delete": operation("cancel_move", "Cancel a move", {204: ""}, errors=[404, 409]),
        },
    }


def flavors(limits: Limits) -> Json:
    """Return the OpenAPI path items for flavors, as a mapping from path to operations."""
    detailed = flag("detailed", "Include each flavor's capabilities.")
    one = {200: "Flavor"}
    return {
        "/v2/flavors": {
            "get": operation(
                "list_flavors",
                "List the project's flavors",
                {200: "FlavorPage"},
                parameters=_paging(limits.max_flavors_per_page, "flavors", detailed),
            )
        },
        "/v2/flavors/{flavor}": {
            "get": operation("get_flavor", "Get a flavor", one, errors=[404]),
            "put": operation(
                "put_flavor",
                "Create a flavor",
                {201: answer("Created.", "", "Location")},
                body=body("NewFlavor", required=True),
            ),
            "patch": operation(
                "update_flavor",
                "Replace the pools of a flavor",
                one,
                body=body("FlavorChange", required=True),
                errors=[404],
            ),
            "delete": operation("delete_flavor", "Delete a flavor", {204: ""}),
        },
    }


def schemas(has_moves: bool) -> Json:
    """Return the JSON schemas of pools, flavors and the health report, by name.

    If ``has_moves`` is true, the result also contains the schemas of moves.
    """
    moves = {"MovePage": page_schema("moves", "Move"), "NewMove": NEW_MOVE} | answer_schemas(Move=ShownMove)
    return (
        answer_schemas(Pool=ShownPool, Flavor=ShownFlavor)
        | (moves if has_moves else {})
        | {
            "HealthReport": {
                "type": "object",
                "properties": {"catalog_reachable": {"type": "boolean"}},
                "required": ["catalog_reachable"],
                "additionalProperties": reference("schemas", "StoreReport"),
            },
            "PoolPage": page_schema("pools", "Pool"),
            "NewPool": NEW_POOL,
            "PoolChange": POOL_CHANGE | {"minProperties": 1},
            "FlavorPage": page_schema("flavors", "Flavor"),
            "NewFlavor": NEW_FLAVOR,
            "FlavorChange": FLAVOR_CHANGE,
        }
    )


def _paging(max_page: int, things: str, *more: Json) -> list[Any]:
    return [
        query("marker", TEXT, "List names after this one."),
        query("limit", integer(1, max_page, default=DEFAULT_PAGE), f"Maximum number of {things} in the page."),
        *more,
    ]
