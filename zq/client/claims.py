# SPDX-License-Identifier: Apache-2.0
"""API calls about claims, for queue handles and consumers."""

from collections.abc import Callable
from typing import TypeVar
from uuid import uuid4

import msgspec
from msgspec import UNSET, Struct

from zq import wire
from zq.client.calls import (
    EMPTY_RESPONSE,
    Call,
    Page,
    Response,
    idempotency_header,
    parse_retry_after,
    path,
    read_empty,
)
from zq.client.values import Claim, Delivery, LiveClaim, Message
from zq.model import Fence, SettleResult
from zq.wire import extensions

T = TypeVar("T")


class ClaimedDeliveries(Struct, frozen=True):
    """Claimed messages of a consumer.

    Attributes:
        pause: Seconds to sleep before the next claim, as requested by the server.
    """

    claim: str
    deliveries: list[Delivery]
    pause: float = 0.0


class _Claimed(Struct):
    messages: list[Message]


class _Delivered(Struct):
    messages: list[Delivery]


class _ShownClaim(Struct):
    messages: list[Message]
    age: int
    ttl: int
    client: str | None = None
    agent: str | None = None


class _ListedClaims(Struct):
    claims: list[LiveClaim]
    links: list[dict[str, str]]


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
    """Return the call that creates a claim, or gets the claim if ``name`` exists.

    Args:
        name: Claim id. With ``None``, the call uses a new id, and releases the claim if it gets no response.
        read: Reads the response; called with the claim id.
        wait: Seconds to wait for the first message.
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
    """Read the response to a claim request."""
    if response.status == 204:
        return Claim("", [])
    return Claim(name, msgspec.json.decode(response.body, type=_Claimed).messages)


def read_deliveries(name: str, response: Response) -> ClaimedDeliveries:
    """Read the response to a consumer's claim request."""
    if response.status == 204:
        return ClaimedDeliveries(name, [], parse_retry_after(response.headers))
    return ClaimedDeliveries(name, msgspec.json.decode(response.body, type=_Delivered).messages)


def list_call(where: str, page: int | None) -> Call[Page[LiveClaim]]:
    """Return the call for the first page of live claims. Pages before the last one may be empty."""

    def read(response: Response) -> Page[LiveClaim]:
        found = msgspec.json.decode(response.body, type=_ListedClaims)
        queries = [link["href"].partition("?")[2] for link in found.links]
        return Page(found.claims, Call(method="GET", path=f"{where}?{queries[0]}", read=read) if queries else None)

    return Call(method="GET", path=where, params={"limit": page}, read=read)


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
    """Return the call that releases a claim. If ``claim`` is "", the call sends no request."""
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
        read=lambda response: msgspec.json.decode(response.body, type=SettleResult),
    )


def fence_params(fence: Fence | None) -> dict[str, str]:
    """Return the query parameters that make the server check the epoch of a fence."""
    return {} if fence is None else {"fence": f"{fence.name}:{fence.epoch}"}


def _terms(ttl: int | None, grace: int | None) -> bytes:
    return wire.encode(wire.ClaimTerms(UNSET if ttl is None else ttl, UNSET if grace is None else grace))


def _reader_of(claim: str) -> Callable[[Response], Claim]:
    def read(response: Response) -> Claim:
        shown = msgspec.json.decode(response.body, type=_ShownClaim)
        return Claim(claim, shown.messages, shown.age, shown.ttl, shown.client, shown.agent)

    return read
