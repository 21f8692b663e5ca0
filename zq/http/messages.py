# SPDX-License-Identifier: Apache-2.0
"""``/v2/queues/{queue}/messages`` and below (contract 7)."""

import falcon

from zq import wire
from zq.broker import Broker
from zq.errors import Invalid, NotBuilt
from zq.http import query


class MessageCollection:
    """``/v2/queues/{queue}/messages``"""

    policy = {"GET": "messages:get_all", "POST": "messages:create", "DELETE": "messages:delete_all"}

    def __init__(self, broker: Broker) -> None:
        self._messages = broker.messages
        self._page = broker.limits.max_messages_per_page
        """How many ids a request may name, and so a Location: one of thousands would break clients."""

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        query.refuse_later(req, "stage")
        if "HTTP_IDEMPOTENCY_KEY" in req.env:
            raise NotBuilt("Idempotency-Key: this version of zq does not know this header yet.")
        size = req.content_length or 0
        rules = self._messages.rules(req.context.queue, size)
        posted = wire.posted(query.needed_body(req, rules.max_post_size))
        ids = self._messages.post(req.context.queue, req.context.client, posted, size, rules)
        resp.status = falcon.HTTP_201
        resp.set_header("Location", f"/v2/queues/{queue}/messages?ids={','.join(ids[: self._page])}")
        resp.data = wire.post_result(queue, ids)

    def on_get(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        query.refuse_later(req, "wait", "detailed")
        if ids := query.values(req, "ids"):
            messages, now = self._messages.get_many(req.context.queue, ids)
            resp.data = wire.messages(queue, messages, now)
        else:
            self._list(req, resp, queue)

    def on_delete(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        query.refuse_later(req, "wait", "detailed")
        ids, pop = query.values(req, "ids"), query.integer(req, "pop")
        if bool(ids) == (pop is not None):
            raise Invalid("Exactly one of ids and pop must be given.")
        claims = query.values(req, "claim_ids")
        if pop is None:
            self._messages.delete_many(req.context.queue, ids, claims)
            resp.status = falcon.HTTP_204
        else:
            messages, now = self._messages.pop(req.context.queue, pop, claims)
            resp.data = wire.popped(messages, now)

    def _list(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        limit, flags = query.integer(req, "limit"), {}
        for flag in ("echo", "include_claimed", "include_delayed"):
            given = query.boolean(req, flag)
            if given is not None:
                flags[flag] = given
        page, delayed, now = self._messages.list(
            req.context.queue,
            req.context.client,
            query.text(req, "marker") or "0",
            limit,
            echo=flags.get("echo", False),
            include_claimed=flags.get("include_claimed", False),
            include_delayed=flags.get("include_delayed", False),
        )
        link = None
        if page.next is not None:
            if delayed:
                flags["include_delayed"] = True
            link = {"limit": str(limit)} if limit is not None else {}
            link |= {flag: str(given).lower() for flag, given in flags.items()} | {"marker": page.next}
        resp.data = wire.message_page(queue, page.items, now, link)


class MessageItem:
    """``/v2/queues/{queue}/messages/{message}``"""

    policy = {"GET": "messages:get", "DELETE": "messages:delete"}

    def __init__(self, broker: Broker) -> None:
        self._messages = broker.messages

    def on_get(self, req: falcon.Request, resp: falcon.Response, queue: str, message: str) -> None:
        query.refuse_later(req, "detailed")
        found, now = self._messages.get(req.context.queue, message)
        resp.data = wire.message(queue, found, now)

    def on_delete(self, req: falcon.Request, resp: falcon.Response, queue: str, message: str) -> None:
        self._messages.delete(req.context.queue, message, query.text(req, "claim_id"))
        resp.status = falcon.HTTP_204
