# SPDX-License-Identifier: Apache-2.0
"""HTTP resources that settle claims and redrive dead letters (extensions 3, 4)."""

from functools import partial
from typing import Any

import falcon

from zq import wire
from zq.core.redriving import Redriving
from zq.core.settling import Settling
from zq.core.values import WriteResult
from zq.http import idempotency, query, weight
from zq.http.context import Request
from zq.http.pending import respond
from zq.limits import MAX_CONTROL_BODY, Limits
from zq.model.scopes import Verb
from zq.wire import extensions


class ClaimSettle:
    """``/v2/queues/{queue}/claims/{claim}/settle``: delete, release, move or dead-letter messages of a claim."""

    policy = {"POST": "claims:update"}
    short = frozenset({"POST"})

    def __init__(self, settling: Settling, limits: Limits) -> None:
        self._settling = settling
        self._max_body = limits.max_messages_post_size + MAX_CONTROL_BODY
        self._window = limits.idempotency_window

    def on_post(self, req: Request, resp: falcon.Response, queue: str, claim: str) -> None:
        fence = query.fence(req)
        raw = query.body(req, self._max_body, required=True)
        key = idempotency.read_key(req, "settle", self._window, raw, claim) if idempotency.HEADER in req.env else None
        terms, allowance = extensions.settle_terms(raw), req.context.allowance
        weight.admit(req, len(terms.delete) + len(terms.release) + len(terms.move) + len(terms.bury))
        settle = partial(self._settling.settle, req.context.queue, claim, terms, key, fence, allowance)
        respond(req, resp, settle, partial(_show_settled, resp))


def _show_settled(resp: falcon.Response, settled: WriteResult[Any]) -> None:
    if settled.replayed:
        idempotency.mark_replayed(resp)
    resp.data = wire.encode(settled.value)


class QueueRedrive:
    """``/v2/queues/{queue}/redrive``: move dead letters back to their origins."""

    policy = {"POST": "messages:delete_all"}
    verbs = {"POST": Verb.MANAGE}

    def __init__(self, redriving: Redriving) -> None:
        self._redriving = redriving

    def on_post(self, req: Request, resp: falcon.Response, queue: str) -> None:
        raw = query.body(req)
        terms = extensions.redrive_terms(raw) if raw else extensions.RedriveTerms()
        weight.admit(req, weight.UNKNOWN)
        if terms.dry_run:
            req.context.dry_run = True
            resp.data = wire.encode(self._redriving.dry_run(req.context.queue, terms, req.context.allowance))
            return
        redriven = self._redriving.redrive(req.context.queue, terms, req.context.allowance)
        req.context.messages = redriven.moved
        resp.data = wire.encode(redriven)
