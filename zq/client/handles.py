# SPDX-License-Identifier: Apache-2.0
"""Handles of queues and topics: bulk posting, consumers and streams."""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict, Unpack, cast

import msgspec

from zq.client.calls import AsyncOperations, BlockingOperations, Call, Page, listing, operation
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
    pack,
    pack_batches,
    pack_batches_async,
    post_all,
    post_all_async,
    post_call,
    with_first_id,
)
from zq.client.queues import QueueOperations
from zq.client.resources import MESSAGES, Ids, ResourceOperations, message_page_call, message_pages
from zq.client.streams import EventReader, stream, stream_async
from zq.client.subscriptions import SubscriptionOperations
from zq.client.values import Delivery, Draft, Event, Gap, Message, MessagePage, WorkResult
from zq.errors import Invalid, NotAuthorized
from zq.wire.attributes import Attribute

if TYPE_CHECKING:
    from zq.client.async_consumer import AsyncConsumer


# Default number of concurrent handlers of ``work``.
CONCURRENCY: Final = 8


class TopicOperations(SubscriptionOperations):
    """A topic of the client's project. If the topic does not exist, the first message creates it."""

    kind: ClassVar[str] = "topics"

    @operation
    def publish(
        self,
        body: Any,
        *,
        ttl: int | None = None,
        key: str | None = None,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> Call[str]:
        """Publish a message and return its id. Retries by the client create no duplicates.

        The id is the message's sequence number in the project's log.

        Args:
            body: Any value that msgspec encodes as JSON. ``msgspec.Raw`` is sent unchanged.
            ttl: Retention in seconds.
            key: Idempotency key. Set it if another process may repeat the publish.
            attributes: Attributes by name. Values are strings, numbers, bytes or ``TypedValue``.
        """
        draft = body if attributes is None else Draft(body, attributes=attributes)
        return with_first_id(post_call(self.kind, self.name, pack([draft], ttl, None), key))

    @operation
    def publish_batch(self, bodies: Iterable[Any], *, ttl: int | None = None, key: str | None = None) -> Call[Ids]:
        """Publish messages atomically in one request and return their ids."""
        return post_call(self.kind, self.name, pack(bodies, ttl, None), key)

    @listing
    def list(self, *, after: int | str | None = None, page: int | None = None) -> Call[Page[Message]]:
        """List the topic's messages in the order of the log, without reporting gaps; ``stream`` reports them.

        Args:
            after: Sequence number after which to start. Default: the start of the log.
        """
        params = {"marker": after, "limit": page, "detailed": True}
        return message_pages(MESSAGES, self._path("messages"), params)

    @operation
    def read_page(self, after: int, *, page: int | None = None) -> Call[MessagePage[Message]]:
        """Return a page of messages after the sequence number ``after``.

        To read the next page, pass the page's ``end`` as ``after``. If messages before the page were trimmed, the
        page has a ``gap``.
        """
        return message_page_call(MESSAGES, self._path("messages"), {"marker": after, "limit": page, "detailed": True})


class PublishArguments(TypedDict, total=False):
    """Options of bulk publishing."""

    ttl: int
    """Retention in seconds. Default: the ttl of the queue or topic."""
    concurrency: int
    """Number of concurrent requests. Default: 1. Batches of concurrent requests may be stored out of order."""
    progress: Callable[[int], object]
    """Called after each batch with the number of messages stored so far."""
    key: str
    """Idempotency key. Another run with the same bodies, options and key stores no message twice.

    With a key, a batch is sent only when it is full.
    """


class PostArguments(PublishArguments, total=False):
    """Options of bulk posting to a queue."""

    delay: int
    """Seconds until the messages can be claimed. Raises ``Invalid`` if the queue ignores delays."""
    stage: str
    """Name of a stage, which keeps the messages invisible until a commit publishes them."""


SendArguments = PublishArguments | PostArguments


class ConsumeArguments(TypedDict, total=False):
    """Options of a consumer."""

    wait: int
    """Seconds to wait for messages. With ``until_empty``, the loop ends after this idle time. Default: 20."""
    batch: int
    """Maximum number of messages per claim. Default: 10. A lower server limit takes precedence."""
    ttl: int
    """Claim ttl in seconds (visibility timeout). Default: 300.

    The consumer renews its claims when a third of the ttl has passed.
    """
    grace: int
    """Minimum seconds from the end of a claim to the expiry of its messages. Default: the server's."""
    until_empty: bool
    """End the loop when the queue is empty. Default: False."""
    backoff: int
    """Back-off in seconds after a message's first failure. Doubles with each claim of the message. Default: 5."""
    count: int | None
    """Maximum number of messages, after which the loop ends. Default: no limit."""
    on_lost: OnLost
    """Called with messages whose claim expired before they were settled. Without it, ``ClaimLapsed`` is raised."""


class Queue(QueueOperations, BlockingOperations):
    """A handle for blocking operations on a queue."""

    def post_many(self, bodies: Iterable[Any], **options: Unpack[PostArguments]) -> int:
        """Post messages in batches and return their number. Raises ``PostStopped`` if a batch fails."""
        return _post_many(self, bodies, options)

    def consume(self, **options: Unpack[ConsumeArguments]) -> Consumer:
        """Return an iterator over claimed messages.

        A message is deleted when the loop requests the next one. If the loop ends early, the current message is
        released with a back-off.
        """
        return Consumer(self.transport, _consumer_options(self, options), options.get("on_lost"))

    def work(
        self, handler: Callable[[Delivery], object], concurrency: int = CONCURRENCY, **options: Unpack[ConsumeArguments]
    ) -> WorkResult:
        """Claim messages, and call ``handler`` in a thread for each message. Return the message counts.

        The method returns when the consumer stops, for example on SIGTERM or after ``count`` messages. If the handler
        raises, the message is released and the error is logged.
        """
        return self.consume(**options).work(handler, concurrency)


class AsyncQueue(QueueOperations, AsyncOperations):
    """A handle for asynchronous operations on a queue."""

    async def post_many(self, bodies: Iterable[Any] | AsyncIterable[Any], **options: Unpack[PostArguments]) -> int:
        """Post messages from an iterable or asynchronous iterable in batches; see ``Queue.post_many``."""
        return await _post_many_async(self, bodies, options)

    def consume(self, **options: Unpack[ConsumeArguments]) -> "AsyncConsumer":
        """Return an asynchronous iterator over claimed messages; see ``Queue.consume``."""
        # A blocking client does not need asyncio.
        from zq.client.async_consumer import AsyncConsumer

        return AsyncConsumer(self.transport, _consumer_options(self, options), options.get("on_lost"))

    async def work(
        self,
        handler: Callable[[Delivery], Awaitable[object]],
        concurrency: int = CONCURRENCY,
        **options: Unpack[ConsumeArguments],
    ) -> WorkResult:
        """Await ``handler`` in a task for each message; see ``Queue.work``."""
        return await self.consume(**options).work(handler, concurrency)


class Topic(TopicOperations, BlockingOperations):
    """A handle for blocking operations on a topic."""

    def publish_many(self, bodies: Iterable[Any], **options: Unpack[PublishArguments]) -> int:
        """Publish messages in batches and return their number. Raises ``PostStopped`` if a batch fails."""
        return _post_many(self, bodies, options)

    def stream(self, after: int | str | None = None) -> Generator[Event | Gap, None, None]:
        """Yield the topic's messages as they are published. The generator never ends.

        If the connection breaks, the stream resumes after the last message.

        Args:
            after: Sequence number after which to start; 0 = the start of the log, ``None`` = its end.
        """
        return stream(self.transport, EventReader(self._path("stream"), {}, after))


class AsyncTopic(TopicOperations, AsyncOperations):
    """A handle for asynchronous operations on a topic."""

    async def publish_many(
        self, bodies: Iterable[Any] | AsyncIterable[Any], **options: Unpack[PublishArguments]
    ) -> int:
        """Publish messages from an iterable or asynchronous iterable in batches; see ``Topic.publish_many``."""
        return await _post_many_async(self, bodies, options)

    def stream(self, after: int | str | None = None) -> AsyncGenerator[Event | Gap, None]:
        """Yield the topic's messages as they are published; see ``Topic.stream``."""
        return stream_async(self.transport, EventReader(self._path("stream"), {}, after))


def visible_metadata(resource: Queue | Topic) -> dict[str, Any]:
    """Return the metadata of a queue or topic, or ``{}`` if the client is not authorized to read the metadata."""
    try:
        return resource.metadata()
    except NotAuthorized:
        return {}


def _post_many(resource: Queue | Topic, bodies: Iterable[Any], options: SendArguments) -> int:
    metadata = visible_metadata(resource)
    packer = _packer(metadata, resource.transport.run(BATCH_LIMITS_CALL), options)
    send, result = _sender(resource, options, packer, metadata), PostResult(options.get("progress"))
    return post_all(resource.transport, send, pack_batches(packer, bodies), result, options.get("concurrency", 1))


async def _post_many_async(
    resource: AsyncQueue | AsyncTopic, bodies: Iterable[Any] | AsyncIterable[Any], options: SendArguments
) -> int:
    try:
        metadata = await resource.metadata()
    except NotAuthorized:
        metadata = {}
    packer = _packer(metadata, await resource.transport.run(BATCH_LIMITS_CALL), options)
    send, result = _sender(resource, options, packer, metadata), PostResult(options.get("progress"))
    return await post_all_async(
        resource.transport, send, pack_batches_async(packer, bodies), result, options.get("concurrency", 1)
    )


def _packer(metadata: dict[str, Any], limits: BatchLimits, options: SendArguments) -> Packer:
    linger, delay = inf if options.get("key") else LINGER, cast(PostArguments, options).get("delay")
    return Packer(limits.bytes(metadata), options.get("ttl"), delay, max_messages=limits.count(), linger=linger)


def _sender(
    resource: ResourceOperations, options: SendArguments, packer: Packer, metadata: dict[str, Any]
) -> Callable[[Batch], Call[None]]:
    stage = cast(PostArguments, options).get("stage")

    def check() -> None:
        if packer.delayed:
            resource.transport.warnings.check_delay(resource.name, metadata)

    def send(batch: Batch) -> Call[None]:
        check()
        return batch_call(resource.kind, resource.name, batch, options.get("key"), stage)

    check()
    return send


def _consumer_options(queue: QueueOperations, options: ConsumeArguments) -> ConsumerOptions:
    chosen = {name: value for name, value in options.items() if name != "on_lost"}
    try:
        return msgspec.convert({"queue": queue.name, **chosen}, ConsumerOptions)
    except msgspec.ValidationError as error:
        raise Invalid(f"The consumer options are not valid: {error}.") from error
