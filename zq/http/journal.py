# SPDX-License-Identifier: Apache-2.0
"""Gives every response its request id and, where the operator wants it, a line in the log."""

import logging
import time
from uuid import uuid4

import falcon

from zq.http.faults import context

LOG = logging.getLogger("zq.requests")


class Journal:
    """Falcon middleware; the outermost, so that no answer goes without an id."""

    def __init__(self, log_requests: bool) -> None:
        self._log_requests = log_requests

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        identity = f"req-{uuid4()}"
        req.context.request_id = identity
        resp.set_header("X-OpenStack-Request-ID", identity)
        if self._log_requests:
            req.context.began = time.monotonic()

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, _resource: object, _req_succeeded: bool
    ) -> None:
        if self._log_requests:
            took = round(time.monotonic() - req.context.began, 6)
            LOG.info("request", extra=context(req) | {"status": resp.status_code, "seconds": took})
