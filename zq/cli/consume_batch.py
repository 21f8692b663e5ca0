# SPDX-License-Identifier: Apache-2.0
"""The worker of ``zq consume --batch``, which passes whole claims to external commands."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Final

import msgspec
from msgspec import Struct

from zq.cli.command import RunningCommands
from zq.cli.output import note
from zq.cli.progress import WorkCounts
from zq.client import Claim, Message, Queue
from zq.client.stopping import stop_on_signals
from zq.errors import ClaimNotFound, ZqError

# Maximum seconds for which a claim request waits for messages. A stopped worker ends within this time.
MAX_CLAIM_WAIT: Final = 5


class BatchOptions(Struct, frozen=True):
    """The options of a ``BatchWorker``. Times are in seconds.

    ``limit`` is the maximum number of messages per claim. ``count`` is the maximum number of messages in total.
    """

    words: list[str]
    limit: int
    wait: int
    ttl: int
    backoff: int
    max_backoff: int
    until_empty: bool
    count: int | None


class MessageBudget:
    """The number of messages that the threads of a worker may still claim. A ``count`` of ``None`` means no limit."""

    def __init__(self, count: int | None) -> None:
        self._left: float = inf if count is None else count
        self._reserved = 0
        self._changed = threading.Condition()

    def claim(self, max_messages: int, stopped: threading.Event, ask: Callable[[int], Claim]) -> Claim | None:
        """Claim up to ``max_messages`` messages. Return ``None`` if the budget is used up or ``stopped`` is set.

        If other threads have reserved the rest of the budget, wait until their claim requests have finished.

        Args:
            ask: Sends the claim request for a number of messages.
        """
        with self._changed:
            while not self._left and self._reserved and not stopped.is_set():
                self._changed.wait(1)
            share = 0 if stopped.is_set() else int(min(max_messages, self._left))
            self._left -= share
            self._reserved += share
        got = 0
        try:
            if not share:
                return None
            claim = ask(share)
            got = len(claim.messages)
            return claim
        finally:
            with self._changed:
                self._reserved -= share
                self._left += share - got
                self._changed.notify_all()


def fill_placeholder(words: Sequence[str], name: str) -> list[str]:
    return [word.replace("{}", name) for word in words]


def note_lost(lost: Sequence[Message]) -> None:
    """Print a note that messages may be processed twice, because their claim has expired."""
    note(f"The claim of {len(lost)} messages expired before they were settled; they may be processed twice.")


class BatchWorker:
    """A worker that claims messages of a queue and runs an external command for each claim."""

    def __init__(self, queue: Queue, options: BatchOptions, commands: RunningCommands, counts: WorkCounts) -> None:
        self._queue = queue
        self._options = options
        self._commands = commands
        self._counts = counts
        self._stopped = threading.Event()
        self._budget = MessageBudget(options.count)

    def run(self, concurrency: int) -> None:
        """Process claims in ``concurrency`` threads until a signal arrives.

        The worker also stops after ``count`` messages, after too many failures or, with ``until_empty``, when the queue
        is empty.
        """
        with stop_on_signals(self._stopped.set), ThreadPoolExecutor(concurrency, "zq-work") as pool:
            loops = [pool.submit(self._loop) for _ in range(concurrency)]
            try:
                for one in loops:
                    one.result()
            finally:
                self._stopped.set()

    def _loop(self) -> None:
        options, stopped, idle = self._options, self._stopped, 0
        while not stopped.is_set():
            wait = min(MAX_CLAIM_WAIT, options.wait - idle if options.until_empty else options.wait)
            begun = time.monotonic()
            claim = self._budget.claim(options.limit, stopped, partial(self._queue.claim, ttl=options.ttl, wait=wait))
            if claim is None:
                return
            if claim.messages and stopped.is_set():
                self._queue.release(claim.id)
                self._counts.add_unstarted(len(claim.messages))
                return
            if claim.messages:
                idle = 0
                self._work(claim)
                if self._counts.has_failed_too_often:
                    stopped.set()
                continue
            idle += wait
            if options.until_empty and idle >= options.wait:
                return
            if time.monotonic() - begun < wait / 2 or not wait:
                stopped.wait(1)  # the server had no slot for a long poll and responded at once

    def _work(self, claim: Claim) -> None:
        lines = b"".join(msgspec.json.encode(message) + b"\n" for message in claim.messages)
        words, code = fill_placeholder(self._options.words, claim.id), None
        try:
            code = self._commands.run(words, lines, self._options.ttl / 3, partial(self._renew, claim))
        finally:
            self._counts.add(claim.messages, done=code == 0)
            if code is None:  # the command could not be started
                self._queue.release(claim.id)
        try:
            if code == 0:
                self._queue.settle(claim.id, delete="*")
                return
            note(f"The command exited with {code}; {len(claim.messages)} messages are released.")
            self._queue.release(claim.id, delay=self._backoff(claim))
        except ClaimNotFound:
            note_lost(claim.messages)

    def _backoff(self, claim: Claim) -> int:
        doublings = min(max(message.claim_count for message in claim.messages), 20) - 1
        return min(self._options.backoff << max(doublings, 0), self._options.max_backoff)

    def _renew(self, claim: Claim) -> None:
        try:
            self._queue.renew(claim.id, ttl=self._options.ttl)
        except ZqError as error:
            note(f"The claim {claim.id} could not be renewed: {error}")
