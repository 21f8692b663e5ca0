# SPDX-License-Identifier: Apache-2.0
"""Recognition of SQS requests by path and method, before other parts of the request are processed.

SQS requests have none of zq's headers and no routes of their own. Middleware routes all of them to one resource.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import falcon

from zq.http.authorization import Answer
from zq.sqs import json_protocol, query_protocol

# The paths of queue URLs.
QUEUE_PATH: Final = re.compile(r"/(?:queue/[A-Za-z0-9-]{1,64}/)?[0-9]{12}/[^/]+", re.ASCII)
# The operation in a query string.
HAS_ACTION: Final = re.compile(r"(?:^|&)Action=")
# The route of the resource. A client's request for this path itself gets 404.
ROUTE: Final = "/sqs"
# The operation that metrics show for requests without an operation.
UNKNOWN: Final = "sqs"


def is_sqs(env: Mapping[str, Any]) -> bool:
    """Return whether a request with this head is an SQS request."""
    path: str = env["PATH_INFO"]
    if path == "/":
        method = env["REQUEST_METHOD"]
        return method == "POST" or (method == "GET" and HAS_ACTION.search(env.get("QUERY_STRING", "")) is not None)
    return QUEUE_PATH.fullmatch(path) is not None


class Recognition:
    """Falcon middleware that recognizes SQS requests and routes them. Add it after the middleware of request ids.

    Sets ``req.context.sqs`` of an SQS request to the module of the request's protocol.
    """

    def process_request(self, req: falcon.Request, resp: Answer) -> None:
        if not is_sqs(req.env):
            return
        req.context.sqs = json_protocol if json_protocol.matches(req.env) else query_protocol
        req.context.operation, req.context.links_change = UNKNOWN, True
        resp.put_headers({"x-amzn-requestid": request_id(req)})
        req.path = ROUTE

    def process_resource(
        self, req: falcon.Request, _resp: falcon.Response, _resource: object, _params: Mapping[str, str]
    ) -> None:
        """Restore the request's path after routing, for logs."""
        if hasattr(req.context, "sqs"):
            req.path = req.env["PATH_INFO"]


def request_id(req: falcon.Request) -> str:
    """Return the UUID of the request's id in this server's log."""
    identity: str = req.context.request_id
    return identity.removeprefix("req-")
