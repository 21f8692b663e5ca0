# SPDX-License-Identifier: Apache-2.0
"""The context of an operation, independent of the protocol of its request."""

from collections.abc import Callable
from typing import Annotated, TypeAlias

import falcon
from msgspec import Meta, Struct

from zq.clock import Clock
from zq.core.queues import Queues
from zq.core.quotas import Quotas
from zq.model import Queue, QueueRef
from zq.sqs.accounts import Accounts
from zq.sqs.cooldowns import Cooldowns
from zq.sqs.messaging import Messaging
from zq.sqs.move_tasks import MoveTasks
from zq.sqs.settings import SqsOptions


class Who(Struct, frozen=True):
    """The caller, by its credential."""

    project: str
    sender: str
    """The value of SenderId: the access key id, or the account if requests are not authenticated."""
    region: str = ""
    """The region for which the request was signed; "" if it names none."""
    actions: frozenset[str] | None = None
    """The operations that the credential allows; None = all."""


Authenticate: TypeAlias = Callable[[falcon.Request], Callable[[bytes], Who]]
"""Checks the head of a request, and returns a function that checks the raw body and returns the caller.

Both raise ``SqsError``.
"""


class UseCases(Struct, frozen=True):
    """The use cases that operations call."""

    queues: Queues
    find: Callable[[QueueRef], Queue | None]
    """Returns the stored queue, or ``None`` if it does not exist."""
    messaging: Messaging
    move_tasks: MoveTasks
    cooldowns: Cooldowns
    accounts: Accounts
    quotas: Quotas | None
    clock: Clock
    max_message_ttl: int
    max_wait: int


class Call(Struct, frozen=True, kw_only=True):
    """The context of an operation besides its parameters."""

    use_cases: UseCases
    request: falcon.Request
    options: SqsOptions
    project: str
    account: str
    """The account of the project, 12 digits."""
    region: str
    base: str
    """Scheme and host of queue URLs, as https://sqs.example.org."""
    sender: str
    """The value of SenderId."""
    trace: str = ""
    """The header X-Amzn-Trace-Id."""


class Params(Struct, frozen=True, rename="pascal"):
    """The parameters of an operation, named as the members of AWS's model but in snake case.

    A member without a default is required. If it is missing, null or "", the request is refused, so required texts are
    ``Needed``. Unknown members are ignored, and integers may be digits in a text.
    """


Needed: TypeAlias = Annotated[str, Meta(min_length=1)]
"""A text that an operation requires."""


class OfQueue(Params, frozen=True):
    """The parameters of an operation on a queue."""

    queue_url: Needed
