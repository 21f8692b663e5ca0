# SPDX-License-Identifier: Apache-2.0
"""A request as a value: its parts, whether it may be repeated, and how its answer is read. No I/O.

Each verb of the interface is written once, as a function that makes a ``Call``. ``operation`` binds it: on a blocking
client it runs the call and returns what it reads; on an asynchronous one it returns an awaitable of the same.
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
from zq.wire import refusals

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
Params = Mapping[str, str | int | bool | list[str] | None]
# The errors of decoding an answer of an unexpected form.
UNREADABLE: Final = (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError)
# Seconds; a longer Retry-After is cut to this.
MAX_RETRY_AFTER: Final = 3600.0
# Seconds between two checks whether a pause is still wanted.
SLICE: Final = 0.2


class Repeat(Enum):
    """The condition for repeating a request after a lost answer or a temporary failure."""

    SAFE = "safe"
    """A repeat changes nothing more: by its nature, or by an Idempotency-Key."""
    UNSENT = "unsent"
    """Only if the server surely never got it."""


class Answer(Struct, frozen=True):
    """A response below status 400."""

    status: int
    headers: Mapping[str, str]
    body: bytes


# The answer of a call that needs no request.
EMPTY: Final = Answer(204, {}, b"")


class Call(Struct, Generic[T_co], frozen=True, kw_only=True):
    """One request. ``params`` of None are left out; ``wait``: seconds for which the server may hold it.

    ``patience``: seconds for which the caller wants repeats, asked again and again. ``local_answer``: the answer, if
    it needs no request. ``undo``: a call made once, briefly, if this one ended without an answer.
    ``check``: a call made once, briefly, before this one. An error of reading its answer ends this call, too; a failure
    of the check itself does not.
    """

    method: str
    path: str
    read: Callable[[Answer], T_co]
    params: Params = {}
    headers: Mapping[str, str] = {}
    body: bytes = b""
    repeat: Repeat = Repeat.SAFE
    wait: float = 0.0
    patience: Callable[[], float] = lambda: inf
    local_answer: Answer | None = None
    undo: "Call[Any] | None" = None
    check: "Call[None] | None" = None


class Page(Struct, Generic[T_co], frozen=True):
    """One page of a listing and the call for the next one; None after the last."""

    items: list[T_co]
    next: "Call[Page[T_co]] | None"


class Transport(Protocol):
    """Runs calls for threads."""

    before_close: list[Callable[[], None]]
    """What running consumers do before the connections are closed."""

    def run(self, call: Call[T]) -> T:
        """Return the result of the call. Raises the error that the server raised, or ``Unavailable``."""
        ...

    def open(self, call: "Call[Any]") -> AbstractContextManager[Iterator[bytes]]:
        """Return the body of the answer as it arrives. Both raise ``Unavailable`` if the connection breaks."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class AsyncTransport(Protocol):
    """Runs calls for tasks."""

    before_close: list[Callable[[], Coroutine[Any, Any, None]]]
    """As ``Transport.before_close``."""

    async def run(self, call: Call[T]) -> T:
        """As ``Transport.run``."""
        ...

    def open(self, call: "Call[Any]") -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """As ``Transport.open``."""
        ...

    async def close(self) -> None:
        """As ``Transport.close``."""
        ...


class Blocking:
    """Verbs on it return what they read."""

    transport: Transport


class Asynchronous:
    """Verbs on it return awaitables."""

    transport: AsyncTransport


class Verb:
    """A verb as interpreters show it: its name, its docstring, and the signature that it has on either client."""

    blocking: Callable[[Any], Any]
    """From what the ``Call`` reads to what the verb returns on a blocking client."""
    awaited: Callable[[Any], Any]
    """And on an asynchronous one."""

    def __init__(self, make: Callable[..., Call[Any]]) -> None:
        self._make = make
        self._signatures: dict[bool, inspect.Signature] = {}
        update_wrapper(self, make)  # type: ignore[arg-type]

    def signature(self, waits: bool) -> inspect.Signature:
        """Return the signature of the bound verb; ``waits``: on a blocking client."""
        if waits not in self._signatures:
            given = inspect.signature(self._make)
            (read,) = get_args(given.return_annotation)
            _, *parameters = given.parameters.values()
            returned = self.blocking(read) if waits else self.awaited(read)
            self._signatures[waits] = given.replace(parameters=parameters, return_annotation=returned)
        return self._signatures[waits]

    def _shown(self, bound: Any, target: Any) -> Any:
        bound.__name__, bound.__qualname__ = self._make.__name__, self._make.__qualname__
        bound.__doc__ = self._make.__doc__
        bound.__signature__ = self.signature(isinstance(target, Blocking))
        return bound


class operation(Verb, Generic[P, T]):
    """A verb, written as a method that returns a ``Call``."""

    blocking = staticmethod(lambda read: read)
    awaited = staticmethod(lambda read: GenericAlias(Coroutine, (Any, Any, read)))

    def __init__(self, make: Callable[Concatenate[Any, P], Call[T]]) -> None:
        super().__init__(make)

    @overload
    def __get__(self, target: None, owner: type[Any]) -> "operation[P, T]": ...
    @overload
    def __get__(self, target: Blocking, owner: type[Any]) -> Callable[P, T]: ...
    @overload
    def __get__(self, target: Asynchronous, owner: type[Any]) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, target: Any, owner: type[Any]) -> Any:
        if target is None:
            return self

        def bound(*args: P.args, **kwargs: P.kwargs) -> Any:
            return target.transport.run(self._make(target, *args, **kwargs))

        return self._shown(bound, target)


class listing(Verb, Generic[P, T]):
    """A verb that iterates over pages, written as a method that returns the ``Call`` for the first one."""

    blocking = staticmethod(lambda read: GenericAlias(Iterator, get_args(read)))
    awaited = staticmethod(lambda read: GenericAlias(AsyncIterator, get_args(read)))

    def __init__(self, make: Callable[Concatenate[Any, P], Call[Page[T]]]) -> None:
        super().__init__(make)

    @overload
    def __get__(self, target: None, owner: type[Any]) -> "listing[P, T]": ...
    @overload
    def __get__(self, target: Blocking, owner: type[Any]) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, target: Asynchronous, owner: type[Any]) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, target: Any, owner: type[Any]) -> Any:
        if target is None:
            return self
        walk: Callable[[Any, Call[Page[T]]], Any] = _walk if isinstance(target, Blocking) else _walk_async

        def bound(*args: P.args, **kwargs: P.kwargs) -> Any:
            return walk(target.transport, self._make(target, *args, **kwargs))

        return self._shown(bound, target)


def _walk(transport: Transport, first: Call[Page[T]]) -> Iterator[T]:
    following: Call[Page[T]] | None = first
    while following is not None:
        page = transport.run(following)
        yield from page.items
        following = page.next


async def _walk_async(transport: AsyncTransport, first: Call[Page[T]]) -> AsyncIterator[T]:
    following: Call[Page[T]] | None = first
    while following is not None:
        page = await transport.run(following)
        for item in page.items:
            yield item
        following = page.next


def path(*segments: str) -> str:
    """Below ``/v2/``; each segment quoted, so that a name never becomes another path. Raises ``InvalidName``."""
    if not all(segments) or "/" in "".join(segments):
        # Servers decode a path before they take it apart: even a quoted slash would lead to another resource.
        raise InvalidName("A name must not be empty, and must not hold a slash.")
    quoted = (quote(part, safe="") for part in segments)
    return "/v2/" + "/".join(part if part.strip(".") else part.replace(".", "%2E") for part in quoted)


def key_header(key: str | None) -> Mapping[str, str]:
    """Return the header of the idempotency key: the caller's, or a fresh one for this call."""
    if key is not None and not all("!" <= letter <= "~" for letter in key):
        raise InvalidHeader("Invalid header value", "A key must be of visible ASCII characters.")
    return {"Idempotency-Key": key or uuid4().hex}


def nothing(answer: Answer) -> None:
    """Read an answer without content. Raises ``ValueError`` for one with content, which no zq server sends."""
    if answer.status != 204:
        raise ValueError(answer.status)


def check_concurrency(concurrency: int) -> int:
    """Return the number. Raises ``Invalid`` below 1."""
    if concurrency < 1:
        raise Invalid("concurrency must be at least 1.")
    return concurrency


def maybe_applied(error: BaseException) -> bool:
    """Return whether the server may have carried out a failed call: not if it refused the first attempt."""
    return type(error) in (Unavailable, ZqError) or not isinstance(error, ZqError) or error.__cause__ is not None


class Caught:
    """A context manager that keeps the first ``Exception`` of its blocks; what ends a program or a task is raised."""

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


class ErrorBody(Struct):
    """The body of an error."""

    title: str = ""
    description: str = ""
    limit: str = ""


def error_of(response: "httpx.Response") -> ZqError:
    """Return the error in an answer, as the class that the server raised."""
    try:
        body = msgspec.json.decode(response.content, type=ErrorBody)
    except UNREADABLE:  # a proxy's own page
        body = ErrorBody()
    title = body.title or response.reason_phrase
    reason = title.removeprefix(f"{response.status_code} ")
    sentence = body.description or f"The server answered {response.status_code} {reason}."
    if response.status_code < 400:
        target = response.headers.get("Location", "nowhere")
        sentence = f"The server answered {response.status_code} {reason}, which leads to {target}; no call follows."
    name, pause = response.headers.get(refusals.HEADER, ""), max(1, int(retry_after(response.headers)))
    return refusals.error(response.status_code, name, title, sentence, pause, body.limit)


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of the Retry-After header; 0 without one, and for a date."""
    asked = headers.get("Retry-After", "")
    return min(float(asked), MAX_RETRY_AFTER) if asked.isascii() and asked.isdigit() else 0.0


@contextmanager
def reading_answer(method: str, path: str) -> Generator[None, None, None]:
    """Raise ``ZqError`` if the block reads an answer that no zq server sends."""
    try:
        yield
    except UNREADABLE as error:
        raise ZqError(f"The answer to {method} {path} is none that this client understands.") from error


class Retries(Struct, frozen=True):
    """When a call is tried again: with pauses of random length, of up to ``first`` seconds at first, doubling up to
    ``most``, or as long as the server asks for; not more than ``attempts`` in all, and none after ``deadline`` seconds.
    """

    attempts: int = 10
    deadline: float = 60.0
    first: float = 0.2
    most: float = 10.0


def sleep_slices(pause: float, over: Callable[[], bool]) -> Iterator[float]:
    """Yield the seconds of each next sleep, until the pause has passed or ``over`` returns True."""
    ends = time.monotonic() + pause
    while (left := ends - time.monotonic()) > 0 and not over():
        yield min(left, SLICE)
