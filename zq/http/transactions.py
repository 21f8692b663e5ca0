# SPDX-License-Identifier: Apache-2.0
"""HTTP resources for transactions of batch jobs (extensions contract, section 9).

A fence is a fencing token, and a stage contains messages that are not yet published. A commit publishes stages.
"""

import falcon

from zq import wire
from zq.core.transactions import Transactions
from zq.http import query, weight
from zq.http.context import Request
from zq.model.limits import MAX_COMMIT_BODY
from zq.model.quotas import Work
from zq.model.scopes import Kind, Verb
from zq.wire import answers, encoding, extensions


class WorkCollection:
    """``/v2/fences`` and ``/v2/stages``: list fences or stages. Base class of ``CommitCollection``."""

    policy = {"GET": "messages:get_all"}

    def __init__(self, transactions: Transactions, work: Work, word: str) -> None:
        self._transactions = transactions
        self._work = work
        self._word = word

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        limit, marker = query.integer(req, "limit"), query.text(req, "marker")
        visible = req.context.allowance.visible(Verb.OBSERVE, Kind.WORK)
        seen = self._transactions.list(req.context.project, self._work, marker, limit, visible)
        items = [encoding.format_work(one, seen.now) for one in seen.value.items]
        link = query.next_page_query(seen.value.next, limit=limit)
        resp.data = encoding.page(self._word, items, f"/v2/{self._word}", link)


class FenceItem:
    """``/v2/fences/{name}``: advance a fence to a newer epoch. Requests with an older epoch are then rejected."""

    policy = {"POST": "claims:update"}

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def on_post(self, req: Request, resp: falcon.Response, name: str) -> None:
        resp.data = wire.encode(answers.Epoch(self._transactions.advance_fence(req.context.project, name)))


class StageItem:
    """``/v2/stages/{name}``: delete a stage."""

    policy = {"DELETE": "messages:delete_all"}
    verbs = {"DELETE": Verb.PRODUCE}

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def on_delete(self, req: Request, resp: falcon.Response, name: str) -> None:
        self._transactions.drop_stage(req.context.project, name)
        resp.status = falcon.HTTP_204


class CommitCollection(WorkCollection):
    """``/v2/commits``: list producers and create commits."""

    policy = WorkCollection.policy | {"POST": "messages:create"}

    def __init__(self, transactions: Transactions) -> None:
        super().__init__(transactions, Work.PRODUCER, "commits")

    def on_post(self, req: Request, resp: falcon.Response) -> None:
        fence = query.fence(req)
        terms = extensions.commit_terms(query.body(req, MAX_COMMIT_BODY, required=True))
        weight.admit(req, weight.UNKNOWN_MESSAGE_COUNT)
        committed = self._transactions.commit(req.context.project, terms, fence, req.context.allowance)
        if committed.open:
            _mark_open(resp)
        resp.data = wire.encode(answers.CommitResult(committed.published, committed.deleted, committed.replayed))


class CommitItem:
    """``/v2/commits/{producer}``: get the producer's last committed batch."""

    policy = {"GET": "messages:get"}

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def on_get(self, req: Request, resp: falcon.Response, producer: str) -> None:
        committed = self._transactions.last(req.context.project, producer)
        if committed.open:
            _mark_open(resp)
        resp.data = wire.encode(answers.LastCommit(committed.batch, committed.published, committed.deleted))


def _mark_open(resp: falcon.Response) -> None:
    resp.status = falcon.HTTP_202
    resp.set_header("Retry-After", "1")
