# SPDX-License-Identifier: Apache-2.0
"""Calls over HTTP: pooled connections, time limits, and repeats with exponential back-off and jitter.

What an attempt came to is judged once, for both kinds of transport: an answer, an error for the caller, or ``Again``.
"""

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import httpx
import msgspec
from msgspec import Struct
from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from zq.client.calls import Answer, Call, Repeat
from zq.errors import Unavailable, ZqError
from zq.wire import refusals

T = TypeVar("T")
Auth = httpx.Auth | Callable[[httpx.Request], httpx.Request]
PASSING: Final = frozenset({429, 502, 503, 504})
"""Statuses of trouble that passes."""
NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
CONNECTIONS: Final = httpx.Limits(max_connections=100, max_keepalive_connections=100, keepalive_expiry=30)


class Retries(Struct, frozen=True):
    """When a call is tried again: with pauses of random length, of up to ``first`` seconds at first, doubling up to
    ``most``, or as long as the server asks for; not more than ``attempts`` in all, and none after ``deadline`` seconds.
    """

    attempts: int = 10
    deadline: float = 60.0
    first: float = 0.2
    most: float = 10.0


class Settings(Struct, frozen=True, kw_only=True):
    """What a client is made of; ``timeout``: seconds for one attempt to connect, or to be answered."""

    url: str
    headers: Mapping[str, str]
    auth: Auth | None
    timeout: float
    retries: Retries

    def options(self) -> dict[str, Any]:
        """Those of an HTTP client."""
        return {
            "base_url": self.url,
            "headers": {name: value.encode() for name, value in self.headers.items()},
            "auth": self.auth,
            "limits": CONNECTIONS,
            "follow_redirects": False,
            "verify": self.url.startswith("https:"),  # reading certificates that nobody needs takes longer than a post
        }


class Again(Exception):
    """An attempt failed, and may be repeated after ``pause`` seconds. ``error`` is for the caller if it is not."""

    def __init__(self, error: ZqError, pause: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause = pause


class Refusal(Struct):
    """The body of an error."""

    title: str = ""
    description: str = ""


class _Progress:
    """One call on its way: how much time it has, and when to try again."""

    def __init__(self, call: Call[Any], settings: Settings) -> None:
        self.call = call
        self._settings = settings
        self._ends = time.monotonic() + settings.retries.deadline + call.wait
        self._jitter = wait_random_exponential(settings.retries.first, settings.retries.most)

    def options(self) -> dict[str, Any]:
        """Those of a repeating."""
        return {
            "retry": retry_if_exception_type(Again),
            "wait": self._pause,
            "stop": self._over,
            "reraise": True,
        }

    def request(self, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """The next attempt, with as much time as is left."""
        patience = max(0.1, min(self._settings.timeout, self._ends - time.monotonic() - self.call.wait))
        call = self.call
        return client.build_request(
            call.method,
            call.path,
            params={name: _text(value) for name, value in call.params.items() if value is not None} or None,
            headers=call.headers,
            content=call.body or None,
            timeout=httpx.Timeout(patience, read=patience + call.wait),
        )

    @contextmanager
    def attempt(self) -> Generator[None, None, None]:
        """Turns failures of the connection into ``Again``, or into ``Unavailable`` if the call must not be repeated."""
        try:
            yield
        except httpx.RequestError as error:
            lost = Unavailable(_sentence(self._settings.url, error))
            if self.call.repeat is Repeat.SAFE or isinstance(error, NEVER_SENT):
                raise Again(lost) from error
            raise lost from error

    def answer(self, response: httpx.Response) -> Answer:
        """What the response says. Raises the error that it tells, as ``Again`` if the call may be repeated."""
        if response.status_code < 400:
            return Answer(response.status_code, response.headers, response.content)
        error, pause = told(response), retry_after(response.headers)
        running = response.status_code == 409 and pause > 0
        if self.call.repeat is Repeat.SAFE and (response.status_code in PASSING or running):
            raise Again(error, pause)
        raise error

    def _pause(self, state: RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome else None
        asked = failure.pause if isinstance(failure, Again) else 0.0
        return max(asked, self._jitter(state))

    def _over(self, state: RetryCallState) -> bool:
        too_often = state.attempt_number >= self._settings.retries.attempts
        return too_often or time.monotonic() + state.upcoming_sleep >= self._ends


class Transport:
    """Calls over HTTP; threads may share it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client = httpx.Client(**settings.options())
        self.before_close: list[Callable[[], None]] = []

    def run(self, call: Call[T]) -> T:
        """What the call reads."""
        return _read(call, self._send(call, stream=False)[0])

    @contextmanager
    def open(self, call: Call[Any]) -> Generator[Iterator[bytes], None, None]:
        """The body of the answer, as it comes."""
        _, response = self._send(call, stream=True)
        try:
            yield response.iter_bytes()
        except httpx.RequestError as error:
            raise Unavailable(_sentence(self._settings.url, error)) from error
        finally:
            response.close()

    def close(self) -> None:
        """Close all connections."""
        for leave in [*self.before_close]:
            leave()
        self._client.close()

    def _send(self, call: Call[Any], stream: bool) -> tuple[Answer, httpx.Response]:
        progress = _Progress(call, self._settings)

        def attempt() -> tuple[Answer, httpx.Response]:
            with progress.attempt():
                response = self._client.send(progress.request(self._client), stream=stream)
                if stream and response.status_code < 400:
                    return Answer(response.status_code, response.headers, b""), response
                response.read()
            return progress.answer(response), response

        try:
            return Retrying(**progress.options())(attempt)
        except Again as last:
            raise last.error from last.__cause__


class AsyncTransport:
    """Calls over HTTP; tasks of one event loop may share it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client = httpx.AsyncClient(**settings.options())
        self.before_close: list[Callable[[], Coroutine[Any, Any, None]]] = []

    async def run(self, call: Call[T]) -> T:
        """What the call reads."""
        return _read(call, (await self._send(call, stream=False))[0])

    @asynccontextmanager
    async def open(self, call: Call[Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of the answer, as it comes."""
        _, response = await self._send(call, stream=True)
        try:
            yield response.aiter_bytes()
        except httpx.RequestError as error:
            raise Unavailable(_sentence(self._settings.url, error)) from error
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close all connections."""
        for leave in [*self.before_close]:
            await leave()
        await self._client.aclose()

    async def _send(self, call: Call[Any], stream: bool) -> tuple[Answer, httpx.Response]:
        progress = _Progress(call, self._settings)

        async def attempt() -> tuple[Answer, httpx.Response]:
            with progress.attempt():
                response = await self._client.send(progress.request(self._client), stream=stream)
                if stream and response.status_code < 400:
                    return Answer(response.status_code, response.headers, b""), response
                await response.aread()
            return progress.answer(response), response

        try:
            return await AsyncRetrying(**progress.options())(attempt)
        except Again as last:
            raise last.error from last.__cause__


def _read(call: Call[T], answer: Answer) -> T:
    try:
        return call.read(answer)
    except (msgspec.MsgspecError, KeyError, IndexError, TypeError) as error:
        raise ZqError(f"The answer to {call.method} {call.path} is none that this client understands.") from error


def told(response: httpx.Response) -> ZqError:
    """The error that an answer tells, as the class that the server raised."""
    try:
        refusal = msgspec.json.decode(response.content, type=Refusal)
    except msgspec.MsgspecError:  # a proxy's own page
        refusal = Refusal()
    title = refusal.title or response.reason_phrase
    reason = title.removeprefix(f"{response.status_code} ")
    sentence = refusal.description or f"The server answered {response.status_code} {reason}."
    return refusals.error(response.status_code, response.headers.get(refusals.HEADER, ""), title, sentence)


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds for which the server asks to be left alone; 0 if it does not, or names a date."""
    asked = headers.get("Retry-After", "")
    return float(asked) if asked.isascii() and asked.isdigit() else 0.0


def _text(value: str | int | bool | list[str]) -> str | list[str]:
    if isinstance(value, list):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sentence(url: str, error: httpx.RequestError) -> str:
    server = httpx.URL(url)
    if isinstance(error, httpx.TimeoutException):
        reason = "did not answer in time"
    elif isinstance(error, NEVER_SENT):
        reason = "cannot be reached"
    else:
        reason = "broke the connection off"
    return f"The server at {server.host}:{server.port or server.scheme} {reason}."
