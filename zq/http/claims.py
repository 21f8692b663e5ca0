# SPDX-License-Identifier: Apache-2.0
"""``/v2/queues/{queue}/claims`` and below (contract 8)."""

import falcon

from zq import wire
from zq.broker import Broker
from zq.http import query, waiting
from zq.wire import answers


class ClaimCollection:
    """``/v2/queues/{queue}/claims``"""

    policy = {"POST": "claims:create"}

    def __init__(self, broker: Broker) -> None:
        self._claims = broker.claims
        self._waiters = broker.waiters

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        detailed = query.boolean(req, "detailed")
        terms, limit = _terms(req), query.integer(req, "limit")
        claim, now = waiting.poll(
            req,
            resp,
            self._waiters,
            lambda: self._claims.create(req.context.queue, terms, limit),
            lambda answer: answer[0],
            takes=True,
        )
        if claim is None:
            resp.status = falcon.HTTP_204
            return
        resp.status = falcon.HTTP_201
        resp.set_header("Location", answers.claim_href(queue, claim.id))
        resp.data = answers.messages(queue, claim.messages, now, bool(detailed))


class ClaimItem:
    """``/v2/queues/{queue}/claims/{claim}``"""

    policy = {"GET": "claims:get", "PATCH": "claims:update", "DELETE": "claims:delete", "PUT": "claims:create"}

    def __init__(self, broker: Broker) -> None:
        self._claims = broker.claims
        self._waiters = broker.waiters

    def on_get(self, req: falcon.Request, resp: falcon.Response, queue: str, claim: str) -> None:
        detailed = query.boolean(req, "detailed")
        found, now = self._claims.get(req.context.queue, claim)
        resp.data = answers.claim(queue, found, now, bool(detailed))

    def on_patch(self, req: falcon.Request, resp: falcon.Response, queue: str, claim: str) -> None:
        fence = query.fence(req)
        self._claims.renew(req.context.queue, claim, wire.claim_terms(query.needed_body(req)), fence)
        resp.status = falcon.HTTP_204

    def on_delete(self, req: falcon.Request, resp: falcon.Response, queue: str, claim: str) -> None:
        self._claims.release(req.context.queue, claim, query.integer(req, "delay"))
        resp.status = falcon.HTTP_204

    def on_put(self, req: falcon.Request, resp: falcon.Response, queue: str, claim: str) -> None:
        """Extensions 9: the claim of this name, made if none lives."""
        detailed, fence = query.boolean(req, "detailed"), query.fence(req)
        terms, limit = _terms(req), query.integer(req, "limit")
        found, was_there, now = waiting.poll(
            req,
            resp,
            self._waiters,
            lambda: self._claims.create_named(req.context.queue, claim, terms, limit, fence),
            lambda answer: answer[0],
            takes=True,
        )
        if found is None:
            resp.status = falcon.HTTP_204
            return
        resp.status = falcon.HTTP_200 if was_there else falcon.HTTP_201
        resp.set_header("Location", answers.claim_href(queue, claim))
        resp.data = answers.messages(queue, found.messages, now, bool(detailed))


def _terms(req: falcon.Request) -> wire.ClaimTerms:
    raw = query.body(req)
    return wire.claim_terms(raw) if raw else wire.ClaimTerms()
