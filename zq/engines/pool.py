# SPDX-License-Identifier: Apache-2.0
"""Threads that do what would hold up the event loop, the queue before them, and what the loop waits for: jobs, debts,
things with a deadline, and calls from other threads.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from zq.errors import Crowded
from zq.prompt import Debt

LOG = logging.getLogger(__name__)
# Stands for the deadline of what was cancelled by it.
LATE: Final = float("inf")


class Job(NamedTuple):
    """Something to do. ``patient``: however long it takes until a thread is free.

    Without a future ``work`` reports its end by itself, and ``refuse`` is called in the loop if it was not begun
    in time.
    """

    since: float
    future: "asyncio.Future[Any] | None"
    work: Callable[[], Any]
    patient: bool = False
    refuse: Callable[[], object] | None = None


class Owed(NamedTuple):
    """An answer that waits; ``refuse`` is called instead of ``go_on`` if the debt cannot be paid. Neither raises."""

    debt: Debt
    go_on: Callable[[], object]
    refuse: Callable[[], object]


class Pool:
    """``threads`` of them, for jobs of one event loop. A job that is not patient waits ``timeout`` seconds for one."""

    def __init__(self, threads: int, timeout: float, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timeout = timeout
        self._waiting: deque[Job] = deque()
        self._idle: set[int] = set()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._notified = False
        self._watch()
        for number in range(threads):
            threading.Thread(target=self._run, args=(number,), name=f"zq-request-{number}", daemon=True).start()

    def waits(self) -> float:
        """Seconds for which the first job has waited for a thread; 0.0 if none waits."""
        if not self._waiting:
            return 0.0
        try:
            return time.monotonic() - self._waiting[0].since
        except IndexError:  # a thread was quicker
            return 0.0

    def idle(self) -> bool:
        """Whether there are threads for more than what waits for one."""
        return len(self._idle) > len(self._waiting)

    def do(self, work: Callable[[], Any], *, patient: bool = False) -> "asyncio.Future[Any]":
        """Do it on a thread; what it returns or raises, or ``Crowded``. To be called in the loop."""
        future = self._loop.create_future()
        self._put(Job(time.monotonic(), future, work, patient))
        return future

    def put(self, work: Callable[[], object], refuse: Callable[[], object]) -> None:
        """Run it on a thread and report no result; see ``Job``. From any thread."""
        self._put(Job(time.monotonic(), None, work, refuse=refuse))

    def _put(self, job: Job) -> None:
        self._waiting.append(job)
        self._tokens.put(None)

    def _watch(self) -> None:
        """Refuse what has waited too long."""
        for _ in range(len(self._waiting)):
            if self.waits() <= self._timeout:
                break
            with suppress(IndexError):  # a thread was quicker
                job = self._waiting.popleft()
                if job.patient:
                    self._waiting.append(job._replace(since=time.monotonic()))
                elif job.future is None:
                    if job.refuse is not None:
                        job.refuse()
                elif not job.future.done():
                    job.future.set_exception(Crowded("The server has more to do than it can do in time."))
        self._loop.call_later(self._timeout / 2, self._watch)

    def _run(self, number: int) -> None:
        while True:
            self._idle.add(number)
            self._tokens.get()
            self._idle.discard(number)
            try:
                job = self._waiting.popleft()
            except IndexError:  # it has been refused
                continue
            value, error = None, None
            try:
                value = job.work()
            except BaseException as caught:  # noqa: BLE001 - the edge of this thread: the awaiting coroutine gets it
                error = caught
            if job.future is None:
                continue
            self._done.append((job.future, value, error))
            del job, value, error
            if not self._notified:  # one call wakes the loop for all that is done until it wakes
                self._notified = True
                with suppress(RuntimeError):  # the loop has ended, and with it the waiting coroutine
                    self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        """Resolve what is done. In the loop."""
        self._notified = False
        while self._done:
            future, value, error = self._done.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


class Debts:
    """Answers that wait until what they owe is paid (``zq.prompt``): one thread pays, once for all that has come."""

    def __init__(self) -> None:
        self._owed: SimpleQueue[Owed] = SimpleQueue()
        self._begun = 0.0
        threading.Thread(target=self._run, name="zq-debts", daemon=True).start()

    def put(self, owed: Owed) -> None:
        """Go on with it once it is paid. From any thread."""
        self._owed.put(owed)

    def waits(self) -> float:
        """Seconds for which what is being paid has not been; 0.0 if nothing is."""
        begun = self._begun
        return time.monotonic() - begun if begun else 0.0

    def _run(self) -> None:
        while True:
            owed = [self._owed.get()]
            self._begun = time.monotonic()
            with suppress(Empty):
                while True:
                    owed.append(self._owed.get_nowait())
            paid = {pay: _paid(pay) for pay in {each.debt.pay for each in owed}}
            self._begun = 0.0
            for each in owed:
                if each.debt.release is not None:
                    each.debt.release()
                (each.go_on if paid[each.debt.pay] else each.refuse)()
            del owed, each


def _paid(pay: Callable[[], object]) -> bool:
    try:
        pay()
    except Exception as error:  # noqa: BLE001 - whatever it is, nobody may be told that it is done
        LOG.error("The store cannot keep what it was given: %r", error.__cause__ or error)
        return False
    return True


class Deadlines:
    """Of things that are awaited and nearly always come at once: looked at together, four times a second."""

    INTERVAL: Final = 0.25

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._awaited: dict[Any, float] = {}
        self._look()

    async def bound(self, awaited: Any, deadline: float) -> Any:
        """What is awaited. Raises ``TimeoutError`` soon after the deadline, a moment of the monotonic clock."""
        self.put(awaited, deadline)
        try:
            return await awaited
        except asyncio.CancelledError:
            if self.late(awaited):
                raise TimeoutError from None
            raise
        finally:
            self._awaited.pop(awaited, None)

    def put(self, awaited: Any, deadline: float) -> None:
        """Cancel it when it is late. From any thread."""
        self._awaited[awaited] = deadline

    def late(self, awaited: Any) -> bool:
        """Whether it was late; it is forgotten."""
        return self._awaited.pop(awaited, 0.0) is LATE

    def _look(self) -> None:
        now = time.monotonic()
        for awaited, deadline in list(self._awaited.items()):
            if deadline < now and awaited.cancel():
                self._awaited[awaited] = LATE
        self._loop.call_later(self.INTERVAL, self._look)


class Wakeup:
    """Called from any thread, resolves a future of the loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future = self._loop.create_future()

    def __call__(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:  # the loop has ended, and with it the waiting coroutine
            LOG.debug("No coroutine waits any more.")

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
