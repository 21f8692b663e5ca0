# SPDX-License-Identifier: Apache-2.0
"""HTTP resources for the message history (extensions contract, section 5)."""

from typing import Any

import falcon
from msgspec import UNSET

from zq import wire
from zq.core.history import History
from zq.core.values import ReadResult
from zq.errors import Invalid, InvalidParameter
from zq.http import query, weight
from zq.http.context import Request
from zq.model import HistoryEntry, Page, QueueRef
from zq.model.limits import DEFAULT_BATCH, MAX_BATCH
from zq.wire import answers, encoding, extensions


class QueueHistory:
    """``/v2/queues/{queue}/history``: list finished messages."""

    policy = {"GET": "messages:get_all"}

    def __init__(self, history: History) -> None:
        self._history = history

    def on_get(self, req: Request, resp: falcon.Response, queue: str) -> None:
        limit, detailed, starts = query.integer(req, "limit"), query.boolean(req, "detailed"), query.starts(req)
        members = ("state", "since", "until", "order")
        given: dict[str, Any] = {name: query.text(req, name) for name in members}
        weight.admit_page(req, limit)
        seen = self._list(req.context.queue, _marker(query.text(req, "marker")), limit, **given)
        given |= {"limit": limit, "detailed": detailed, "bodies": query.text(req, "bodies")}
        link = query.next_page_query(seen.value.next, **given)
        resp.data = encoding.history_page(queue, seen.value.items, seen.now, link, bool(detailed), starts)

    def _list(
        self, queue: QueueRef, marker: int, limit: int | None, state: str, since: str, until: str, order: str
    ) -> ReadResult[Page[HistoryEntry]]:
        if order not in ("", "asc", "desc"):
            raise InvalidParameter("order must be asc or desc.")
        if not state:
            return self._history.list(queue, marker, limit, since, until, newest_first=order == "desc")
        if state != "all":
            raise InvalidParameter('state must be "all". Omit it to list only finished messages.')
        if order == "desc":
            raise Invalid("order=desc cannot be combined with state=all, which lists messages by sequence.")
        if since or until:
            raise Invalid(
                "since and until cannot be combined with state=all, because live messages have no finish time."
            )
        return self._history.list_all(queue, marker, limit)


class HistoryReplay:
    """``/v2/queues/{queue}/history/replay``: post copies of finished messages."""

    policy = {"POST": "messages:create"}

    def __init__(self, history: History) -> None:
        self._history = history

    def on_post(self, req: Request, resp: falcon.Response, queue: str) -> None:
        terms = extensions.replay_terms(query.body(req, required=True))
        weight.admit(req, weight.UNKNOWN_MESSAGE_COUNT, 0 if terms.dry_run else _max_replayed(terms), 0)
        if terms.dry_run:
            req.context.dry_run = True
            resp.data = wire.encode(self._history.dry_run(req.context.queue, terms))
            return
        replayed = self._history.replay(req.context.queue, req.context.client, terms)
        req.context.messages = replayed
        resp.data = wire.encode(answers.ReplayResult(replayed))


def _max_replayed(terms: extensions.ReplayTerms) -> int:
    if terms.ids is not UNSET:
        return len(terms.ids)
    return DEFAULT_BATCH if terms.limit is UNSET else min(max(0, terms.limit), MAX_BATCH)


def _marker(text: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit():
        raise InvalidParameter("marker must be a decimal number; use the marker in the link to the next page.")
    return int(text[:40])
