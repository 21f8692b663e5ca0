# SPDX-License-Identifier: Apache-2.0
"""A common interface to both clients, so that each test is written once.

The asynchronous client runs on an event loop in a thread; its coroutines are awaited and its iterators are consumed
there.
"""

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
    """Open a blocking or an asynchronous client."""
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
    """A runner of coroutines on an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)


class Face:
    """A blocking wrapper of an asynchronous object."""

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
        """Close the generator or the client."""
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
    """Return the bodies of messages in order."""
    return [message.body for message in messages]


async def _next(walker: Any) -> Any:
    return await anext(walker)
