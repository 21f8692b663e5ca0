# SPDX-License-Identifier: Apache-2.0
"""Consuming a queue: what all consumers have in common, and the one of a blocking client, with handlers in threads.

Two maintenance threads serve the claims meanwhile: one settles what was decided, the other one renews.
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

from zq.client.calls import Call, Caught, Transport, check_concurrency, maybe_applied, sleep_slices
from zq.client.claims import ClaimedDeliveries
from zq.client.consumer_state import LIMITS, ConsumerLimits, ConsumerOptions, ConsumerState, NextRequest, PendingRequest
from zq.client.stopping import stop_on_signals
from zq.client.values import Decision, Delivery, UndecodableBody, Worked
from zq.errors import ClaimLapsed, TooManyRequests
from zq.wire.extensions import Buried

LOG = logging.getLogger("zq.client")
OnLost = Callable[[list[Delivery]], object]
# Seconds in which a consumer that was stopped tries to settle what was decided.
STOP_TIMEOUT: Final = 5.0


class ConsumerBase:
    """A loop over messages with its state. ``on_lost`` gets messages whose claim was over before they were settled.

    ``stopped``: a signal, or ``stop``, has ended the loop, not a lack of messages. ``guard``: the lock of the state.
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
        """Let the loop end after the messages in hand. Any thread may call it, and a handler of signals."""
        self.stopped = True

    def _begin(self, limits: ConsumerLimits) -> None:
        if self._running:
            raise RuntimeError("This consumer is in a loop already; each loop needs a consume() of its own.")
        self._running, self.stopped, self._closed_at = True, False, inf
        self._done = self._failed = 0
        self._state = ConsumerState(self._options.within(limits))

    def _ending(self) -> bool:
        return self.stopped or self._closed_at < inf

    def _claim_call(self) -> Call[ClaimedDeliveries]:
        """The call for the next claim; it is not repeated once the loop is to end."""
        return replace(self._state.next_claim(), patience=self._patience)

    def _request_call(self, request: PendingRequest) -> Call[Any]:
        """The call of a request; renewals are not repeated once the loop is to end."""
        return replace(request.call, patience=self._settle_patience if request.decided else self._patience)

    def _completed(self, request: PendingRequest, answer: Any, error: Exception | None, asked: float) -> None:
        """Record how a request ended."""
        if error is None:
            self._state.succeeded(request, answer, asked)
        else:
            self._state.failed(request, error, time.monotonic())

    def _slowed_down(self, error: TooManyRequests) -> float:
        """Seconds to pause before the next claim. Raises the error if it hides that a claim may have been made."""
        if maybe_applied(error):
            raise error
        return float(error.retry_after)

    def _patience(self) -> float:
        return 0.0 if self._ending() else inf

    def _settle_patience(self) -> float:
        return self._closed_at + STOP_TIMEOUT - time.monotonic() if self.stopped else inf

    def _decide(self, delivery: Delivery, error: BaseException | None) -> Decision:
        """The decision about a message whose handler has returned, or raised, without one."""
        if error is None:
            self._done += 1
            return delivery.id
        self._failed += 1
        if isinstance(error, UndecodableBody) and error.message_id == delivery.id:
            # Another attempt would fail in the same way.
            LOG.warning("%s The message is buried.", error)
            return Buried(delivery.id, str(error))
        LOG.warning("The handler failed; message %s goes back.", delivery.id, exc_info=error)
        return self._state.options.after_failure(delivery)

    def _worked(self) -> Worked:
        return Worked(self._done, self._failed, self._state.unstarted)

    def _report(self, *, raises: bool = True) -> None:
        """Hand lost messages to ``on_lost``; raise the first failed request, or lost messages without ``on_lost``.

        All but the first are logged; with ``raises`` False, since the loop has ended, all.
        """
        with self._guard:
            lost, errors = self._state.unreported()
        if lost and self._on_lost is not None:
            self._on_lost(lost)
        elif lost:
            ids = ", ".join(delivery.id for delivery in lost[:3]) + (", …" if len(lost) > 3 else "")
            errors.insert(0, ClaimLapsed(f"The claim was over before {len(lost)} of its messages were settled: {ids}."))
        for error in errors[1 if raises else 0 :]:
            LOG.warning("%s", error)
        if errors and raises:
            raise errors[0]


class Consumer(ConsumerBase):
    """Messages of a queue, one after the other. As a context manager it ends exactly where its block ends."""

    def __init__(self, transport: Transport, options: ConsumerOptions, on_lost: OnLost | None) -> None:
        self._changed = threading.Condition()
        super().__init__(options, on_lost, self._changed)
        self._transport = transport
        self._asking = threading.Lock()
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

    def work(self, handler: Callable[[Delivery], object], concurrency: int) -> Worked:
        """Hand each message to the handler, so many at a time; one that raises gives its message back."""
        slots = threading.Semaphore(check_concurrency(concurrency))
        with self._open(), ThreadPoolExecutor(concurrency, "zq-work") as pool:
            while slots.acquire() and (delivery := self._take()) is not None:
                pool.submit(handler, delivery).add_done_callback(partial(self._ended, slots, delivery))
        return self._worked()

    @contextmanager
    def _open(self) -> Generator[None, None, None]:
        self._begin(self._transport.run(LIMITS))
        sources: tuple[NextRequest, ...] = (self._state.settlement, self._state.renewal)
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
        """Give back what is not done, and what the claim under way brings; return when the server has it."""
        self._closed_at = min(self._closed_at, time.monotonic())
        with self._asking, self._changed:
            self._state.close(time.monotonic())
            self._changed.notify_all()
        for thread in self._maintenance:
            thread.join()

    def _take(self) -> Delivery | None:
        while not self._ending():
            self._report()
            with self._changed:
                if delivery := self._state.take(time.monotonic()):
                    return delivery
                if self._state.exhausted:
                    break
                if self._state.backlogged:
                    self._changed.wait(1)
                    continue
            for part in sleep_slices(self._ask(), self._ending):
                time.sleep(part)
        return None

    def _ask(self) -> float:
        """Make the next claim; seconds to pause after it."""
        with self._asking:
            if self._ending():
                return 0.0
            asked = time.monotonic()
            try:
                claimed = self._transport.run(self._claim_call())
            except TooManyRequests as error:
                return self._slowed_down(error)
            with self._changed:
                self._changed.notify_all()
                return self._state.received(claimed, asked, time.monotonic())

    def _finish(self, delivery: Delivery, decision: Decision) -> None:
        with self._changed:
            if self._state.finish(delivery, decision, time.monotonic()):
                self._changed.notify_all()

    def _ended(self, slots: threading.Semaphore, delivery: Delivery, work: "Future[object]") -> None:
        try:
            with self._changed:
                decision = self._decide(delivery, work.exception())
            self._finish(delivery, decision)
        finally:
            slots.release()

    def _maintain(self, next_request: NextRequest) -> None:
        """Send requests of one kind, until the consumer is closed and none is due any more."""
        while True:
            with self._changed:
                asked = time.monotonic()
                request = next_request(asked)
                if isinstance(request, float):
                    if self._state.closing:
                        return
                    self._changed.wait(min(request - asked, threading.TIMEOUT_MAX))
                    continue
            answer = None
            with Caught() as caught:
                answer = self._transport.run(self._request_call(request))
            with self._changed:
                self._completed(request, answer, caught.error, asked)
                self._changed.notify_all()
