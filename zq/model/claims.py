# SPDX-License-Identifier: Apache-2.0
"""Claims: requests, leases, and settlements."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, TypeVar

from msgspec import Struct

from zq.model.messages import Message, Move
from zq.model.queues import UNBOUNDED, Seconds
from zq.model.transactions import Fence

Moment = TypeVar("Moment", int, float)

# Maximum number of attempts for a claim or pop that finds only expired messages or dead letters.
MAX_CLAIM_ATTEMPTS: Final = 64


class Lease(Struct, frozen=True):
    """The lease of a claim, which reserves messages for ``ttl`` seconds.

    Attributes:
        prolong: Whether a message that would expire during the claim is kept until ``grace`` seconds after the end of
            the claim.
    """

    claim: str
    ttl: int
    grace: int
    prolong: bool = True

    def extend(self, ttl: int, expires: Moment, ends: Moment, second: Moment) -> tuple[int, Moment]:
        """Return the ttl and the expiry time that a message gets when it is claimed (contract section 8.1).

        Both change only if ``prolong`` is true and the message would expire before the end of the claim.

        Args:
            ttl: The message's current ttl in seconds.
            expires: The message's current expiry time.
            ends: The expiry time of the claim.
            second: The unit of the times: 1 for seconds, 1000 for milliseconds.
        """
        if expires < ends and self.prolong:
            return self.ttl + self.grace, ends + self.grace * second
        return ttl, expires


class Holder(Struct, frozen=True):
    """The creator of a claim: its ``Client-ID`` and the start of its ``User-Agent``. Both are "" if unknown."""

    client: str = ""
    agent: str = ""

    @property
    def is_known(self) -> bool:
        return bool(self.client or self.agent)


class ClaimSummary(Struct, frozen=True):
    """A live claim without its messages.

    ``created`` is the time of the last renewal. If the claim was never renewed, it is the time of the creation.
    """

    id: str
    queue: str
    holder: Holder
    created: Seconds
    ends: Seconds
    messages: int


class ClaimRequest(Struct, frozen=True):
    """A request to claim up to ``limit`` ready messages."""

    lease: Lease
    limit: int
    redelivery_delays: tuple[int, ...] = ()
    """Redelivery delays in seconds after the first, second, … claim of a message; the last one repeats."""
    max_claims: int | None = None
    """Maximum number of claims per message; ``None`` = no limit."""
    max_bytes: int = UNBOUNDED
    """Maximum total size of the bodies in bytes. The first message may exceed it."""
    named: bool = False
    """Whether to return the live claim with the requested id, if there is one."""
    fence: Fence | None = None
    holder: Holder = Holder()
    expected: bytes | None = None
    """Queue metadata for which the request was built; ``None`` = any metadata."""

    def redelivery_delay(self, count: int) -> int:
        """Return the redelivery delay in seconds after the ``count``-th claim of a message."""
        return self.redelivery_delays[min(count, len(self.redelivery_delays)) - 1] if self.redelivery_delays else 0


class Release(Struct, frozen=True):
    """A request to release a claimed message, so that it becomes ready after ``delay`` seconds.

    If ``delay`` is ``None``, the queue's redelivery delay applies.
    """

    id: str
    delay: int | None = None


class Settlement(Struct, frozen=True):
    """A request to delete, release or move messages of a claim.

    If ``rest`` is true, all messages of the claim that the request does not name are deleted.
    """

    delete: Sequence[str] = ()
    rest: bool = False
    release: Sequence[Release] = ()
    move: Sequence[Move] = ()
    history: int = 0


class SettleResult(Struct, frozen=True):
    """The result of a settlement.

    Attributes:
        lost: Requested ids of messages that the claim no longer held, in request order.
    """

    deleted: int = 0
    released: int = 0
    moved: int = 0
    buried: int = 0
    lost: list[str] = []


class HandleOutcome(StrEnum):
    """The outcome of an operation on a claimed message."""

    DONE = "done"
    GONE = "gone"
    """The message does not exist in the queue."""
    LOST = "lost"
    """The message was claimed again or released in the meantime, or a commit settles it."""
    EXPIRED = "expired"
    """The caller's claim on the message has expired."""
    TOO_LONG = "too_long"
    """The claim would last longer than ``MessageHandle.max_hold`` seconds."""


# A module variable is faster than an attribute of the class.
DONE: Final = HandleOutcome.DONE


class MessageHandle(Struct, frozen=True):
    """A request to delete one claimed message, or to change the expiry of its claim.

    The request has an effect only if ``id``, ``claim`` and ``count`` (the claim count) match the stored message.

    Attributes:
        hold: Seconds from now until the claim on the message expires. 0 means immediately. ``None`` means that the
            request deletes the message.
        max_hold: Maximum seconds from the claim's last renewal to the new expiry; 0 = no limit.
    """

    id: str
    claim: str
    count: int
    hold: int | None = None
    max_hold: int = 0

    def decide(self, claim: str, count: int, is_accepted: bool, age: int) -> HandleOutcome:
        """Return the outcome of this request, given the state of the stored message.

        Args:
            claim: The id of the message's claim.
            count: The message's claim count.
            is_accepted: Whether the claim is live. Also true if the caller accepts expired claims.
            age: Whole seconds since creation or last renewal of the claim.
        """
        if not claim or claim != self.claim or count != self.count:
            return HandleOutcome.LOST
        if not is_accepted:
            return HandleOutcome.EXPIRED
        return HandleOutcome.TOO_LONG if self.max_hold and age + (self.hold or 0) > self.max_hold else DONE


def split_into_runs(handles: Sequence[MessageHandle]) -> Iterator[list[MessageHandle]]:
    """Split the requests, in order, into groups in which no message occurs twice."""
    run: dict[str, MessageHandle] = {handle.id: handle for handle in handles}
    if len(run) == len(handles):
        yield list(handles)
        return
    run = {}
    for handle in handles:
        if handle.id in run:
            yield list(run.values())
            run = {}
        run[handle.id] = handle
    yield list(run.values())


class Claim(Struct, frozen=True):
    """A live claim.

    Attributes:
        created: Time of the last renewal. If the claim was never renewed, time of the creation.
        lapsed: Number of messages in this claim whose previous claim expired. Set only when the claim is created.
    """

    id: str
    ttl: int
    created: Seconds
    messages: list[Message]
    lapsed: int = 0
    holder: Holder = Holder()


class ClaimResult(Struct, frozen=True):
    """The result of a ``ClaimRequest``."""

    claim: Claim | None = None
    """The claim; ``None`` if no message was ready."""
    existing: bool = False
    """Whether the claim was already live."""
    spent: list[str] = []
    """Ids of ready messages that have reached ``max_claims``. They are not claimed."""
    metadata: bytes | None = None
    """The queue's metadata if it differs from ``expected``. In this case, no message is claimed."""
