# SPDX-License-Identifier: Apache-2.0
"""Sends batches, some at a time: by threads for a blocking client, by tasks for an asynchronous one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from zq.client.batches import Batch, Tally
from zq.client.calls import Awaits, Call, Runs
from zq.errors import InvalidBody

Send = Callable[[Batch], Call[None]]


def post_all(transport: Runs, send: Send, source: Iterator[Batch], tally: Tally, concurrency: int) -> int:
    """How many messages were stored. The next batch is made while others are on their way."""
    running: dict[Future[None], Batch] = {}

    def await_below(most: int) -> None:
        while len(running) > most:
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                tally.judge(running.pop(ended), ended.exception())

    with ThreadPoolExecutor(concurrency, "zq-post") as pool:
        try:
            for batch in source:
                await_below(concurrency - 1)
                if tally.failure is not None:
                    break
                running[pool.submit(transport.run, send(batch))] = batch
        except InvalidBody as error:
            tally.failure = tally.failure or error
        await_below(0)
    return tally.close()


async def post_all_async(
    transport: Awaits, send: Send, source: AsyncIterator[Batch], tally: Tally, concurrency: int
) -> int:
    """As ``post_all``."""
    running: dict[asyncio.Task[None], Batch] = {}

    async def await_below(most: int) -> None:
        while len(running) > most:
            for ended in (await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]:
                tally.judge(running.pop(ended), ended.exception())

    try:
        async for batch in source:
            await await_below(concurrency - 1)
            if tally.failure is not None:
                break
            running[asyncio.create_task(transport.run(send(batch)))] = batch
            await asyncio.sleep(0)
    except InvalidBody as error:
        tally.failure = tally.failure or error
    finally:
        # whoever was cancelled, or given an error by the bodies, does not leave requests behind
        await await_below(0)
    return tally.close()
