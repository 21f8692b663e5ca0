# SPDX-License-Identifier: Apache-2.0
"""Handles on queues and topics: the verbs bound to a client, posts of many messages, consumers and streams."""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict, Unpack, cast

import msgspec

from zq.client.calls import Asynchronous, Blocking, Call, Page, listing, operation
from zq.client.consumer import Consumer, OnLost
from zq.client.consumer_state import ConsumerOptions
from zq.client.posting import (
    BATCH_LIMITS_CALL,
    LINGER,
    Batch,
    BatchLimits,
    Packer,
    PostResult,
    batch_call,
    batches,
    batches_async,
    first_id,
    pack,
    post_all,
    post_all_async,
    post_call,
)
from zq.client.queues import QueueVerbs
from zq.client.resources import Ids, ResourceVerbs, message_pages, message_stretch
from zq.client.streams import EventReader, stream, stream_async
from zq.client.subscriptions import SubscriptionVerbs
from zq.client.values import Delivery, Event, Gap, Message, Stretch, Worked
from zq.errors import Invalid, NotAuthorized

if TYPE_CHECKING:
    from zq.client.async_consumer import AsyncConsumer


# Handlers of ``work`` at a time, unless the caller chooses another number.
CONCURRENCY: Final = 8


class TopicVerbs(SubscriptionVerbs):
    """A topic of the client's project. It need not exist: the first message makes it."""

    kind: ClassVar[str] = "topics"

    @operation
    def publish(self, body: Any, *, ttl: int | None = None, key: str | None = None) -> Call[str]:
        """Publish a message; its id, which is its sequence in the project's log. Repeats are safe."""
        return first_id(post_call(self.kind, self.name, pack([body], ttl, None), key))

    @operation
    def publish_batch(self, bodies: Iterable[Any], *, ttl: int | None = None, key: str | None = None) -> Call[Ids]:
        """Publish messages in one request, all or none; their ids."""
        return post_call(self.kind, self.name, pack(bodies, ttl, None), key)

    @listing
    def list(self, *, after: int | str | None = None, page: int | None = None) -> Call[Page[Message]]:
        """What the log has of the topic, behind a sequence; only streams report gaps. ``page``: as for queues."""
        params = {"marker": after, "limit": page, "detailed": True}
        return message_pages(self._path("messages"), params)

    @operation
    def stretch(self, after: int, *, page: int | None = None) -> Call[Stretch[Message]]:
        """One page of the listing, where it ends, and the gap before it if messages behind ``after`` are gone."""
        return message_stretch(self._path("messages"), {"marker": after, "limit": page, "detailed": True})


class Publishing(TypedDict, total=False):
    """How many messages are sent."""

    ttl: int
    """Seconds to live; the queue's or topic's default."""
    concurrency: int
    """Batches that are sent at the same time, 1; with more than one, batches may change places."""
    progress: Callable[[int], object]
    """Called with the number stored after each batch."""
    key: str
    """A second run with the same bodies, bounds and key stores none twice: batches go only when they are full."""


class Posting(Publishing, total=False):
    """The same, to a queue."""

    delay: int
    """Seconds before they can be claimed, on delayed queues; others ignore it."""
    stage: str
    """The stage in which they are stored unseen, until a commit publishes it."""


Sending = Publishing | Posting


class Consuming(TypedDict, total=False):
    """How a queue is consumed."""

    wait: int
    """Seconds, 20: how long one claim waits for messages, and with ``until_empty`` how long nothing may come."""
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
    on_lost: OnLost
    """Called with messages whose claim was over before they were settled; without it ``ClaimLapsed`` is raised."""


class Queue(QueueVerbs, Blocking):
    """A queue of a ``Client``."""

    def post_many(self, bodies: Iterable[Any], **options: Unpack[Posting]) -> int:
        """Store any number of messages, endless ones too, in batches; how many. Raises ``PostStopped``."""
        return _post_many(self, bodies, options)

    def consume(self, **options: Unpack[Consuming]) -> Consumer:
        """Messages to work on, one after the other; each is deleted when the loop comes back for the next.

        Leaving the loop with a message in hand gives it back as after a failure.
        """
        return Consumer(self.transport, _consumer_options(self, options), options.get("on_lost"))

    def work(
        self, handler: Callable[[Delivery], object], concurrency: int = CONCURRENCY, **options: Unpack[Consuming]
    ) -> Worked:
        """As ``consume``, with handlers in threads; one that raises gives its message back, and its error is logged.

        Returns, when the loop has ended, how many of them did what.
        """
        return self.consume(**options).work(handler, concurrency)


class AsyncQueue(QueueVerbs, Asynchronous):
    """A queue of an ``AsyncClient``."""

    async def post_many(self, bodies: Iterable[Any] | AsyncIterable[Any], **options: Unpack[Posting]) -> int:
        """As ``Queue.post_many``; the bodies may come asynchronously."""
        return await _post_many_async(self, bodies, options)

    def consume(self, **options: Unpack[Consuming]) -> "AsyncConsumer":
        """As ``Queue.consume``, for ``async for``."""
        from zq.client.async_consumer import AsyncConsumer  # here: a blocking client does without asyncio

        return AsyncConsumer(self.transport, _consumer_options(self, options), options.get("on_lost"))

    async def work(
        self,
        handler: Callable[[Delivery], Awaitable[object]],
        concurrency: int = CONCURRENCY,
        **options: Unpack[Consuming],
    ) -> Worked:
        """As ``Queue.work``, with handlers in tasks."""
        return await self.consume(**options).work(handler, concurrency)


class Topic(TopicVerbs, Blocking):
    """A topic of a ``Client``."""

    def publish_many(self, bodies: Iterable[Any], **options: Unpack[Publishing]) -> int:
        """Publish any number of messages in batches; how many. Raises ``PostStopped``."""
        return _post_many(self, bodies, options)

    def stream(self, after: int | str | None = None) -> Generator[Event | Gap, None, None]:
        """Its messages as they come, without end: behind a sequence, 0 = all there are, None = from now on.

        A connection that is lost is made again, and nothing is lost or comes twice by that.
        """
        return stream(self.transport, EventReader(self._path("stream"), {}, after))


class AsyncTopic(TopicVerbs, Asynchronous):
    """A topic of an ``AsyncClient``."""

    async def publish_many(self, bodies: Iterable[Any] | AsyncIterable[Any], **options: Unpack[Publishing]) -> int:
        """As ``Topic.publish_many``; the bodies may come asynchronously."""
        return await _post_many_async(self, bodies, options)

    def stream(self, after: int | str | None = None) -> AsyncGenerator[Event | Gap, None]:
        """As ``Topic.stream``, for ``async for``."""
        return stream_async(self.transport, EventReader(self._path("stream"), {}, after))


def visible_metadata(resource: Queue | Topic) -> dict[str, Any]:
    """Return the metadata of a queue or topic, or none if the credential does not allow to read them."""
    try:
        return resource.metadata()
    except NotAuthorized:
        return {}


def _post_many(resource: Queue | Topic, bodies: Iterable[Any], options: Sending) -> int:
    metadata = visible_metadata(resource)
    packer = _packer(metadata, resource.transport.run(BATCH_LIMITS_CALL), options)
    send, result = _sender(resource, options, packer, metadata), PostResult(options.get("progress"))
    return post_all(resource.transport, send, batches(packer, bodies), result, options.get("concurrency", 1))


async def _post_many_async(
    resource: AsyncQueue | AsyncTopic, bodies: Iterable[Any] | AsyncIterable[Any], options: Sending
) -> int:
    try:
        metadata = await resource.metadata()
    except NotAuthorized:
        metadata = {}
    packer = _packer(metadata, await resource.transport.run(BATCH_LIMITS_CALL), options)
    send, result = _sender(resource, options, packer, metadata), PostResult(options.get("progress"))
    return await post_all_async(
        resource.transport, send, batches_async(packer, bodies), result, options.get("concurrency", 1)
    )


def _packer(metadata: dict[str, Any], limits: BatchLimits, options: Sending) -> Packer:
    linger, delay = inf if options.get("key") else LINGER, cast(Posting, options).get("delay")
    return Packer(limits.bytes(metadata), options.get("ttl"), delay, most=limits.count(), linger=linger)


def _sender(
    resource: ResourceVerbs, options: Sending, packer: Packer, metadata: dict[str, Any]
) -> Callable[[Batch], Call[None]]:
    stage = cast(Posting, options).get("stage")

    def check() -> None:
        if packer.delayed:
            resource.transport.warnings.check_delay(resource.name, metadata)

    def send(batch: Batch) -> Call[None]:
        check()
        return batch_call(resource.kind, resource.name, batch, options.get("key"), stage)

    check()
    return send


def _consumer_options(queue: QueueVerbs, options: Consuming) -> ConsumerOptions:
    chosen = {name: value for name, value in options.items() if name != "on_lost"}
    try:
        return msgspec.convert({"queue": queue.name, **chosen}, ConsumerOptions)
    except msgspec.ValidationError as error:
        raise Invalid(f"A queue is not consumed like this: {error}.") from error
