# SPDX-License-Identifier: Apache-2.0
"""The operations of an administrator: pools, moves of queues between them, flavors, and the quotas of projects."""

from collections.abc import Iterable, Mapping
from typing import Any

from zq.client.calls import Call, Page, Repeat, decode_as, listing, operation, pages, path, read_empty, read_object
from zq.wire.numbers import checked_json
from zq.wire.quotas import ProjectReport


class AdministrationOperations:
    """The operations on pools, flavors and projects.

    All operations except ``flavors`` need the administrator role. ``flavors`` lists the project's own flavors.
    """

    transport: Any

    @listing
    def pools(self, /, *, detailed: bool = False, page: int | None = None) -> Call[Page[dict[str, Any]]]:
        """List the pools (stores that hold queues), ordered by name. Secrets in the URIs are shown as ``***``."""
        return pages("pools", dict[str, Any], path("pools"), {"limit": page, "detailed": detailed or None})

    @operation
    def put_pool(
        self, name: str, uri: str, weight: int, *, flavor: str = "", options: Mapping[str, Any] | None = None
    ) -> Call[None]:
        """Create or replace a pool with a relative ``weight``.

        Raises ``PoolRefused`` if the store cannot be used. Raises ``PoolConflict`` if the store belongs to another
        pool, or if the existing pool has queues and its store would change.
        """
        body = checked_json({"uri": uri, "weight": weight, "flavor": flavor, "options": options or {}})
        return Call(method="PUT", path=path("pools", name), body=body, read=lambda _: None)

    @operation
    def update_pool(
        self,
        name: str,
        *,
        uri: str | None = None,
        weight: int | None = None,
        flavor: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Call[dict[str, Any]]:
        """Change a pool and return it. ``None`` leaves a property unchanged.

        Raises ``PoolNotFound`` for an unknown name, and ``PoolRefused`` or ``PoolConflict`` for an unusable store.
        """
        terms = {"uri": uri, "weight": weight, "flavor": flavor, "options": options}
        body = checked_json({key: value for key, value in terms.items() if value is not None})
        return Call(method="PATCH", path=path("pools", name), body=body, read=read_object)

    @operation
    def delete_pool(self, name: str) -> Call[None]:
        """Delete a pool. Raises ``PoolInUse`` if the pool has queues or is the only pool of its flavor."""
        return Call(method="DELETE", path=path("pools", name), read=read_empty)

    @operation
    def move_queue(self, queue: str, pool: str) -> Call[dict[str, Any]]:
        """Request the move of a queue of the project to another pool. Return the state of the move.

        The member ``estimated_seconds`` estimates for how long the queue will accept no changes.

        Raises ``PoolNotFound``, ``QueueNotFound``, or ``MoveRefused`` with the reason.
        """
        body = checked_json({"queue": queue})
        return Call(method="POST", path=path("pools", pool, "moves"), body=body, repeat=Repeat.UNSENT, read=read_object)

    @listing
    def queue_moves(self, pool: str, /, *, page: int | None = None) -> Call[Page[dict[str, Any]]]:
        """List the moves of queues to the pool, oldest first. A move that has ended is listed for a week."""
        return pages("moves", dict[str, Any], path("pools", pool, "moves"), {"limit": page})

    @operation
    def queue_move(self, pool: str, id: str) -> Call[dict[str, Any]]:
        """Return a move of a queue to the pool. Raises ``MoveNotFound``."""
        return Call(method="GET", path=path("pools", pool, "moves", id), read=read_object)

    @operation
    def cancel_queue_move(self, pool: str, id: str) -> Call[None]:
        """Cancel a move. Raises ``MoveNotFound``, or ``MoveRefused`` if the queue is already in the pool."""
        return Call(method="DELETE", path=path("pools", pool, "moves", id), read=read_empty)

    @listing
    def flavors(self, /, *, page: int | None = None) -> Call[Page[dict[str, Any]]]:
        """List the project's flavors (named sets of pools), ordered by name."""
        return pages("flavors", dict[str, Any], path("flavors"), {"limit": page})

    @operation
    def put_flavor(self, name: str, pools: Iterable[str]) -> Call[None]:
        """Create a flavor (a named set of pools), or add the pools to an existing flavor.

        Raises ``FlavorRefused`` if a pool does not exist, or if the pools have different capabilities.
        """
        body = checked_json({"pool_list": [*pools]})
        return Call(method="PUT", path=path("flavors", name), body=body, read=lambda _: None)

    @operation
    def update_flavor(self, name: str, pools: Iterable[str]) -> Call[dict[str, Any]]:
        """Replace a flavor's pools and return the flavor.

        Raises ``FlavorNotFound`` for an unknown name, and ``FlavorUpdateRefused`` if a pool does not exist or if the
        pools have different capabilities.
        """
        body = checked_json({"pool_list": [*pools]})
        return Call(method="PATCH", path=path("flavors", name), body=body, read=read_object)

    @operation
    def delete_flavor(self, name: str) -> Call[None]:
        """Delete a flavor of the project. The pools of the flavor remain."""
        return Call(method="DELETE", path=path("flavors", name), read=read_empty)

    @listing
    def projects(self, /, *, page: int | None = None) -> Call[Page[ProjectReport]]:
        """List the projects that have settings or have created an object, such as a queue. Include their usage."""
        return pages("projects", ProjectReport, path("admin", "projects"), {"limit": page})

    @operation
    def project(self, name: str) -> Call[ProjectReport]:
        """Return a project's own limits, its state and its usage. An unknown project has no limits and no usage."""
        read = decode_as(ProjectReport)
        return Call(method="GET", path=path("admin", "project"), params={"project": name}, read=read)

    @operation
    def set_limits(self, project: str, limits: Mapping[str, int]) -> Call[ProjectReport]:
        """Replace a project's own limits and return the project. The server's defaults apply to omitted limits."""
        body, read = checked_json({"limits": dict(limits)}), decode_as(ProjectReport)
        where = path("admin", "project")
        return Call(method="PUT", path=where, params={"project": project}, body=body, read=read)
