# SPDX-License-Identifier: Apache-2.0
"""Consuming a queue with an asynchronous client: a loop over messages, or handlers in tasks.

A task beside keeps the claims: it renews them while the work runs, and settles what was decided.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from zq.client.calls import Awaits
from zq.client.desk import LIMITS, Desk, Habits
from zq.client.loops import Loop, Lost
from zq.client.stopping import told_to_stop
from zq.client.values import Decision, Delivery
from zq.errors import ZqError


class AsyncConsumer(Loop):
    """Messages of a queue, one after the other. As a context manager it ends exactly where its block ends."""

    def __init__(self, transport: Awaits, habits: Habits, on_lost: Lost | None) -> None:
        super().__init__(habits, on_lost)
        self._transport = transport
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[float] | None = None
        self._settled = asyncio.Event()
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

    async def work(self, handler: Callable[[Delivery], Awaitable[object]], concurrency: int) -> None:
        """Await the handler for each message, so many at a time; one that raises gives its message back."""
        slots, running = asyncio.Semaphore(concurrency), set[asyncio.Future[object]]()
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

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        self._desk = Desk(self._habits.within(await self._transport.run(LIMITS)))
        self._stopping = completed = False
        self._keeper = asyncio.create_task(self._keep())
        self._transport.before_close.append(self._leave)
        try:
            with told_to_stop(self.stop):
                yield
            completed = True
        finally:
            self._transport.before_close.remove(self._leave)
            await self._leave()
            self._tell(raises=completed)

    async def _leave(self) -> None:
        """Give back what is not done, and see to it that it is."""
        self._stopping = True
        if self._asking is not None:
            await asyncio.gather(self._asking, return_exceptions=True)
        self._desk.leave(time.monotonic())
        self._changed.set()
        if self._keeper is not None:
            await self._keeper

    async def _take(self) -> Delivery | None:
        while True:
            self._tell()
            if self._stopping or self._desk.empty:
                return None
            if delivery := self._desk.take(time.monotonic()):
                return delivery
            if self._desk.crowded:
                self._settled.clear()
                await self._settled.wait()
                continue
            self._asking = asyncio.create_task(self._ask())
            await asyncio.sleep(await asyncio.shield(self._asking))

    async def _ask(self) -> float:
        """Make the next claim; seconds to rest after it. Never cancelled: nobody would give back what it brings."""
        asked = time.monotonic()
        taken = await self._transport.run(self._desk.ask())
        pause = self._desk.received(taken, asked, time.monotonic())
        self._changed.set()
        return pause

    def _finish(self, delivery: Delivery, decision: Decision) -> None:
        if self._desk.finish(delivery, decision, time.monotonic()):
            self._changed.set()

    def _ended(self, slots: asyncio.Semaphore, delivery: Delivery, work: "asyncio.Future[object]") -> None:
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        self._finish(delivery, self._after(delivery, error))
        slots.release()

    async def _keep(self) -> None:
        """Carry out errands, until the desk is left and nothing is due any more."""
        while True:
            self._changed.clear()
            asked = time.monotonic()
            errand = self._desk.errand(asked)
            if errand is None:
                if self._desk.closing:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(self._desk.next_errand() - asked, 3600)):
                        await self._changed.wait()
                continue
            try:
                answer = await self._transport.run(errand.call)
            except ZqError as error:
                self._desk.failed(errand, error)
            else:
                self._desk.went(errand, answer, asked)
            self._settled.set()
