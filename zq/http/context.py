# SPDX-License-Identifier: Apache-2.0
"""The state of one request, ``req.context``, which middleware, resources and features share."""

from collections.abc import Mapping
from typing import Any

import falcon

from zq.core.rates import Account
from zq.errors import ZqError
from zq.model import QueueRef
from zq.model.identity import Identity
from zq.model.topics import TopicRef


class Context(falcon.Context):
    """The state of one request, available as ``req.context``.

    An attribute without a default value does not exist until a middleware sets this attribute.
    """

    # Set by ``RequestLog``: start in monotonic time, and request id.
    began: float
    request_id: str
    # Set by ``Authentication``: the caller's identity, and the middleware itself
    # (``zq.http.authentication.Authentication``), with which a long-running request authenticates its caller again.
    identity: Identity
    authentication: Any = None
    # Set by ``Tenant``. ``queue`` or ``topic`` is set if the path names one.
    project: str
    client: str
    queue: QueueRef
    topic: TopicRef
    # Set by ``Authorization``: the policy rule, the path parameters, and the caller's permissions
    # (``zq.model.allowance.Allowance``). Then the project's rate limiter, the rate limiter that rejected the request,
    # and the middleware itself if the project has limits.
    rule: str = ""
    params: Mapping[str, str] = {}
    allowance: Any
    account: Account | None = None
    refusing: Account | None = None
    bounds: Any = None
    # The ``zq.http.weight.HeavyRequest`` of a heavy request.
    heavy: Any = None
    # Bytes of the body, and whether it has been read.
    received: int = 0
    body_is_read: bool = False
    # Number of messages to charge and to audit, and number of removed messages to audit in their place.
    messages: int | None = None
    removed: int | None = None
    # For the audit log: id of a created token or key, reason of a failure, whether a GET is audited as a change, and
    # whether a change is only simulated.
    made: str | None = None
    why: str = ""
    audited: bool = False
    dry_run: bool = False
    # Seconds for which a long poll has waited for messages, and seconds that its earlier polls spent in the store.
    waited: float = 0.0
    store_seconds: float = 0.0
    # For metrics: the error for which the request was rejected, status and route to count in place of the response's,
    # and whether the request waits for messages.
    refusal: ZqError | None = None
    counted_as: int | None = None
    operation: str | None = None
    waits: bool = False
    # Set by features: whether a GET may change data, whether a request of SQS releases messages, its protocol, and the
    # span of a traced request (``zq.tracing.requests.RequestSpan``).
    links_change: bool = False
    releases: bool = False
    sqs: Any = None
    span: Any = None


class Request(falcon.Request):
    """A Falcon request with a ``Context``."""

    context_type = Context
    context: Context
