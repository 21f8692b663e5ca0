# SPDX-License-Identifier: Apache-2.0
"""``/v2/queues`` and below, but messages and claims (contract 6)."""

from typing import Any

import falcon

from zq import wire
from zq.broker import Broker
from zq.broker.metadata import check_operations
from zq.errors import InvalidBody, InvalidParameter, UnsupportedMediaType
from zq.http import query
from zq.wire import answers

PATCH_TYPE = "application/openstack-messaging-v2.0-json-patch"
LISTING_PARAMETERS = ("marker", "limit", "detailed", "name", "with_count")


class QueueCollection:
    """``/v2/queues``"""

    policy = {"GET": "queues:get_all"}

    def __init__(self, broker: Broker) -> None:
        self._queues = broker.queues

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        limit, name = query.integer(req, "limit"), query.text(req, "name")
        detailed, with_count = query.boolean(req, "detailed"), query.boolean(req, "with_count")
        project = req.context.project
        page = self._queues.list(project, query.text(req, "marker"), limit, name, _filters(req))
        answer: dict[str, Any] = {
            "queues": [self._entry(*listed, bool(detailed)) for listed in page.items],
            "links": [],
        }
        if page.next is not None:
            given = {"limit": limit, "detailed": detailed, "name": name, "with_count": with_count}
            answer["links"] = [answers.next_link("/v2/queues", query.repeated(given) | {"marker": page.next})]
        if with_count and (count := self._queues.count(project)):
            answer["count"] = count
        resp.data = wire.encode(answer)

    def _entry(self, name: str, metadata: dict[str, Any], detailed: bool) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": name, "href": f"/v2/queues/{name}"}
        return entry | {"metadata": self._queues.shown(name, metadata)} if detailed else entry


class QueueItem:
    """``/v2/queues/{queue}``"""

    policy = {"GET": "queues:get", "PUT": "queues:create", "PATCH": "queues:update", "DELETE": "queues:delete"}

    def __init__(self, broker: Broker) -> None:
        self._queues = broker.queues
        self._max_metadata = broker.limits.max_queue_metadata

    def on_get(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        resp.data = wire.encode(self._queues.metadata(req.context.queue))

    def on_put(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        created = self._queues.create(req.context.queue, query.body(req, self._max_metadata))
        resp.status = falcon.HTTP_201 if created else falcon.HTTP_204
        resp.set_header("Location", f"/v2/queues/{queue}")

    def on_patch(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        raw = query.body(req, self._max_metadata)
        if req.content_type != PATCH_TYPE:
            raise UnsupportedMediaType(f"Content-Type must be {PATCH_TYPE}.")
        if not raw:
            raise InvalidBody("The body is missing.")
        operations = wire.patch(raw)
        check_operations(operations)
        resp.data = wire.encode(self._queues.patch(req.context.queue, operations))

    def on_delete(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        self._queues.delete(req.context.queue)
        resp.status = falcon.HTTP_204


class QueueStats:
    """``/v2/queues/{queue}/stats``"""

    policy = {"GET": "queues:stats"}

    def __init__(self, broker: Broker) -> None:
        self._queues = broker.queues

    def on_get(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        detailed = query.boolean(req, "detailed")
        stats, now = self._queues.stats(req.context.queue)
        resp.data = answers.stats(queue, stats, now, bool(detailed))


class QueuePurge:
    """``/v2/queues/{queue}/purge``"""

    policy = {"POST": "queues:purge"}

    def __init__(self, broker: Broker) -> None:
        self._queues = broker.queues

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        raw = query.body(req)
        self._queues.purge(req.context.queue, wire.purge_types(raw) if raw else None)
        resp.status = falcon.HTTP_204


def _filters(req: falcon.Request) -> dict[str, int | str]:
    """The metadata filters: every parameter that the listing does not know."""
    filters: dict[str, int | str] = {}
    for key, value in req.params.items():
        if key not in LISTING_PARAMETERS:
            if not isinstance(value, str):
                raise InvalidParameter(f"{key[:80]}: a metadata filter takes one value.")
            filters[key] = query.as_integer(key, value) if query.looks_like_integer(value) else value
    return filters
