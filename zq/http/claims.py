# SPDX-License-Identifier: Apache-2.0
"""HTTP resources for claims (contract section 8) and for the redrive of dead-letter queues."""

from functools import lru_cache, partial
from typing import Any, ClassVar

import falcon

from zq import wire
from zq.core.claims import ClaimReply, Claims
from zq.core.redriving import Redriving
from zq.core.settling import Settling
from zq.core.values import WriteResult
from zq.core.waiting import Waiters
from zq.http import idempotency, query, weight
from zq.http.context import Request
from zq.http.pending import respond
from zq.http.waiting import long_poll
from zq.model import Holder
from zq.model.allowance import Allowance
from zq.model.limits import MAX_AGENT, Limits
from zq.model.scopes import Kind, Verb
from zq.wire import encoding, extensions


class ClaimCollection:
    """``/v2/queues/{queue}/claims``: list and create claims."""

    policy = {"GET": "claims:get_all", "POST": "claims:create"}
    short = frozenset({"GET", "POST"})

    def __init__(self, claims: Claims, waiters: Waiters) -> None:
        self._claims = claims
        self._waiters = waiters

    def on_get(self, req: Request, resp: falcon.Response, queue: str) -> None:
        resp.data = _page(req, self._claims, req.context.queue.name, f"/v2/queues/{queue}/claims")

    def on_post(self, req: Request, resp: falcon.Response, queue: str) -> None:
        detailed = query.boolean(req, "detailed")
        terms, limit = _terms(req), query.integer(req, "limit")
        fetch = partial(self._claims.create, req.context.queue, terms, limit, holder(req, req.context.client))
        poll = weight.admit_each_poll(req, limit, fetch, takes=True)
        long_poll(req, resp, self._waiters, poll, partial(_show, req, resp, queue, detailed), takes=True)


class ProjectClaims:
    """``/v2/claims``: list the claims of all queues. The caller's scopes must cover all queues."""

    policy: ClassVar[dict[str, str]] = {"GET": "claims:get_all"}

    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        allowance: Allowance = req.context.allowance
        if allowance.visible(Verb.OBSERVE, Kind.QUEUE) is not None:
            raise allowance.refusal("claims:get_all")
        resp.data = _page(req, self._claims, "", "/v2/claims")


class ClaimItem:
    """``/v2/queues/{queue}/claims/{claim}``: get, renew, release or create a claim."""

    policy = {"GET": "claims:get", "PATCH": "claims:update", "DELETE": "claims:delete", "PUT": "claims:create"}
    short = frozenset({"PATCH", "DELETE"})

    def __init__(self, claims: Claims, waiters: Waiters) -> None:
        self._claims = claims
        self._waiters = waiters

    def on_get(self, req: Request, resp: falcon.Response, queue: str, claim: str) -> None:
        detailed, starts = query.boolean(req, "detailed"), query.starts(req)
        weight.admit_page(req, weight.UNKNOWN_MESSAGE_COUNT)
        seen = self._claims.get(req.context.queue, claim)
        resp.data = encoding.claim(queue, seen.value, seen.now, bool(detailed), starts)

    def on_patch(self, req: Request, resp: falcon.Response, queue: str, claim: str) -> None:
        fence = query.fence(req)
        renew = partial(
            self._claims.renew, req.context.queue, claim, wire.claim_terms(query.body(req, required=True)), fence
        )
        respond(req, resp, renew, partial(_show_nothing, resp))

    def on_delete(self, req: Request, resp: falcon.Response, queue: str, claim: str) -> None:
        release = partial(self._claims.release, req.context.queue, claim, query.integer(req, "delay"))
        respond(req, resp, release, partial(_show_nothing, resp))

    def on_put(self, req: Request, resp: falcon.Response, queue: str, claim: str) -> None:
        """Create a claim with this id, or return the existing claim with this id (extensions contract, section 9)."""
        detailed, fence = query.boolean(req, "detailed"), query.fence(req)
        terms, limit = _terms(req), query.integer(req, "limit")
        fetch = partial(
            self._claims.create_named, req.context.queue, claim, terms, limit, fence, holder(req, req.context.client)
        )
        poll = weight.admit_each_poll(req, limit, fetch, takes=True)
        long_poll(req, resp, self._waiters, poll, partial(_show, req, resp, queue, detailed), takes=True)


def _page(req: Request, claims: Claims, queue: str, path: str) -> bytes:
    limit = query.integer(req, "limit")
    seen = claims.list(req.context.project, queue, query.text(req, "marker"), limit)
    return encoding.claims(path, seen.value.items, seen.now, query.next_page_query(seen.value.next, limit=limit))


def holder(req: Request, client: str) -> Holder:
    """Return the client id and user agent of the request, to store in a claim."""
    # Truncate the header to keep cache keys small. A UTF-8 character has at most four bytes.
    return _named(client, req.env.get("HTTP_USER_AGENT", "")[: 4 * MAX_AGENT])


@lru_cache(maxsize=4096)
def _named(client: str, agent: str) -> Holder:
    return Holder(client, agent.encode("latin-1", "replace").decode("utf-8", "replace")[:MAX_AGENT])


def _terms(req: Request) -> wire.ClaimTerms:
    raw = query.body(req)
    return wire.claim_terms(raw) if raw else wire.ClaimTerms()


def _show_nothing(resp: falcon.Response, _: None) -> None:
    resp.status = falcon.HTTP_204


def _show(req: Request, resp: falcon.Response, queue: str, detailed: bool | None, claimed: ClaimReply) -> None:
    if claimed.claim is None:
        resp.status = falcon.HTTP_204
        return
    req.context.messages = len(claimed.claim.messages)
    if req.context.span is not None:
        req.context.span.link(claimed.claim.messages)
    resp.status = falcon.HTTP_200 if claimed.existed else falcon.HTTP_201
    resp.set_header("Location", encoding.claim_href(queue, claimed.claim.id))
    resp.data = encoding.messages(queue, claimed.claim.messages, claimed.now, bool(detailed))


class ClaimSettle:
    """``/v2/queues/{queue}/claims/{claim}/settle``: delete, release, move or dead-letter messages of a claim."""

    policy = {"POST": "claims:update"}
    short = frozenset({"POST"})

    def __init__(self, settling: Settling, limits: Limits) -> None:
        self._settling = settling
        self._max_body = limits.max_settle_body
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
        weight.admit(req, weight.UNKNOWN_MESSAGE_COUNT)
        if terms.dry_run:
            req.context.dry_run = True
            resp.data = wire.encode(self._redriving.dry_run(req.context.queue, terms, req.context.allowance))
            return
        redriven = self._redriving.redrive(req.context.queue, terms, req.context.allowance)
        req.context.messages = redriven.moved
        resp.data = wire.encode(redriven)
