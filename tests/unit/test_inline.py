# SPDX-License-Identifier: Apache-2.0
"""Verbs on the event loop's thread, their tickets, and the waiting of the loop."""

import asyncio
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from tests.servers import wait_for
from zq.clock import ManualClock
from zq.core import Broker
from zq.errors import Crowded, Unavailable
from zq.http.app import create_app
from zq.model import QueueRef
from zq.serving import pool as pool_module
from zq.serving.pool import Deadlines, DurabilityWaiter, Pool, ThreadLimit
from zq.storage import connect, inline
from zq.storage.inline import Ticket

QUEUE = QueueRef("p", "q")


def test_a_ticket_is_of_its_own_thread() -> None:
    seen: Queue[Ticket | None] = Queue()
    with Ticket() as ticket:
        other = threading.Thread(target=lambda: seen.put(inline.current()))
        other.start()
        other.join()
        assert inline.current() is ticket
    assert seen.get(timeout=60) is None
    assert inline.current() is None


def test_a_ticket_has_the_last_wait_and_releases_once() -> None:
    released: list[str] = []
    ticket = Ticket()
    assert not ticket.keep_open(lambda: released.append("nothing to wait for"))
    ticket.defer(object)
    assert ticket.keep_open(lambda: released.append("first"))
    ticket.defer(dict)
    assert not ticket.keep_open(lambda: released.append("second"))
    assert ticket.wait is dict
    ticket.release()
    assert released == ["first"]


def test_an_inline_change_leaves_its_sync_and_keeps_the_store_open(tmp_path: Path) -> None:
    """Closing waits for the request that has not been answered yet."""
    storage = connect(f"rocksdb:{tmp_path}/s", {"sync": "always"})
    assert storage.is_prompt
    with Ticket() as ticket:
        assert storage.queues.create(QUEUE, b"{}")
    assert ticket.wait is not None
    closing = threading.Thread(target=storage.close)
    closing.start()
    time.sleep(0.1)
    assert closing.is_alive()
    ticket.wait()
    ticket.release()
    closing.join(60)
    assert not closing.is_alive()


def in_loop(test: Callable[[asyncio.AbstractEventLoop], Any]) -> None:
    async def run() -> None:
        await test(asyncio.get_running_loop())

    asyncio.run(run())


def test_changes_during_a_wait_share_the_next_one() -> None:
    async def settle_three(loop: asyncio.AbstractEventLoop) -> None:
        waiter, go, waits = DurabilityWaiter(loop), threading.Event(), []

        def wait() -> None:
            waits.append(1)
            go.wait(60)

        def settled() -> "asyncio.Future[Any]":
            ticket = Ticket()
            ticket.defer(wait)
            return waiter.wait_for(ticket)

        first = settled()
        await asyncio.to_thread(wait_for, lambda: waits, 60, "the first wait has begun")
        others = [settled(), settled()]
        await asyncio.sleep(0.05)
        assert waiter.seconds_waiting() > 0.04
        go.set()
        await asyncio.wait_for(asyncio.gather(first, *others), 60)
        assert len(waits) == 2

    in_loop(settle_three)


def test_a_change_that_cannot_be_made_durable_is_refused_and_released() -> None:
    async def settle_two(loop: asyncio.AbstractEventLoop) -> None:
        waiter, released = DurabilityWaiter(loop), []

        def fail() -> None:
            raise OSError("disk full")

        for wait in (fail, int):
            ticket = Ticket()
            ticket.defer(wait)
            assert ticket.keep_open(lambda: released.append(1))
            if wait is fail:
                with pytest.raises(Unavailable):
                    await waiter.wait_for(ticket)
            else:
                await waiter.wait_for(ticket)
        assert released == [1, 1]

    in_loop(settle_two)


def test_a_job_that_waits_too_long_for_a_thread_is_refused() -> None:
    """A patient job is not refused."""

    async def crowd(loop: asyncio.AbstractEventLoop) -> None:
        pool, go = Pool(1, 0.1, loop, bool), threading.Event()
        held = pool.do(lambda: go.wait(60))
        patient = pool.do(lambda: "done", patient=True)
        late = pool.do(lambda: "never")
        with pytest.raises(Crowded):
            await asyncio.wait_for(late, 60)
        go.set()
        assert await asyncio.wait_for(patient, 60) == "done"
        assert await held is True

    in_loop(crowd)


def test_a_job_that_may_wait_is_not_overtaken_by_later_jobs() -> None:
    """Refusals of late jobs do not change the order of the others."""

    async def crowd(loop: asyncio.AbstractEventLoop) -> None:
        pool, go, order = Pool(1, 0.1, loop, bool), threading.Event(), list[str]()
        held = pool.do(lambda: go.wait(60))
        first = pool.do(lambda: order.append("first"), patient=True)
        late = pool.do(lambda: order.append("never"))
        await asyncio.sleep(0.04)
        second = pool.do(lambda: order.append("second"), patient=True)
        with pytest.raises(Crowded):
            await asyncio.wait_for(late, 60)
        go.set()
        await asyncio.wait_for(asyncio.gather(held, first, second), 60)
        assert order == ["first", "second"]

    in_loop(crowd)


def test_one_caller_leaves_threads_to_others() -> None:
    """Further jobs of a caller wait for one of the same caller to end."""

    async def crowd(loop: asyncio.AbstractEventLoop) -> None:
        pool, go = Pool(4, 60, loop, bool), threading.Event()
        first = [pool.do(lambda: go.wait(60), caller=b"greedy") for _ in range(20)]
        assert await asyncio.wait_for(pool.do(lambda: "served", caller=b"modest"), 60) == "served"
        assert pool.is_busy(b"greedy")
        assert not any(job.done() for job in first)
        go.set()
        assert await asyncio.wait_for(asyncio.gather(*first), 60) == [True] * 20
        assert not pool.is_busy(b"greedy")

    in_loop(crowd)


def test_a_caller_with_waiting_jobs_gets_more_threads_over_time() -> None:
    """The caller starts with two of the threads, and gets one more in each interval in which the processor is idle."""

    async def crowd(loop: asyncio.AbstractEventLoop) -> None:
        pool, go, running = Pool(8, 60, loop, lambda: True), threading.Event(), list[int]()

        def wait() -> bool:
            running.append(1)
            return go.wait(60)

        jobs = [pool.do(wait, caller=b"greedy") for _ in range(20)]
        await asyncio.to_thread(wait_for, lambda: len(running) == 6, 60, "three quarters of the threads run jobs")
        go.set()
        assert await asyncio.wait_for(asyncio.gather(*jobs), 60) == [True] * 20

    in_loop(crowd)


def test_each_late_job_is_refused_however_late_its_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that becomes late while other jobs are being refused is not lost."""

    async def crowd(loop: asyncio.AbstractEventLoop) -> None:
        pool, begun, go = Pool(1, 60, loop, bool), threading.Event(), threading.Event()
        held = pool.do(lambda: begun.set() or go.wait(60))
        await asyncio.to_thread(begun.wait, 60)
        late = pool.do(lambda: "never")
        # Each reading of the clock is a minute later than the one before.
        moments = itertools.count(time.monotonic(), 61)
        with monkeypatch.context() as patched:
            patched.setattr(pool_module, "time", SimpleNamespace(monotonic=lambda: next(moments)))
            pool._reject_late()
        with pytest.raises(Crowded):
            await asyncio.wait_for(late, 60)
        go.set()
        await held

    in_loop(crowd)


def test_a_share_shrinks_while_the_processor_is_busy_and_grows_again() -> None:
    share, threads = ThreadLimit(6), list[int]()
    share.begin(0.0, 0.0)
    moments = [(1, 0.1), (2, 0.2), (3, 1.1), (4, 2.0), (5, 2.9), (6, 3.0)]
    for now, used in moments:
        share.adapt(now, used)
        threads.append(share.threads)
    assert threads == [3, 4, 3, 2, 2, 3]
    share.adapt(7, 4.0, is_slow=True)
    assert share.threads == 4, "jobs that wait for long get a thread even if the processor is busy"
    assert ThreadLimit(1).threads == 1


def test_a_queued_job_of_a_caller_is_refused_in_time() -> None:
    async def crowd(loop: asyncio.AbstractEventLoop) -> None:
        pool, go = Pool(2, 0.1, loop, bool), threading.Event()
        held = pool.do(lambda: go.wait(60), caller=b"greedy")
        late = pool.do(lambda: "never", caller=b"greedy")
        with pytest.raises(Crowded):
            await asyncio.wait_for(late, 60)
        go.set()
        assert await asyncio.wait_for(held, 60) is True
        assert await asyncio.wait_for(pool.do(lambda: "again", caller=b"greedy"), 60) == "again"

    in_loop(crowd)


def test_a_job_from_a_callers_queue_does_not_make_the_pool_crowded() -> None:
    """The time that a job spends in its caller's own queue does not count for others."""

    async def crowd(loop: asyncio.AbstractEventLoop) -> None:
        pool, first_may_end, go = Pool(2, 0.1, loop, bool), threading.Event(), threading.Event()
        first = pool.do(lambda: first_may_end.wait(60), caller=b"greedy")
        queued = pool.do(lambda: "done", caller=b"greedy", patient=True)
        held = [pool.do(lambda: go.wait(60), patient=True)]
        await asyncio.sleep(0.2)
        is_held = threading.Event()
        held.append(pool.do(lambda: is_held.set() or go.wait(60), patient=True))
        first_may_end.set()
        assert is_held.wait(60)  # every thread is busy before the loop starts the queued job
        await asyncio.wait_for(first, 60)
        assert not pool.is_crowded()
        go.set()
        assert await asyncio.wait_for(queued, 60) == "done"
        await asyncio.gather(*held)

    in_loop(crowd)


def test_a_refused_job_of_a_callers_queue_is_released_at_once() -> None:
    """The refused job would keep the request's body in memory."""

    async def crowd(loop: asyncio.AbstractEventLoop) -> None:
        pool, go = Pool(2, 0.1, loop, bool), threading.Event()
        held = pool.do(lambda: go.wait(60), caller=b"greedy")
        body = {"large"}
        reference = weakref.ref(body)
        late = pool.do(partial(len, body), caller=b"greedy")
        del body
        with pytest.raises(Crowded):
            await asyncio.wait_for(late, 60)
        gc.collect()
        assert reference() is None
        go.set()
        await asyncio.wait_for(held, 60)

    in_loop(crowd)


def test_a_wait_ends_at_its_deadline() -> None:
    async def wait_in_vain(loop: asyncio.AbstractEventLoop) -> None:
        deadlines = Deadlines(loop)
        with pytest.raises(TimeoutError):
            await deadlines.bound(loop.create_future(), lambda: time.monotonic() - 1)
        assert await deadlines.bound(asyncio.sleep(0, "here"), lambda: time.monotonic() + 60) == "here"

    in_loop(wait_in_vain)


@pytest.mark.parametrize(
    ("line", "body", "short"),
    [
        ("POST /v2/queues/q/messages", b'{"messages": [{"body": 1}]}', True),
        ("POST /v2/queues/q/messages", b"{" * 24, True),
        ("POST /v2/queues/q/messages", b"{" * 25, False),
        ("POST /v2/queues/q/messages", b" " * 16384, True),
        ("POST /v2/queues/q/messages", b" " * 16385, False),
        ("GET /v2/queues/q/messages?limit=20&echo=true", b"", True),
        ("GET /v2/queues/q/messages?limit=21", b"", False),
        ("GET /v2/queues/q/messages?limit=100", b"", False),
        ("GET /v2/queues/q/messages?limit=2&limit=30", b"", False),
        ("GET /v2/queues/q/messages/id", b"", True),
        ("DELETE /v2/queues/q/messages?pop=10", b"", True),
        ("DELETE /v2/queues/q/messages?pop=50", b"", False),
        ("DELETE /v2/queues/q/messages?ids=" + "a" * 1020, b"", True),
        ("DELETE /v2/queues/q/messages?ids=" + "a" * 1021, b"", False),
        ("POST /v2/queues/q/claims?limit=10", b'{"ttl": 60}', True),
        ("PATCH /v2/queues/q/claims/c", b'{"ttl": 60}', True),
        ("POST /v2/queues/q/claims/c/settle", b'{"ack": []}', True),
        ("POST /v2/topics/t/messages", b'{"messages": [{"body": 1}]}', True),
        ("DELETE /v2/queues/q", b"", False),
        ("POST /v2/queues/q/purge", b"{}", False),
        ("POST /v2/queues/q/redrive", b"{}", False),
        ("GET /v2/queues/q/history", b"", False),
        ("GET /v2/topics/t/stream", b"", False),
        ("GET /v2/queues/q/messages/a/b", b"", False),
        ("POST /v2/commits", b"{}", False),
        ("GET /metrics", b"", False),
    ],
)
def test_which_requests_are_short(line: str, body: bytes, short: bool) -> None:
    """A request is short if its resource declares so and its parameters request little."""
    storage = connect("memory:")
    app = create_app(Broker(storage, ManualClock(storage.now())))
    method, _, target = line.partition(" ")
    path, _, query = target.partition("?")
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query}
    assert app.is_short(environ, body) is short
    storage.close()


def test_a_second_verb_of_a_request_does_not_wait_for_a_reopening_that_waits_for_the_first(tmp_path: Path) -> None:
    """The ticket of the first verb keeps the store open until it is released."""
    storage = connect(f"rocksdb://{tmp_path}/store", {"sync": "always"})
    reopening = threading.Thread(target=storage._handle.reopen)  # type: ignore[attr-defined]

    def create_twice() -> None:
        with Ticket() as ticket:
            storage.queues.create(QUEUE, b"{}")
            reopening.start()
            wait_for(lambda: storage._handle._reopening, 60, "the reopening waits")  # type: ignore[attr-defined]
            storage.queues.create(QueueRef("p", "r"), b"{}")
        assert ticket.wait is not None
        ticket.wait()
        ticket.release()

    request = threading.Thread(target=create_twice, daemon=True)
    request.start()
    request.join(30)
    assert not request.is_alive()
    reopening.join(60)
    assert storage.queues.get(QUEUE) is not None
    storage.close()
