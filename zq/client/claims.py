# SPDX-License-Identifier: Apache-2.0
"""Calls on claims: what the verbs of a queue, and those who work on its messages, ask alike."""

from collections.abc import Callable
from typing import TypeVar
from uuid import uuid4

import msgspec
from msgspec import UNSET, Struct

from zq import wire
from zq.client.answers import retry_after
from zq.client.calls import EMPTY, Answer, Call, key_header, nothing, path
from zq.client.values import Claim, Delivery, Message
from zq.model import Fence, Settled
from zq.wire import settling

T = TypeVar("T")


class Taken(Struct, frozen=True):
    """Messages to work on; ``pause``: seconds for which the server asks to be left alone."""

    claim: str
    deliveries: list[Delivery]
    pause: float = 0.0


class _Claimed(Struct):
    messages: list[Message]


class _Delivered(Struct):
    messages: list[Delivery]


class _Held(Struct):
    messages: list[Message]
    age: int
    ttl: int


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
    """Makes the claim of that name, or finds it: a repeat gets what the first attempt got. ``read``: one of below.

    Without a name it gets one that nobody else gives, and is taken back when nobody hears of it.
    """
    own = name or f"client.{uuid4().hex}"  # the dot tells it from ids that the server gives
    return Call(
        method="PUT",
        path=path("queues", queue, "claims", own),
        params={"limit": limit, "wait": int(wait) or None, "detailed": True, **fenced(fence)},
        body=_terms(ttl, grace),
        read=lambda answer: read(own, answer),
        wait=wait,
        undo=None if name else release_call(queue, own),
    )


def claimed(name: str, answer: Answer) -> Claim:
    """Messages as they are."""
    if answer.status == 204:
        return Claim("", [])
    return Claim(name, msgspec.json.decode(answer.body, type=_Claimed).messages)


def taken(name: str, answer: Answer) -> Taken:
    """Messages to work on."""
    if answer.status == 204:
        return Taken(name, [], retry_after(answer.headers))
    return Taken(name, msgspec.json.decode(answer.body, type=_Delivered).messages)


def held_call(queue: str, claim: str) -> Call[Claim]:
    """What a claim holds now."""
    return Call(
        method="GET", path=path("queues", queue, "claims", claim), params={"detailed": True}, read=_reads_held(claim)
    )


def renew_call(
    queue: str, claim: str, ttl: int | None = None, grace: int | None = None, fence: Fence | None = None
) -> Call[None]:
    """The claim lives for another ``ttl`` seconds."""
    return Call(
        method="PATCH",
        path=path("queues", queue, "claims", claim),
        params=fenced(fence),
        body=_terms(ttl, grace),
        read=nothing,
    )


def release_call(queue: str, claim: str, delay: int | None = None) -> Call[None]:
    """All that the claim holds goes back. Nothing to ask for the claim of no messages, which has no name."""
    if not claim:
        return Call(method="DELETE", path="", read=nothing, known=EMPTY)
    params = {"delay": delay}
    return Call(method="DELETE", path=path("queues", queue, "claims", claim), params=params, read=nothing)


def settle_call(
    queue: str, claim: str, terms: settling.Terms, key: str | None = None, fence: Fence | None = None
) -> Call[Settled]:
    """Ends the work on messages of a claim."""
    return Call(
        method="POST",
        path=path("queues", queue, "claims", claim, "settle"),
        params=fenced(fence),
        headers=key_header(key),
        body=wire.encode(terms),
        read=lambda answer: msgspec.json.decode(answer.body, type=Settled),
    )


def fenced(fence: Fence | None) -> dict[str, str]:
    """The parameter that refuses those who were replaced."""
    return {} if fence is None else {"fence": f"{fence.name}:{fence.epoch}"}


def _terms(ttl: int | None, grace: int | None) -> bytes:
    return wire.encode(wire.ClaimTerms(UNSET if ttl is None else ttl, UNSET if grace is None else grace))


def _reads_held(claim: str) -> Callable[[Answer], Claim]:
    def read(answer: Answer) -> Claim:
        held = msgspec.json.decode(answer.body, type=_Held)
        return Claim(claim, held.messages, held.age, held.ttl)

    return read
