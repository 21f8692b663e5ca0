# SPDX-License-Identifier: Apache-2.0
"""Middleware that detects SQS requests by their path and method. It routes all SQS requests to one resource."""

import re
from collections.abc import Mapping
from typing import Any, Final

import falcon

from zq.http.authorization import Response
from zq.http.context import Request
from zq.sqs import json_protocol, query_protocol

# The path of a queue URL.
QUEUE_PATH: Final = re.compile(r"/(?:queue/[A-Za-z0-9-]{1,64}/)?[0-9]{12}/[^/]+", re.ASCII)
# A query string that names an operation.
HAS_ACTION: Final = re.compile(r"(?:^|&)Action=")
# The internal route of the resource. Client requests for this path get 404.
ROUTE: Final = "/sqs"
# Operation name in metrics for requests without a valid operation.
UNKNOWN_OPERATION: Final = "sqs"


def is_sqs(env: Mapping[str, Any]) -> bool:
    """Return whether the request is an SQS request."""
    path: str = env["PATH_INFO"]
    if path == "/":
        method = env["REQUEST_METHOD"]
        return method == "POST" or (method == "GET" and HAS_ACTION.search(env.get("QUERY_STRING", "")) is not None)
    return QUEUE_PATH.fullmatch(path) is not None


class Recognition:
    """Falcon middleware that detects and routes SQS requests. It must run after the request id middleware."""

    def process_request(self, req: Request, resp: Response) -> None:
        if not is_sqs(req.env):
            return
        req.context.sqs = json_protocol if json_protocol.matches(req.env) else query_protocol
        req.context.operation, req.context.links_change = UNKNOWN_OPERATION, True
        resp.put_headers({"x-amzn-requestid": request_id(req)})
        req.path = ROUTE

    def process_resource(
        self, req: Request, _resp: falcon.Response, _resource: object, _params: Mapping[str, str]
    ) -> None:
        """Restore the original request path after routing, for logs."""
        if req.context.sqs is not None:
            req.path = req.env["PATH_INFO"]


def request_id(req: Request) -> str:
    """Return the request id as a UUID, without zq's prefix ``req-``."""
    identity: str = req.context.request_id
    return identity.removeprefix("req-")
