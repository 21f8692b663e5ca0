# SPDX-License-Identifier: Apache-2.0
"""The blocking and the asynchronous HTTP transport, each with a connection pool."""

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import httpx
from tenacity import AsyncRetrying, Retrying

from zq.client.attempts import Attempts, Retry, Settings, connection_error_message
from zq.client.calls import Call, ErrorRecorder, Response, may_be_applied, translate_read_errors
from zq.client.warnings import Warnings
from zq.errors import Unavailable

T = TypeVar("T")


class HttpTransport:
    """A blocking HTTP transport. Thread-safe."""

    def __init__(self, settings: Settings, check_delays: bool = True) -> None:
        self._settings = settings
        self._client = httpx.Client(**settings.options())
        self.warnings = Warnings(check_delays)
        self.before_close: list[Callable[[], None]] = []

    def run(self, call: Call[T]) -> T:
        if call.check is not None:
            checked = None
            with ErrorRecorder():
                checked = self._send(call.check, self._settings.single_attempt())[0]
            if checked is not None:
                call.check.read(checked)
        try:
            response = call.local_response or self._send(call, self._settings)[0]
            with translate_read_errors(call.method, call.path):
                result = call.read(response)
        except BaseException as error:
            if call.undo is not None and may_be_applied(error):
                with ErrorRecorder():
                    self._send(call.undo, self._settings.single_attempt())
            raise
        return result

    @contextmanager
    def open(self, call: Call[Any]) -> Generator[Iterator[bytes], None, None]:
        response, http_response = self._send(call, self._settings, stream=True)
        try:
            with translate_read_errors(call.method, call.path):
                call.read(response)
            yield http_response.iter_bytes()
        except httpx.RequestError as error:
            raise Unavailable(connection_error_message(self._settings.url, error)) from error
        finally:
            http_response.close()

    def close(self) -> None:
        for close in [*self.before_close]:
            close()
        self._client.close()

    def _send(self, call: Call[Any], settings: Settings, stream: bool = False) -> tuple[Response, httpx.Response]:
        attempts = Attempts(call, settings)

        def attempt() -> tuple[Response, httpx.Response]:
            with attempts.attempt():
                response = self._client.send(attempts.request(self._client), stream=stream)
                if stream and response.is_success:
                    return Response(response.status_code, response.headers, b""), response
                response.read()
            return attempts.read_response(response), response

        def sleep(pause: float) -> None:
            for part in attempts.split_pause(pause):
                time.sleep(part)

        try:
            return Retrying(sleep=sleep, **attempts.options())(attempt)
        except Retry as last:
            raise last.error from last.__cause__


class AsyncHttpTransport:
    """An asynchronous HTTP transport for one event loop."""

    def __init__(self, settings: Settings, check_delays: bool = True) -> None:
        self._settings = settings
        self._client = httpx.AsyncClient(**settings.options())
        self.warnings = Warnings(check_delays)
        self.before_close: list[Callable[[], Coroutine[Any, Any, None]]] = []

    async def run(self, call: Call[T]) -> T:
        if call.check is not None:
            checked = None
            with ErrorRecorder():
                checked = (await self._send(call.check, self._settings.single_attempt()))[0]
            if checked is not None:
                call.check.read(checked)
        try:
            response = call.local_response or (await self._send(call, self._settings))[0]
            with translate_read_errors(call.method, call.path):
                result = call.read(response)
        except BaseException as error:
            if call.undo is not None and may_be_applied(error):
                with ErrorRecorder():
                    await self._send(call.undo, self._settings.single_attempt())
            raise
        return result

    @asynccontextmanager
    async def open(self, call: Call[Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        response, http_response = await self._send(call, self._settings, stream=True)
        try:
            with translate_read_errors(call.method, call.path):
                call.read(response)
            yield http_response.aiter_bytes()
        except httpx.RequestError as error:
            raise Unavailable(connection_error_message(self._settings.url, error)) from error
        finally:
            await http_response.aclose()

    async def close(self) -> None:
        for close in [*self.before_close]:
            await close()
        await self._client.aclose()

    async def _send(self, call: Call[Any], settings: Settings, stream: bool = False) -> tuple[Response, httpx.Response]:
        attempts = Attempts(call, settings)

        async def attempt() -> tuple[Response, httpx.Response]:
            with attempts.attempt():
                response = await self._client.send(attempts.request(self._client), stream=stream)
                if stream and response.is_success:
                    return Response(response.status_code, response.headers, b""), response
                await response.aread()
            return attempts.read_response(response), response

        async def sleep(pause: float) -> None:
            import asyncio  # A blocking client does not need asyncio.

            for part in attempts.split_pause(pause):
                await asyncio.sleep(part)

        try:
            return await AsyncRetrying(sleep=sleep, **attempts.options())(attempt)
        except Retry as last:
            raise last.error from last.__cause__
