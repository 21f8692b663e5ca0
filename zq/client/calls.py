# SPDX-License-Identifier: Apache-2.0
"""Requests as values: their content, whether they may be repeated, and how their answers are read. No I/O.

Each verb of the API is written once, as a function that returns a ``Call``. The decorator ``operation`` binds it to a
client. On a blocking client, the bound verb runs the call and returns the result. On an asynchronous client, it returns
an awaitable.
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
# Errors raised when an answer has an unexpected format.
UNREADABLE: Final = (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError)
# Maximum seconds of a Retry-After header; longer times are cut to this.
MAX_RETRY_AFTER: Final = 3600.0
# Maximum seconds between two checks whether to end a pause.
SLICE: Final = 0.2


class Repeat(Enum):
    """The condition under which a request is repeated after a lost answer or a temporary failure."""

    SAFE = "safe"
    """A repeated request has no further effect, by its nature or through an Idempotency-Key."""
    UNSENT = "unsent"
    """The request is repeated only if it certainly never reached the server."""


class Answer(Struct, frozen=True):
    """A response with a status below 400."""

    status: int
    headers: Mapping[str, str]
    body: bytes


# The answer of a call that sends no request.
EMPTY: Final = Answer(204, {}, b"")


class Call(Struct, Generic[T_co], frozen=True, kw_only=True):
    """A request and the function that reads its answer.

    Attributes:
        params: Query parameters; those with the value ``None`` are omitted.
        wait: Maximum seconds for which the server may hold the request.
        patience: Returns the seconds for which the caller still wants retries; called repeatedly.
        local_answer: The answer, if no request is needed.
        undo: Call that is made once, with a short timeout, if this one ends without an answer.
        check: Call that is made once, with a short timeout, before this one. If its answer cannot be read, this call
            fails too; other failures of the check are ignored.
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
    """A page of a listing, and the call for the next page (``None`` after the last page)."""

    items: list[T_co]
    next: "Call[Page[T_co]] | None"


def decode_as(kind: type[T]) -> "Callable[[Answer], T]":
    """Return the reader of an answer that has this type."""
    decoder = msgspec.json.Decoder(kind)
    return lambda answer: decoder.decode(answer.body)


# The reader of an answer that is any object.
decode_object: Final = decode_as(dict[str, Any])


def pages(member: str, kind: type[T], target: str, params: Params) -> "Call[Page[T]]":
    """Return the call for the first page of a listing in one member of the answer.

    A link shows that more pages follow.
    """

    def read(answer: Answer) -> Page[T]:
        found = msgspec.json.decode(answer.body, type=dict[str, msgspec.Raw])
        items = msgspec.json.decode(found[member], type=list[kind])  # type: ignore[valid-type]
        links = msgspec.json.decode(found["links"], type=list[answers.Link])
        # Only the query of the link is used, because the call's own path quotes names that consist of dots.
        following = [f"{target.partition('?')[0]}?{link.href.partition('?')[2]}" for link in links]
        return Page(items, pages(member, kind, following[0], {}) if following else None)

    return Call(method="GET", path=target, params=params, read=read)


class Transport(Protocol):
    """A transport that runs calls for threads."""

    before_close: list[Callable[[], None]]
    """Callbacks of running consumers, called before the connections are closed."""

    def run(self, call: Call[T]) -> T:
        """Run the call and return its result. Raises the error that the server raised, or ``Unavailable``."""
        ...

    def open(self, call: "Call[Any]") -> AbstractContextManager[Iterator[bytes]]:
        """Open a streaming answer and yield its body as it arrives. Raises ``Unavailable`` if the connection breaks."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class AsyncTransport(Protocol):
    """A transport that runs calls for tasks. The methods correspond to those of ``Transport``."""

    before_close: list[Callable[[], Coroutine[Any, Any, None]]]
    """Callbacks of running consumers, awaited before the connections are closed."""

    async def run(self, call: Call[T]) -> T:
        """Run the call and return its result; see ``Transport.run``."""
        ...

    def open(self, call: "Call[Any]") -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a streaming answer; see ``Transport.open``."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class Blocking:
    """Base class of blocking clients and handles, whose verbs return results."""

    transport: Transport


class Asynchronous:
    """Base class of asynchronous clients and handles, whose verbs return awaitables."""

    transport: AsyncTransport


class Verb:
    """A verb with the name, docstring and signature that it shows to users of either client."""

    blocking: Callable[[Any], Any]
    """Maps the result type of the ``Call`` to the verb's result type on a blocking client."""
    awaited: Callable[[Any], Any]
    """Maps the result type of the ``Call`` to the verb's result type on an asynchronous client."""

    def __init__(self, make: Callable[..., Call[Any]]) -> None:
        self._make = make
        self._signatures: dict[bool, inspect.Signature] = {}
        update_wrapper(self, make)  # type: ignore[arg-type]

    def signature(self, waits: bool) -> inspect.Signature:
        """Return the signature of the bound verb.

        Args:
            waits: Whether the client is blocking.
        """
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
    """A verb that runs one request, written as a method that returns the ``Call``."""

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
    """A verb that iterates over pages, written as a method that returns the ``Call`` for the first page."""

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
    """Return the path of a resource below ``/v2/``. Each segment is quoted. Raises ``InvalidName``."""
    if not all(segments) or "/" in "".join(segments):
        # Servers decode a path before they split it, so even a quoted slash would lead to another resource.
        raise InvalidName("A name must not be empty and must not contain a slash.")
    quoted = (quote(part, safe="") for part in segments)
    return "/v2/" + "/".join(part if part.strip(".") else part.replace(".", "%2E") for part in quoted)


def key_header(key: str | None) -> Mapping[str, str]:
    """Return the header with the caller's idempotency key, or with a new key for this call."""
    if key is not None and not all("!" <= letter <= "~" for letter in key):
        raise InvalidHeader("Invalid header value", "A key must consist of visible ASCII characters.")
    return {"Idempotency-Key": key or uuid4().hex}


def nothing(answer: Answer) -> None:
    """Read an answer without content. Raises ``ValueError`` if it has content, which zq servers never send."""
    if answer.status != 204:
        raise ValueError(answer.status)


def check_concurrency(concurrency: int) -> int:
    """Return ``concurrency``. Raises ``Invalid`` if it is below 1."""
    if concurrency < 1:
        raise Invalid("concurrency must be at least 1.")
    return concurrency


def maybe_applied(error: BaseException) -> bool:
    """Return whether the server may have applied a failed call: true unless it refused the first attempt."""
    return type(error) in (Unavailable, ZqError) or not isinstance(error, ZqError) or error.__cause__ is not None


class Caught:
    """A context manager that records the first ``Exception`` of its blocks. Other exceptions propagate."""

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


def error_of(response: "httpx.Response") -> ZqError:
    """Return the error of an answer as an instance of the class that the server raised."""
    try:
        body = msgspec.json.decode(response.content, type=answers.Error)
    except UNREADABLE:  # an error page of a proxy
        body = answers.Error()
    title = body.title or response.reason_phrase
    reason = title.removeprefix(f"{response.status_code} ")
    sentence = body.description or f"The server answered {response.status_code} {reason}."
    if response.status_code < 400:
        target = response.headers.get("Location", "nowhere")
        sentence = (
            f"The server answered {response.status_code} {reason}, a redirect to {target}, which clients do not follow."
        )
    name, pause = response.headers.get(refusals.HEADER, ""), max(1, int(retry_after(response.headers)))
    return refusals.error(response.status_code, name, title, sentence, pause, body.limit)


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of the Retry-After header; 0 if it is absent or a date."""
    asked = headers.get("Retry-After", "")
    return min(float(asked), MAX_RETRY_AFTER) if asked.isascii() and asked.isdigit() else 0.0


@contextmanager
def reading_answer(method: str, path: str) -> Generator[None, None, None]:
    """Raise ``ZqError`` if the block cannot read an answer, which then does not come from a zq server."""
    try:
        yield
    except UNREADABLE as error:
        raise ZqError(f"This client cannot read the answer to {method} {path}.") from error


class Retries(Struct, frozen=True):
    """The retry policy of a client.

    Pauses between attempts are random. Their upper bound starts at ``first`` seconds and doubles up to ``most``
    seconds. A pause is at least as long as the server requests.

    Attributes:
        attempts: Maximum number of attempts.
        deadline: Seconds after which no attempt is started.
    """

    attempts: int = 10
    deadline: float = 60.0
    first: float = 0.2
    most: float = 10.0


def sleep_slices(pause: float, over: Callable[[], bool]) -> Iterator[float]:
    """Yield the parts of a pause in seconds, until the pause has passed or ``over`` returns ``True``."""
    ends = time.monotonic() + pause
    while (left := ends - time.monotonic()) > 0 and not over():
        yield min(left, SLICE)
