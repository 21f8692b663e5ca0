# SPDX-License-Identifier: Apache-2.0
"""Helpers of the event loop: a thread pool, a thread that waits for disk syncs, and deadlines."""

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from zq.errors import Crowded, Unavailable
from zq.storage.inline import Ticket

LOG = logging.getLogger(__name__)
# Seconds between two checks of deadlines.
INTERVAL: Final = 0.25
# Minimum number of threads for one caller, so that one can compute while the other waits for the store.
MIN_THREADS: Final = 2
# Processor use of this process above which another thread only competes for the interpreter lock.
BUSY_FRACTION: Final = 0.7
# Seconds in a caller's own queue after which a job raises the caller's thread limit, even if the process is busy.
MAX_DELAY: Final = 0.1
# Seconds between two adaptations of the number of threads while jobs are queued.
ADAPTATION: Final = 0.002


class Job(NamedTuple):
    """A job for a thread of the pool.

    ``since`` is the monotonic time at which the job began to wait for a thread. A ``patient`` job waits without a
    timeout.
    """

    since: float
    future: "asyncio.Future[Any]"
    work: Callable[[], Any]
    patient: bool
    caller: bytes | None


class Results:
    """A thread-safe queue of results for the event loop's futures. Many results share one wake-up of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._notified = False

    def put(self, future: "asyncio.Future[Any]", value: Any, error: BaseException | None = None) -> None:
        """Resolve a future in the event loop, with an error or a value. Thread-safe."""
        self._done.append((future, value, error))
        if not self._notified:
            self._notified = True
            with suppress(RuntimeError):  # the loop is closed, so no coroutine waits
                self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._notified = False
        while self._done:
            future, value, error = self._done.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


class ThreadLimit:
    """The maximum number of threads for one caller while several projects send requests.

    Only one thread at a time runs Python code. Once a caller's threads keep the interpreter busy, further threads do
    not complete more of the caller's jobs, but they delay other callers.
    """

    def __init__(self, max_threads: int) -> None:
        self.max_threads = max_threads
        self.threads = self._min_threads = min(MIN_THREADS, max_threads)
        self._since = self._used = 0.0

    def begin(self, now: float, used: float) -> None:
        """Begin a measurement interval. ``now`` is a monotonic time, and ``used`` the process's CPU time in seconds."""
        self._since, self._used = now, used

    def adapt(self, now: float, used: float, *, is_slow: bool = False) -> None:
        """End a measurement interval, and increase or decrease the limit by one thread, within its bounds.

        If the process used more than ``BUSY_FRACTION`` of one CPU in the interval, decrease the limit. Otherwise, or if
        ``is_slow`` is true because a job has waited too long, increase the limit.
        """
        if used - self._used > BUSY_FRACTION * (now - self._since) and not is_slow:
            self.threads = max(self.threads - 1, self._min_threads)
        else:
            self.threads = min(self.threads + 1, self.max_threads)
        self.begin(now, used)


class Pool:
    """A thread pool for work that would block the event loop.

    - A job that gets no thread within ``timeout`` seconds fails with ``Crowded``.
    - The jobs of one caller use at most three quarters of the threads. While several projects send requests, the limit
      is lower; see ``ThreadLimit``. Further jobs wait in the caller's own queue.
    - Jobs without a caller may use all threads.
    """

    def __init__(
        self, threads: int, timeout: float, loop: asyncio.AbstractEventLoop, has_several_projects: Callable[[], bool]
    ) -> None:
        """Start the threads. ``has_several_projects`` returns whether several projects have recently sent requests."""
        self._loop = loop
        self._timeout = timeout
        self._has_several_projects = has_several_projects
        self._thread_limit = ThreadLimit(max(1, threads - max(1, threads // 4)))
        self._results = Results(loop)
        self._lock = threading.Lock()
        """The lock of the queues and counts below. A thread that holds the lock never waits."""
        self._waiting: deque[Job] = deque()
        self._started: Counter[bytes] = Counter()
        """Number of jobs that run or are in the shared queue, by caller."""
        self._queued: dict[bytes, deque[Job]] = {}
        """Jobs beyond their caller's maximum number of threads, by caller."""
        self._adapts = False
        """Whether a call of ``_adapt`` is scheduled."""
        self._tokens: SimpleQueue[None] = SimpleQueue()
        """Tokens that wake threads: one for each waiting job that no thread is about to take."""
        self._idle: set[int] = set()
        self._reject_late()
        for number in range(threads):
            threading.Thread(target=self._run, args=(number,), name=f"zq-request-{number}", daemon=True).start()

    def is_crowded(self) -> bool:
        """Return whether the oldest waiting job has exceeded the timeout."""
        try:
            return bool(self._waiting) and time.monotonic() - self._waiting[0].since > self._timeout
        except IndexError:  # a thread took the job meanwhile
            return False

    def is_busy(self, caller: bytes) -> bool:
        """Return whether a new job of the caller would have to wait for a thread."""
        return len(self._waiting) >= len(self._idle) or caller in self._queued

    def do(
        self, work: Callable[[], Any], *, caller: bytes | None = None, patient: bool = False
    ) -> "asyncio.Future[Any]":
        """Run ``work`` on a thread and return a future for its result.

        A ``patient`` job waits for a thread without a timeout. Call this method in the event loop.
        """
        job = Job(time.monotonic(), self._loop.create_future(), work, patient, caller)
        with self._lock:
            if caller is not None and self._started[caller] >= self._max_threads():
                if not self._adapts:
                    self._adapts = True
                    self._thread_limit.begin(time.monotonic(), time.process_time())
                    self._loop.call_later(ADAPTATION, self._adapt)
                self._queued.setdefault(caller, deque()).append(job)
            else:
                self._start(job)
        return job.future

    def _max_threads(self) -> int:
        return self._thread_limit.threads if self._has_several_projects() else self._thread_limit.max_threads

    def _start(self, job: Job) -> None:
        if job.caller is not None:
            self._started[job.caller] += 1
        self._waiting.append(job)
        self._tokens.put(None)

    def _take_queued(self, caller: bytes) -> Job | None:
        queued = self._queued.get(caller)
        while queued:
            job = queued.popleft()
            if not queued:
                del self._queued[caller]
            if not job.future.done():
                # ``is_crowded`` ignores the time in the caller's own queue, because only the caller caused it.
                return job._replace(since=time.monotonic())
        return None

    def _start_queued(self, caller: bytes) -> None:
        while self._started[caller] < self._max_threads() and (job := self._take_queued(caller)) is not None:
            self._start(job)

    def _end(self, caller: bytes) -> None:
        self._started[caller] -= 1
        self._start_queued(caller)
        if not self._started[caller]:
            del self._started[caller]

    def _take_next(self, caller: bytes) -> Job | None:
        """Return the next job for a thread that has just finished a job of ``caller``; ``None`` = wait for a job."""
        with self._lock:
            if self._started[caller] <= self._max_threads() and (job := self._take_queued(caller)) is not None:
                self._waiting.append(job)
                return self._waiting.popleft()
            self._end(caller)
        return None

    def _adapt(self) -> None:
        with self._lock:
            now = time.monotonic()
            oldest = min((queued[0].since for queued in self._queued.values()), default=now)
            self._thread_limit.adapt(now, time.process_time(), is_slow=now - oldest > MAX_DELAY)
            for caller in list(self._queued):
                self._start_queued(caller)
            self._adapts = bool(self._queued)
            if self._adapts:
                self._loop.call_later(ADAPTATION, self._adapt)

    def _reject_late(self) -> None:
        """Reject jobs that have exceeded the timeout, and schedule the next call."""
        with self._lock:
            now = time.monotonic()
            # Jobs in the callers' own queues come first, so that ``_end`` below cannot start one of them.
            for caller, queued in list(self._queued.items()):
                self._queued[caller] = deque(job for job in queued if not self._reject(job, now))
                if not self._queued[caller]:
                    del self._queued[caller]
            late = []
            while self.is_crowded():
                with suppress(IndexError):  # a thread took the job meanwhile
                    late.append(self._waiting.popleft())
            now = time.monotonic()  # later than every removal above, so that ``_reject`` also finds each job late
            # Put patient jobs back at the front. At the end of the queue, other jobs would overtake them each time.
            for job in reversed(late):
                if job.patient:
                    self._waiting.appendleft(job._replace(since=now))
                    self._tokens.put(None)  # a thread may have consumed the job's token without finding the job
            for job in late:
                if self._reject(job, now) and job.caller is not None:
                    self._end(job.caller)
        self._loop.call_later(self._timeout / 2, self._reject_late)

    def _reject(self, job: Job, now: float) -> bool:
        is_late = not job.patient and now - job.since > self._timeout
        if is_late and not job.future.done():
            job.future.set_exception(Crowded("The server is overloaded."))
        return is_late

    def _run(self, number: int) -> None:
        job: Job | None = None
        while True:
            self._idle.add(number)
            self._tokens.get()
            self._idle.discard(number)
            with suppress(IndexError):  # the job has been rejected
                job = self._waiting.popleft()
                while job is not None:
                    job = self._run_job(job)
            job = None

    def _run_job(self, job: Job) -> Job | None:
        value, error = None, None
        try:
            value = job.work()
        except BaseException as caught:  # noqa: BLE001 - the exception is re-raised in the awaiting coroutine
            error = caught
        self._results.put(job.future, value, error)
        del value, error  # the traceback of the error refers to this frame
        return None if job.caller is None else self._take_next(job.caller)


class DurabilityWaiter:
    """A thread that waits until the changes of requests are synced to disk, so that the event loop need not wait.

    If several requests need the same disk sync, the thread waits for this disk sync only once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._results = Results(loop)
        self._tickets: SimpleQueue[tuple[Ticket, asyncio.Future[Any]]] = SimpleQueue()
        self._began = 0.0
        threading.Thread(target=self._run, name="zq-durability", daemon=True).start()

    def wait_for(self, ticket: Ticket) -> "asyncio.Future[Any]":
        """Return a future that resolves when a request's changes are durable.

        ``ticket`` represents the pending disk sync of the request. If the disk sync fails, the future fails with
        ``Unavailable``.
        """
        future = self._loop.create_future()
        self._tickets.put((ticket, future))
        return future

    def seconds_waiting(self) -> float:
        """Return the seconds for which the thread has been waiting for the store; 0 if it is not waiting."""
        began = self._began
        return time.monotonic() - began if began else 0.0

    def _run(self) -> None:
        while True:
            group = [self._tickets.get()]
            self._began = time.monotonic()
            with suppress(Empty):
                while True:
                    group.append(self._tickets.get_nowait())
            failures = {wait: _failure(wait) for wait in {ticket.wait for ticket, _ in group} if wait is not None}
            self._began = 0.0
            for ticket, future in group:
                ticket.release()
                self._results.put(future, None, failures.get(ticket.wait))  # type: ignore[arg-type]
            del group, ticket, future


def _failure(wait: Callable[[], object]) -> Unavailable | None:
    try:
        wait()
    except Exception as error:  # noqa: BLE001 - after any failure, the client must learn that its change is not durable
        LOG.error("The store cannot make changes durable: %r", error.__cause__ or error)
        return Unavailable("The store is unavailable. Try again later.")
    return None


class Deadlines:
    """The deadlines of tasks, which one timer checks four times a second.

    One timer for all tasks costs less than a timer for each task.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: dict[asyncio.Task[Any], Callable[[], float]] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._sweep()

    async def bound(self, awaited: Any, deadline: Callable[[], float]) -> Any:
        """Await ``awaited`` with a deadline, which may move while the task waits.

        ``deadline`` returns the current deadline as a monotonic time. Raises ``TimeoutError`` at most ``INTERVAL``
        seconds after the deadline.
        """
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = deadline
        try:
            return await awaited
        except asyncio.CancelledError:
            if task not in self._late:
                raise
            task.uncancel()
            raise TimeoutError from None
        finally:
            self._tasks.pop(task, None)
            self._late.discard(task)

    def _sweep(self) -> None:
        now = time.monotonic()
        for task, deadline in list(self._tasks.items()):
            if deadline() < now:
                self._late.add(task)
                task.cancel()
        self._loop.call_later(INTERVAL, self._sweep)
