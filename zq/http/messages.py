# SPDX-License-Identifier: Apache-2.0
"""``/v2/queues/{queue}/messages`` and below (contract 7)."""

import falcon

from zq import wire
from zq.broker import Broker
from zq.errors import Invalid
from zq.http import idempotency, query, waiting
from zq.limits import MAX_IDS
from zq.wire import answers, committing


class MessageCollection:
    """``/v2/queues/{queue}/messages``"""

    policy = {"GET": "messages:get_all", "POST": "messages:create", "DELETE": "messages:delete_all"}

    def __init__(self, broker: Broker) -> None:
        self._messages = broker.messages
        self._waiters = broker.waiters
        self._max_post_size = broker.limits.max_messages_post_size
        self._window = broker.limits.idempotency_window

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        if stage := query.text(req, "stage"):
            self._stage(req, resp, stage)
            return
        rules = self._messages.rules(req.context.queue, query.most(req, self._max_post_size))
        raw = query.needed_body(req, rules.max_post_size)
        size = len(raw)
        once = idempotency.once(req, "post", raw, self._window)
        ids, replayed = self._messages.post(req.context.queue, req.context.client, wire.posted(raw), size, rules, once)
        idempotency.tell(resp, replayed)
        resp.status = falcon.HTTP_201
        resp.set_header("Location", f"/v2/queues/{queue}/messages?ids={','.join(ids[:MAX_IDS])}")
        resp.data = answers.post_result(queue, ids)

    def on_get(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        detailed = query.boolean(req, "detailed")
        if ids := query.values(req, "ids"):
            _refuse_wait(req)
            messages, now = self._messages.get_many(req.context.queue, ids)
            resp.data = answers.messages(queue, messages, now, bool(detailed))
        else:
            self._list(req, resp, queue, detailed)

    def on_delete(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        ids, pop = query.values(req, "ids"), query.integer(req, "pop")
        if bool(ids) == (pop is not None):
            raise Invalid("Exactly one of ids and pop must be given.")
        claims = query.values(req, "claim_ids")
        if pop is None:
            _refuse_wait(req)
            self._messages.delete_many(req.context.queue, ids, claims)
            resp.status = falcon.HTTP_204
        else:
            detailed = query.boolean(req, "detailed")
            messages, now = waiting.poll(
                req,
                resp,
                self._waiters,
                lambda: self._messages.pop(req.context.queue, pop, claims),
                lambda answer: answer[0],
                takes=True,
            )
            resp.data = answers.popped(messages, now, bool(detailed))

    def _stage(self, req: falcon.Request, resp: falcon.Response, stage: str) -> None:
        """Extensions 9: messages that a commit will publish."""
        raw = query.needed_body(req, self._max_post_size)
        once = idempotency.once(req, "post", raw, self._window)
        posted, size = wire.posted(raw), len(raw)
        count, replayed = self._messages.stage(req.context.queue, req.context.client, posted, size, stage, once)
        idempotency.tell(resp, replayed)
        resp.status = falcon.HTTP_202
        resp.data = committing.staged(count)

    def _list(self, req: falcon.Request, resp: falcon.Response, queue: str, detailed: bool | None) -> None:
        limit, flags = query.integer(req, "limit"), {}
        for flag in ("echo", "include_claimed", "include_delayed"):
            given = query.boolean(req, flag)
            if given is not None:
                flags[flag] = given
        marker = query.text(req, "marker") or "0"
        page, delayed, now = waiting.poll(
            req,
            resp,
            self._waiters,
            lambda: self._messages.list(
                req.context.queue,
                req.context.client,
                marker,
                limit,
                echo=flags.get("echo", False),
                include_claimed=flags.get("include_claimed", False),
                include_delayed=flags.get("include_delayed", False),
            ),
            lambda answer: answer[0].items,
            takes=False,
        )
        link = None
        if page.next is not None:
            if delayed:
                flags["include_delayed"] = True
            link = query.repeated({"limit": limit, **flags, "detailed": detailed}) | {"marker": page.next}
        resp.data = answers.message_page(queue, page.items, now, link, bool(detailed))


def _refuse_wait(req: falcon.Request) -> None:
    if query.text(req, "wait"):
        raise Invalid("wait goes with a listing or a pop, not with ids.")


class MessageItem:
    """``/v2/queues/{queue}/messages/{message}``"""

    policy = {"GET": "messages:get", "DELETE": "messages:delete"}

    def __init__(self, broker: Broker) -> None:
        self._messages = broker.messages

    def on_get(self, req: falcon.Request, resp: falcon.Response, queue: str, message: str) -> None:
        detailed = query.boolean(req, "detailed")
        found, now = self._messages.get(req.context.queue, message)
        resp.data = answers.message(queue, found, now, bool(detailed))

    def on_delete(self, req: falcon.Request, resp: falcon.Response, queue: str, message: str) -> None:
        self._messages.delete(req.context.queue, message, query.text(req, "claim_id"))
        resp.status = falcon.HTTP_204
