# SPDX-License-Identifier: Apache-2.0
"""HTTP resources for the messages of a queue (contract section 7)."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final

import falcon

from zq import wire
from zq.core.browsing import Browsing
from zq.core.messages import Messages
from zq.core.values import MessagePage, ReadResult
from zq.core.waiting import Waiters
from zq.errors import Invalid
from zq.http import idempotency, query, weight
from zq.http.context import Request
from zq.http.waiting import long_poll
from zq.model import Message
from zq.model.limits import MAX_IDS, Limits
from zq.model.scopes import Kind, Verb
from zq.wire import answers, encoding

# Parameters that cannot be combined with ``state``.
EXCLUDED_BY_STATE: Final = ("ids", "echo", "include_claimed", "include_delayed", "wait")


class MessageCollection:
    """``/v2/queues/{queue}/messages``: post, list, delete and pop messages."""

    policy = {"GET": "messages:get_all", "POST": "messages:create", "DELETE": "messages:delete_all"}
    short = frozenset({"GET", "POST", "DELETE"})

    def __init__(self, messages: Messages, browsing: Browsing, waiters: Waiters, limits: Limits) -> None:
        self._messages = messages
        self._browsing = browsing
        self._waiters = waiters
        self._max_post_size = limits.max_messages_post_size
        self._window = limits.idempotency_window

    def on_post(self, req: Request, resp: falcon.Response, queue: str) -> None:
        if req.params and (stage := query.text(req, "stage")):
            self._stage(req, resp, stage)
            return
        context, hops = req.context, query.hops(req)
        rules = self._messages.rules(context.queue, query.max_announced_size(req, self._max_post_size))
        raw = query.body(req, rules.max_messages_post_size, required=True)
        if len(raw) > weight.MAX_LIGHT_POST:
            weight.admit_post(req, raw)
        key = idempotency.read_key(req, "post", self._window, raw) if idempotency.HEADER in req.env else None
        trace = query.trace_attributes(req)
        posted = self._messages.post(context.queue, context.client, raw, key, hops, rules, trace)
        context.messages = len(posted.value)
        if posted.replayed:
            idempotency.mark_replayed(resp)
        if posted.ignores_delays:
            _warn_of_delays(req, resp)
        resp.status = falcon.HTTP_201
        resp.set_header("Location", f"/v2/queues/{queue}/messages?ids={','.join(posted.value[:MAX_IDS])}")
        resp.data = encoding.post_result(queue, posted.value)

    def on_get(self, req: Request, resp: falcon.Response, queue: str) -> None:
        detailed, starts = query.boolean(req, "detailed"), query.starts(req)
        if state := query.text(req, "state"):
            self._browse(req, resp, queue, state, detailed, starts)
        elif ids := query.values(req, "ids"):
            _reject_wait(req)
            seen = self._messages.get_many(req.context.queue, ids)
            resp.data = encoding.messages(queue, seen.value, seen.now, bool(detailed), starts)
        else:
            self._list(req, resp, queue, detailed, starts)

    def on_delete(self, req: Request, resp: falcon.Response, queue: str) -> None:
        ids, pop, detailed = query.values(req, "ids"), query.integer(req, "pop"), query.boolean(req, "detailed")
        if bool(ids) == (pop is not None):
            raise Invalid("Exactly one of ids and pop must be given.")
        verb = Verb.MANAGE if pop is None else Verb.CONSUME
        req.context.allowance.authorize("messages:delete_all", verb, Kind.QUEUE, req.context.queue.name)
        if pop is not None:
            self._pop(req, resp, pop, bool(detailed))
            return
        _reject_wait(req)
        weight.admit(req, len(ids))
        self._messages.delete_many(req.context.queue, ids, query.values(req, "claim_ids"))
        resp.status = falcon.HTTP_204

    def _pop(self, req: Request, resp: falcon.Response, pop: int, detailed: bool) -> None:
        fetch = partial(self._messages.pop, req.context.queue, pop, query.values(req, "claim_ids"))
        poll = weight.admit_each_poll(req, pop, fetch, takes=True)
        long_poll(req, resp, self._waiters, poll, partial(_show_popped, req, resp, detailed), takes=True)

    def _stage(self, req: Request, resp: falcon.Response, stage: str) -> None:
        req.context.allowance.authorize("messages:create", Verb.PRODUCE, Kind.WORK, stage)
        hops, raw = query.hops(req), query.body(req, self._max_post_size, required=True)
        weight.admit_post(req, raw)
        key = idempotency.read_key(req, "post", self._window, raw) if idempotency.HEADER in req.env else None
        trace = query.trace_attributes(req)
        staged = self._messages.stage(req.context.queue, req.context.client, raw, stage, key, hops, trace)
        req.context.messages = staged.value
        if staged.replayed:
            idempotency.mark_replayed(resp)
        if staged.ignores_delays:
            _warn_of_delays(req, resp)
        resp.status = falcon.HTTP_202
        resp.data = wire.encode(answers.StageResult(staged.value))

    def _browse(
        self, req: Request, resp: falcon.Response, queue: str, state: str, detailed: bool | None, starts: bool
    ) -> None:
        if given := next((name for name in EXCLUDED_BY_STATE if query.text(req, name)), None):
            raise Invalid(f"{given} cannot be combined with state.")
        limit, marker = query.integer(req, "limit"), query.text(req, "marker")
        weight.admit_page(req, limit)
        seen = self._browsing.browse(req.context.queue, state, marker, limit, starts)
        bodies = query.text(req, "bodies")
        link = query.next_page_query(seen.value.next, state=state, limit=limit, detailed=detailed, bodies=bodies)
        resp.data = encoding.message_page(queue, seen.value.items, seen.now, link, bool(detailed), starts)

    def _list(self, req: Request, resp: falcon.Response, queue: str, detailed: bool | None, starts: bool) -> None:
        limit, flags, marker = query.integer(req, "limit"), _flags(req), query.text(req, "marker") or "0"
        fetch = partial(self._messages.list, req.context.queue, req.context.client, marker, limit, **flags)
        poll = weight.admit_each_poll(req, limit, fetch, takes=False)

        def show(listed: MessagePage) -> None:
            if listed.delayed:
                flags["include_delayed"] = True
            given = {"limit": limit, **flags, "detailed": detailed, "bodies": query.text(req, "bodies")}
            link = query.next_page_query(listed.page.next, **given)
            resp.data = encoding.message_page(queue, listed.page.items, listed.now, link, bool(detailed), starts)

        long_poll(req, resp, self._waiters, poll, show, takes=False)


def _show_popped(req: Request, resp: falcon.Response, detailed: bool, seen: ReadResult[Sequence[Message]]) -> None:
    req.context.messages = len(seen.value)
    if req.context.span is not None:
        req.context.span.link(seen.value)
    resp.data = encoding.popped(seen.value, seen.now, detailed)


def _flags(req: Request) -> dict[str, bool]:
    flags = ("echo", "include_claimed", "include_delayed")
    return {flag: value for flag in flags if (value := query.boolean(req, flag)) is not None}


def _warn_of_delays(req: Request, resp: falcon.Response) -> None:
    resp.set_header("Warning", f'299 - "delay is ignored: {req.context.queue.name} has no _default_message_delay"')


def _reject_wait(req: Request) -> None:
    if query.text(req, "wait"):
        raise Invalid("wait cannot be combined with ids; use it with a listing or a pop.")


class MessageItem:
    """``/v2/queues/{queue}/messages/{message}``: get or delete a message."""

    policy = {"GET": "messages:get", "DELETE": "messages:delete"}
    short = frozenset({"GET", "DELETE"})

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def on_get(self, req: Request, resp: falcon.Response, queue: str, message: str) -> None:
        detailed, starts = query.boolean(req, "detailed"), query.starts(req)
        seen = self._messages.get(req.context.queue, message)
        resp.data = encoding.message(queue, seen.value, seen.now, bool(detailed), starts)

    def on_delete(self, req: Request, resp: falcon.Response, queue: str, message: str) -> None:
        self._messages.delete(req.context.queue, message, query.text(req, "claim_id"))
        resp.status = falcon.HTTP_204


class MessageLocation:
    """``/v2/messages/{message}``: find a message by id in the whole project."""

    policy: ClassVar[dict[str, str]] = {"GET": "messages:get"}

    def __init__(self, browsing: Browsing) -> None:
        self._browsing = browsing

    def on_get(self, req: Request, resp: falcon.Response, message: str) -> None:
        detailed, starts = query.boolean(req, "detailed"), query.starts(req)
        may_see = partial(req.context.allowance.allows, "messages:get", Verb.OBSERVE, Kind.QUEUE)
        seen = self._browsing.locate(req.context.project, message, may_see)
        resp.data = encoding.located(seen.value, seen.now, bool(detailed), starts)
