# SPDX-License-Identifier: Apache-2.0
"""One request of SQS as its operation sees it, whatever protocol it came by: who asks, from where, and for what."""

from collections.abc import Callable
from typing import Annotated, TypeAlias

import falcon
from msgspec import Meta, Struct

from zq.core import Broker
from zq.model.sqs import SqsOptions


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


class Call(Struct, frozen=True, kw_only=True):
    """What an operation needs to know of its request, besides its parameters."""

    broker: Broker
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
