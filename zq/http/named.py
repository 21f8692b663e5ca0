# SPDX-License-Identifier: Apache-2.0
"""What ``/v2/queues`` and ``/v2/topics`` have in common: metadata, stats, purge (contract 6, 13).

``word`` is queue or topic: it stands in the context, in the policy's rules and, with an s, in paths and listings.
"""

from typing import Any, ClassVar

import falcon

from zq import wire
from zq.broker.named import Named
from zq.broker.vocabulary import check_operations
from zq.errors import InvalidBody, InvalidParameter, UnsupportedMediaType
from zq.http import query
from zq.wire import answers

PATCH_TYPE = "application/openstack-messaging-v2.0-json-patch"

Things = Named[Any, Any]


class Collection:
    """``/v2/<word>s``"""

    parameters: ClassVar[tuple[str, ...]] = ("marker", "limit", "detailed", "name")
    """Those that are no metadata filters."""

    def __init__(self, things: Things, word: str) -> None:
        self._things = things
        self._key = f"{word}s"
        self.policy = {"GET": f"{word}s:get_all"}

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        resp.data = wire.encode(self._page(req, {}))

    def _page(self, req: falcon.Request, repeated: dict[str, Any]) -> dict[str, Any]:
        """A page; its link to the next one repeats what the listing was asked for, and ``repeated``."""
        limit, name, detailed = query.integer(req, "limit"), query.text(req, "name"), query.boolean(req, "detailed")
        filters = self._filters(req)
        page = self._things.list(req.context.project, query.text(req, "marker"), limit, name, filters)
        links = []
        if page.next is not None:
            given = query.repeated({"limit": limit, "detailed": detailed, "name": name} | repeated)
            if page.cut:  # who follows the link must not get what was not asked for
                given = {**{key: str(req.params[key]) for key in filters}, **given}
            links = [answers.next_link(f"/v2/{self._key}", given | {"marker": page.next})]
        return {self._key: [self._entry(*listed, bool(detailed)) for listed in page.items], "links": links}

    def _entry(self, name: str, metadata: dict[str, Any], detailed: bool) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": name, "href": f"/v2/{self._key}/{name}"}
        return entry | {"metadata": self._things.shown(name, metadata)} if detailed else entry

    def _filters(self, req: falcon.Request) -> dict[str, int | str]:
        """The metadata filters: every parameter that the listing does not know."""
        filters: dict[str, int | str] = {}
        for key, value in req.params.items():
            if key not in self.parameters:
                if not isinstance(value, str):
                    raise InvalidParameter(f"{key[:80]}: a metadata filter takes one value.")
                filters[key] = query.as_integer(key, value) if query.looks_like_integer(value) else value
        return filters


class _One:
    """A resource of the thing that the path names."""

    def __init__(self, things: Things, word: str, **policy: str) -> None:
        self._things = things
        self._word = word
        self.policy = {method: f"{word}s:{verb}" for method, verb in policy.items()}

    def _ref(self, req: falcon.Request) -> Any:
        return getattr(req.context, self._word)


class Item(_One):
    """``/v2/<word>s/{<word>}``"""

    def __init__(self, things: Things, word: str, max_metadata: int) -> None:
        super().__init__(things, word, GET="get", PUT="create", PATCH="update", DELETE="delete")
        self._max_metadata = max_metadata

    def on_get(self, req: falcon.Request, resp: falcon.Response, **_path: str) -> None:
        resp.data = wire.encode(self._things.metadata(self._ref(req)))

    def on_put(self, req: falcon.Request, resp: falcon.Response, **_path: str) -> None:
        ref = self._ref(req)
        created = self._things.create(ref, query.body(req, self._max_metadata))
        resp.status = falcon.HTTP_201 if created else falcon.HTTP_204
        resp.set_header("Location", f"/v2/{self._word}s/{ref.name}")

    def on_patch(self, req: falcon.Request, resp: falcon.Response, **_path: str) -> None:
        raw = query.body(req, self._max_metadata)
        if req.content_type != PATCH_TYPE:
            raise UnsupportedMediaType(f"Content-Type must be {PATCH_TYPE}.")
        if not raw:
            raise InvalidBody("The body is missing.")
        operations = wire.patch(raw)
        check_operations(operations)
        resp.data = wire.encode(self._things.patch(self._ref(req), operations))

    def on_delete(self, req: falcon.Request, resp: falcon.Response, **_path: str) -> None:
        self._things.delete(self._ref(req))
        resp.status = falcon.HTTP_204


class Stats(_One):
    """``/v2/<word>s/{<word>}/stats``"""

    def __init__(self, things: Things, word: str) -> None:
        super().__init__(things, word, GET="stats")

    def on_get(self, req: falcon.Request, resp: falcon.Response, **_path: str) -> None:
        detailed, ref = query.boolean(req, "detailed"), self._ref(req)
        more = self._more(ref) if detailed else {}
        stats, now = self._things.stats(ref)
        resp.data = answers.stats(f"/v2/{self._word}s/{ref.name}", stats, now, bool(detailed), more)

    def _more(self, _ref: Any) -> dict[str, int]:
        """Counts besides, for whoever wants details."""
        return {}


class Purge(_One):
    """``/v2/<word>s/{<word>}/purge``"""

    def __init__(self, things: Things, word: str) -> None:
        super().__init__(things, word, POST="purge")

    def on_post(self, req: falcon.Request, resp: falcon.Response, **_path: str) -> None:
        raw = query.body(req)
        self._things.purge(self._ref(req), wire.purge_types(raw) if raw else None)
        resp.status = falcon.HTTP_204
