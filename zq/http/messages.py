# SPDX-License-Identifier: Apache-2.0
"""``/v2/queues/{queue}/messages`` and below (contract 7)."""

from functools import partial

import falcon

from zq.broker import Broker
from zq.errors import Invalid
from zq.http import idempotency, query
from zq.http.waiting import polled
from zq.limits import MAX_IDS
from zq.model.scopes import Kind, Verb
from zq.wire import answers, extensions


class MessageCollection:
    """``/v2/queues/{queue}/messages``"""

    policy = {"GET": "messages:get_all", "POST": "messages:create", "DELETE": "messages:delete_all"}

    def __init__(self, broker: Broker) -> None:
        self._messages = broker.messages
        self._waiters = broker.waiters
        self._upload = partial(
            idempotency.upload,
            verb="post",
            bound=broker.limits.max_messages_post_size,
            window=broker.limits.idempotency_window,
        )

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        if stage := query.text(req, "stage"):
            self._stage(req, resp, stage)
            return
        posted = self._messages.post(req.context.queue, req.context.client, self._upload(req))
        req.context.messages = len(posted.value)
        idempotency.mark_replayed(resp, posted.replayed)
        resp.status = falcon.HTTP_201
        resp.set_header("Location", f"/v2/queues/{queue}/messages?ids={','.join(posted.value[:MAX_IDS])}")
        resp.data = answers.post_result(queue, posted.value)

    def on_get(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        detailed = query.boolean(req, "detailed")
        if ids := query.values(req, "ids"):
            _refuse_wait(req)
            seen = self._messages.get_many(req.context.queue, ids)
            resp.data = answers.messages(queue, seen.value, seen.now, bool(detailed))
        else:
            self._list(req, resp, queue, detailed)

    def on_delete(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        ids, pop = query.values(req, "ids"), query.integer(req, "pop")
        if bool(ids) == (pop is not None):
            raise Invalid("Exactly one of ids and pop must be given.")
        verb = Verb.MANAGE if pop is None else Verb.CONSUME
        req.context.allowance.judge("messages:delete_all", verb, Kind.QUEUE, req.context.queue.name)
        if pop is not None:
            self._pop(req, resp, pop)
            return
        _refuse_wait(req)
        self._messages.delete_many(req.context.queue, ids, query.values(req, "claim_ids"))
        resp.status = falcon.HTTP_204

    def _pop(self, req: falcon.Request, resp: falcon.Response, pop: int) -> None:
        detailed = query.boolean(req, "detailed")
        ask = partial(self._messages.pop, req.context.queue, pop, query.values(req, "claim_ids"))
        seen = polled(req, resp, self._waiters, ask, takes=True)
        req.context.messages = len(seen.value)
        resp.data = answers.popped(seen.value, seen.now, bool(detailed))

    def _stage(self, req: falcon.Request, resp: falcon.Response, stage: str) -> None:
        """Extensions 9: messages that a commit will publish."""
        req.context.allowance.judge("messages:create", Verb.PRODUCE, Kind.WORK, stage)
        staged = self._messages.stage(req.context.queue, req.context.client, self._upload(req), stage)
        req.context.messages = staged.value
        idempotency.mark_replayed(resp, staged.replayed)
        resp.status = falcon.HTTP_202
        resp.data = extensions.staged(staged.value)

    def _list(self, req: falcon.Request, resp: falcon.Response, queue: str, detailed: bool | None) -> None:
        limit, flags, marker = query.integer(req, "limit"), _flags(req), query.text(req, "marker") or "0"
        ask = partial(self._messages.list, req.context.queue, req.context.client, marker, limit, **flags)
        listed = polled(req, resp, self._waiters, ask, takes=False)
        link = None
        if listed.page.next is not None:
            if listed.delayed:
                flags["include_delayed"] = True
            link = query.repeated({"limit": limit, **flags, "detailed": detailed}) | {"marker": listed.page.next}
        resp.data = answers.message_page(queue, listed.page.items, listed.now, link, bool(detailed))


def _flags(req: falcon.Request) -> dict[str, bool]:
    """Those that were given of what a listing may include."""
    flags = ("echo", "include_claimed", "include_delayed")
    return {flag: value for flag in flags if (value := query.boolean(req, flag)) is not None}


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
        seen = self._messages.get(req.context.queue, message)
        resp.data = answers.message(queue, seen.value, seen.now, bool(detailed))

    def on_delete(self, req: falcon.Request, resp: falcon.Response, queue: str, message: str) -> None:
        self._messages.delete(req.context.queue, message, query.text(req, "claim_id"))
        resp.status = falcon.HTTP_204
