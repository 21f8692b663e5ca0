# SPDX-License-Identifier: Apache-2.0
"""One request of SQS as its operation sees it, whatever protocol it came by: who asks, from where, and for what."""

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
    """Who asks, as the credential says."""

    project: str
    sender: str
    """The value of SenderId: the access key id, or the account where nobody is authenticated."""
    region: str = ""
    """For which the request was signed; "" = it does not say."""
    actions: frozenset[str] | None = None
    """Operations that the credential allows; None = all."""


Authenticate: TypeAlias = Callable[[falcon.Request], Callable[[bytes], Who]]
"""Judges a request by its head; what it returns tells by the raw body who asks. Both raise ``SqsError``."""


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
    """The project's, 12 digits."""
    region: str
    base: str
    """Scheme and host of queue URLs, as https://sqs.example.org."""
    sender: str
    """What SenderId is."""
    trace: str = ""
    """The header X-Amzn-Trace-Id."""


class Params(Struct, frozen=True, rename="pascal"):
    """The parameters of an operation: fields are named as the model's members, but in snake case.

    A member without a default is required: one that is missing, null or "" is refused as missing, so a text among them
    is ``Needed``. Members that are not named are ignored, and integers may come as digits in a text.
    """


Needed: TypeAlias = Annotated[str, Meta(min_length=1)]
"""A parameter of an operation that must be there."""


class OfQueue(Params, frozen=True):
    """The parameters of an operation on a queue."""

    queue_url: Needed
