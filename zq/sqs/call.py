# SPDX-License-Identifier: Apache-2.0
"""Context and parameters of operations, independent of the wire protocol."""

from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from zq.clock import Clock
from zq.core.queues import Queues
from zq.core.quotas import Quotas
from zq.http.context import Request
from zq.model import Queue, QueueRef
from zq.model.attributes import AttributeValue
from zq.sqs.accounts import Accounts
from zq.sqs.cooldowns import Cooldowns
from zq.sqs.messaging import Messaging
from zq.sqs.move_tasks import MoveTasks
from zq.sqs.settings import SqsOptions


class Caller(Struct, frozen=True):
    """The authenticated caller of a request."""

    project: str
    sender: str
    """The SenderId of the caller's messages: the access key id, or "" to use the project's account id."""
    region: str = ""
    """The region in the request's credential, or "" if there is none."""
    actions: frozenset[str] | None = None
    """The permitted operations; None = all."""


Authenticate: TypeAlias = Callable[[Request], Callable[[bytes], Caller]]
"""A function that authenticates a request in two steps, before and after the body is read.

The function checks the request head. The returned function checks the raw body. Both raise ``SqsError``.
"""


class UseCases(Struct, frozen=True):
    """The application services that SQS operations use."""

    queues: Queues
    find: Callable[[QueueRef], Queue | None]
    """Reads a queue from the store; returns None if it does not exist."""
    messaging: Messaging
    move_tasks: MoveTasks
    cooldowns: Cooldowns
    accounts: Accounts
    quotas: Quotas | None
    clock: Clock
    max_message_ttl: int
    max_wait: int


class Call(Struct, frozen=True, kw_only=True):
    """The context in which an operation is executed."""

    use_cases: UseCases
    request: Request
    options: SqsOptions
    project: str
    account: str
    """The project's account id, 12 digits."""
    region: str
    base: str
    """The scheme and host of queue URLs, for example https://sqs.example.org."""
    sender: str
    """The value of SenderId."""
    trace: str = ""
    """The value of the header X-Amzn-Trace-Id; "" if it is too long."""
    trace_context: Mapping[str, AttributeValue] = {}
    """The headers ``traceparent`` and ``tracestate`` as message attributes."""


class Params(Struct, frozen=True, rename="pascal"):
    """Base class for the parameters of an operation. Members are named as in AWS's API model, in snake case.

    A member without a default is required: the server rejects null and "". Required strings have the type
    ``RequiredText``. Unknown members are ignored. A client may send an integer as a string.
    """


RequiredText: TypeAlias = Annotated[str, Meta(min_length=1)]
"""A required, non-empty string."""


class QueueParams(Params, frozen=True):
    """Base class for the parameters of operations on a queue."""

    queue_url: RequiredText
