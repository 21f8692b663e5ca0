# SPDX-License-Identifier: Apache-2.0
"""Abnormal ends of consumers: closed, cancelled, stopped, invalid arguments, and errors of the caller."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import httpx
import pytest

from tests.client.client_kinds import bodies, client_of
from tests.client.misbehaving import LATE, Proxy
from tests.servers import ZqServer, wait_for
from zq import errors
from zq.client import AsyncClient, Client, Retries
from zq.client.stopping import stop_on_signals

SHORT = {"wait": 0, "until_empty": True}


def begun(work: Callable[[], object]) -> Future[object]:
    """Start the work in a thread."""
    return ThreadPoolExecutor(1).submit(work)


def test_closing_the_client_waits_for_the_claim_on_its_way(proxy: Proxy, running: ZqServer, project: str) -> None:
    """The claimed messages are released, and the loop in the other thread ends without an error."""
    with Client(running.url, project) as observer, Client(proxy.url, project) as client:
        queue = observer.queue("jobs")
        queue.post_batch(range(3))
        proxy.plan(None, LATE)
        loop = begun(lambda: list(client.queue("jobs").consume(wait=1)))
        wait_for(lambda: queue.stats().claimed, 60, "the server has made the claim")
        closing = begun(client.close)
        proxy.gate.set()
        closing.result(60)
        assert loop.result(60) == []
        assert (queue.stats().claimed, queue.stats().free) == (0, 3)


def test_the_end_of_asyncio_run_settles_and_gives_back(running: ZqServer, project: str) -> None:
    """Messages are settled and released although asyncio cancels these tasks, even if they are cancelled twice."""

    async def consume(client: AsyncClient, seen: list[Any]) -> None:
        async with client.queue("jobs").consume(wait=1) as messages:
            async for message in messages:
                seen.append(message.body)
                await asyncio.sleep(0 if len(seen) < 3 else 60)

    async def until_third(again: bool) -> None:
        seen: list[Any] = []
        client = AsyncClient(running.url, project)
        task = asyncio.create_task(consume(client, seen))
        while len(seen) < 3:
            await asyncio.sleep(0.01)
        if again:
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await client.close()

    with Client(running.url, project) as observer:
        queue = observer.queue("jobs")
        for again in (False, True):
            queue.purge()
            queue.post_batch(range(8))
            asyncio.run(until_third(again))
            stats = queue.stats()
            assert (stats.claimed, stats.total) == (0, 6)


def test_a_consumer_that_is_to_stop_does_not_wait_for_a_server_that_is_away(
    proxy: Proxy, kind: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer starts no further claim, and gives up settling after ``STOP_TIMEOUT``."""
    monkeypatch.setattr("zq.client.consumer.STOP_TIMEOUT", 0.5)
    with client_of(kind, proxy.url, project, retries=Retries(attempts=99, first_delay=5)) as client:
        queue = client.queue("jobs")
        queue.post_batch(range(2))
        for claimed in (True, False):
            consumer = queue.consume(wait=0, batch=2)

            def work(consumer: Any = consumer, claimed: bool = claimed) -> None:
                for _ in consumer:
                    proxy.fails_from = len(proxy.seen)
                    if claimed:
                        consumer.stop()

            loop = begun(work)
            if not claimed:
                proxy.fails_from = 1
                wait_for(lambda: len(proxy.seen) > 2, 60, "a claim was turned away")
                consumer.stop()
            began = time.monotonic()
            wait([loop], 60)
            assert time.monotonic() - began < 60
            proxy.fails_from = None
            proxy.plan()


def test_a_consumer_says_that_it_was_stopped(queue: Any) -> None:
    """A program that starts one loop after another can check ``stopped``."""
    consumer, rounds = queue.consume(**SHORT), 0
    while not consumer.stopped:
        rounds += 1
        queue.post(rounds)
        for message in consumer:
            if message.body == 3:
                consumer.stop()
    assert rounds == 3


@pytest.mark.parametrize("verb", ["settle", "claims/client"])
def test_an_error_of_the_callers_own_ends_the_loop(running: ZqServer, kind: str, project: str, verb: str) -> None:
    """An exception of ``auth`` in any thread or task ends the loop without waiting for the dead thread."""
    spoilt: list[str] = []

    def spoil(request: httpx.Request) -> httpx.Request:
        if verb in request.url.path:
            spoilt.append(verb)
            raise OSError("The token service is away.")
        return request

    with client_of(kind, running.url, project, auth=spoil) as client:
        queue = client.queue("jobs")
        queue.post_batch(range(40))
        for work in (lambda: list(queue.consume(batch=5, **SHORT)), lambda: queue.work(print, 2, batch=5, **SHORT)):
            assert isinstance(begun(work).exception(20), OSError)
    assert spoilt


def test_invalid_arguments_are_refused_in_the_caller(queue: Any) -> None:
    """Wrong decisions and consumer options raise in the caller, not later in a maintenance thread."""
    queue.post(1)

    def misspeak() -> None:
        for message in queue.consume(**SHORT):
            for say in (message.release, message.bury, partial(message.move, "next", ttl=object())):
                with pytest.raises(TypeError):
                    say(object())

    misspeak()
    assert queue.stats().total == 0
    for how in ({"backoff": 0.5}, {"backoff": -1}, {"batch": "many"}, {"waits": 1}):
        with pytest.raises(errors.Invalid, match="consumer options"):
            queue.consume(**how)
    with pytest.raises(errors.Invalid, match="concurrency"):
        queue.work(print, 0, **SHORT)


def test_a_consumer_is_in_one_loop_at_a_time(queue: Any) -> None:
    """A second loop would overwrite the claim of the first."""
    queue.post_batch(range(3))
    consumer = queue.consume(**SHORT)
    seen = []
    for message in consumer:
        seen.append(message.body)
        with pytest.raises(RuntimeError, match="already running"):
            list(consumer)
    assert seen == [0, 1, 2]
    assert bodies(consumer) == []


def test_several_failures_are_all_reported(queue: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The first error is raised and the others are logged."""
    queue.post_batch(range(3))

    def work() -> None:
        for message in queue.consume(batch=3, **SHORT):
            message.bury(f"there are no dead letters for {message.body}")

    with pytest.raises(errors.Invalid, match="dead"):
        work()
    assert len([record for record in caplog.records if "dead" in record.message]) == 2


def test_closing_the_client_gives_back_what_a_loop_still_holds(running: ZqServer, kind: str, project: str) -> None:
    """The loop stays open, because another variable refers to the iterator."""

    def blocking() -> None:
        with Client(running.url, project) as client:
            messages = iter(client.queue("jobs").consume(wait=1))
            assert next(messages).body == 0
        assert bodies(queue.claim(10).messages) == [1, 2]
        messages.close()

    async def asynchronous() -> None:
        async with AsyncClient(running.url, project) as client:
            messages = aiter(client.queue("jobs").consume(wait=1))
            assert (await anext(messages)).body == 0
        assert bodies(queue.claim(10).messages) == [1, 2]
        await messages.aclose()

    with Client(running.url, project) as observer:
        queue = observer.queue("jobs")
        queue.post_batch(range(3))
        if kind == "blocking":
            blocking()
        else:
            asyncio.run(asynchronous())
        assert queue.stats().total == 3


def test_a_cancelled_loop_loses_no_message_to_the_claim_that_it_was_waiting_for(
    running: ZqServer, project: str
) -> None:
    """The claim request continues, and messages that it returns after the cancellation are released."""

    async def consume() -> None:
        async with AsyncClient(running.url, project) as client:

            async def forever() -> None:
                async for _ in client.queue("jobs").consume(wait=2, backoff=0):
                    pass

            task = asyncio.create_task(forever())
            await asyncio.sleep(0.3)
            task.cancel()
            await client.queue("jobs").post("kept")
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert [message.body async for message in client.queue("jobs").list()] == ["kept"]

    asyncio.run(consume())


def test_one_signal_stops_all_loops_and_the_handlers_are_put_back() -> None:
    """Any loop may end first; the next signal reaches the previous handler."""
    heard: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("before"))
    try:
        first, second = stop_on_signals(lambda: heard.append("first")), stop_on_signals(lambda: heard.append("second"))
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        third = stop_on_signals(lambda: heard.append("third"))
        third.__enter__()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        fourth = stop_on_signals(lambda: heard.append("fourth"))
        fourth.__enter__()
        signal.raise_signal(signal.SIGTERM)
        for loop in (second, third, fourth):
            loop.__exit__(None, None, None)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["second", "third", "before", "before", "before"]


def test_a_second_signal_amid_the_first_is_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if both signals arrive together, the loops stop once and the previous handler gets one signal."""
    heard: list[str] = []
    really = signal.signal
    before = {number: really(number, lambda *_: heard.append("before")) for number in (signal.SIGTERM, signal.SIGINT)}

    def with_another_close_behind(number: int, handler: Any) -> Any:
        monkeypatch.setattr(signal, "signal", really)
        former = really(number, handler)
        signal.raise_signal(signal.SIGINT)
        return former

    try:
        with stop_on_signals(lambda: heard.append("stopped")):
            monkeypatch.setattr(signal, "signal", with_another_close_behind)
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            really(number, handler)
    assert heard == ["stopped", "before"]
