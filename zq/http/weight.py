# SPDX-License-Identifier: Apache-2.0
"""Heavy requests: those that handle more than ``HEAVY`` messages, as far as that is known before the work begins.

A heavy request is never a short one (``zq.http.short``). It waits for one of its project's places, pays an estimate,
and gives way to light requests between slices (``zq.turns``). The resource that handles it calls ``admit``
with the number of messages that it names: the limit of a page, the messages of a post, the ids of a deletion. Work of
unknown size, as a commit's, counts as ``UNKNOWN`` messages.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import falcon
from msgspec import Struct

from zq import turns
from zq.core.quotas import Quotas
from zq.core.rates import Account
from zq.errors import TooManyRequests
from zq.http import heads
from zq.turns import Company

# Messages that a light request handles at most.
HEAVY: Final = 100
# Messages that a request of unknown size is taken to handle.
UNKNOWN: Final = 1000
# Bytes that a message of a page is taken to have.
SIZE: Final = 1024
# Bytes of the shortest message in a post: {"body":1}
SHORTEST: Final = 10


class Found(Protocol):
    """An answer to a poll."""

    @property
    def found(self) -> object: ...


T = TypeVar("T", bound=Found)


class HeavyRequest(Struct):
    """A heavy request under way. ``account``: has paid an estimate of ``messages`` and ``size`` bytes."""

    account: Account | None
    now: Callable[[], float]
    messages: int
    size: int

    def end(self) -> None:
        """Free the place, and take back the estimate."""
        turns.end()
        if self.account is not None:
            self.account.end_heavy(self.now(), self.messages, self.size)


def admit(req: falcon.Request, count: int, messages: int = 0, size: int = 0) -> None:
    """Let a request go on that names ``count`` messages. If it is heavy, wait for a place of its project, and pay for
    as many ``messages`` and bytes. Raises ``TooManyRequests``.
    """
    context = req.context
    if count <= HEAVY or getattr(context, "heavy", None) is not None:
        return
    bounds = getattr(context, "bounds", None)
    quotas: Quotas | None = None if bounds is None else bounds.quotas
    if quotas is None:
        context.heavy = HeavyRequest(None, float, 0, 0)
        turns.begin(lambda: Company.NONE)
        return
    account: Account = context.account
    try:
        account.begin_heavy(quotas.now, messages, size)
    except TooManyRequests:
        req.env[heads.SLOWED] = True
        raise
    context.heavy = HeavyRequest(account, quotas.now, messages, size)
    turns.begin(lambda: quotas.visits.company(account, quotas.now()))


def end(req: falcon.Request) -> None:
    """Let the next heavy request of the project go on, if this one is heavy. May be called twice."""
    heavy: HeavyRequest | None = getattr(req.context, "heavy", None)
    if heavy is not None:
        req.context.heavy = None
        heavy.end()


def admit_page(req: falcon.Request, limit: int | None) -> None:
    """Let a request go on that reads a page of at most ``limit`` messages. Raises ``TooManyRequests``."""
    if limit is not None and limit > HEAVY:
        admit(req, limit, 0, min(limit, UNKNOWN) * SIZE)


def admit_post(req: falcon.Request, raw: bytes) -> bytes:
    """Let a request go on that posts the messages of a body, which it returns. Raises ``TooManyRequests``."""
    if len(raw) > HEAVY * SHORTEST and (count := posted(raw)) > HEAVY:
        admit(req, count, count, len(raw))
    return raw


def admitting(req: falcon.Request, limit: int | None, look: Callable[[], T], *, takes: bool) -> Callable[[], T]:
    """Return the look of a poll with a page of up to ``limit`` messages. It has a place while it looks, and until it
    is answered if it finds something. ``takes``: it pays for the messages that it takes."""
    if limit is None or limit <= HEAVY:
        return look

    def admitted() -> T:
        count = min(limit, UNKNOWN)
        admit(req, limit, count if takes else 0, count * SIZE)
        answer = look()
        if not answer.found:
            end(req)
        return answer

    return admitted


def posted(raw: bytes) -> int:
    """Return the number of messages in a body, or a number above it; 0 for one that is too short to be heavy."""
    if len(raw) <= HEAVY * SHORTEST:
        return 0
    # An escape may stand in a member's name.
    return raw.count(b"{") if b"\\u" in raw else raw.count(b'"body"')
