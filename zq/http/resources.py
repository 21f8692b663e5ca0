# SPDX-License-Identifier: Apache-2.0
"""HTTP resources that queues and topics share: metadata, stats and purge (contract sections 6, 13).

The constructor argument ``word`` is "queue" or "topic". It appears in paths, policy rules and listings, and is the name
of the attribute of ``req.context`` that contains the queue or topic.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import falcon

from zq import wire
from zq.core.metadata import check_operations
from zq.core.queues import Queues
from zq.core.resources import MetadataResource
from zq.errors import InvalidBody, InvalidParameter, UnsupportedMediaType
from zq.http import query, weight
from zq.http.context import Request
from zq.http.tenant import Audience
from zq.model.allowance import Allowance
from zq.model.scopes import Kind, Verb
from zq.wire import encoding

# Media type of a metadata patch.
PATCH_TYPE = "application/openstack-messaging-v2.0-json-patch"

Resources = MetadataResource[Any, Any]


class ResourceCollection:
    """``/v2/<word>s``: list queues or topics."""

    parameters: ClassVar[tuple[str, ...]] = ("marker", "limit", "detailed", "name")
    """Query parameters of the listing. All other parameters are metadata filters."""

    def __init__(self, resources: Resources, word: str) -> None:
        self._resources = resources
        self._key = f"{word}s"
        self._kind = Kind(word)
        self.policy = {"GET": f"{word}s:get_all"}

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        resp.data = wire.encode(self._page(req, {}))

    def _page(self, req: Request, repeated: dict[str, Any]) -> dict[str, Any]:
        limit, name, detailed = query.integer(req, "limit"), query.text(req, "name"), query.boolean(req, "detailed")
        filters, visible = self._filters(req), self._visible(req)
        if name or filters or visible:
            weight.admit(req, weight.UNKNOWN_MESSAGE_COUNT)
        page = self._resources.list(req.context.project, query.text(req, "marker"), limit, name, filters, visible)
        link = query.next_page_query(page.next, limit=limit, detailed=detailed, name=name, **repeated)
        if link and page.cut:  # the link must keep the filters
            link = {**{key: str(req.params[key]) for key in filters}, **link}
        links = encoding.next_links(f"/v2/{self._key}", link)
        return {self._key: [self._entry(*listed, bool(detailed)) for listed in page.items], "links": links}

    def _visible(self, req: Request) -> Callable[[str], bool] | None:
        allowance: Allowance = req.context.allowance
        return allowance.visible(Verb.OBSERVE, self._kind)

    def _entry(self, name: str, metadata: dict[str, Any], detailed: bool) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": name, "href": f"/v2/{self._key}/{name}"}
        return entry | {"metadata": self._resources.shown(name, metadata)} if detailed else entry

    def _filters(self, req: Request) -> dict[str, int | str]:
        filters: dict[str, int | str] = {}
        for key, value in req.params.items():
            if key not in self.parameters:
                if not isinstance(value, str):
                    raise InvalidParameter(f"{key[:80]}: a metadata filter takes one value.")
                filters[key] = query.as_integer(key, value) if query.looks_like_integer(value) else value
        return filters


class QueueCollection(ResourceCollection):
    """``/v2/queues``: list queues, optionally with the number of queues."""

    parameters: ClassVar[tuple[str, ...]] = (*ResourceCollection.parameters, "with_count")

    def __init__(self, queues: Queues) -> None:
        super().__init__(queues, "queue")
        self._count = queues.count

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        with_count = query.boolean(req, "with_count")
        answer = self._page(req, {"with_count": with_count})
        if with_count and (count := self._count(req.context.project, self._visible(req))):
            answer["count"] = count
        resp.data = wire.encode(answer)


class _SingleResource:
    def __init__(self, resources: Resources, word: str, **policy: str) -> None:
        self._resources = resources
        self._word = word
        self.policy = {method: f"{word}s:{verb}" for method, verb in policy.items()}

    def _ref(self, req: Request) -> Any:
        return getattr(req.context, self._word)


class ResourceItem(_SingleResource):
    """``/v2/<word>s/{<word>}``: get, create, patch or delete a queue or topic."""

    def __init__(self, resources: Resources, word: str, max_metadata: int) -> None:
        super().__init__(resources, word, GET="get", PUT="create", PATCH="update", DELETE="delete")
        self._max_metadata = max_metadata

    def on_get(self, req: Request, resp: falcon.Response, **_path: str) -> None:
        resp.data = wire.encode(self._resources.metadata(self._ref(req)))

    def on_put(self, req: Request, resp: falcon.Response, **_path: str) -> None:
        ref = self._ref(req)
        created = self._resources.create(ref, query.body(req, self._max_metadata), req.context.allowance)
        resp.status = falcon.HTTP_201 if created else falcon.HTTP_204
        resp.set_header("Location", f"/v2/{self._word}s/{ref.name}")

    def on_patch(self, req: Request, resp: falcon.Response, **_path: str) -> None:
        raw = query.body(req, self._max_metadata)
        if req.content_type != PATCH_TYPE:
            raise UnsupportedMediaType(f"Content-Type must be {PATCH_TYPE}.")
        if not raw:
            raise InvalidBody("The body is missing.")
        operations = wire.patch(raw)
        check_operations(operations)
        resp.data = wire.encode(self._resources.patch(self._ref(req), operations, req.context.allowance))

    def on_delete(self, req: Request, resp: falcon.Response, **_path: str) -> None:
        req.context.removed = self._resources.delete(self._ref(req))
        resp.status = falcon.HTTP_204


class ResourceStats(_SingleResource):
    """``/v2/<word>s/{<word>}/stats``: message counts."""

    def __init__(self, resources: Resources, word: str) -> None:
        super().__init__(resources, word, GET="stats")

    def on_get(self, req: Request, resp: falcon.Response, **_path: str) -> None:
        detailed, ref = query.boolean(req, "detailed"), self._ref(req)
        seen = self._resources.stats(ref)
        resp.data = encoding.stats(f"/v2/{self._word}s/{ref.name}", seen.value, seen.now, bool(detailed))


class QueueDepth:
    """``/v2/queues/{queue}/depth``: message counts for autoscalers. Requires no client id."""

    audience = Audience.PROJECT
    policy: ClassVar[dict[str, str]] = {"GET": "queues:stats"}

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def on_get(self, req: Request, resp: falcon.Response, **_path: str) -> None:
        seen = self._queues.depth(req.context.queue)
        resp.data = encoding.depth(seen.value, seen.now)


class ResourcePurge(_SingleResource):
    """``/v2/<word>s/{<word>}/purge``: delete messages, subscriptions or both."""

    def __init__(self, resources: Resources, word: str) -> None:
        super().__init__(resources, word, POST="purge")

    def on_post(self, req: Request, resp: falcon.Response, **_path: str) -> None:
        raw = query.body(req)
        req.context.removed = self._resources.purge(self._ref(req), wire.purge_types(raw) if raw else None)
        resp.status = falcon.HTTP_204
