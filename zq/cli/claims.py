# SPDX-License-Identifier: Apache-2.0
"""``zq consume --batch``: whole claims to one command each."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Final

import msgspec
from msgspec import Struct

from zq.cli.commands import Commands
from zq.cli.output import note
from zq.cli.tally import Tally
from zq.client import Claim, Message, Queue
from zq.client.stopping import told_to_stop
from zq.errors import ClaimNotFound, ZqError

LOOK: Final = 5
"""Seconds that one request waits for messages: so soon a stop is noticed."""


class Manner(Struct, frozen=True):
    """How whole claims are worked on; ``most_delay`` bounds the back-off. Seconds, but ``limit`` and ``count``."""

    words: list[str]
    limit: int
    wait: int
    ttl: int
    backoff: int
    most_delay: int
    until_empty: bool
    count: int | None


class Ration:
    """How many messages may still be claimed by several loops; any number without a ``count``."""

    def __init__(self, count: int | None) -> None:
        self._left: float = inf if count is None else count
        self._asked = 0
        self._changed = threading.Condition()

    def claim(self, most: int, stopped: threading.Event, ask: Callable[[int], Claim]) -> Claim | None:
        """Ask for so many messages, or as many as may be claimed; None if none may be.

        While others have asked for all there are, it waits for what they do not get.
        """
        with self._changed:
            while not self._left and self._asked and not stopped.is_set():
                self._changed.wait(1)
            share = 0 if stopped.is_set() else int(min(most, self._left))
            self._left -= share
            self._asked += share
        got = 0
        try:
            if not share:
                return None
            claim = ask(share)
            got = len(claim.messages)
            return claim
        finally:
            with self._changed:
                self._asked -= share
                self._left += share - got
                self._changed.notify_all()


def filled(words: Sequence[str], name: str) -> list[str]:
    """The command, told what it works on."""
    return [word.replace("{}", name) for word in words]


def tell_lost(lost: Sequence[Message]) -> None:
    """Say that others may work on messages, too."""
    note(f"The claim of {len(lost)} messages was over before they were settled; they may be worked on twice.")


def work_on_claims(queue: Queue, manner: Manner, concurrency: int, commands: Commands, tally: Tally) -> None:
    """So many loops at once, until told to stop or nothing is left."""
    stopped, ration = threading.Event(), Ration(manner.count)
    with told_to_stop(stopped.set), ThreadPoolExecutor(concurrency, "zq-work") as pool:
        loops = [pool.submit(loop, queue, manner, ration, commands, tally, stopped) for _ in range(concurrency)]
        try:
            for one in loops:
                one.result()
        finally:
            stopped.set()


def loop(
    queue: Queue, manner: Manner, ration: Ration, commands: Commands, tally: Tally, stopped: threading.Event
) -> None:
    """Claim, run, settle."""
    idle = 0
    while not stopped.is_set():
        wait = min(LOOK, manner.wait - idle if manner.until_empty else manner.wait)
        begun = time.monotonic()
        claim = ration.claim(manner.limit, stopped, partial(queue.claim, ttl=manner.ttl, wait=wait))
        if claim is None:
            return
        if claim.messages and stopped.is_set():
            queue.release(claim.id)
            tally.give_back(len(claim.messages))
            return
        if claim.messages:
            idle = 0
            work_on_claim(queue, claim, manner, commands, tally)
            if tally.hopeless:
                stopped.set()
            continue
        idle += wait
        if manner.until_empty and idle >= manner.wait:
            return
        if time.monotonic() - begun < wait / 2 or not wait:
            stopped.wait(1)  # the server has no place for those who wait


def work_on_claim(queue: Queue, claim: Claim, manner: Manner, commands: Commands, tally: Tally) -> None:
    """One run of the command, the claim being renewed meanwhile."""
    lines = b"".join(msgspec.json.encode(message) + b"\n" for message in claim.messages)
    code = None
    try:
        code = commands.run(filled(manner.words, claim.id), lines, manner.ttl / 3, partial(renew, queue, claim, manner))
    finally:
        tally.add(claim.messages, done=code == 0)
        if code is None:  # it cannot be started
            queue.release(claim.id)
    try:
        if code == 0:
            queue.settle(claim.id, delete="*")
            return
        note(f"The command ended with {code}; {len(claim.messages)} messages go back.")
        doublings = min(max(message.claim_count for message in claim.messages), 20) - 1
        queue.release(claim.id, delay=min(manner.backoff << max(doublings, 0), manner.most_delay))
    except ClaimNotFound:
        tell_lost(claim.messages)


def renew(queue: Queue, claim: Claim, manner: Manner) -> None:
    """For another ttl."""
    try:
        queue.renew(claim.id, ttl=manner.ttl)
    except ZqError as error:
        note(f"The claim {claim.id} could not be renewed: {error}")
