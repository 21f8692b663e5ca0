# SPDX-License-Identifier: Apache-2.0
"""``/healthz``, ``/readyz`` and ``/v2/ping``: whether the process and its store answer."""

import falcon

from zq import stopping, wire
from zq.broker import Broker
from zq.http.tenant import Audience


class Health:
    """``/healthz``: the process serves."""

    audience = Audience.PROBE

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        resp.data = wire.encode({"status": "ok"})

    on_head = on_get


class Readiness:
    """``/readyz``: the store answers and the server is not about to end, else 503 with what is wrong."""

    audience = Audience.PROBE

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        if stopping.is_stopping():
            raise falcon.HTTPServiceUnavailable(title="Stopping", description="The server is stopping.", retry_after=1)
        self._broker.check_ready()
        resp.data = wire.encode({"status": "ok"})

    on_head = on_get


class Ping:
    """``/v2/ping`` (contract 4)."""

    policy = {"GET": "ping:get", "HEAD": "ping:get"}

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        resp.status = falcon.HTTP_204
        if not self._broker.store_answers():
            resp.status = falcon.HTTP_503
            resp.set_header("Retry-After", "1")

    def on_head(self, _req: falcon.Request, resp: falcon.Response) -> None:
        resp.status = falcon.HTTP_204
