# SPDX-License-Identifier: Apache-2.0
"""Tokens that consumers move around three queues, while some settle late and servers are killed.

Each token is a message; each settlement moves some of the claimed messages to the next queue with a new body, releases
some, buries some and deletes a few. It has an Idempotency-Key, so that it can be repeated after a lost response. At the
end ``find_faults`` compares the responses with the location of the tokens: each is in one place, after as many hops as
moves, and was never in two claims at once.
"""

import contextlib
import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol

from tests.campaign.histories.history import Away, Refused, Unsure
from tests.campaign.histories.violations import TOLERANCE

RING = ("first", "second", "third")
DEAD = "dead"
SHARE_DELETED = 0.02
CARRIERS = 6
LATE = 0.15
# Minimum number of settlements, however long they take.
LEAST = 40
# Seconds within which they must have happened.
OVERTIME = 90.0


@dataclass(frozen=True)
class Token:
    """The body of a message: the token's name and the number of its moves."""

    name: str
    hops: int


@dataclass
class Plan:
    """A settlement of a claim's messages, by id."""

    delete: list[str] = field(default_factory=list)
    release: list[tuple[str, int | None]] = field(default_factory=list)
    move: list[tuple[str, Token]] = field(default_factory=list)
    bury: list[str] = field(default_factory=list)


class RingTarget(Protocol):
    """The operations of carriers; each may raise ``Refused``, ``Away`` and ``Unsure``."""

    claim_ttl: float

    def post(self, queue: str, tokens: Sequence[Token], key: str) -> None: ...

    def claim(self, queue: str, limit: int) -> tuple[str, dict[str, Token]]:
        """Return the claim and its messages by id."""
        ...

    def settle(self, queue: str, claim: str, plan: Plan, target: str, key: str) -> set[str]:
        """Settle the claim and return the ids that it no longer held."""
        ...

    def redrive(self) -> None:
        """Move some of the dead letters back to their source queues."""
        ...

    def listing(self, queue: str) -> list[Token]:
        """Return all tokens of the queue in any state."""
        ...


@dataclass
class Hold:
    """A period in which a claim certainly held a token."""

    claim: str
    since: float
    until: float


class Tally:
    """The results that all carriers received."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.posted: set[str] = set()
        self.deleted: set[str] = set()
        self.hops: defaultdict[str, int] = defaultdict(int)
        self.holds: defaultdict[str, list[Hold]] = defaultdict(list)
        self.settled = 0
        self.lost = 0


def until_answered(target: RingTarget, verb: str, *arguments: object) -> object:
    """Repeat a request until it is answered; a request with a key takes effect once."""
    while True:
        try:
            return getattr(target, verb)(*arguments)
        except (Unsure, Away):
            time.sleep(0.02)


class Carrier:
    """A consumer that claims and settles, sometimes too late."""

    def __init__(self, target: RingTarget, tally: Tally, number: int, until: float) -> None:
        self.target, self.tally, self.until = target, tally, until
        self.random = random.Random(number)
        self.keys = (f"carrier-{number}-{serial}" for serial in itertools.count())

    def run(self) -> None:
        while self.goes_on():
            self.turn(self.random.choice(RING))

    def goes_on(self) -> bool:
        late = time.monotonic() - self.until
        return late < 0 or (self.tally.settled < LEAST and late < OVERTIME)

    def turn(self, queue: str) -> None:
        began = time.monotonic()
        try:
            claim, held = self.target.claim(queue, self.random.randint(1, 6))
        except (Unsure, Away):
            return  # the claim may hold messages until it expires
        taken = time.monotonic()
        if not held:
            time.sleep(0.005)
            return
        if self.random.random() < 0.1 and self.target.claim_ttl < 5:
            time.sleep(self.target.claim_ttl + LATE)
        self.settle(queue, claim, held, began, taken)

    def settle(self, queue: str, claim: str, held: dict[str, Token], began: float, taken: float) -> None:
        until = min(began + self.target.claim_ttl - TOLERANCE, time.monotonic())
        with self.tally.lock:
            for token in held.values():
                self.tally.holds[token.name].append(Hold(claim, taken, until))
        plan = self.plan(held)
        target = RING[(RING.index(queue) + 1) % len(RING)]
        try:
            lost = until_answered(self.target, "settle", queue, claim, plan, target, next(self.keys))
        except Refused:
            return  # the claim was over: nothing has changed
        with self.tally.lock:
            self.tally.settled += 1
            self.tally.lost += len(lost)
            self.tally.deleted |= {held[id].name for id in plan.delete if id not in lost}
            for id, token in plan.move:
                if id not in lost:
                    self.tally.hops[token.name] += 1

    def plan(self, held: dict[str, Token]) -> Plan:
        plan = Plan()
        for id, token in held.items():
            chance = self.random.random()
            if chance < SHARE_DELETED:
                plan.delete.append(id)
            elif chance < 0.2:
                plan.release.append((id, self.random.choice([None, None, 0, 1])))
            elif chance < 0.3:
                plan.bury.append(id)
            elif chance < 0.9:
                plan.move.append((id, Token(token.name, token.hops + 1)))
        if plan == Plan():
            plan.release.append((next(iter(held)), None))
        return plan


class Redriver:
    """A worker that continuously redrives dead letters."""

    def __init__(self, target: RingTarget, until: float) -> None:
        self.target, self.until = target, until

    def run(self) -> None:
        while time.monotonic() < self.until:
            with contextlib.suppress(Unsure, Away, Refused):  # its effect is checked at the end
                self.target.redrive()
            time.sleep(0.05)


def run_ring(target: RingTarget, seconds: float, tokens: int = 150) -> Tally:
    """Move tokens around for a while and return the tally."""
    tally = Tally()
    until = time.monotonic() + seconds
    names = [f"token-{number}" for number in range(tokens)]
    for at in range(0, tokens, 10):
        until_answered(target, "post", RING[at % 3], [Token(name, 0) for name in names[at : at + 10]], f"post-{at}")
    tally.posted = set(names)
    crew = [*(Carrier(target, tally, number, until) for number in range(CARRIERS)), Redriver(target, until)]
    with ThreadPoolExecutor(len(crew)) as threads:
        for done in [threads.submit(worker.run) for worker in crew]:
            done.result()
    return tally


def find_faults(target: RingTarget, tally: Tally) -> list[str]:
    """Return the faults as sentences; the store must be idle."""
    places: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for queue in (*RING, DEAD):
        for token in until_answered(target, "listing", queue):
            places[token.name].append((queue, token.hops))
    return [*misplaced(tally, places), *shared(tally)]


def misplaced(tally: Tally, places: dict[str, list[tuple[str, int]]]) -> Iterator[str]:
    """Yield lost or duplicated tokens and wrong numbers of moves (L1, L7)."""
    for name in sorted(tally.posted | places.keys()):
        found = places.get(name, [])
        if name not in tally.posted:
            yield f"{name} was never posted and is there."
        elif name in tally.deleted and found:
            yield f"{name} was deleted and is in {found}."
        elif name not in tally.deleted and not found:
            yield f"{name} is lost."
        elif len(found) > 1:
            yield f"{name} is in several places: {found}."
        elif found and found[0][1] != tally.hops[name]:
            yield f"{name} has made {found[0][1]} hops, but was moved {tally.hops[name]} times."


def shared(tally: Tally) -> Iterator[str]:
    """Yield tokens that were in two claims at once, in any queue (L2)."""
    for name, holds in tally.holds.items():
        for one, other in combinations(holds, 2):
            if one.claim != other.claim and max(one.since, other.since) < min(one.until, other.until):
                yield f"{name} was in two hands at once."


def assert_in_place(found: list[str], tally: Tally) -> None:
    told = "\n".join(found[:10])
    assert not found, f"{len(found)} faults after {tally.settled} settlements:\n{told}"
    assert tally.settled >= LEAST, tally.settled
