# SPDX-License-Identifier: Apache-2.0
"""A request as a value: what to ask, whether it may be asked again, and how the answer is read. No I/O.

Each verb of the interface is written once, as a function that makes a ``Call``. ``operation`` binds it: on a blocking
client it runs the call and returns what it reads; on an asynchronous one it returns an awaitable of the same.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from enum import Enum
from functools import update_wrapper
from math import inf
from types import GenericAlias
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar, get_args, overload
from urllib.parse import quote
from uuid import uuid4

from msgspec import Struct

from zq.errors import Invalid, InvalidHeader, InvalidName, Unavailable, ZqError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
Params = Mapping[str, str | int | bool | list[str] | None]


class Repeat(Enum):
    """Whether a request may be sent again when its answer did not come, or told of trouble that passes."""

    SAFE = "safe"
    """A repeat changes nothing more: by its nature, or by an Idempotency-Key."""
    UNSENT = "unsent"
    """Only if the server surely never got it."""


class Answer(Struct, frozen=True):
    """What came back, below status 400."""

    status: int
    headers: Mapping[str, str]
    body: bytes


EMPTY: Final = Answer(204, {}, b"")


class Call(Struct, Generic[T_co], frozen=True, kw_only=True):
    """One request. ``params`` of None are left out; ``wait``: seconds for which the server may hold it.

    ``patience``: seconds for which the caller wants repeats, asked again and again. ``known``: the answer, if it needs
    no request. ``undo``: what is asked once, briefly, if the call ended without an answer.
    ``look``: what is asked once, briefly, after the call has gone well.
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
    known: Answer | None = None
    undo: "Call[Any] | None" = None
    look: "Call[None] | None" = None


class Page(Struct, Generic[T_co], frozen=True):
    """One page of a listing and the call for the next one; None after the last."""

    items: list[T_co]
    next: "Call[Page[T_co]] | None"


class Runs(Protocol):
    """Carries calls out."""

    before_close: list[Callable[[], None]]
    """What loops that still run want to be done before the connections are closed."""

    def run(self, call: Call[T]) -> T:
        """What the call reads. Raises the error that the server raised, or ``Unavailable``."""
        ...

    def open(self, call: "Call[Any]") -> AbstractContextManager[Iterator[bytes]]:
        """The body of the answer, as it comes. Both raise ``Unavailable`` if the connection breaks."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class Awaits(Protocol):
    """Carries calls out, asynchronously."""

    before_close: list[Callable[[], Coroutine[Any, Any, None]]]
    """As ``Runs.before_close``."""

    async def run(self, call: Call[T]) -> T:
        """As ``Runs.run``."""
        ...

    def open(self, call: "Call[Any]") -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """As ``Runs.open``."""
        ...

    async def close(self) -> None:
        """As ``Runs.close``."""
        ...


class Blocking:
    """Verbs on it return what they read."""

    transport: Runs


class Asynchronous:
    """Verbs on it return awaitables."""

    transport: Awaits


class Verb:
    """What interpreters show of a verb: its name, its docstring, and the signature that it has on either client."""

    blocking: Callable[[Any], Any]
    """From what the ``Call`` reads to what the verb returns on a blocking client."""
    awaited: Callable[[Any], Any]
    """And on an asynchronous one."""

    def __init__(self, make: Callable[..., Call[Any]]) -> None:
        self._make = make
        self._signatures: dict[bool, inspect.Signature] = {}
        update_wrapper(self, make)  # type: ignore[arg-type]

    def signature(self, waits: bool) -> inspect.Signature:
        """That of the bound verb; ``waits``: on a blocking client."""
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


def _walk(transport: Runs, first: Call[Page[T]]) -> Iterator[T]:
    following: Call[Page[T]] | None = first
    while following is not None:
        page = transport.run(following)
        yield from page.items
        following = page.next


async def _walk_async(transport: Awaits, first: Call[Page[T]]) -> AsyncIterator[T]:
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
    """The header that makes repeats count once: under the caller's key, or one for this call alone."""
    if key is not None and not all("!" <= letter <= "~" for letter in key):
        raise InvalidHeader("Invalid header value", "A key must be of visible ASCII characters.")
    return {"Idempotency-Key": key or uuid4().hex}


def nothing(answer: Answer) -> None:
    """Reads an answer without content. Raises ``ValueError`` for one with any: it is a stranger's."""
    if answer.status != 204:
        raise ValueError(answer.status)


def at_once(concurrency: int) -> int:
    """The same number. Raises ``Invalid`` for one with which nothing would ever be done."""
    if concurrency < 1:
        raise Invalid("concurrency must be at least 1.")
    return concurrency


def unsure(error: BaseException) -> bool:
    """Whether a call that failed may have been carried out: all but a refusal of its first attempt."""
    return type(error) in (Unavailable, ZqError) or not isinstance(error, ZqError) or error.__cause__ is not None


class Caught:
    """As a context manager, keeps the first error of its blocks; what ends the program or a task goes on."""

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
