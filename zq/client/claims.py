# SPDX-License-Identifier: Apache-2.0
"""Calls on claims, for queue handles and consumers."""

from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar
from uuid import uuid4

import msgspec
from msgspec import UNSET, Struct

from zq import wire
from zq.client.calls import EMPTY, Answer, Call, decode_as, key_header, nothing, path, retry_after
from zq.client.values import Claim, Delivery, Message
from zq.model import Fence, Settled
from zq.wire import answers, extensions

T = TypeVar("T")
_claimed: Final = msgspec.json.Decoder(answers.Messages[Message])
_delivered: Final = msgspec.json.Decoder(answers.Messages[Delivery])


class ClaimedDeliveries(Struct, frozen=True):
    """Claimed messages of a consumer.

    Attributes:
        pause: Seconds after which the server accepts the next request.
    """

    claim: str
    deliveries: list[Delivery]
    pause: float = 0.0


def claim_call(
    queue: str,
    name: str | None,
    read: Callable[[str, Answer], T],
    *,
    limit: int | None,
    ttl: int | None,
    grace: int | None,
    wait: float,
    fence: Fence | None = None,
) -> Call[T]:
    """Return the call that creates the claim of this name, or gets it if it exists. A retry gets the same claim.

    A claim without a name gets a unique one, and is released if the call ends without an answer.
    """
    own = name or f"client.{uuid4().hex}"  # ids assigned by the server contain no dot
    return Call(
        method="PUT",
        path=path("queues", queue, "claims", own),
        params={"limit": limit, "wait": int(wait) or None, "detailed": True, **fenced(fence)},
        body=_terms(ttl, grace),
        read=lambda answer: read(own, answer),
        wait=wait,
        undo=None if name else release_call(queue, own),
    )


def read_claim(name: str, answer: Answer) -> Claim:
    """Read the claim in an answer."""
    if answer.status == 204:
        return Claim("", [])
    return Claim(name, _claimed.decode(answer.body).messages)


def read_deliveries(name: str, answer: Answer) -> ClaimedDeliveries:
    """Read the claimed messages in an answer as deliveries."""
    if answer.status == 204:
        return ClaimedDeliveries(name, [], retry_after(answer.headers))
    return ClaimedDeliveries(name, _delivered.decode(answer.body).messages)


def get_call(queue: str, claim: str) -> Call[Claim]:
    """Return the call that gets a claim."""
    return Call(
        method="GET", path=path("queues", queue, "claims", claim), params={"detailed": True}, read=_reader_of(claim)
    )


def renew_call(
    queue: str, claim: str, ttl: int | None = None, grace: int | None = None, fence: Fence | None = None
) -> Call[None]:
    """Return the call that renews a claim for another ``ttl`` seconds."""
    return Call(
        method="PATCH",
        path=path("queues", queue, "claims", claim),
        params=fenced(fence),
        body=_terms(ttl, grace),
        read=nothing,
    )


def release_call(queue: str, claim: str, delay: int | None = None) -> Call[None]:
    """Return the call that releases a claim. A claim without messages has no name and needs no request."""
    if not claim:
        return Call(method="DELETE", path="", read=nothing, local_answer=EMPTY)
    params = {"delay": delay}
    return Call(method="DELETE", path=path("queues", queue, "claims", claim), params=params, read=nothing)


def settle_call(
    queue: str, claim: str, terms: extensions.SettleTerms, key: str | None = None, fence: Fence | None = None
) -> Call[Settled]:
    """Return the call that settles messages of a claim."""
    return Call(
        method="POST",
        path=path("queues", queue, "claims", claim, "settle"),
        params=fenced(fence),
        headers=key_header(key),
        body=wire.encode(terms),
        read=decode_as(Settled),
    )


def fenced(fence: Fence | None) -> dict[str, str]:
    """Return the parameter with which the server refuses jobs of an earlier epoch."""
    return {} if fence is None else {"fence": f"{fence.name}:{fence.epoch}"}


def _terms(ttl: int | None, grace: int | None) -> bytes:
    return wire.encode(wire.ClaimTerms(UNSET if ttl is None else ttl, UNSET if grace is None else grace))


def _reader_of(claim: str) -> Callable[[Answer], Claim]:
    def read(answer: Answer) -> Claim:
        shown = msgspec.json.decode(answer.body, type=answers.Claim[Message, datetime])
        return Claim(claim, shown.messages, shown.age, shown.ttl, shown.client or None, shown.agent or None)

    return read
