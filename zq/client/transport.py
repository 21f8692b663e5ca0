# SPDX-License-Identifier: Apache-2.0
"""Calls over HTTP: pooled connections, and repeats with exponential back-off and jitter."""

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import httpx
from tenacity import AsyncRetrying, Retrying

from zq.client.answers import understood
from zq.client.attempts import Again, Progress, Settings, sentence
from zq.client.calls import Answer, Call, Caught, unsure
from zq.client.cautions import Cautions
from zq.errors import Unavailable

T = TypeVar("T")


class Transport:
    """Calls over HTTP; threads may share it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client = httpx.Client(**settings.options())
        self.cautions = Cautions()
        self.before_close: list[Callable[[], None]] = []

    def run(self, call: Call[T]) -> T:
        """What the call reads."""
        try:
            answer = call.known or self._send(call, self._settings)[0]
            with understood(call.method, call.path):
                told = call.read(answer)
        except BaseException as error:
            if call.undo is not None and unsure(error):
                with Caught():
                    self._send(call.undo, self._settings.brief())
            raise
        if call.look is not None:
            with Caught():
                call.look.read(self._send(call.look, self._settings.brief())[0])
        return told

    @contextmanager
    def open(self, call: Call[Any]) -> Generator[Iterator[bytes], None, None]:
        """The body of the answer, as it comes."""
        answer, response = self._send(call, self._settings, stream=True)
        try:
            with understood(call.method, call.path):
                call.read(answer)
            yield response.iter_bytes()
        except httpx.RequestError as error:
            raise Unavailable(sentence(self._settings.url, error)) from error
        finally:
            response.close()

    def close(self) -> None:
        """Close all connections."""
        for leave in [*self.before_close]:
            leave()
        self._client.close()

    def _send(self, call: Call[Any], settings: Settings, stream: bool = False) -> tuple[Answer, httpx.Response]:
        progress = Progress(call, settings)

        def attempt() -> tuple[Answer, httpx.Response]:
            with progress.attempt():
                response = self._client.send(progress.request(self._client), stream=stream)
                if stream and response.is_success:
                    return Answer(response.status_code, response.headers, b""), response
                response.read()
            return progress.answer(response), response

        def rest(pause: float) -> None:
            for part in progress.rests(pause):
                time.sleep(part)

        try:
            return Retrying(sleep=rest, **progress.options())(attempt)
        except Again as last:
            raise last.error from last.__cause__


class AsyncTransport:
    """Calls over HTTP; tasks of one event loop may share it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client = httpx.AsyncClient(**settings.options())
        self.cautions = Cautions()
        self.before_close: list[Callable[[], Coroutine[Any, Any, None]]] = []

    async def run(self, call: Call[T]) -> T:
        """What the call reads."""
        try:
            answer = call.known or (await self._send(call, self._settings))[0]
            with understood(call.method, call.path):
                told = call.read(answer)
        except BaseException as error:
            if call.undo is not None and unsure(error):
                with Caught():
                    await self._send(call.undo, self._settings.brief())
            raise
        if call.look is not None:
            with Caught():
                call.look.read((await self._send(call.look, self._settings.brief()))[0])
        return told

    @asynccontextmanager
    async def open(self, call: Call[Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of the answer, as it comes."""
        answer, response = await self._send(call, self._settings, stream=True)
        try:
            with understood(call.method, call.path):
                call.read(answer)
            yield response.aiter_bytes()
        except httpx.RequestError as error:
            raise Unavailable(sentence(self._settings.url, error)) from error
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close all connections."""
        for leave in [*self.before_close]:
            await leave()
        await self._client.aclose()

    async def _send(self, call: Call[Any], settings: Settings, stream: bool = False) -> tuple[Answer, httpx.Response]:
        progress = Progress(call, settings)

        async def attempt() -> tuple[Answer, httpx.Response]:
            with progress.attempt():
                response = await self._client.send(progress.request(self._client), stream=stream)
                if stream and response.is_success:
                    return Answer(response.status_code, response.headers, b""), response
                await response.aread()
            return progress.answer(response), response

        async def rest(pause: float) -> None:
            import asyncio  # here: a blocking client does without it

            for part in progress.rests(pause):
                await asyncio.sleep(part)

        try:
            return await AsyncRetrying(sleep=rest, **progress.options())(attempt)
        except Again as last:
            raise last.error from last.__cause__
