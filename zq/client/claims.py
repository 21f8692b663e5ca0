# SPDX-License-Identifier: Apache-2.0
"""API calls about claims, for queue handles and consumers."""

from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar
from uuid import uuid4

import msgspec
from msgspec import UNSET, Struct

from zq import wire
from zq.client.calls import (
    EMPTY_RESPONSE,
    Call,
    Response,
    decode_as,
    idempotency_header,
    parse_retry_after,
    path,
    read_empty,
)
from zq.client.values import Claim, Delivery, Message
from zq.model import Fence, SettleResult
from zq.wire import answers, extensions

T = TypeVar("T")
_claimed: Final = msgspec.json.Decoder(answers.Messages[Message])
_delivered: Final = msgspec.json.Decoder(answers.Messages[Delivery])


class ClaimedDeliveries(Struct, frozen=True):
    """Messages that a consumer has claimed. The server requests ``pause`` seconds of sleep before the next claim."""

    claim: str
    deliveries: list[Delivery]
    pause: float = 0.0


def claim_call(
    queue: str,
    name: str | None,
    read: Callable[[str, Response], T],
    *,
    limit: int | None,
    ttl: int | None,
    grace: int | None,
    wait: float,
    fence: Fence | None = None,
) -> Call[T]:
    """Return the call that creates a claim or, if the claim ``name`` exists already, returns that claim.

    If a call without a ``name`` gets no response, the client releases the claim, because the server may have created
    it.
    """
    own = name or f"client.{uuid4().hex}"  # The dot prevents a collision: ids assigned by the server contain none.
    return Call(
        method="PUT",
        path=path("queues", queue, "claims", own),
        params={"limit": limit, "wait": int(wait) or None, "detailed": True, **fence_params(fence)},
        body=_terms(ttl, grace),
        read=lambda response: read(own, response),
        wait=wait,
        undo=None if name else release_call(queue, own),
    )


def read_claim(name: str, response: Response) -> Claim:
    """Return the claim in the response to a claim request. ``name`` is the claim id."""
    if response.status == 204:
        return Claim("", [])
    return Claim(name, _claimed.decode(response.body).messages)


def read_deliveries(name: str, response: Response) -> ClaimedDeliveries:
    """Return the messages in the response to a consumer's claim request. ``name`` is the claim id."""
    if response.status == 204:
        return ClaimedDeliveries(name, [], parse_retry_after(response.headers))
    return ClaimedDeliveries(name, _delivered.decode(response.body).messages)


def get_call(queue: str, claim: str) -> Call[Claim]:
    """Return the call that gets a claim with its messages."""
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
        params=fence_params(fence),
        body=_terms(ttl, grace),
        read=read_empty,
    )


def release_call(queue: str, claim: str, delay: int | None = None) -> Call[None]:
    """Return the call that releases a claim. The id "" denotes a claim without messages, which needs no request."""
    if not claim:
        return Call(method="DELETE", path="", read=read_empty, local_response=EMPTY_RESPONSE)
    params = {"delay": delay}
    return Call(method="DELETE", path=path("queues", queue, "claims", claim), params=params, read=read_empty)


def settle_call(
    queue: str, claim: str, terms: extensions.SettleTerms, key: str | None = None, fence: Fence | None = None
) -> Call[SettleResult]:
    """Return the call that settles messages of a claim."""
    return Call(
        method="POST",
        path=path("queues", queue, "claims", claim, "settle"),
        params=fence_params(fence),
        headers=idempotency_header(key),
        body=wire.encode(terms),
        read=decode_as(SettleResult),
    )


def fence_params(fence: Fence | None) -> dict[str, str]:
    """Return the query parameter with a fencing token, or ``{}`` without a token."""
    return {} if fence is None else {"fence": f"{fence.name}:{fence.epoch}"}


def _terms(ttl: int | None, grace: int | None) -> bytes:
    return wire.encode(wire.ClaimTerms(UNSET if ttl is None else ttl, UNSET if grace is None else grace))


def _reader_of(claim: str) -> Callable[[Response], Claim]:
    def read(response: Response) -> Claim:
        shown = msgspec.json.decode(response.body, type=answers.Claim[Message, datetime])
        return Claim(claim, shown.messages, shown.age, shown.ttl, shown.client or None, shown.agent or None)

    return read
