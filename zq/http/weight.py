# SPDX-License-Identifier: Apache-2.0
"""Admission of heavy requests, which handle more than ``MAX_LIGHT_MESSAGES`` messages.

- The number of concurrent heavy requests per project is limited. Further heavy requests wait.
- An estimate is charged to the rate limit in advance. At the end, the actual number of messages and bytes replaces the
  estimate.
- While a heavy request runs, it pauses regularly so that other requests can run (``zq.turns``).

A resource calls ``admit`` with the expected number of messages, or with ``UNKNOWN_MESSAGE_COUNT``.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from zq import turns
from zq.core.quotas import Quotas
from zq.core.rates import Account
from zq.errors import TooManyRequests
from zq.http import heads
from zq.http.context import Request
from zq.turns import Contention

# Maximum number of messages of a light request.
MAX_LIGHT_MESSAGES: Final = 100
# Estimated number of messages of a request of unknown size.
UNKNOWN_MESSAGE_COUNT: Final = 1000
# Estimated size of a message in bytes.
MESSAGE_SIZE: Final = 1024
# Maximum size in bytes of a post whose messages need not be counted. The shortest message, {"body":1}, has 10 bytes.
MAX_LIGHT_POST: Final = 10 * MAX_LIGHT_MESSAGES


class HasFound(Protocol):
    """The result of a poll. ``found`` is truthy if the poll has found messages."""

    @property
    def found(self) -> object: ...


T = TypeVar("T", bound=HasFound)


class HeavyRequest(Struct):
    """A heavy request in progress.

    ``messages`` and ``size`` (bytes) are the estimate that was charged to the rate limiter ``account`` in advance.
    """

    account: Account | None
    now: Callable[[], float]
    messages: int
    size: int

    def end(self) -> None:
        """Allow the project's next heavy request to run, and refund the estimate that was charged in advance."""
        turns.end()
        if self.account is not None:
            self.account.end_heavy(self.now(), self.messages, self.size)


def admit(req: Request, count: int, messages: int = 0, size: int = 0) -> None:
    """Delay a heavy request until its project may run one more, and charge the rate limit in advance.

    A request is heavy if it handles more than ``MAX_LIGHT_MESSAGES`` messages. Other requests are neither delayed nor
    charged in advance. Raises ``TooManyRequests`` if the project exceeds its rate limits, or if the delay is too long.

    Args:
        count: The expected number of messages that the request handles.
        messages: The number of messages to charge.
        size: The number of bytes to charge.
    """
    context = req.context
    if count <= MAX_LIGHT_MESSAGES or context.heavy is not None:
        return
    account, bounds = context.account, context.bounds
    quotas: Quotas | None = None if bounds is None else bounds.quotas
    if quotas is None or account is None:
        context.heavy = HeavyRequest(None, float, 0, 0)
        turns.begin(lambda: Contention.NONE)
        return
    try:
        account.begin_heavy(quotas.now, messages, size)
    except TooManyRequests:
        req.env[heads.RATE_LIMITED_KEY] = True
        raise
    context.heavy = HeavyRequest(account, quotas.now, messages, size)
    turns.begin(lambda: quotas.recent_projects.contention(account, quotas.now()))


def end(req: Request) -> None:
    """If the request is heavy, allow the project's next heavy request to run. Idempotent."""
    heavy: HeavyRequest | None = req.context.heavy
    if heavy is not None:
        req.context.heavy = None
        heavy.end()


def admit_page(req: Request, limit: int | None) -> None:
    """Call ``admit`` for a request that reads a page of up to ``limit`` messages."""
    if limit is not None and limit > MAX_LIGHT_MESSAGES:
        admit(req, limit, 0, min(limit, UNKNOWN_MESSAGE_COUNT) * MESSAGE_SIZE)


def admit_post(req: Request, raw: bytes) -> None:
    """Call ``admit`` for a request that posts messages. ``raw`` is the request body."""
    count = max_posted_messages(raw)
    admit(req, count, count, len(raw))


def admit_each_poll(req: Request, limit: int | None, fetch: Callable[[], T], *, takes: bool) -> Callable[[], T]:
    """Return a function that calls ``admit`` before ``fetch``, for a long poll that fetches up to ``limit`` messages.

    If ``fetch`` finds no messages, the request does not count as heavy until the next poll.
    """
    if limit is None or limit <= MAX_LIGHT_MESSAGES:
        return fetch

    def admitted() -> T:
        count = min(limit, UNKNOWN_MESSAGE_COUNT)
        admit(req, limit, count if takes else 0, count * MESSAGE_SIZE)
        answer = fetch()
        if not answer.found:
            end(req)
        return answer

    return admitted


def max_posted_messages(raw: bytes) -> int:
    """Return an upper bound of the number of messages in the body of a post, without decoding the body.

    If the body has at most ``MAX_LIGHT_POST`` bytes, return 0, because the request cannot be heavy.
    """
    if len(raw) <= MAX_LIGHT_POST:
        return 0
    # An escape may hide the name of a member.
    return raw.count(b"{") if b"\\u" in raw else raw.count(b'"body"')
