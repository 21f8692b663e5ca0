# SPDX-License-Identifier: Apache-2.0
"""``/v2/queues/{queue}/claims/{claim}/settle`` and ``/v2/queues/{queue}/redrive`` (extensions 3, 4)."""

import falcon

from zq import wire
from zq.broker import Broker
from zq.http import idempotency, query
from zq.limits import MAX_CONTROL_BODY
from zq.wire import settling


class ClaimSettle:
    """``/v2/queues/{queue}/claims/{claim}/settle``"""

    policy = {"POST": "claims:update"}

    def __init__(self, broker: Broker) -> None:
        self._settling = broker.settling
        self._max_body = broker.limits.max_messages_post_size + MAX_CONTROL_BODY
        self._window = broker.limits.idempotency_window

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str, claim: str) -> None:
        fence = query.fence(req)
        raw = query.needed_body(req, self._max_body)
        once = idempotency.once(req, "settle", raw, self._window, claim)
        settled, replayed = self._settling.settle(req.context.queue, claim, settling.terms(raw), once, fence)
        idempotency.tell(resp, replayed)
        resp.data = wire.encode(settled)


class QueueRedrive:
    """``/v2/queues/{queue}/redrive``"""

    policy = {"POST": "messages:delete_all"}

    def __init__(self, broker: Broker) -> None:
        self._settling = broker.settling

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        raw = query.body(req)
        terms = settling.redrive(raw) if raw else settling.Redrive()
        moved, remaining = self._settling.redrive(req.context.queue, terms)
        resp.data = wire.encode({"moved": moved, "remaining": remaining})
