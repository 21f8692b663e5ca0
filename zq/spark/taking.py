# SPDX-License-Identifier: Apache-2.0
"""Takes the claims of a stream's batches and settles them; what a batch holds, and work beside another batch."""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from zq.client import Message, Queue
from zq.errors import ClaimNotFound, QueueNotFound, ZqError
from zq.model import Fence
from zq.spark.heartbeat import Heartbeat
from zq.spark.options import ClaimingOptions
from zq.wire.settling import Released

MOST_CLAIMS: Final = 1000
"""Of one batch: a commit settles no more."""
GAP: Final = 100
"""Claims that may be missing in a row between others: messages of those were all settled."""
CARRIED: Final = 8 * 2**20
"""Bytes that a batch's tasks get from the driver, which has them from the claim, without asking again."""
FOUND: Final = 2
"""Batches whose claims an earlier process may have taken, some time ago: the next one, and one ahead."""
T = TypeVar("T")


@dataclass
class Taken:
    """What a batch holds so far. Its claims are named ``<stem>.0``, ``<stem>.1`` …"""

    stem: str
    messages: int = 0
    claims: dict[str, list[str]] = field(default_factory=dict)
    """Ids of the messages of each."""
    carried: dict[str, bytes] = field(default_factory=dict)
    """What claims hold, as JSON, of as many as there is room for: it does not change while a claim lives."""
    tried: int = 0
    """How often each of the messages was handed out at least."""
    room: int = CARRIED

    def add(self, name: str, messages: list[Message]) -> None:
        """Another claim."""
        fewest = min(message.claim_count for message in messages)
        self.tried = min(self.tried, fewest) if self.messages else fewest
        self.messages += len(messages)
        self.claims[name] = [message.id for message in messages]
        content = msgspec.json.encode(messages)
        if len(content) + sum(map(len, self.carried.values())) <= self.room:
            self.carried[name] = content


class Taker:
    """Under a fence; what it takes is kept alive. Any thread, one at a time."""

    def __init__(self, options: ClaimingOptions, fence: Fence, heart: Heartbeat) -> None:
        self._options = options
        self._fence = fence
        self._heart = heart
        self._size = options.claim_size or options.connection.client().limits()["max_messages_per_claim_or_pop"]
        self._fills = 0

    def fill(self, taken: Taken, most: int, wait: int) -> None:
        """Take up to ``most`` messages in all. The first claim of a batch waits so many seconds for some to come."""
        self._fills += 1
        found = self._fills <= FOUND
        while taken.messages < most and len(taken.claims) < MOST_CLAIMS:
            name = f"{taken.stem}.{len(taken.claims)}"
            messages = self._claim(name, min(self._size, most - taken.messages), 0 if taken.claims else wait)
            if not messages:
                return
            self._heart.hold([name], at_once=found)
            taken.add(name, messages)

    def adopt(self, taken: Taken, stems: Iterable[str]) -> None:
        """What claims of these stems hold still: those of a run that died. Nothing new is taken."""
        try:
            claimed = self._queue().stats().claimed
        except QueueNotFound:
            return
        for stem in stems:
            missing = 0
            for number in range(MOST_CLAIMS):
                if taken.messages >= claimed or len(taken.claims) == MOST_CLAIMS or missing > GAP:
                    break
                missing = 0 if self._adopted(taken, f"{stem}.{number}") else missing + 1

    def _adopted(self, taken: Taken, name: str) -> bool:
        try:
            self._queue().renew(name, ttl=self._options.ttl, fence=self._fence)
            messages = self._queue().held(name).messages
        except ClaimNotFound:
            return False
        self._heart.hold([name])
        taken.add(name, messages)
        return True

    def settle(self, names: Iterable[str]) -> None:
        """Their messages are done."""
        for name in names:
            try:
                self._queue().settle(name, delete="*", fence=self._fence)
            except ClaimNotFound:
                continue  # the sink's commit has settled it, or it lapsed and its messages come again
            finally:
                self._heart.let_go([name])

    def give_back(self, taken: Taken) -> None:
        """Their messages are somebody else's to take. Under the fence: a successor has claims of the same names."""
        for name, ids in taken.claims.items():
            self._heart.let_go([name])
            try:
                self._queue().settle(name, release=map(Released, ids), fence=self._fence)
            except ClaimNotFound:
                continue
            except ZqError:
                return  # they lapse

    def _claim(self, name: str, size: int, wait: int) -> list[Message]:
        asked = time.monotonic()
        claim = self._queue().claim(size, ttl=self._options.ttl, wait=wait, name=name, fence=self._fence)
        if wait and not claim.messages:
            # A server on which too many wait already answers at once; Spark would ask again without a pause.
            time.sleep(max(0.0, min(1.0, asked + wait - time.monotonic())))
        return claim.messages

    def _queue(self) -> Queue:
        return self._options.connection.client().queue(self._options.queue)


def beside(work: Callable[[], T]) -> Future[T]:
    """Do it in a thread of its own, which dies with the process."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 (raised to whoever asks for the result)
            outcome.set_exception(error)

    threading.Thread(target=run, name="zq-beside", daemon=True).start()
    return outcome
