# SPDX-License-Identifier: Apache-2.0
"""``/v2/queues`` and below, but messages and claims (contract 6)."""

from typing import ClassVar

import falcon

from zq import wire
from zq.broker import Broker
from zq.http import query
from zq.http.named import Collection, Item, Purge, Stats
from zq.model import QueueRef


class QueueCollection(Collection):
    """``/v2/queues``"""

    parameters: ClassVar[tuple[str, ...]] = (*Collection.parameters, "with_count")

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.queues, "queue")
        self._count = broker.queues.count

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        with_count = query.boolean(req, "with_count")
        answer = self._page(req, {"with_count": with_count})
        if with_count and (count := self._count(req.context.project)):
            answer["count"] = count
        resp.data = wire.encode(answer)


class QueueItem(Item):
    """``/v2/queues/{queue}``"""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.queues, "queue", broker.limits.max_queue_metadata)


class QueueStats(Stats):
    """``/v2/queues/{queue}/stats``"""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.queues, "queue")
        self._entered = broker.queues.entered

    def _more(self, ref: QueueRef) -> dict[str, int]:
        entered = self._entered(ref)
        return {} if entered is None else {"entered": entered}


class QueuePurge(Purge):
    """``/v2/queues/{queue}/purge``"""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.queues, "queue")
