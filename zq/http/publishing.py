# SPDX-License-Identifier: Apache-2.0
"""HTTP resources for the messages of a topic, except streams (extensions contract, section 8)."""

from functools import partial

import falcon

from zq.core.publishing import Publishing, TopicPage, TopicPoll
from zq.core.waiting import PollResult
from zq.errors import Invalid
from zq.http import idempotency, query, weight
from zq.http.authentication import check_again
from zq.http.context import Request
from zq.http.pending import defer
from zq.model.limits import MAX_IDS, Limits
from zq.wire import publishing


class TopicMessages:
    """``/v2/topics/{topic}/messages``: publish and list messages."""

    policy = {"GET": "topics:get_messages", "POST": "topics:publish"}
    short = frozenset({"GET", "POST"})

    def __init__(self, publications: Publishing, limits: Limits) -> None:
        self._publishing = publications
        self._window = limits.idempotency_window

    def on_post(self, req: Request, resp: falcon.Response, topic: str) -> None:
        if query.text(req, "stage"):
            raise Invalid("stage is supported for queues only; messages of topics cannot be staged.")
        topic_ref, hops = req.context.topic, query.hops(req)
        raw = query.body(req, self._publishing.max_post_size(topic_ref), required=True)
        if len(raw) > weight.MAX_LIGHT_POST:
            weight.admit_post(req, raw)
        key = idempotency.read_key(req, "publish", self._window, raw) if idempotency.HEADER in req.env else None
        published = self._publishing.publish(topic_ref, raw, key, hops, query.trace_attributes(req))
        req.context.messages = len(published.value)
        if published.replayed:
            idempotency.mark_replayed(resp)
        resp.status = falcon.HTTP_201
        ids = ",".join(map(str, published.value[:MAX_IDS]))
        resp.set_header("Location", f"/v2/topics/{topic}/messages?ids={ids}")
        resp.data = publishing.published(topic, published.value)

    def on_get(self, req: Request, resp: falcon.Response, topic: str) -> None:
        detailed = query.boolean(req, "detailed")
        if ids := query.values(req, "ids"):
            if query.text(req, "wait"):
                raise Invalid("wait cannot be combined with ids; use it with a listing.")
            seen = self._publishing.get(req.context.topic, ids)
            resp.data = publishing.messages(seen.value, seen.now, bool(detailed))
        else:
            self._list(req, resp, topic, detailed)

    def _list(self, req: Request, resp: falcon.Response, topic: str, detailed: bool | None) -> None:
        limit, wait, marker = query.integer(req, "limit"), query.integer(req, "wait"), query.text(req, "marker")
        req.context.waits = bool(wait)
        look = partial(self._look, req, marker, limit, wait)
        show = partial(self._show, req, resp, topic, detailed, limit)
        looked = look()
        if isinstance(looked, PollResult):
            show(looked)
            return
        topic_poll, check = looked, check_again(req)

        def look_again() -> PollResult[TopicPage] | None:
            if check is not None:
                check()
            found = look(topic_poll)
            return found if isinstance(found, PollResult) else None

        defer(req, resp, topic_poll, look_again, show, polled=True)

    def _show(
        self,
        req: Request,
        resp: falcon.Response,
        topic: str,
        detailed: bool | None,
        limit: int | None,
        polled: PollResult[TopicPage],
    ) -> None:
        if polled.turned_away:
            resp.set_header("Retry-After", "1")
        found = polled.answer
        marker = str(found.position) if found.messages or found.gap else None
        link = query.next_page_query(marker, limit=limit, detailed=detailed)
        gap = (found.gap.after, found.gap.resumes) if found.gap else None
        resp.data = publishing.page(topic, found.messages, found.now, link, gap, found.position if detailed else None)

    def _look(
        self,
        req: Request,
        marker: str,
        limit: int | None,
        wait: int | None,
        topic_poll: TopicPoll | None = None,
    ) -> PollResult[TopicPage] | TopicPoll:
        """Poll the topic once. Return the result, or a ``TopicPoll`` if the request must wait for messages.

        The next call for the same request must pass this object as ``topic_poll``.
        """
        # A request for a large page occupies a slot for heavy requests, but not while it waits.
        try:
            weight.admit_page(req, limit)
        except BaseException:
            if topic_poll is not None:
                topic_poll.close()
            raise
        looked = self._publishing.poll(req.context.topic, marker, limit, wait, topic_poll)
        if isinstance(looked, TopicPoll):
            weight.end(req)
        return looked


class TopicMessage:
    """``/v2/topics/{topic}/messages/{message}``: get a message."""

    policy = {"GET": "topics:get_message"}
    short = frozenset({"GET"})

    def __init__(self, publications: Publishing) -> None:
        self._publishing = publications

    def on_get(self, req: Request, resp: falcon.Response, topic: str, message: str) -> None:
        detailed = query.boolean(req, "detailed")
        seen = self._publishing.get(req.context.topic, [message])
        resp.data = publishing.message(seen.value[0], seen.now, bool(detailed))
