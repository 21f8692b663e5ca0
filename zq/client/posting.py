# SPDX-License-Identifier: Apache-2.0
"""Bulk posting in batches within the server's limits. Threads or tasks send the batches concurrently."""

import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import aclosing, nullcontext
from math import inf
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from zq.client.calls import (
    AsyncTransport,
    Call,
    ErrorRecorder,
    Response,
    Transport,
    check_concurrency,
    idempotency_header,
    may_be_applied,
    path,
)
from zq.client.tracing import trace_headers
from zq.client.values import Draft
from zq.errors import InvalidBody, ZqError
from zq.wire.answers import PostedHrefs, StageResult
from zq.wire.attributes import Attribute, json_values
from zq.wire.numbers import check_finite, check_numbers

# Maximum number of messages per batch. Larger batches are not faster. A server may have a lower limit.
MAX_BATCH: Final = 1000
# Maximum batch size in bytes if neither the queue nor the server has a limit.
DEFAULT_BYTES: Final = 262_144
# Maximum age of a batch in seconds, checked when the next body arrives.
LINGER: Final = 1.0
# Start of a request body.
HEAD: Final = b'{"messages":['
# End of a request body.
TAIL: Final = b"]}"


class Batch(Struct, frozen=True):
    """The messages of one request. ``first`` is the index of the first message in the input."""

    first: int
    count: int
    body: bytes


class PostStopped(ZqError):
    """An error that ended bulk posting before all messages were stored. ``__cause__`` is the error of the failed batch.

    If you repeat the call with the same ``key``, no message is stored twice.

    Attributes:
        stored: Index ranges of the messages that the server has stored.
        maybe_stored: Index ranges of the messages that the server may have stored.
    """

    def __init__(self, stored: list[range], maybe_stored: list[range]) -> None:
        count = sum(map(len, stored))
        super().__init__(f"Posting stopped after {count} messages had been stored; the cause is chained.")
        self.stored = stored
        self.maybe_stored = maybe_stored


class Packer:
    """An encoder that packs up to ``max_messages`` messages into a batch of up to ``size`` bytes.

    A message that exceeds ``size`` gets a batch of its own. ``linger`` is the maximum age of a batch in seconds.
    With an infinite ``linger``, the same messages always give the same batches.
    """

    def __init__(
        self, size: int, ttl: int | None, delay: int | None, *, max_messages: int = MAX_BATCH, linger: float = LINGER
    ) -> None:
        self._size = size
        self._max_messages = max_messages
        self._ttl = ttl
        self._delay = delay
        self.delayed = bool(delay)
        self._linger = linger
        self._tail = _tail(ttl, delay)
        self._encode = msgspec.json.Encoder().encode
        self._parts: list[bytes] = []
        self._bytes = 0
        self._first = 0
        self._since = 0.0

    def add(self, body: Any) -> Batch | None:
        """Add a message. Return a batch if one is complete, else ``None``. Raises ``InvalidBody``."""
        tail = self._tail
        try:
            if isinstance(body, Draft):
                ttl = self._ttl if body.ttl is None else body.ttl
                tail = _tail(ttl, self._delay if body.delay is None else body.delay, body.group, body.attributes)
                self.delayed = self.delayed or bool(body.delay)
                body = body.body
            content = self._encode(body)
            if b"null" in content:
                check_finite(body, "body")
            check_numbers(content, "body")
            part = b'{"body":' + content + tail
        except InvalidBody as error:
            number = self._first + len(self._parts)
            raise InvalidBody(f"Message {number}: {error}") from error
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            number = self._first + len(self._parts)
            raise InvalidBody(f"Message {number} cannot be encoded as JSON: {error}.") from error
        grown = self._bytes + len(part) + 1
        full = None
        if self._parts and (grown > self._size - len(HEAD) - len(TAIL) or self._is_overdue()):
            full = self.flush()
            grown = len(part) + 1
        if not self._parts:
            self._since = time.monotonic()
        self._parts.append(part)
        self._bytes = grown
        if len(self._parts) >= self._max_messages and full is None:
            return self.flush()
        return full

    def flush(self) -> Batch | None:
        """Return the remaining messages as a batch, or ``None`` if no messages remain."""
        if not self._parts:
            return None
        batch = Batch(self._first, len(self._parts), HEAD + b",".join(self._parts) + TAIL)
        self._first += batch.count
        self._parts, self._bytes = [], 0
        return batch

    def restart_linger(self) -> None:
        """Reset the age of the current batch, so that it does not include the time for sending the previous batch."""
        self._since = time.monotonic()

    def _is_overdue(self) -> bool:
        return time.monotonic() - self._since > self._linger


def _tail(
    ttl: int | None,
    delay: int | None,
    group: str | None = None,
    attributes: Mapping[str, Attribute] | None = None,
) -> bytes:
    terms: tuple[tuple[str, Any], ...] = ("ttl", ttl), ("delay", delay), ("group", group)
    given = {name: value for name, value in terms if value is not None}
    if attributes is not None:
        check_finite(dict(attributes), "attributes")
        given["attributes"] = json_values(attributes)
    return b"," + msgspec.json.encode(given)[1:] if given else b"}"


class PostResult(ErrorRecorder):
    """The progress and the first error of bulk posting."""

    def __init__(self, progress: Callable[[int], object] | None) -> None:
        super().__init__()
        self.count = 0
        self._progress = progress or (lambda _count: None)
        self._stored: list[range] = []
        self._maybe_stored: list[range] = []

    def record(self, batch: Batch, failure: BaseException | None) -> None:
        """Record a stored batch, or a failed one if ``failure`` is set."""
        messages = range(batch.first, batch.first + batch.count)
        if failure is None:
            self._stored.append(messages)
            self.count += batch.count
        elif may_be_applied(failure):
            self._maybe_stored.append(messages)
        with self:
            if failure is not None:
                raise failure
            self._progress(self.count)

    def close(self) -> int:
        """Return the number of stored messages. Raises ``PostStopped`` if an error was recorded."""
        if self.error is not None:
            raise PostStopped(_merge_ranges(self._stored), _merge_ranges(self._maybe_stored)) from self.error
        return self.count


def post_call(kind: str, name: str, batch: bytes, key: str | None, **params: str) -> Call[list[str]]:
    """Build the API call that posts all messages of a request body atomically and returns the message ids.

    ``kind`` is "queues" or "topics". ``batch`` is the request body. If the idempotency key ``key`` is ``None``, a new
    key is used.
    """
    return Call(
        method="POST",
        path=path(kind, name, "messages"),
        params=params,
        headers={**idempotency_header(key), **trace_headers()},
        body=batch,
        read=_ids,
    )


def with_first_id(call: Call[list[str]]) -> Call[str]:
    """Convert an API call that returns a list with one message id to a call that returns the id."""

    def read(response: Response) -> str:
        return call.read(response)[0]

    single: Call[Any] = replace(call, read=read)
    return single


def staged_call(kind: str, name: str, batch: bytes, key: str | None, stage: str) -> Call[int]:
    """Build the API call that adds all messages of a request body to a stage atomically and returns their number.

    The messages in a stage are invisible until a commit publishes them.
    """
    return Call(
        method="POST",
        path=path(kind, name, "messages"),
        params={"stage": stage},
        headers={**idempotency_header(key), **trace_headers()},
        body=batch,
        read=lambda response: msgspec.json.decode(response.body, type=StageResult).staged,
    )


def batch_call(kind: str, name: str, batch: Batch, key: str | None, stage: str | None = None) -> Call[None]:
    """Build the API call that posts a batch or, if ``stage`` is set, adds the batch to the stage.

    The call fails if the server stores only a part of the batch. The batch's idempotency key is derived from ``key``
    and the position of the batch in the input.
    """
    own = f"{key}.{batch.first}" if key else None
    posted, staged = post_call(kind, name, batch.body, own), staged_call(kind, name, batch.body, own, stage or "")

    def read(response: Response) -> None:
        stored = staged.read(response) if stage else len(posted.read(response)) if response.status == 201 else None
        if stored != batch.count:
            raise ValueError(response.status)

    checked: Call[Any] = replace(staged if stage else posted, read=read)
    return checked


def pack(bodies: Iterable[Any], ttl: int | None, delay: int | None) -> bytes:
    """Return a single request body with all messages."""
    packer = Packer(2**63, ttl, delay, max_messages=2**63, linger=inf)
    for body in bodies:
        packer.add(body)
    batch = packer.flush()
    return batch.body if batch else HEAD + TAIL


def pack_batches(packer: Packer, bodies: Iterable[Any]) -> Iterator[Batch]:
    """Pack messages and yield the batches. The last batch may be incomplete."""
    for body in bodies:
        if batch := packer.add(body):
            yield batch
            packer.restart_linger()
    if batch := packer.flush():
        yield batch


async def pack_batches_async(packer: Packer, bodies: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Batch, None]:
    """Pack messages from an iterable or asynchronous iterable; see ``pack_batches``."""
    if not isinstance(bodies, AsyncIterable):
        for batch in pack_batches(packer, bodies):
            yield batch
        return
    async with aclosing(bodies) if isinstance(bodies, AsyncGenerator) else nullcontext():
        async for body in bodies:
            if full := packer.add(body):
                yield full
                packer.restart_linger()
    if full := packer.flush():
        yield full


class BatchLimits(Struct):
    """The server limits that apply to batches."""

    max_messages_per_post: int = MAX_BATCH
    max_messages_post_size: int = DEFAULT_BYTES

    def count(self) -> int:
        return min(MAX_BATCH, self.max_messages_per_post)

    def bytes(self, metadata: dict[str, Any]) -> int:
        """Return the maximum batch size in bytes: the limit in the metadata, or the server's limit if none is set."""
        size = metadata.get("_max_messages_post_size")
        return size if isinstance(size, int) else self.max_messages_post_size


_limits: Final = msgspec.json.Decoder(BatchLimits)
BATCH_LIMITS_CALL: Final = Call(method="GET", path="/v2/limits", read=lambda response: _limits.decode(response.body))


def _ids(response: Response) -> list[str]:
    return [href.rpartition("/")[2] for href in msgspec.json.decode(response.body, type=PostedHrefs).resources]


def _merge_ranges(ranges: list[range]) -> list[range]:
    merged: list[range] = []
    for part in sorted(ranges, key=lambda some: some.start):
        if merged and merged[-1].stop == part.start:
            merged[-1] = range(merged[-1].start, part.stop)
        else:
            merged.append(part)
    return merged


Send = Callable[[Batch], Call[None]]


def post_all(transport: Transport, send: Send, source: Iterator[Batch], result: PostResult, concurrency: int) -> int:
    """Post all batches and return the number of stored messages. Batches are packed while others are being sent."""
    running: dict[Future[None], Batch] = {}

    def limit_running(max_running: int) -> None:
        while len(running) > max_running:
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                result.record(running.pop(ended), ended.exception())

    with ThreadPoolExecutor(check_concurrency(concurrency), "zq-post") as pool:
        with result:
            for batch in source:
                limit_running(concurrency - 1)
                if result.error is not None:
                    break
                running[pool.submit(transport.run, send(batch))] = batch
        limit_running(0)
    return result.close()


async def post_all_async(
    transport: AsyncTransport, send: Send, source: AsyncGenerator[Batch, None], result: PostResult, concurrency: int
) -> int:
    """Post all batches and return the number of stored messages; see ``post_all``."""
    import asyncio  # A blocking client does not need asyncio.

    running: dict[asyncio.Task[None], Batch] = {}
    check_concurrency(concurrency)

    async def limit_running(max_running: int) -> None:
        while len(running) > max_running:
            for ended in (await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]:
                result.record(running.pop(ended), ended.exception())

    try:
        with result:
            async with aclosing(source):
                async for batch in source:
                    await limit_running(concurrency - 1)
                    if result.error is not None:
                        break
                    running[asyncio.create_task(transport.run(send(batch)))] = batch
                    await asyncio.sleep(0)
    finally:
        await limit_running(0)  # No request may outlive a cancelled caller.
    return result.close()
