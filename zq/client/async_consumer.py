# SPDX-License-Identifier: Apache-2.0
"""The asynchronous consumer.

Two background tasks maintain the claims: one settles messages, and one renews claims.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from zq.client.calls import AsyncTransport, ErrorRecorder, check_concurrency, split_sleep
from zq.client.consumer import ConsumerBase, OnLost
from zq.client.consumer_state import LIMITS, ConsumerOptions, NextRequest
from zq.client.stopping import stop_on_signals
from zq.client.values import Decision, Delivery, WorkResult
from zq.errors import TooManyRequests


class AsyncConsumer(ConsumerBase):
    """An asynchronous consumer that claims messages and yields them in an ``async for`` loop.

    On exit, an ``async with`` block settles finished messages and releases all others.
    """

    def __init__(self, transport: AsyncTransport, options: ConsumerOptions, on_lost: OnLost | None) -> None:
        super().__init__(options, on_lost, contextlib.nullcontext())
        self._transport = transport
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._maintenance: list[asyncio.Task[None]] = []
        self._claim_task: asyncio.Task[float] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._messages: AsyncGenerator[Delivery, None] | None = None

    async def __aiter__(self) -> AsyncGenerator[Delivery, None]:
        async with self._open():
            while (delivery := await self._take()) is not None:
                yield delivery
                self._finish(delivery, delivery.id)

    async def __aenter__(self) -> AsyncIterator[Delivery]:
        self._messages = aiter(self)
        return self._messages

    async def __aexit__(self, *_: object) -> None:
        if self._messages is not None:
            await self._messages.aclose()

    async def work(self, handler: Callable[[Delivery], Awaitable[object]], concurrency: int) -> WorkResult:
        """Await ``handler`` for each message, in up to ``concurrency`` tasks. Return the message counts.

        If the handler raises, the message is released.
        """
        slots, running = asyncio.Semaphore(check_concurrency(concurrency)), set[asyncio.Future[object]]()
        async with self._open():
            try:
                while await slots.acquire() and (delivery := await self._take()) is not None:
                    work = asyncio.ensure_future(handler(delivery))
                    running.add(work)
                    work.add_done_callback(partial(self._on_handler_end, slots, delivery))
                    work.add_done_callback(running.discard)
            finally:
                if running:
                    await asyncio.wait(running)
                    await asyncio.sleep(0)  # lets the callbacks of the tasks run
        return self._outcome()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        self._begin(await self._transport.run(LIMITS))
        self._claim_task = self._closing = None
        sources: tuple[NextRequest, ...] = (self._state.next_settlement, self._state.next_renewal)
        self._maintenance = [asyncio.create_task(self._maintain(source)) for source in sources]
        self._transport.before_close.append(self._close)
        completed = False
        try:
            with stop_on_signals(self.stop):
                yield
            completed = True
        finally:
            await self._close()
            self._report(raises=completed)

    async def _close(self) -> None:
        """Release unfinished messages and settle the claims, even if the calling task is cancelled."""
        if self._closing is None:
            self._closed_at = time.monotonic()
            self._closing = asyncio.create_task(self._settle_and_stop())
        await asyncio.shield(self._closing)

    async def _settle_and_stop(self) -> None:
        if self._claim_task is not None:
            await asyncio.gather(self._claim_task, return_exceptions=True)
        self._state.close(time.monotonic())
        self._changed.set()
        await asyncio.wait(self._maintenance)
        # Settlements are still due if the background tasks were cancelled, for example by ``asyncio.run``.
        await self._maintain(self._state.next_settlement)
        self._transport.before_close.remove(self._close)
        self._running = False

    async def _take(self) -> Delivery | None:
        while not self._is_ending():
            self._report()
            if delivery := self._state.take(time.monotonic()):
                return delivery
            if self._state.is_exhausted:
                break
            if self._state.is_backlogged:
                self._settled.clear()
                await self._settled.wait()
                continue
            self._claim_task = asyncio.create_task(self._claim())
            for part in split_sleep(await asyncio.shield(self._claim_task), self._is_ending):
                await asyncio.sleep(part)
        return None

    async def _claim(self) -> float:
        """Claim messages, and return the seconds to sleep before the next claim.

        If this coroutine is cancelled, the server may already have created a claim that the client does not know.
        """
        sent_at = time.monotonic()
        try:
            claimed = await self._transport.run(self._claim_call())
        except TooManyRequests as error:
            return self._pause_after_limit(error)
        self._changed.set()
        return self._state.add_claimed(claimed, sent_at, time.monotonic())

    def _finish(self, delivery: Delivery, decision: Decision) -> None:
        if self._state.finish(delivery, decision, time.monotonic()):
            self._changed.set()

    def _on_handler_end(self, slots: asyncio.Semaphore, delivery: Delivery, work: "asyncio.Future[object]") -> None:
        try:
            error = asyncio.CancelledError() if work.cancelled() else work.exception()
            self._finish(delivery, self._decide(delivery, error))
        finally:
            slots.release()

    async def _maintain(self, next_request: NextRequest) -> None:
        while True:
            self._changed.clear()
            sent_at = time.monotonic()
            request = next_request(sent_at)
            if isinstance(request, float):
                if self._state.closing:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(request - sent_at, 3600)):
                        await self._changed.wait()
                continue
            result = None
            try:
                with ErrorRecorder() as caught:
                    result = await self._transport.run(self._request_call(request))
            except asyncio.CancelledError:
                self._state.record_interruption(request)
                raise
            self._record_outcome(request, result, caught.error, sent_at)
            self._settled.set()
