# SPDX-License-Identifier: Apache-2.0
"""Claims: what one asks for, what it grants, and what is settled in it."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, TypeVar

from msgspec import Struct

from zq.model.messages import Message, Move
from zq.model.queues import UNBOUNDED, Seconds
from zq.model.transactions import Fence

Moment = TypeVar("Moment", int, float)

# How often a claim, or a pop, looks again because all that it met had expired, or were dead letters.
MAX_LOOKS: Final = 64


class Lease(Struct, frozen=True):
    """What a claim grants: the messages are its holder's for ``ttl`` seconds.

    Without ``prolong`` a held message expires when it would have anyway.
    """

    claim: str
    ttl: int
    grace: int
    prolong: bool = True

    def extend(self, ttl: int, expires: Moment, ends: Moment, second: Moment) -> tuple[int, Moment]:
        """A held message's (ttl, expires): one that would expire before the claim ends lives until its end + grace.

        Contract 8.1. In whatever unit the store counts moments; ``second`` is one second of it.
        """
        if expires < ends and self.prolong:
            return self.ttl + self.grace, ends + self.grace * second
        return ttl, expires


class Holder(Struct, frozen=True):
    """Who made a claim: its ``Client-ID``, and the beginning of its ``User-Agent``; both are "" if it is not known."""

    client: str = ""
    agent: str = ""

    @property
    def is_known(self) -> bool:
        return bool(self.client or self.agent)


class ClaimSummary(Struct, frozen=True):
    """A live claim without its messages: ``created`` as ``Claim`` has it; ``messages``: how many it holds."""

    id: str
    queue: str
    holder: Holder
    created: Seconds
    ends: Seconds
    messages: int


class ClaimRequest(Struct, frozen=True):
    """What a claim asks for: up to ``limit`` ready messages under ``lease``."""

    lease: Lease
    limit: int
    waits: tuple[int, ...] = ()
    """Redelivery delays in seconds: how long a message stays away after its first, second, … claim has ended; the last
    one holds for all later claims. () = not at all."""
    max_claims: int | None = None
    """A message that was handed out so often is not handed out again."""
    most_bytes: int = UNBOUNDED
    """The claim ends before the bodies are more together, but not before the first message."""
    named: bool = False
    """If a claim of this id lives, it is the answer."""
    fence: Fence | None = None
    holder: Holder = Holder()
    expected: bytes | None = None
    """The queue's metadata by which the other terms were chosen; None = whatever they are."""

    def wait(self, count: int) -> int:
        """Seconds that a message stays away after its ``count``-th claim; the first is 1."""
        return self.waits[min(count, len(self.waits)) - 1] if self.waits else 0


class Release(Struct, frozen=True):
    """A held message given back: after ``delay`` seconds; None = after its redelivery delay, or to its place."""

    id: str
    delay: int | None = None


class Settlement(Struct, frozen=True):
    """What becomes of the messages of a claim (extensions 3). No id stands in it twice.

    ``rest``: delete whatever the claim holds besides those named. ``history``: seconds for which the queue keeps
    an entry of each.
    """

    delete: Sequence[str] = ()
    rest: bool = False
    release: Sequence[Release] = ()
    move: Sequence[Move] = ()
    history: int = 0


class Settled(Struct, frozen=True):
    """What a settlement did; ``lost`` = the ids that the claim did not hold any more, in the order of naming."""

    deleted: int = 0
    released: int = 0
    moved: int = 0
    buried: int = 0
    lost: list[str] = []


class Handled(StrEnum):
    """What became of a message that somebody had a grip on."""

    DONE = "done"
    GONE = "gone"
    """There is no such message in the queue."""
    LOST = "lost"
    """It was handed out again since, given back, or a commit has it."""
    EXPIRED = "expired"
    """The time of its last holder, who asks, is up."""
    TOO_LONG = "too_long"
    """The claim would hold it for more than ``Grip.max_hold`` seconds."""


# As a name of the module: reading it off its class takes longer than to compare it.
DONE: Final = Handled.DONE


class Grip(Struct, frozen=True):
    """A message as a claim handed it out for the ``count``-th time, and what its holder wants of it.

    ``hold``: the claim's hold on it is to end in so many seconds, 0 = now; None = the message is to be deleted.
    ``max_hold``: for how many seconds, from the claim's creation or last renewal, it may hold the message; 0 = any.
    """

    id: str
    claim: str
    count: int
    hold: int | None = None
    max_hold: int = 0

    def judge(self, claim: str, count: int, counts: bool, age: int) -> Handled:
        """Return whether this may be done to a message of this last claim and claim count.

        ``counts``: the claim lives, or may be late. ``age``: whole seconds since its creation or last renewal.
        """
        if not claim or claim != self.claim or count != self.count:
            return Handled.LOST
        if not counts:
            return Handled.EXPIRED
        return Handled.TOO_LONG if self.max_hold and age + (self.hold or 0) > self.max_hold else DONE


def runs(grips: Sequence[Grip]) -> Iterator[list[Grip]]:
    """The grips in order, in pieces in each of which no message comes twice."""
    run: dict[str, Grip] = {grip.id: grip for grip in grips}
    if len(run) == len(grips):
        yield list(grips)
        return
    run = {}
    for grip in grips:
        if grip.id in run:
            yield list(run.values())
            run = {}
        run[grip.id] = grip
    yield list(run.values())


class Claim(Struct, frozen=True):
    """A live claim: ``created`` is its creation or last renewal.

    ``lapsed``: how many of its messages it took over from claims that had lapsed; told when it is made only.
    ``holder``: told when it is asked for only.
    """

    id: str
    ttl: int
    created: Seconds
    messages: list[Message]
    lapsed: int = 0
    holder: Holder = Holder()


class Claimed(Struct, frozen=True):
    """What became of a ``ClaimRequest``."""

    claim: Claim | None = None
    """None: there was nothing to claim."""
    existing: bool = False
    """The claim of that id was there before."""
    spent: list[str] = []
    """Ids of messages that were met and were handed out ``max_claims`` times: they stay as they are."""
    metadata: bytes | None = None
    """The queue's metadata, if they are not the ``expected`` ones: nothing was claimed then."""
