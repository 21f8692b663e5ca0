# SPDX-License-Identifier: Apache-2.0
"""``/v2/queues/{queue}/claims`` and below (contract 8)."""

import falcon

from zq import wire
from zq.broker import Broker
from zq.errors import NotBuilt
from zq.http import query


class ClaimCollection:
    """``/v2/queues/{queue}/claims``"""

    policy = {"POST": "claims:create"}

    def __init__(self, broker: Broker) -> None:
        self._claims = broker.claims

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        query.refuse_later(req, "wait", "detailed")
        raw = query.body(req)
        terms = wire.claim_terms(raw) if raw else wire.ClaimTerms()
        claim, now = self._claims.create(req.context.queue, terms, query.integer(req, "limit"))
        if claim is None:
            resp.status = falcon.HTTP_204
            return
        resp.status = falcon.HTTP_201
        resp.set_header("Location", wire.claim_href(queue, claim.id))
        resp.data = wire.messages(queue, claim.messages, now)


class ClaimItem:
    """``/v2/queues/{queue}/claims/{claim}``"""

    policy = {"GET": "claims:get", "PATCH": "claims:update", "DELETE": "claims:delete", "PUT": "claims:create"}

    def __init__(self, broker: Broker) -> None:
        self._claims = broker.claims

    def on_get(self, req: falcon.Request, resp: falcon.Response, queue: str, claim: str) -> None:
        query.refuse_later(req, "detailed")
        found, now = self._claims.get(req.context.queue, claim)
        resp.data = wire.claim(queue, found, now)

    def on_patch(self, req: falcon.Request, resp: falcon.Response, queue: str, claim: str) -> None:
        query.refuse_later(req, "fence")
        self._claims.renew(req.context.queue, claim, wire.claim_terms(query.needed_body(req)))
        resp.status = falcon.HTTP_204

    def on_delete(self, req: falcon.Request, resp: falcon.Response, queue: str, claim: str) -> None:
        query.refuse_later(req, "delay")
        self._claims.release(req.context.queue, claim)
        resp.status = falcon.HTTP_204

    def on_put(self, _req: falcon.Request, _resp: falcon.Response, queue: str, claim: str) -> None:
        raise NotBuilt("Named claims: this version of zq does not have them yet.")
