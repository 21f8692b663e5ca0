# SPDX-License-Identifier: Apache-2.0
"""The base class of consumers, and the blocking consumer.

Two background threads maintain the claims: one settles messages, and one renews claims.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from math import inf
from typing import Any, Final

from msgspec.structs import replace

from zq.client.calls import Call, ErrorRecorder, Transport, check_concurrency, may_be_applied, split_sleep
from zq.client.claims import ClaimedDeliveries
from zq.client.consumer_state import LIMITS, ConsumerLimits, ConsumerOptions, ConsumerState, NextRequest, PendingRequest
from zq.client.stopping import stop_on_signals
from zq.client.values import Decision, Delivery, UndecodableBody, WorkResult
from zq.errors import ClaimLapsed, TooManyRequests
from zq.wire.extensions import BuryTerms

LOG = logging.getLogger("zq.client")
OnLost = Callable[[list[Delivery]], object]
# Seconds for which a stopped consumer retries the settlement of finished messages.
STOP_TIMEOUT: Final = 5.0


class ConsumerBase:
    """Base class of the blocking and the asynchronous consumer.

    If a claim expires before its messages are settled, ``on_lost`` is called with these messages.
    """

    def __init__(self, options: ConsumerOptions, on_lost: OnLost | None, guard: AbstractContextManager[Any]) -> None:
        self.stopped = False
        self._options = options
        self._state = ConsumerState(options)
        self._on_lost = on_lost
        self._guard = guard
        self._running = False
        self._closed_at = inf
        self._done = self._failed = 0

    def stop(self) -> None:
        """End the loop after the current messages. Safe to call from any thread and from signal handlers."""
        self.stopped = True

    def _begin(self, limits: ConsumerLimits) -> None:
        if self._running:
            raise RuntimeError("This consumer is already running. Call consume() again to create another consumer.")
        self._running, self.stopped, self._closed_at = True, False, inf
        self._done = self._failed = 0
        self._state = ConsumerState(self._options.apply_limits(limits))

    def _is_ending(self) -> bool:
        return self.stopped or self._closed_at < inf

    def _claim_call(self) -> Call[ClaimedDeliveries]:
        return replace(self._state.next_claim(), patience=self._patience)

    def _request_call(self, request: PendingRequest) -> Call[Any]:
        return replace(request.call, patience=self._settle_patience if request.decided else self._patience)

    def _record_outcome(self, request: PendingRequest, result: Any, error: Exception | None, sent_at: float) -> None:
        if error is None:
            self._state.record_success(request, result, sent_at)
        else:
            self._state.record_failure(request, error, time.monotonic())

    def _pause_after_limit(self, error: TooManyRequests) -> float:
        """Return the seconds until the rate limit permits the next claim.

        If an earlier attempt may have created the claim on the server, raise ``error`` instead.
        """
        if may_be_applied(error):
            raise error
        return float(error.retry_after)

    def _patience(self) -> float:
        return 0.0 if self._is_ending() else inf

    def _settle_patience(self) -> float:
        return self._closed_at + STOP_TIMEOUT - time.monotonic() if self.stopped else inf

    def _decide(self, delivery: Delivery, error: BaseException | None) -> Decision:
        """Count the handler's outcome and return the default decision.

        If the handler succeeded, the decision is to delete the message. If it failed, the decision is to release the
        message. If the handler failed because the body cannot be decoded, the decision is to move the message to the
        dead-letter queue.
        """
        if error is None:
            self._done += 1
            return delivery.id
        self._failed += 1
        if isinstance(error, UndecodableBody) and error.message_id == delivery.id:
            # Another attempt would fail in the same way.
            LOG.warning("%s The message is moved to the dead-letter queue.", error)
            return BuryTerms(delivery.id, str(error))
        LOG.warning("The handler failed; message %s is released.", delivery.id, exc_info=error)
        return self._state.options.release_after_failure(delivery)

    def _outcome(self) -> WorkResult:
        return WorkResult(self._done, self._failed, self._state.unstarted)

    def _report(self, *, raises: bool = True) -> None:
        """Report lost messages and failed requests since the last report.

        Without an ``on_lost`` callback, lost messages are an error (``ClaimLapsed``). If ``raises`` is true, the first
        error is raised and the other errors are logged. Otherwise, all errors are logged.
        """
        with self._guard:
            lost, errors = self._state.take_unreported()
        if lost and self._on_lost is not None:
            self._on_lost(lost)
        elif lost:
            ids = ", ".join(delivery.id for delivery in lost[:3]) + (", …" if len(lost) > 3 else "")
            errors.insert(0, ClaimLapsed(f"The claim expired before {len(lost)} of its messages were settled: {ids}."))
        for error in errors[1 if raises else 0 :]:
            LOG.warning("%s", error)
        if errors and raises:
            raise errors[0]


class Consumer(ConsumerBase):
    """A blocking consumer that claims messages and yields them in a ``for`` loop.

    On exit, a ``with`` block settles finished messages and releases all others.
    """

    def __init__(self, transport: Transport, options: ConsumerOptions, on_lost: OnLost | None) -> None:
        self._changed = threading.Condition()
        super().__init__(options, on_lost, self._changed)
        self._transport = transport
        self._claim_lock = threading.Lock()
        self._maintenance: list[threading.Thread] = []
        self._messages: Generator[Delivery, None, None] | None = None

    def __iter__(self) -> Generator[Delivery, None, None]:
        with self._open():
            while (delivery := self._take()) is not None:
                yield delivery
                self._finish(delivery, delivery.id)

    def __enter__(self) -> Iterator[Delivery]:
        self._messages = iter(self)
        return self._messages

    def __exit__(self, *_: object) -> None:
        if self._messages is not None:
            self._messages.close()

    def work(self, handler: Callable[[Delivery], object], concurrency: int) -> WorkResult:
        """Call ``handler`` for each message, in up to ``concurrency`` threads. Return the message counts.

        If the handler raises, the message is released.
        """
        slots = threading.Semaphore(check_concurrency(concurrency))
        with self._open(), ThreadPoolExecutor(concurrency, "zq-work") as pool:
            while slots.acquire() and (delivery := self._take()) is not None:
                pool.submit(handler, delivery).add_done_callback(partial(self._on_handler_end, slots, delivery))
        return self._outcome()

    @contextmanager
    def _open(self) -> Generator[None, None, None]:
        self._begin(self._transport.run(LIMITS))
        sources: tuple[NextRequest, ...] = (self._state.next_settlement, self._state.next_renewal)
        self._maintenance = [
            threading.Thread(target=self._maintain, args=[source], name="zq-claims", daemon=True) for source in sources
        ]
        for thread in self._maintenance:
            thread.start()
        self._transport.before_close.append(self._close)
        completed = False
        try:
            with stop_on_signals(self.stop):
                yield
            completed = True
        finally:
            self._transport.before_close.remove(self._close)
            self._close()
            self._running = False
            self._report(raises=completed)

    def _close(self) -> None:
        self._closed_at = min(self._closed_at, time.monotonic())
        with self._claim_lock, self._changed:
            self._state.close(time.monotonic())
            self._changed.notify_all()
        for thread in self._maintenance:
            thread.join()

    def _take(self) -> Delivery | None:
        while not self._is_ending():
            self._report()
            with self._changed:
                if delivery := self._state.take(time.monotonic()):
                    return delivery
                if self._state.is_exhausted:
                    break
                if self._state.is_backlogged:
                    self._changed.wait(1)
                    continue
            for part in split_sleep(self._claim(), self._is_ending):
                time.sleep(part)
        return None

    def _claim(self) -> float:
        with self._claim_lock:
            if self._is_ending():
                return 0.0
            sent_at = time.monotonic()
            try:
                claimed = self._transport.run(self._claim_call())
            except TooManyRequests as error:
                return self._pause_after_limit(error)
            with self._changed:
                self._changed.notify_all()
                return self._state.add_claimed(claimed, sent_at, time.monotonic())

    def _finish(self, delivery: Delivery, decision: Decision) -> None:
        with self._changed:
            if self._state.finish(delivery, decision, time.monotonic()):
                self._changed.notify_all()

    def _on_handler_end(self, slots: threading.Semaphore, delivery: Delivery, work: "Future[object]") -> None:
        try:
            with self._changed:
                decision = self._decide(delivery, work.exception())
            self._finish(delivery, decision)
        finally:
            slots.release()

    def _maintain(self, next_request: NextRequest) -> None:
        while True:
            with self._changed:
                sent_at = time.monotonic()
                request = next_request(sent_at)
                if isinstance(request, float):
                    if self._state.closing:
                        return
                    self._changed.wait(min(request - sent_at, threading.TIMEOUT_MAX))
                    continue
            result = None
            with ErrorRecorder() as caught:
                result = self._transport.run(self._request_call(request))
            with self._changed:
                self._record_outcome(request, result, caught.error, sent_at)
                self._changed.notify_all()
