# SPDX-License-Identifier: Apache-2.0
"""Consuming a queue with an asynchronous client: a loop over messages, or handlers in tasks.

Two more tasks keep the claims while the work runs: one settles what was decided, the other one renews.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from zq.client.calls import Awaits, Caught, at_once
from zq.client.desk import Find
from zq.client.habits import LIMITS, Habits
from zq.client.loops import Loop, Lost
from zq.client.retries import pieces
from zq.client.stopping import told_to_stop
from zq.client.values import Decision, Delivery, Worked


class AsyncConsumer(Loop):
    """Messages of a queue, one after the other. As a context manager it ends exactly where its block ends."""

    def __init__(self, transport: Awaits, habits: Habits, on_lost: Lost | None) -> None:
        super().__init__(habits, on_lost, contextlib.nullcontext())
        self._transport = transport
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []
        self._asking: asyncio.Task[float] | None = None
        self._leaving: asyncio.Task[None] | None = None
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

    async def work(self, handler: Callable[[Delivery], Awaitable[object]], concurrency: int) -> Worked:
        """Await the handler for each message, so many at a time; one that raises gives its message back."""
        slots, running = asyncio.Semaphore(at_once(concurrency)), set[asyncio.Future[object]]()
        async with self._open():
            try:
                while await slots.acquire() and (delivery := await self._take()) is not None:
                    work = asyncio.ensure_future(handler(delivery))
                    running.add(work)
                    work.add_done_callback(partial(self._ended, slots, delivery))
                    work.add_done_callback(running.discard)
            finally:
                if running:
                    await asyncio.wait(running)
                    await asyncio.sleep(0)  # their callbacks come first
        return self._worked()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        self._begin(await self._transport.run(LIMITS))
        self._asking = self._leaving = None
        finds: tuple[Find, ...] = (self._desk.settlement, self._desk.renewal)
        self._keepers = [asyncio.create_task(self._keep(find)) for find in finds]
        self._transport.before_close.append(self._leave)
        completed = False
        try:
            with told_to_stop(self.stop):
                yield
            completed = True
        finally:
            await self._leave()
            self._tell(raises=completed)

    async def _leave(self) -> None:
        """Give back what is not done, and see to it that it is, though whoever waits for it is cancelled again."""
        if self._leaving is None:
            self._left_at = time.monotonic()
            self._leaving = asyncio.create_task(self._left())
        await asyncio.shield(self._leaving)

    async def _left(self) -> None:
        if self._asking is not None:
            await asyncio.gather(self._asking, return_exceptions=True)
        self._desk.leave(time.monotonic())
        self._changed.set()
        await asyncio.wait(self._keepers)
        await self._keep(self._desk.settlement)  # there is something only if they were cancelled, as asyncio.run does
        self._transport.before_close.remove(self._leave)
        self._running = False

    async def _take(self) -> Delivery | None:
        while not self._over():
            self._tell()
            if delivery := self._desk.take(time.monotonic()):
                return delivery
            if self._desk.ended:
                break
            if self._desk.crowded:
                self._settled.clear()
                await self._settled.wait()
                continue
            self._asking = asyncio.create_task(self._ask())
            for part in pieces(await asyncio.shield(self._asking), self._over):
                await asyncio.sleep(part)
        return None

    async def _ask(self) -> float:
        """Make the next claim; seconds to rest after it. Never cancelled: nobody would give back what it brings."""
        asked = time.monotonic()
        taken = await self._transport.run(self._claiming())
        self._changed.set()
        return self._desk.received(taken, asked, time.monotonic())

    def _finish(self, delivery: Delivery, decision: Decision) -> None:
        if self._desk.finish(delivery, decision, time.monotonic()):
            self._changed.set()

    def _ended(self, slots: asyncio.Semaphore, delivery: Delivery, work: "asyncio.Future[object]") -> None:
        try:
            error = asyncio.CancelledError() if work.cancelled() else work.exception()
            self._finish(delivery, self._after(delivery, error))
        finally:
            slots.release()

    async def _keep(self, find: Find) -> None:
        """Carry out errands of one kind, until the desk is left and none is due any more."""
        while True:
            self._changed.clear()
            asked = time.monotonic()
            errand = find(asked)
            if isinstance(errand, float):
                if self._desk.closing:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(errand - asked, 3600)):
                        await self._changed.wait()
                continue
            answer = None
            try:
                with Caught() as caught:
                    answer = await self._transport.run(self._carrying(errand))
            except asyncio.CancelledError:
                self._desk.returned(errand)
                raise
            self._carried(errand, answer, caught.error, asked)
            self._settled.set()
