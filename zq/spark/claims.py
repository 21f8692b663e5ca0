# SPDX-License-Identifier: Apache-2.0
"""The claims of a batch, their renewal, and the prefetch of the next batch."""

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
from zq.wire.extensions import ReleaseTerms

# Maximum number of claims per batch. A commit accepts no more claims.
MAX_CLAIMS: Final = 1000
# Number of consecutive missing claims after which ``adopt`` stops searching. A settled claim counts as missing.
MAX_MISSING_CLAIMS: Final = 100
# Maximum bytes of messages that the driver sends with the tasks of a batch, to save the tasks a request.
INLINED_BYTES: Final = 8 * 2**20
# Number of batches whose claims an earlier process may have created: the next batch and a prefetched batch.
INHERITED_BATCHES: Final = 2
# Seconds for which ``Prefetch.stop`` waits for a prefetch in progress.
PREFETCH_TIMEOUT: Final = 5.0
T = TypeVar("T")


class Heartbeat:
    """A background thread that renews claims. If the process is killed, its claims expire."""

    def __init__(self, connection: Connection, queue: str, ttl: int, pause: float) -> None:
        """Create the heartbeat. The thread starts with the first claim. Times are in seconds."""
        self._connection = connection
        self._queue = queue
        self._ttl = ttl
        self._pause = pause
        self.fence: Fence | None = None
        """Fencing token. Prevents an outdated process from renewing a newer run's claims, which have the same names."""
        self._names: set[str] = set()
        self._changing = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def keep_alive(self, claims: Iterable[str], at_once: bool = False) -> None:
        """Renew the claims periodically.

        If ``at_once`` is true, also renew the claims now, because old claims may be about to expire.
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
        """Stop renewing the claims."""
        with self._changing:
            self._names.difference_update(claims)

    def stop(self) -> None:
        self._stopped.set()

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
    """The claims of a batch, which are named ``<prefix>.0``, ``<prefix>.1`` and so on."""

    prefix: str
    messages: int = 0
    claims: dict[str, list[str]] = field(default_factory=dict)
    """Message ids by claim."""
    inlined: dict[str, bytes] = field(default_factory=dict)
    """Messages as JSON by claim, up to ``room`` bytes in total. The messages of a live claim do not change."""
    claim_count: int = 0
    """Minimum of the messages' claim counts."""
    room: int = INLINED_BYTES
    """Maximum size of ``inlined``."""

    def add(self, name: str, messages: list[Message]) -> None:
        fewest = min(message.claim_count for message in messages)
        self.claim_count = min(self.claim_count, fewest) if self.messages else fewest
        self.messages += len(messages)
        self.claims[name] = [message.id for message in messages]
        content = msgspec.json.encode(messages)
        if len(content) + sum(map(len, self.inlined.values())) <= self.room:
            self.inlined[name] = content


class BatchClaimer:
    """A claimer that creates, settles and releases the claims of batches.

    The claimer uses a fencing token for its requests. It is not thread-safe.
    """

    def __init__(self, options: ClaimingOptions, fence: Fence, heartbeat: Heartbeat) -> None:
        self._options = options
        self._fence = fence
        self._heartbeat = heartbeat
        self._size = options.claim_size or options.connection.client().limits()["max_messages_per_claim_or_pop"]
        self._fills = 0

    def fill(self, batch: ClaimedBatch, max_messages: int, wait: int) -> None:
        """Claim up to ``max_messages`` messages, with up to ``MAX_CLAIMS`` claims.

        The request for the first claim waits up to ``wait`` seconds for messages.
        """
        self._fills += 1
        inherited = self._fills <= INHERITED_BATCHES
        while batch.messages < max_messages and len(batch.claims) < MAX_CLAIMS:
            name = f"{batch.prefix}.{len(batch.claims)}"
            messages = self._claim(name, min(self._size, max_messages - batch.messages), 0 if batch.claims else wait)
            if not messages:
                return
            self._heartbeat.keep_alive([name], at_once=inherited)
            batch.add(name, messages)

    def adopt(self, batch: ClaimedBatch, prefixes: Iterable[str]) -> None:
        """Find the live claims of a crashed run by the prefixes of the claim names.

        Renew these claims and add them to the batch.
        """
        try:
            claimed = self._queue().stats().claimed
        except QueueNotFound:
            return
        for prefix in prefixes:
            missing = 0
            for number in range(MAX_CLAIMS):
                if batch.messages >= claimed or len(batch.claims) == MAX_CLAIMS or missing > MAX_MISSING_CLAIMS:
                    break
                missing = 0 if self._adopt(batch, f"{prefix}.{number}") else missing + 1

    def _adopt(self, batch: ClaimedBatch, name: str) -> bool:
        try:
            self._queue().renew(name, ttl=self._options.ttl, fence=self._fence)
            messages = self._queue().get_claim(name).messages
        except ClaimNotFound:
            return False
        self._heartbeat.keep_alive([name])
        batch.add(name, messages)
        return True

    def settle(self, names: Iterable[str]) -> None:
        """Delete all messages of the claims."""
        for name in names:
            try:
                self._queue().settle(name, delete="*", fence=self._fence)
            except ClaimNotFound:
                continue  # the sink's commit has settled the claim, or the claim has expired
            finally:
                self._heartbeat.drop([name])

    def release(self, batch: ClaimedBatch) -> None:
        """Release the messages of the batch. If a newer query has advanced the fencing token, do nothing."""
        for name, ids in list(batch.claims.items()):
            self._heartbeat.drop([name])
            try:
                self._queue().settle(name, release=map(ReleaseTerms, ids), fence=self._fence)
            except ClaimNotFound:
                continue
            except ZqError:
                return  # the claims will expire

    def _claim(self, name: str, size: int, wait: int) -> list[Message]:
        sent_at = time.monotonic()
        claim = self._queue().claim(size, ttl=self._options.ttl, wait=wait, name=name, fence=self._fence)
        if wait and not claim.messages:
            # A server without a free slot for a long poll responds at once. Spark would poll without a pause.
            time.sleep(max(0.0, min(1.0, sent_at + wait - time.monotonic())))
        return claim.messages

    def _queue(self) -> Queue:
        return self._options.connection.client().queue(self._options.queue)


class Prefetch:
    """A background thread that claims the next batch while Spark processes the current batch."""

    def __init__(self) -> None:
        self._batch: ClaimedBatch | None = None
        self._filled: Future[None] | None = None

    def start(self, batch: ClaimedBatch, fill: Callable[[], None]) -> None:
        """Call ``fill``, which claims messages for the batch, in a background thread."""
        self._batch, self._filled = batch, in_background(fill)

    def take(self) -> ClaimedBatch | None:
        """Wait for the prefetch and return its batch, or ``None`` if none was started. Raises the error of ``fill``."""
        batch = self._batch
        if self._filled is not None:
            self._filled.result()
        self._batch = self._filled = None
        return batch

    def stop(self) -> ClaimedBatch | None:
        """Wait up to ``PREFETCH_TIMEOUT`` seconds until the prefetch ends.

        Return the unused batch, which the caller must release, or ``None`` if there is no batch.
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
        except BaseException as error:  # noqa: BLE001 (the future raises it again)
            outcome.set_exception(error)

    threading.Thread(target=run, name="zq-prefetch", daemon=True).start()
    return outcome
