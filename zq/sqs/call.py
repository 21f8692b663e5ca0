# SPDX-License-Identifier: Apache-2.0
"""The context and parameters of operations, independent of the protocol of the request."""

from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

import falcon
from msgspec import Meta, Struct

from zq.clock import Clock
from zq.core.queues import Queues
from zq.core.quotas import Quotas
from zq.model import Queue, QueueRef
from zq.model.attributes import AttributeValue
from zq.sqs.accounts import Accounts
from zq.sqs.cooldowns import Cooldowns
from zq.sqs.messaging import Messaging
from zq.sqs.move_tasks import MoveTasks
from zq.sqs.settings import SqsOptions


class Caller(Struct, frozen=True):
    """The caller of a request, as its credential identifies it."""

    project: str
    sender: str
    """The value of SenderId: the access key id, or the account if requests are not authenticated."""
    region: str = ""
    """The region for which the request was signed; "" if it names none."""
    actions: frozenset[str] | None = None
    """The operations that the credential permits; None = all."""


Authenticate: TypeAlias = Callable[[falcon.Request], Callable[[bytes], Caller]]
"""A function that checks the head of a request, and returns a function that checks the raw body and returns the caller.

Both raise ``SqsError``.
"""


class UseCases(Struct, frozen=True):
    """The use cases that operations call."""

    queues: Queues
    find: Callable[[QueueRef], Queue | None]
    """A function that returns the stored queue, or ``None`` if the queue does not exist."""
    messaging: Messaging
    move_tasks: MoveTasks
    cooldowns: Cooldowns
    accounts: Accounts
    quotas: Quotas | None
    clock: Clock
    max_message_ttl: int
    max_wait: int


class Call(Struct, frozen=True, kw_only=True):
    """The context of one operation, apart from its parameters."""

    use_cases: UseCases
    request: falcon.Request
    options: SqsOptions
    project: str
    account: str
    """The project's account, 12 digits."""
    region: str
    base: str
    """The scheme and host of queue URLs, for example https://sqs.example.org."""
    sender: str
    """The value of SenderId."""
    trace: str = ""
    """The value of the header X-Amzn-Trace-Id."""
    trace_context: Mapping[str, AttributeValue] = {}
    """The attributes for the headers traceparent and tracestate."""


class Params(Struct, frozen=True, rename="pascal"):
    """The parameters of an operation: the members of AWS's model, in snake case.

    A member without a default is required. If it is missing, null or "", the request is refused. Declare required
    strings as ``Needed``. Unknown members are ignored, and integers may be strings of digits.
    """


Needed: TypeAlias = Annotated[str, Meta(min_length=1)]
"""A required string, which must not be empty."""


class OfQueue(Params, frozen=True):
    """The parameters of an operation on a queue."""

    queue_url: Needed
