# SPDX-License-Identifier: Apache-2.0
"""Posts of many messages: any number of bodies, endless ones too, in batches that the server takes."""

import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator
from contextlib import aclosing, nullcontext
from math import inf
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from zq.client.calls import Answer, Call, Caught, key_header, path, unsure
from zq.client.values import Draft
from zq.errors import InvalidBody, ZqError

MOST: Final = 1000
"""Messages in a batch; more make it no faster, and a server may allow fewer."""
DEFAULT_BYTES: Final = 262_144
"""What a batch may have with a server that tells no bound."""
LINGER: Final = 1.0
"""Seconds after which a batch goes although it is not full, when the next body comes."""
HEAD: Final = b'{"messages":['
TAIL: Final = b"]}"


class Batch(Struct, frozen=True):
    """One request's worth: messages ``first`` to ``first + count - 1`` of those given."""

    first: int
    count: int
    body: bytes


class PostStopped(ZqError):
    """Posting many ended before its end. The cause is chained.

    ``stored`` and ``unsure``: ranges of the messages given, counted from 0, that the server has acknowledged, and that
    it may have stored. A repeat under the same ``key`` stores none twice.
    """

    def __init__(self, stored: list[range], unsure: list[range]) -> None:
        count = sum(map(len, stored))
        super().__init__(f"Posting stopped after {count} messages had been stored; the cause is chained.")
        self.stored = stored
        self.unsure = unsure


class Packer:
    """Fills batches: at most ``size`` bytes and ``most`` messages each, unless one message alone is larger.

    ``linger`` infinite: where batches end depends on nothing but the bodies.
    """

    def __init__(
        self, size: int, ttl: int | None, delay: int | None, *, most: int = MOST, linger: float = LINGER
    ) -> None:
        self._size = size
        self._most = most
        self._ttl = ttl
        self._delay = delay
        self.delayed = bool(delay)
        """Whether a message was to be delayed."""
        self._linger = linger
        self._tail = _tail(ttl, delay)
        self._encode = msgspec.json.Encoder().encode
        self._parts: list[bytes] = []
        self._bytes = 0
        self._first = 0
        self._since = 0.0

    def add(self, body: Any) -> Batch | None:
        """The batch that is full now, if one is. Raises ``InvalidBody`` for what is no JSON."""
        tail = self._tail
        try:
            if isinstance(body, Draft):
                ttl = self._ttl if body.ttl is None else body.ttl
                tail = _tail(ttl, self._delay if body.delay is None else body.delay)
                self.delayed = self.delayed or bool(body.delay)
                body = body.body
            part = b'{"body":' + self._encode(body) + tail
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            number = self._first + len(self._parts)
            raise InvalidBody(f"Message {number} cannot be written as JSON: {error}.") from error
        grown = self._bytes + len(part) + 1
        full = None
        if self._parts and (grown > self._size - len(HEAD) - len(TAIL) or self._late()):
            full = self.rest()
            grown = len(part) + 1
        if not self._parts:
            self._since = time.monotonic()
        self._parts.append(part)
        self._bytes = grown
        if len(self._parts) >= self._most and full is None:
            return self.rest()
        return full

    def rest(self) -> Batch | None:
        """What is left over; None if nothing is."""
        if not self._parts:
            return None
        batch = Batch(self._first, len(self._parts), HEAD + b",".join(self._parts) + TAIL)
        self._first += batch.count
        self._parts, self._bytes = [], 0
        return batch

    def go_on(self) -> None:
        """Whoever sends is back for more: time that sending took is not counted."""
        self._since = time.monotonic()

    def _late(self) -> bool:
        return time.monotonic() - self._since > self._linger


def _tail(ttl: int | None, delay: int | None) -> bytes:
    given = {name: value for name, value in (("ttl", ttl), ("delay", delay)) if value is not None}
    return b"," + msgspec.json.encode(given)[1:] if given else b"}"


class Tally(Caught):
    """What has become of the batches sent. Its blocks may fail: ``close`` tells."""

    def __init__(self, progress: Callable[[int], object] | None) -> None:
        super().__init__()
        self.count = 0
        self._progress = progress or (lambda _count: None)
        self._stored: list[range] = []
        self._unsure: list[range] = []

    def judge(self, batch: Batch, failure: BaseException | None) -> None:
        """Note how a batch ended."""
        messages = range(batch.first, batch.first + batch.count)
        if failure is None:
            self._stored.append(messages)
            self.count += batch.count
        elif unsure(failure):
            self._unsure.append(messages)
        with self:
            if failure is not None:
                raise failure
            self._progress(self.count)

    def close(self) -> int:
        """How many messages were stored. Raises ``PostStopped`` if anything failed."""
        if self.error is not None:
            raise PostStopped(_joined(self._stored), _joined(self._unsure)) from self.error
        return self.count


def post_call(kind: str, name: str, batch: bytes, key: str | None, **params: str) -> Call[list[str]]:
    """Stores all messages of a body, or none; their ids."""
    return Call(
        method="POST",
        path=path(kind, name, "messages"),
        params=params,
        headers=key_header(key),
        body=batch,
        read=_ids,
    )


def first(call: Call[list[str]]) -> Call[str]:
    """As the call, whose answer has one id."""

    def read(answer: Answer) -> str:
        return call.read(answer)[0]

    told: Call[Any] = replace(call, read=read)
    return told


def staged_call(kind: str, name: str, batch: bytes, key: str | None, stage: str) -> Call[int]:
    """Stores all messages of a body where nobody sees them, or none; how many."""
    return Call(
        method="POST",
        path=path(kind, name, "messages"),
        params={"stage": stage},
        headers=key_header(key),
        body=batch,
        read=lambda answer: msgspec.json.decode(answer.body, type=dict[str, int])["staged"],
    )


def batch_call(kind: str, name: str, batch: Batch, key: str | None, stage: str | None = None) -> Call[None]:
    """As ``post_call`` or ``staged_call``, for one batch of many under the caller's key; reads no more than whether all
    were stored."""
    own = f"{key}.{batch.first}" if key else None
    posted, staged = post_call(kind, name, batch.body, own), staged_call(kind, name, batch.body, own, stage or "")

    def read(answer: Answer) -> None:
        stored = staged.read(answer) if stage else len(posted.read(answer)) if answer.status == 201 else None
        if stored != batch.count:
            raise ValueError(answer.status)

    told: Call[Any] = replace(staged if stage else posted, read=read)
    return told


def packed(bodies: Iterable[Any], ttl: int | None, delay: int | None) -> bytes:
    """One body with all of the messages."""
    packer = Packer(2**63, ttl, delay, most=2**63, linger=inf)
    for body in bodies:
        packer.add(body)
    batch = packer.rest()
    return batch.body if batch else HEAD + TAIL


def batches(packer: Packer, bodies: Iterable[Any]) -> Iterator[Batch]:
    """Each when it is full, and what is left."""
    for body in bodies:
        if batch := packer.add(body):
            yield batch
            packer.go_on()
    if batch := packer.rest():
        yield batch


async def batches_async(packer: Packer, bodies: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Batch, None]:
    """As ``batches``; the bodies may come asynchronously."""
    if not isinstance(bodies, AsyncIterable):
        for batch in batches(packer, bodies):
            yield batch
        return
    async with aclosing(bodies) if isinstance(bodies, AsyncGenerator) else nullcontext():
        async for body in bodies:
            if full := packer.add(body):
                yield full
                packer.go_on()
    if full := packer.rest():
        yield full


def largest_batch(metadata: dict[str, Any]) -> int:
    """Bytes that a batch may have, by what a queue or a topic shows of itself: its own bound, or the server's."""
    size = metadata.get("_max_messages_post_size")
    return size if isinstance(size, int) else DEFAULT_BYTES


def _most(answer: Answer) -> int:
    return min(MOST, msgspec.json.decode(answer.body, type=_Limits).max_messages_per_post)


class _Limits(Struct):
    max_messages_per_post: int = MOST


MOST_CALL: Final = Call(method="GET", path="/v2/limits", read=_most)
"""Messages that a batch may have, by what the server says of its limits."""


def _ids(answer: Answer) -> list[str]:
    return [href.rpartition("/")[2] for href in msgspec.json.decode(answer.body, type=_Posted).resources]


class _Posted(Struct):
    resources: list[str]


def _joined(ranges: list[range]) -> list[range]:
    """The same messages in as few ranges as can be."""
    joined: list[range] = []
    for part in sorted(ranges, key=lambda some: some.start):
        if joined and joined[-1].stop == part.start:
            joined[-1] = range(joined[-1].start, part.stop)
        else:
            joined.append(part)
    return joined
