# SPDX-License-Identifier: Apache-2.0
"""Handles on queues and topics: the verbs, bound to a client of either kind, and what goes on for long."""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, cast

import msgspec

from zq.client.batches import LINGER, MOST_CALL, Batch, Packer, Tally, batch_call, batches, batches_async, largest_batch
from zq.client.calls import Asynchronous, Blocking, Call
from zq.client.habits import Habits
from zq.client.loops import Lost
from zq.client.named import NamedVerbs
from zq.client.posting import post_all, post_all_async
from zq.client.queues import QueueVerbs
from zq.client.streams import Reader, stream, stream_async
from zq.client.threads import Consumer
from zq.client.topics import TopicVerbs
from zq.client.values import Delivery, Event, Gap, Worked
from zq.errors import Invalid

if TYPE_CHECKING:
    from zq.client.tasks import AsyncConsumer

CONCURRENCY: Final = 8


class Publishing(TypedDict, total=False):
    """How many messages are sent."""

    ttl: int
    """Seconds to live; the queue's or topic's default."""
    concurrency: int
    """Batches on their way at once, 1; with more than one, batches may change places."""
    progress: Callable[[int], object]
    """Told the number stored after each batch."""
    key: str
    """A second run with the same bodies, bounds and key stores none twice: batches go only when they are full."""


class Posting(Publishing, total=False):
    """The same, to a queue."""

    delay: int
    """Seconds before they can be claimed, on delayed queues; others ignore it."""
    stage: str
    """Where they are stored unseen, until a commit publishes the stage."""


Sending = Publishing | Posting


class Consuming(TypedDict, total=False):
    """How a queue is consumed."""

    wait: int
    """Seconds, 20: how long one look waits for messages, and with ``until_empty`` how long nothing may come."""
    batch: int
    """Messages in a claim, 10, or as many as the server allows."""
    ttl: int
    """Seconds, 300, after which messages of a consumer that died come back. A claim is renewed at a third of it."""
    grace: int
    """Seconds that messages outlive the claim, as far as their own ttl would end before; the server's default."""
    until_empty: bool
    """The loop ends when there is nothing left; False."""
    backoff: int
    """Seconds, 5, for which a message stays away after a failure; twice as long at each further claim of it."""
    count: int | None
    """The loop ends after so many messages, and claims no more; without it there is no bound."""
    on_lost: Lost
    """Hears of messages whose claim was over before they were settled; without it ``ClaimLapsed`` is raised."""


class Queue(QueueVerbs, Blocking):
    """A queue of a ``Client``."""

    def post_many(self, bodies: Iterable[Any], **how: Unpack[Posting]) -> int:
        """Store any number of messages, endless ones too, in batches; how many. Raises ``PostStopped``."""
        return _post_many(self, bodies, how)

    def consume(self, **how: Unpack[Consuming]) -> Consumer:
        """Messages to work on, one after the other; each is deleted when the loop comes back for the next.

        Whoever leaves the loop with a message in hand gives it back as after a failure.
        """
        return Consumer(self.transport, _habits(self, how), how.get("on_lost"))

    def work(
        self, handler: Callable[[Delivery], object], concurrency: int = CONCURRENCY, **how: Unpack[Consuming]
    ) -> Worked:
        """As ``consume``, with handlers in threads; one that raises gives its message back, and its error is logged.

        Returns, when the loop has ended, how many of them did what.
        """
        return self.consume(**how).work(handler, concurrency)


class AsyncQueue(QueueVerbs, Asynchronous):
    """A queue of an ``AsyncClient``."""

    async def post_many(self, bodies: Iterable[Any] | AsyncIterable[Any], **how: Unpack[Posting]) -> int:
        """As ``Queue.post_many``; the bodies may come asynchronously."""
        return await _post_many_async(self, bodies, how)

    def consume(self, **how: Unpack[Consuming]) -> "AsyncConsumer":
        """As ``Queue.consume``, for ``async for``."""
        from zq.client.tasks import AsyncConsumer  # here: a blocking client does without asyncio

        return AsyncConsumer(self.transport, _habits(self, how), how.get("on_lost"))

    async def work(
        self, handler: Callable[[Delivery], Awaitable[object]], concurrency: int = CONCURRENCY, **how: Unpack[Consuming]
    ) -> Worked:
        """As ``Queue.work``, with handlers in tasks."""
        return await self.consume(**how).work(handler, concurrency)


class Topic(TopicVerbs, Blocking):
    """A topic of a ``Client``."""

    def publish_many(self, bodies: Iterable[Any], **how: Unpack[Publishing]) -> int:
        """Publish any number of messages in batches; how many. Raises ``PostStopped``."""
        return _post_many(self, bodies, how)

    def stream(self, after: int | str | None = None) -> Generator[Event | Gap, None, None]:
        """Its messages as they come, without end: behind a sequence, 0 = all there are, None = from now on.

        A connection that is lost is made again, and nothing is lost or comes twice by that.
        """
        return stream(self.transport, Reader(self._path("stream"), {}, after))


class AsyncTopic(TopicVerbs, Asynchronous):
    """A topic of an ``AsyncClient``."""

    async def publish_many(self, bodies: Iterable[Any] | AsyncIterable[Any], **how: Unpack[Publishing]) -> int:
        """As ``Topic.publish_many``; the bodies may come asynchronously."""
        return await _post_many_async(self, bodies, how)

    def stream(self, after: int | str | None = None) -> AsyncGenerator[Event | Gap, None]:
        """As ``Topic.stream``, for ``async for``."""
        return stream_async(self.transport, Reader(self._path("stream"), {}, after))


def _post_many(thing: Queue | Topic, bodies: Iterable[Any], how: Sending) -> int:
    metadata = thing.metadata()
    packer = _packer(metadata, thing.transport.run(MOST_CALL), how)
    send, tally = _sender(thing, how, packer, metadata), Tally(how.get("progress"))
    return post_all(thing.transport, send, batches(packer, bodies), tally, how.get("concurrency", 1))


async def _post_many_async(
    thing: AsyncQueue | AsyncTopic, bodies: Iterable[Any] | AsyncIterable[Any], how: Sending
) -> int:
    metadata = await thing.metadata()
    packer = _packer(metadata, await thing.transport.run(MOST_CALL), how)
    send, tally = _sender(thing, how, packer, metadata), Tally(how.get("progress"))
    return await post_all_async(thing.transport, send, batches_async(packer, bodies), tally, how.get("concurrency", 1))


def _packer(metadata: dict[str, Any], most: int, how: Sending) -> Packer:
    linger, delay = inf if how.get("key") else LINGER, cast(Posting, how).get("delay")
    return Packer(largest_batch(metadata), how.get("ttl"), delay, most=most, linger=linger)


def _sender(thing: NamedVerbs, how: Sending, packer: Packer, metadata: dict[str, Any]) -> Callable[[Batch], Call[None]]:
    stage = cast(Posting, how).get("stage")

    def send(batch: Batch) -> Call[None]:
        if packer.delayed:
            thing.transport.cautions.delay(thing.name, metadata)
        return batch_call(thing.kind, thing.name, batch, how.get("key"), stage)

    return send


def _habits(queue: QueueVerbs, how: Consuming) -> Habits:
    chosen = {name: value for name, value in how.items() if name != "on_lost"}
    try:
        return msgspec.convert({"queue": queue.name, **chosen}, Habits)
    except msgspec.ValidationError as error:
        raise Invalid(f"A queue is not consumed like this: {error}.") from error
