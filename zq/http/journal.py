# SPDX-License-Identifier: Apache-2.0
"""Gives every response its request id, has it counted and, where the operator wants it, a line in the log."""

import logging
import time
from collections.abc import Callable
from uuid import uuid4

import falcon

from zq.http import suspension
from zq.http.faults import context
from zq.http.metrics import Meter

LOG = logging.getLogger("zq.requests")
BEGAN = "zq.began"
"""Where the environment keeps when a request came, over its waits."""


class Journal:
    """Falcon middleware; the outermost, so that no answer goes without an id."""

    def __init__(self, log_requests: Callable[[], bool], meter: Meter) -> None:
        self._log_requests = log_requests
        self._meter = meter

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        req.context.began = req.env.setdefault(BEGAN, time.monotonic())
        identity = f"req-{uuid4()}"
        req.context.request_id = identity
        resp.set_header("X-OpenStack-Request-ID", identity)
        resp.set_header("X-Content-Type-Options", "nosniff")

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, _resource: object, _req_succeeded: bool
    ) -> None:
        if suspension.SUSPENDED in req.env:
            return  # nothing was answered
        took = time.monotonic() - req.context.began
        status, waited = resp.status_code, getattr(req.context, "waits", False)
        self._meter.answered(req.method, req.uri_template or "", status, took, waited)
        if self._log_requests():
            LOG.info("request", extra=context(req) | {"status": status, "seconds": round(took, 6)})
