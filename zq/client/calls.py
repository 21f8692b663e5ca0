# SPDX-License-Identifier: Apache-2.0
"""API calls as values: the request, its retry rule and the function that reads the response. No I/O.

Each API method is a function that returns a ``Call``. The decorators ``operation`` and ``listing`` turn this function
into a method that sends the request: blocking on a ``Client``, awaitable on an ``AsyncClient``.
"""

import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from enum import Enum
from functools import update_wrapper
from math import inf
from types import GenericAlias
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    get_args,
    overload,
)
from urllib.parse import quote
from uuid import uuid4

import msgspec
from msgspec import Struct

from zq.errors import Invalid, InvalidHeader, InvalidName, Unavailable, ZqError
from zq.wire import answers, refusals

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
Params = Mapping[str, str | int | bool | list[str] | None]
# Errors raised when a response has an unexpected format.
READ_ERRORS: Final = (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError)
# Maximum sleep in seconds that a Retry-After header can request. Longer times are capped.
MAX_RETRY_AFTER: Final = 3600.0
# Interval in seconds at which a sleeping caller checks whether to stop.
CHECK_INTERVAL: Final = 0.2


class Repeat(Enum):
    """The retry rule of a request."""

    SAFE = "safe"
    """Retry after a lost response or a temporary failure, because the request is idempotent."""
    UNSENT = "unsent"
    """Retry only if the request was certainly not sent."""


class Response(Struct, frozen=True):
    """A response with a status below 400."""

    status: int
    headers: Mapping[str, str]
    body: bytes


# The response of a call that needs no request.
EMPTY_RESPONSE: Final = Response(204, {}, b"")


class Call(Struct, Generic[T_co], frozen=True, kw_only=True):
    """A request and the function that reads its response.

    Attributes:
        params: Query parameters. A parameter whose value is ``None`` is omitted.
        wait: Seconds for which the server may hold the request (long polling).
        patience: Function that returns the seconds left for retries. The client calls the function before each attempt
            and while it sleeps between attempts.
        undo: Call that reverts this call. If this call fails but may have been applied, the client attempts ``undo``
            once, with a short timeout.
        check: Call that the client attempts once before this call, with a short timeout. If ``check.read`` raises, this
            call fails. If the check gets no response or an error response, the check is ignored.
    """

    method: str
    path: str
    read: Callable[[Response], T_co]
    params: Params = {}
    headers: Mapping[str, str] = {}
    body: bytes = b""
    repeat: Repeat = Repeat.SAFE
    wait: float = 0.0
    patience: Callable[[], float] = lambda: inf
    local_response: Response | None = None
    undo: "Call[Any] | None" = None
    check: "Call[None] | None" = None


class Page(Struct, Generic[T_co], frozen=True):
    """A page of a listing. ``next`` is the call for the next page, or ``None`` for the last page."""

    items: list[T_co]
    next: "Call[Page[T_co]] | None"


def decode_as(kind: type[T]) -> "Callable[[Response], T]":
    """Return a function that decodes a response body as the given type."""
    decoder = msgspec.json.Decoder(kind)
    return lambda response: decoder.decode(response.body)


# The reader of a response body that is any object.
read_object: Final = decode_as(dict[str, Any])


def pages(member: str, kind: type[T], target: str, params: Params) -> "Call[Page[T]]":
    """Return the call for the first page of a listing. Each page contains the call for the next page."""

    def read(response: Response) -> Page[T]:
        found = msgspec.json.decode(response.body, type=dict[str, msgspec.Raw])
        items = msgspec.json.decode(found[member], type=list[kind])  # type: ignore[valid-type]
        links = msgspec.json.decode(found["links"], type=list[answers.Link])
        # The path of the link is not used, because it does not quote names that consist of dots.
        following = [f"{target.partition('?')[0]}?{link.href.partition('?')[2]}" for link in links]
        return Page(items, pages(member, kind, following[0], {}) if following else None)

    return Call(method="GET", path=target, params=params, read=read)


class Transport(Protocol):
    """The interface of blocking transports."""

    before_close: list[Callable[[], None]]
    """Callbacks of running consumers, called before the connections are closed."""

    def run(self, call: Call[T]) -> T:
        """Send the call's request, with retries, and return the result.

        Raises the server's error, or ``Unavailable`` if the connection fails.
        """
        ...

    def open(self, call: "Call[Any]") -> AbstractContextManager[Iterator[bytes]]:
        """Open a streaming response and yield an iterator over the body. Raises ``Unavailable``."""
        ...

    def close(self) -> None:
        """Stop the running consumers and close all connections."""
        ...


class AsyncTransport(Protocol):
    """The interface of asynchronous transports. The methods correspond to those of ``Transport``."""

    before_close: list[Callable[[], Coroutine[Any, Any, None]]]
    """Callbacks of running consumers, awaited before the connections are closed."""

    async def run(self, call: Call[T]) -> T: ...

    def open(self, call: "Call[Any]") -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...

    async def close(self) -> None: ...


class BlockingOperations:
    """Base class of blocking clients and handles. Their API methods send the request and return the result."""

    transport: Transport


class AsyncOperations:
    """Base class of asynchronous clients and handles. Their API methods return awaitables."""

    transport: AsyncTransport


class ApiMethod:
    """A descriptor for an API method. The method's signature differs between blocking and asynchronous clients."""

    blocking: Callable[[Any], Any]
    """Maps the result type of the ``Call`` to the method's return type on a blocking client."""
    awaited: Callable[[Any], Any]
    """Maps the result type of the ``Call`` to the method's return type on an asynchronous client."""

    def __init__(self, make: Callable[..., Call[Any]]) -> None:
        self._make = make
        self._signatures: dict[bool, inspect.Signature] = {}
        update_wrapper(self, make)  # type: ignore[arg-type]

    def signature(self, is_blocking: bool) -> inspect.Signature:
        """Return the signature of the bound method, for a blocking or an asynchronous client."""
        if is_blocking not in self._signatures:
            given = inspect.signature(self._make)
            (read,) = get_args(given.return_annotation)
            _, *parameters = given.parameters.values()
            returned = self.blocking(read) if is_blocking else self.awaited(read)
            self._signatures[is_blocking] = given.replace(parameters=parameters, return_annotation=returned)
        return self._signatures[is_blocking]

    def _describe(self, bound: Any, target: Any) -> Any:
        bound.__name__, bound.__qualname__ = self._make.__name__, self._make.__qualname__
        bound.__doc__ = self._make.__doc__
        bound.__signature__ = self.signature(isinstance(target, BlockingOperations))
        return bound


class operation(ApiMethod, Generic[P, T]):
    """A decorator for a method that returns a ``Call``. The decorated method sends the request."""

    blocking = staticmethod(lambda read: read)
    awaited = staticmethod(lambda read: GenericAlias(Coroutine, (Any, Any, read)))

    def __init__(self, make: Callable[Concatenate[Any, P], Call[T]]) -> None:
        super().__init__(make)

    @overload
    def __get__(self, target: None, owner: type[Any]) -> "operation[P, T]": ...
    @overload
    def __get__(self, target: BlockingOperations, owner: type[Any]) -> Callable[P, T]: ...
    @overload
    def __get__(self, target: AsyncOperations, owner: type[Any]) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, target: Any, owner: type[Any]) -> Any:
        if target is None:
            return self

        def bound(*args: P.args, **kwargs: P.kwargs) -> Any:
            return target.transport.run(self._make(target, *args, **kwargs))

        return self._describe(bound, target)


class listing(ApiMethod, Generic[P, T]):
    """A decorator for a method that returns the first page's ``Call``. The decorated method iterates over all items."""

    blocking = staticmethod(lambda read: GenericAlias(Iterator, get_args(read)))
    awaited = staticmethod(lambda read: GenericAlias(AsyncIterator, get_args(read)))

    def __init__(self, make: Callable[Concatenate[Any, P], Call[Page[T]]]) -> None:
        super().__init__(make)

    @overload
    def __get__(self, target: None, owner: type[Any]) -> "listing[P, T]": ...
    @overload
    def __get__(self, target: BlockingOperations, owner: type[Any]) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, target: AsyncOperations, owner: type[Any]) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, target: Any, owner: type[Any]) -> Any:
        if target is None:
            return self
        walk: Callable[[Any, Call[Page[T]]], Any] = (
            _iterate_pages if isinstance(target, BlockingOperations) else _iterate_pages_async
        )

        def bound(*args: P.args, **kwargs: P.kwargs) -> Any:
            return walk(target.transport, self._make(target, *args, **kwargs))

        return self._describe(bound, target)


def _iterate_pages(transport: Transport, first: Call[Page[T]]) -> Iterator[T]:
    following: Call[Page[T]] | None = first
    while following is not None:
        page = transport.run(following)
        yield from page.items
        following = page.next


async def _iterate_pages_async(transport: AsyncTransport, first: Call[Page[T]]) -> AsyncIterator[T]:
    following: Call[Page[T]] | None = first
    while following is not None:
        page = await transport.run(following)
        for item in page.items:
            yield item
        following = page.next


def path(*segments: str) -> str:
    """Quote the segments and join them to a path below ``/v2/``. Raises ``InvalidName`` for a bad segment."""
    if not all(segments) or "/" in "".join(segments):
        # Servers decode a path before they split it, so even a quoted slash would lead to another resource.
        raise InvalidName("A name must not be empty and must not contain a slash.")
    quoted = (quote(part, safe="") for part in segments)
    return "/v2/" + "/".join(part if part.strip(".") else part.replace(".", "%2E") for part in quoted)


def idempotency_header(key: str | None) -> Mapping[str, str]:
    """Return the Idempotency-Key header with ``key``, or with a new key if ``key`` is ``None``."""
    if key is not None and not all("!" <= letter <= "~" for letter in key):
        raise InvalidHeader("Invalid header value", "An idempotency key must consist of visible ASCII characters.")
    return {"Idempotency-Key": key or uuid4().hex}


def read_empty(response: Response) -> None:
    """Read a response that must be empty. Raises ``ValueError`` if its status is not 204."""
    if response.status != 204:
        raise ValueError(response.status)


def check_concurrency(concurrency: int) -> int:
    """Return ``concurrency``. Raises ``Invalid`` if the value is less than 1."""
    if concurrency < 1:
        raise Invalid("concurrency must be at least 1.")
    return concurrency


def may_be_applied(error: BaseException) -> bool:
    """Return whether the server may have applied a call that failed with ``error``.

    The result is ``False`` only if the server rejected all requests that the client sent. After a lost response, the
    server may have applied the call, even if the server rejected a later attempt.
    """
    return type(error) in (Unavailable, ZqError) or not isinstance(error, ZqError) or error.__cause__ is not None


class ErrorRecorder:
    """A reusable context manager that suppresses each ``Exception`` and records the first one."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        if self.error is None:
            self.error = error
        return True


def error_from(response: "httpx.Response") -> ZqError:
    """Convert an error response into the exception that the server raised."""
    try:
        body = msgspec.json.decode(response.content, type=answers.Error)
    except READ_ERRORS:  # a proxy's error page
        body = answers.Error()
    title = body.title or response.reason_phrase
    reason = title.removeprefix(f"{response.status_code} ")
    sentence = body.description or f"The server answered {response.status_code} {reason}."
    if response.status_code < 400:
        target = response.headers.get("Location", "nowhere")
        sentence = (
            f"The server answered {response.status_code} {reason}, a redirect to {target}, which clients do not follow."
        )
    name, pause = response.headers.get(refusals.HEADER, ""), max(1, int(parse_retry_after(response.headers)))
    return refusals.error(response.status_code, name, title, sentence, pause, body.limit)


def parse_retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of the Retry-After header; 0 if it is absent or a date."""
    value = headers.get("Retry-After", "")
    return min(float(value), MAX_RETRY_AFTER) if value.isascii() and value.isdigit() else 0.0


@contextmanager
def translate_read_errors(method: str, path: str) -> Generator[None, None, None]:
    """Convert errors that occur while a response is read to ``ZqError``."""
    try:
        yield
    except READ_ERRORS as error:
        raise ZqError(f"This client cannot parse the response to {method} {path}.") from error


class Retries(Struct, frozen=True):
    """The retry policy of a client: exponential back-off with full jitter.

    If the server sends Retry-After, the client sleeps at least for that time.

    Attributes:
        deadline: Number of seconds, counted from the start of a call, in which the client starts new attempts. The
            seconds of a long poll are added. While the server is applying a commit, the deadline is extended.
        first_delay: Upper bound in seconds of the first back-off. The bound doubles with each retry.
        max_delay: Maximum back-off in seconds.
    """

    attempts: int = 10
    deadline: float = 60.0
    first_delay: float = 0.2
    max_delay: float = 10.0


def split_sleep(pause: float, over: Callable[[], bool]) -> Iterator[float]:
    """Yield durations in seconds for short sleeps until ``pause`` seconds have passed or ``over`` returns ``True``."""
    ends = time.monotonic() + pause
    while (left := ends - time.monotonic()) > 0 and not over():
        yield min(left, CHECK_INTERVAL)
