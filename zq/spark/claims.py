# SPDX-License-Identifier: Apache-2.0
"""The claims of a batch: creation, adoption, settlement, release, renewal and prefetch."""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from zq.client import Message, Queue
from zq.errors import ClaimNotFound, Fenced, QueueNotFound, ZqError
from zq.model import Fence
from zq.spark.options import ClaimingOptions, Connection
from zq.wire.extensions import Released

# Maximum number of claims per batch, which is also the limit of a commit.
MAX_CLAIMS: Final = 1000
# Maximum number of consecutive missing claims between others, whose messages were all settled.
GAP: Final = 100
# Bytes of messages that the driver inlines into a batch's tasks, so that they need no request.
INLINED_BYTES: Final = 8 * 2**20
# Number of batches whose claims an earlier process may have created: the next one, and a prefetched one.
INHERITED: Final = 2
# Seconds for which the end of a run waits for a prefetch in progress.
PREFETCH_TIMEOUT: Final = 5.0
T = TypeVar("T")


class Heartbeat:
    """A thread that renews claims regularly.

    It starts with the first claim and ends with the process, so the claims of a killed process lapse.
    """

    def __init__(self, connection: Connection, queue: str, ttl: int, pause: float) -> None:
        """Initialize.

        Args:
            ttl: Ttl in seconds that each renewal sets.
            pause: Seconds between renewals.
        """
        self._connection = connection
        self._queue = queue
        self._ttl = ttl
        self._pause = pause
        self.fence: Fence | None = None
        """The fence for renewals, once it exists: claims of a successor have the same names."""
        self._names: set[str] = set()
        self._changing = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def keep_alive(self, claims: Iterable[str], at_once: bool = False) -> None:
        """Renew these claims from now on.

        Args:
            at_once: Whether to renew immediately, because the claims are older and may be about to lapse.
        """
        names = list(claims)
        for claim in names if at_once else ():
            self._renew(claim)
        with self._changing:
            self._names.update(names)
            if self._thread is None and self._names:
                self._thread = threading.Thread(target=self._renew_all, name="zq-heartbeat", daemon=True)
                self._thread.start()

    def drop(self, claims: Iterable[str]) -> None:
        """Stop renewing these claims."""
        with self._changing:
            self._names.difference_update(claims)

    def stop(self) -> None:
        """Stop all renewals."""
        self._stopped.set()

    def is_stopped(self) -> bool:
        """Return whether all renewals have stopped."""
        return self._stopped.is_set()

    def _renew_all(self) -> None:
        while not self._stopped.wait(self._pause):
            with self._changing:
                names = sorted(self._names)
            for claim in names:
                self._renew(claim)

    def _renew(self, claim: str) -> None:
        try:
            self._connection.client().queue(self._queue).renew(claim, ttl=self._ttl, fence=self.fence)
        except ClaimNotFound:
            self.drop([claim])
        except Fenced:
            self.stop()
        except ZqError:
            return  # the next renewal may succeed in time


@dataclass
class ClaimedBatch:
    """The claims of a batch so far. They are named ``<prefix>.0``, ``<prefix>.1`` …."""

    prefix: str
    messages: int = 0
    claims: dict[str, list[str]] = field(default_factory=dict)
    """Message ids by claim."""
    inlined: dict[str, bytes] = field(default_factory=dict)
    """Messages as JSON of as many claims as fit. They do not change while a claim is live."""
    claim_count: int = 0
    """Minimum claim count by message."""
    room: int = INLINED_BYTES

    def add(self, name: str, messages: list[Message]) -> None:
        """Add a claim."""
        fewest = min(message.claim_count for message in messages)
        self.claim_count = min(self.claim_count, fewest) if self.messages else fewest
        self.messages += len(messages)
        self.claims[name] = [message.id for message in messages]
        content = msgspec.json.encode(messages)
        if len(content) + sum(map(len, self.inlined.values())) <= self.room:
            self.inlined[name] = content


class BatchClaimer:
    """Claims messages for batches under a fence and keeps the claims alive. Not for concurrent use."""

    def __init__(self, options: ClaimingOptions, fence: Fence, heartbeat: Heartbeat) -> None:
        self._options = options
        self._fence = fence
        self._heartbeat = heartbeat
        self._size = options.claim_size or options.connection.client().limits()["max_messages_per_claim_or_pop"]
        self._fills = 0

    def fill(self, batch: ClaimedBatch, most: int, wait: int) -> None:
        """Claim up to ``most`` messages in total. The first claim of a batch waits up to ``wait`` seconds."""
        self._fills += 1
        inherited = self._fills <= INHERITED
        while batch.messages < most and len(batch.claims) < MAX_CLAIMS:
            name = f"{batch.prefix}.{len(batch.claims)}"
            messages = self._claim(name, min(self._size, most - batch.messages), 0 if batch.claims else wait)
            if not messages:
                return
            self._heartbeat.keep_alive([name], at_once=inherited)
            batch.add(name, messages)

    def adopt(self, batch: ClaimedBatch, prefixes: Iterable[str]) -> None:
        """Add the messages that claims with these prefixes still hold, after a run that died.

        Nothing new is claimed.
        """
        try:
            claimed = self._queue().stats().claimed
        except QueueNotFound:
            return
        for prefix in prefixes:
            missing = 0
            for number in range(MAX_CLAIMS):
                if batch.messages >= claimed or len(batch.claims) == MAX_CLAIMS or missing > GAP:
                    break
                missing = 0 if self._adopted(batch, f"{prefix}.{number}") else missing + 1

    def _adopted(self, batch: ClaimedBatch, name: str) -> bool:
        try:
            self._queue().renew(name, ttl=self._options.ttl, fence=self._fence)
            messages = self._queue().held(name).messages
        except ClaimNotFound:
            return False
        self._heartbeat.keep_alive([name])
        batch.add(name, messages)
        return True

    def settle(self, names: Iterable[str]) -> None:
        """Delete all messages of these claims."""
        for name in names:
            try:
                self._queue().settle(name, delete="*", fence=self._fence)
            except ClaimNotFound:
                continue  # already settled by the sink's commit, or lapsed
            finally:
                self._heartbeat.drop([name])

    def release(self, batch: ClaimedBatch) -> None:
        """Release the batch's messages under the fence, because claims of a successor have the same names."""
        for name, ids in list(batch.claims.items()):
            self._heartbeat.drop([name])
            try:
                self._queue().settle(name, release=map(Released, ids), fence=self._fence)
            except ClaimNotFound:
                continue
            except ZqError:
                return  # the claims lapse

    def _claim(self, name: str, size: int, wait: int) -> list[Message]:
        asked = time.monotonic()
        claim = self._queue().claim(size, ttl=self._options.ttl, wait=wait, name=name, fence=self._fence)
        if wait and not claim.messages:
            # A server without free slots answers at once, and Spark would poll again without a pause.
            time.sleep(max(0.0, min(1.0, asked + wait - time.monotonic())))
        return claim.messages

    def _queue(self) -> Queue:
        return self._options.connection.client().queue(self._options.queue)


class Prefetch:
    """The next batch, claimed in the background while the current one is processed; at most one."""

    def __init__(self) -> None:
        self._batch: ClaimedBatch | None = None
        self._filled: Future[None] | None = None

    def start(self, batch: ClaimedBatch, fill: Callable[[], None]) -> None:
        """Start ``fill``, which claims messages for the batch, in the background."""
        self._batch, self._filled = batch, in_background(fill)

    def take(self) -> ClaimedBatch | None:
        """Wait for the prefetch and return its batch, or ``None`` without one. Raises the error of ``fill``."""
        batch = self._batch
        if self._filled is not None:
            self._filled.result()
        self._batch = self._filled = None
        return batch

    def stop(self) -> ClaimedBatch | None:
        """Stop and return the unused batch, for the caller to release.

        A prefetch in progress is awaited only briefly.
        """
        if self._filled is not None:
            with suppress(ZqError, TimeoutError):
                self._filled.result(PREFETCH_TIMEOUT)
        return self._batch


def in_background(work: Callable[[], T]) -> Future[T]:
    """Run ``work`` in a daemon thread and return its future."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 (the caller that reads the result gets it)
            outcome.set_exception(error)

    threading.Thread(target=run, name="zq-prefetch", daemon=True).start()
    return outcome
