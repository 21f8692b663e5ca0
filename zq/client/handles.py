# SPDX-License-Identifier: Apache-2.0
"""Handles of queues and topics: verbs bound to a client, posts of many messages, consumers and streams."""

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
from zq.client.resources import MESSAGES, Ids, ResourceVerbs, message_pages, stretch_call
from zq.client.streams import EventReader, stream, stream_async
from zq.client.subscriptions import SubscriptionVerbs
from zq.client.values import Delivery, Event, Gap, Message, Stretch, Worked
from zq.errors import Invalid, NotAuthorized

if TYPE_CHECKING:
    from zq.client.async_consumer import AsyncConsumer


# Default number of concurrent handlers of ``work``.
CONCURRENCY: Final = 8


class TopicVerbs(SubscriptionVerbs):
    """A topic of the client's project. The first message creates it if it does not exist."""

    kind: ClassVar[str] = "topics"

    @operation
    def publish(self, body: Any, *, ttl: int | None = None, key: str | None = None) -> Call[str]:
        """Publish a message and return its id, which is its sequence in the project's log. Retries are safe."""
        return first_id(post_call(self.kind, self.name, pack([body], ttl, None), key))

    @operation
    def publish_batch(self, bodies: Iterable[Any], *, ttl: int | None = None, key: str | None = None) -> Call[Ids]:
        """Publish messages in one request, all or none, and return their ids."""
        return post_call(self.kind, self.name, pack(bodies, ttl, None), key)

    @listing
    def list(self, *, after: int | str | None = None, page: int | None = None) -> Call[Page[Message]]:
        """List the topic's messages in the log after a sequence. Gaps are not reported; use a stream for that.

        Args:
            page: Number of messages per request.
        """
        params = {"marker": after, "limit": page, "detailed": True}
        return message_pages(MESSAGES, self._path("messages"), params)

    @operation
    def stretch(self, after: int, *, page: int | None = None) -> Call[Stretch[Message]]:
        """Return one page of messages, its end position, and the gap before it if messages are missing."""
        return stretch_call(MESSAGES, self._path("messages"), {"marker": after, "limit": page, "detailed": True})


class Publishing(TypedDict, total=False):
    """Options of bulk publishing."""

    ttl: int
    """Ttl in seconds. Default: that of the queue or topic."""
    concurrency: int
    """Number of batches sent concurrently. Default: 1. With more, batches may arrive out of order."""
    progress: Callable[[int], object]
    """Called after each batch with the number of messages stored so far."""
    key: str
    """Idempotency key. A second run with the same bodies, bounds and key stores no message twice.

    Only full batches are sent.
    """


class Posting(Publishing, total=False):
    """Options of bulk posting to a queue."""

    delay: int
    """Seconds until the messages can be claimed. Queues without a default delay ignore it."""
    stage: str
    """Stage in which the messages are stored until a commit publishes them."""


Sending = Publishing | Posting


class Consuming(TypedDict, total=False):
    """Options of a consumer."""

    wait: int
    """Seconds for which a claim waits for messages, and idle time after which ``until_empty`` ends. Default: 20."""
    batch: int
    """Maximum number of messages per claim. Default: 10, or the server's limit if that is lower."""
    ttl: int
    """Seconds after which messages of a dead consumer are redelivered. Default: 300.

    Claims are renewed after a third.
    """
    grace: int
    """Seconds for which messages outlive the claim if they would expire during it. Default: the server's."""
    until_empty: bool
    """Whether the loop ends when the queue is empty. Default: False."""
    backoff: int
    """Back-off in seconds after a first failure, doubled with each further claim. Default: 5."""
    count: int | None
    """Maximum number of messages, after which the loop ends. Default: no limit."""
    on_lost: OnLost
    """Called with messages whose claim expired before they were settled. Without it, ``ClaimLapsed`` is raised."""


class Queue(QueueVerbs, Blocking):
    """A queue of a ``Client``."""

    def post_many(self, bodies: Iterable[Any], **options: Unpack[Posting]) -> int:
        """Post any number of messages in batches and return their number. Raises ``PostStopped``."""
        return _post_many(self, bodies, options)

    def consume(self, **options: Unpack[Consuming]) -> Consumer:
        """Return an iterator over claimed messages. A message is deleted when the loop requests the next one.

        If the loop ends early, its current message is released as after a failure.
        """
        return Consumer(self.transport, _consumer_options(self, options), options.get("on_lost"))

    def work(
        self, handler: Callable[[Delivery], object], concurrency: int = CONCURRENCY, **options: Unpack[Consuming]
    ) -> Worked:
        """Consume the queue with ``handler`` in threads, and return the outcome when the loop has ended.

        If the handler raises, its message is released and the error is logged. See ``consume`` for the options.
        """
        return self.consume(**options).work(handler, concurrency)


class AsyncQueue(QueueVerbs, Asynchronous):
    """A queue of an ``AsyncClient``."""

    async def post_many(self, bodies: Iterable[Any] | AsyncIterable[Any], **options: Unpack[Posting]) -> int:
        """Post any number of messages in batches; see ``Queue.post_many``. ``bodies`` may be asynchronous."""
        return await _post_many_async(self, bodies, options)

    def consume(self, **options: Unpack[Consuming]) -> "AsyncConsumer":
        """Return an asynchronous iterator over claimed messages; see ``Queue.consume``."""
        from zq.client.async_consumer import (
            AsyncConsumer,
        )  # imported here, because a blocking client does not need asyncio

        return AsyncConsumer(self.transport, _consumer_options(self, options), options.get("on_lost"))

    async def work(
        self,
        handler: Callable[[Delivery], Awaitable[object]],
        concurrency: int = CONCURRENCY,
        **options: Unpack[Consuming],
    ) -> Worked:
        """Consume the queue with ``handler`` in tasks; see ``Queue.work``."""
        return await self.consume(**options).work(handler, concurrency)


class Topic(TopicVerbs, Blocking):
    """A topic of a ``Client``."""

    def publish_many(self, bodies: Iterable[Any], **options: Unpack[Publishing]) -> int:
        """Publish any number of messages in batches and return their number. Raises ``PostStopped``."""
        return _post_many(self, bodies, options)

    def stream(self, after: int | str | None = None) -> Generator[Event | Gap, None, None]:
        """Stream the topic's messages as they are published, without end.

        After a lost connection, the stream reconnects and resumes. No message is lost or repeated.

        Args:
            after: Sequence after which to start; 0 = the start of the log, ``None`` = its end.
        """
        return stream(self.transport, EventReader(self._path("stream"), {}, after))


class AsyncTopic(TopicVerbs, Asynchronous):
    """A topic of an ``AsyncClient``."""

    async def publish_many(self, bodies: Iterable[Any] | AsyncIterable[Any], **options: Unpack[Publishing]) -> int:
        """Publish any number of messages in batches; see ``Topic.publish_many``. ``bodies`` may be asynchronous."""
        return await _post_many_async(self, bodies, options)

    def stream(self, after: int | str | None = None) -> AsyncGenerator[Event | Gap, None]:
        """Stream the topic's messages; see ``Topic.stream``."""
        return stream_async(self.transport, EventReader(self._path("stream"), {}, after))


def visible_metadata(resource: Queue | Topic) -> dict[str, Any]:
    """Return the metadata of a queue or topic; empty if the credential may not read it."""
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
        raise Invalid(f"The consumer options are not valid: {error}.") from error
