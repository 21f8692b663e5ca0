# SPDX-License-Identifier: Apache-2.0
"""Both clients behind one face, so that a test is written once: the asynchronous one on an event loop in a thread, its
awaitables awaited and its iterators walked."""

import asyncio
import threading
from collections.abc import AsyncIterable, Callable, Iterator
from contextlib import contextmanager
from inspect import iscoroutine
from typing import Any

from zq.client import AsyncClient, Client
from zq.client.async_consumer import AsyncConsumer
from zq.client.calls import AsyncOperations

KINDS = ["blocking", "asynchronous"]


@contextmanager
def client_of(kind: str, url: str, project: str = "acme", **options: Any) -> Iterator[Any]:
    """A client of either kind."""
    if kind == "blocking":
        with Client(url, project, **options) as client:
            yield client
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    run = Loop(loop)
    try:
        client = AsyncClient(url, project, **options)
        yield Face(client, run)
        run(client.close())
        run(loop.shutdown_asyncgens())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Loop:
    """Runs what is awaitable."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)


class Face:
    """Something asynchronous as if it were not."""

    def __init__(self, target: Any, run: Loop) -> None:
        self._target = target
        self._run = run

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return self._calling(value) if callable(value) else value

    def __iter__(self) -> Iterator[Any]:
        walker = aiter(self._target)
        try:
            while True:
                try:
                    item = self._run(_next(walker))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._run(walker.aclose())

    def __enter__(self) -> "Face":
        return Face(self._run(self._target.__aenter__()), self._run)

    def __exit__(self, *error: Any) -> None:
        self._run(self._target.__aexit__(*error))

    def close(self) -> None:
        """Of a generator, or of a client."""
        close = getattr(self._target, "aclose", None) or self._target.close
        self._run(close())

    def _calling(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if method.__name__ == "work":
                handler, *rest = args
                args = (lambda message: asyncio.to_thread(handler, message), *rest)
            answer = method(*args, **named)
            if iscoroutine(answer):
                return self._run(answer)
            wrapped = isinstance(answer, AsyncOperations | AsyncConsumer | AsyncIterable)
            return Face(answer, self._run) if wrapped else answer

        return call


def bodies(messages: Any) -> list[Any]:
    """Of messages, in their order."""
    return [message.body for message in messages]


async def _next(walker: Any) -> Any:
    return await anext(walker)
