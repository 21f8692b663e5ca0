# SPDX-License-Identifier: Apache-2.0
"""Sends batches, some at a time: by threads for a blocking client, by tasks for an asynchronous one."""

from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import aclosing

from zq.client.batches import Batch, Tally
from zq.client.calls import Awaits, Call, Runs, at_once

Send = Callable[[Batch], Call[None]]


def post_all(transport: Runs, send: Send, source: Iterator[Batch], tally: Tally, concurrency: int) -> int:
    """How many messages were stored. The next batch is made while others are on their way."""
    running: dict[Future[None], Batch] = {}

    def await_below(most: int) -> None:
        while len(running) > most:
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                tally.judge(running.pop(ended), ended.exception())

    with ThreadPoolExecutor(at_once(concurrency), "zq-post") as pool:
        with tally:
            for batch in source:
                await_below(concurrency - 1)
                if tally.error is not None:
                    break
                running[pool.submit(transport.run, send(batch))] = batch
        await_below(0)
    return tally.close()


async def post_all_async(
    transport: Awaits, send: Send, source: AsyncGenerator[Batch, None], tally: Tally, concurrency: int
) -> int:
    """As ``post_all``."""
    import asyncio  # here: a blocking client does without it

    running: dict[asyncio.Task[None], Batch] = {}
    at_once(concurrency)

    async def await_below(most: int) -> None:
        while len(running) > most:
            for ended in (await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]:
                tally.judge(running.pop(ended), ended.exception())

    try:
        with tally:
            async with aclosing(source):
                async for batch in source:
                    await await_below(concurrency - 1)
                    if tally.error is not None:
                        break
                    running[asyncio.create_task(transport.run(send(batch)))] = batch
                    await asyncio.sleep(0)
    finally:
        await await_below(0)  # whoever was cancelled does not leave requests behind
    return tally.close()
