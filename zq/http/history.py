# SPDX-License-Identifier: Apache-2.0
"""``/v2/queues/{queue}/history`` and below (extensions 5)."""

import falcon

from zq import wire
from zq.broker import Broker
from zq.errors import Invalid, InvalidParameter
from zq.http import query
from zq.wire import answers, replays


class QueueHistory:
    """``/v2/queues/{queue}/history``"""

    policy = {"GET": "messages:get_all"}

    def __init__(self, broker: Broker) -> None:
        self._history = broker.history

    def on_get(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        limit, detailed = query.integer(req, "limit"), query.boolean(req, "detailed")
        given = {name: query.text(req, name) for name in ("state", "since", "until")}
        marker = _marker(query.text(req, "marker"))
        if given["state"] == "all":
            if given["since"] or given["until"]:
                raise Invalid("since and until do not go with state=all, where not every message has finished.")
            page, now = self._history.list_all(req.context.queue, marker, limit)
        elif given["state"]:
            raise InvalidParameter("state must be all, or be left out for finished messages.")
        else:
            page, now = self._history.list(req.context.queue, marker, limit, given["since"], given["until"])
        link = None
        if page.next is not None:
            link = query.repeated({**given, "limit": limit, "detailed": detailed}) | {"marker": page.next}
        resp.data = answers.history_page(queue, page.items, now, link, bool(detailed))


class HistoryReplay:
    """``/v2/queues/{queue}/history/replay``"""

    policy = {"POST": "messages:create"}

    def __init__(self, broker: Broker) -> None:
        self._history = broker.history

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        terms = replays.replay(query.needed_body(req))
        resp.data = wire.encode({"replayed": self._history.replay(req.context.queue, req.context.client, terms)})


def _marker(text: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit():
        raise InvalidParameter("marker must be a decimal number, as the link to the next page has it.")
    return int(text[:40])
