# SPDX-License-Identifier: Apache-2.0
"""``Client`` and ``AsyncClient``: where everything begins."""

from collections.abc import AsyncGenerator, Generator, Iterable
from typing import TYPE_CHECKING, Any, Self

import msgspec

from zq import wire
from zq.client.calls import Asynchronous, Blocking, Call, Page, listing, nothing, operation, path
from zq.client.claims import fenced
from zq.client.handles import AsyncQueue, AsyncTopic, Queue, Topic
from zq.client.named import named_page
from zq.client.retries import Retries
from zq.client.streams import Reader, stream, stream_async
from zq.client.values import Event, Gap, LastCommit, Listed
from zq.model import Committed, Fence
from zq.wire import committing

if TYPE_CHECKING:
    from zq.client.attempts import Auth

TIMEOUT = 10.0


class ClientVerbs:
    """What a client can ask that is about no single queue or topic."""

    def __init__(
        self,
        url: str,
        project: str,
        client_id: str | None = None,
        auth: "Auth | None" = None,
        timeout: float = TIMEOUT,
        retries: Retries | None = None,
    ) -> None:
        """``client_id``: a UUID, fresh if not given. ``auth``: whatever httpx takes. ``timeout``: of one attempt."""
        from zq.client import attempts, transport  # here: with httpx they take longer to import than all the rest

        settings = attempts.settings(url, project, client_id, auth, timeout, retries or Retries())
        waits = isinstance(self, Blocking)
        self.transport: Any = transport.Transport(settings) if waits else transport.AsyncTransport(settings)
        self._shown = f"{type(self).__name__}({settings.shown()}, project={project!r})"

    def __repr__(self) -> str:
        return self._shown

    @listing
    def queues(
        self, /, *, name: str | None = None, detailed: bool = False, page: int | None = None, **filters: str | int
    ) -> Call[Page[Listed]]:
        """The project's queues in the order of names: those whose names hold ``name`` and metadata the filters.

        ``detailed`` brings metadata; ``page``: queues in a request.
        """
        return named_page("queues", page, detailed, {"name": name, **filters})

    @listing
    def topics(
        self, /, *, name: str | None = None, detailed: bool = False, page: int | None = None, **filters: str | int
    ) -> Call[Page[Listed]]:
        """As ``queues``."""
        return named_page("topics", page, detailed, {"name": name, **filters})

    @operation
    def limits(self) -> Call[dict[str, int]]:
        """The limits that the server has in force."""
        read = msgspec.json.Decoder(dict[str, int]).decode
        return Call(method="GET", path=path("limits"), read=lambda answer: read(answer.body))

    @operation
    def ping(self) -> Call[None]:
        """Raises ``Unavailable`` if the server or its store does not answer."""
        return Call(method="GET", path=path("ping"), read=nothing)

    @operation
    def fence(self, name: str) -> Call[Fence]:
        """The next epoch of a fence: whoever holds an earlier one cannot work on."""
        return Call(
            method="POST",
            path=path("fences", name),
            read=lambda answer: Fence(name, msgspec.json.decode(answer.body, type=dict[str, int])["epoch"]),
        )

    @operation
    def drop_stage(self, name: str) -> Call[None]:
        """Drop staged messages. No error if there is no such stage."""
        return Call(method="DELETE", path=path("stages", name), read=nothing)

    @operation
    def commit(
        self,
        producer: str,
        batch: int,
        *,
        publish: Iterable[str | tuple[str, int]] = (),
        settle: Iterable[tuple[str, str]] = (),
        fence: Fence | None = None,
    ) -> Call[Committed]:
        """Publish stages and delete what claims, pairs of queue and claim, hold: both or neither, once for each batch.

        A stage may be a pair of its name and the messages that it is to hold. A large commit takes as long as it takes:
        it is asked for again until all is done, and then says ``replayed``.
        Raises ``Fenced``, ``ClaimLapsed``, ``StageNotFound``, ``StageDiffers``, ``CommitTooLarge``; then nothing has
        changed.
        """
        stages = [stage if isinstance(stage, str) else committing.CountedStage(*stage) for stage in publish]
        held = [committing.HeldClaim(queue, claim) for queue, claim in settle]
        return Call(
            method="POST",
            path=path("commits"),
            params=fenced(fence),
            body=wire.encode(committing.CommitTerms(producer, batch, stages, held)),
            read=lambda answer: Committed(batch, **msgspec.json.decode(answer.body, type=dict[str, Any])),
        )

    @operation
    def committed(self, producer: str) -> Call[LastCommit]:
        """A producer's last batch. Raises ``ProducerNotFound``."""
        return Call(
            method="GET",
            path=path("commits", producer),
            read=lambda answer: msgspec.json.decode(answer.body, type=LastCommit),
        )


class Client(ClientVerbs, Blocking):
    """A project at a server. Connections are pooled; threads may share a client; close it, or use ``with``."""

    def queue(self, name: str) -> Queue:
        """A handle; asks the server nothing."""
        return Queue(self.transport, name)

    def topic(self, name: str) -> Topic:
        """A handle; asks the server nothing."""
        return Topic(self.transport, name)

    def stream(self, match: str = "**", after: int | str | None = None) -> Generator[Event | Gap, None, None]:
        """As ``Topic.stream``, of all topics whose names match."""
        return stream(self.transport, _matching(match, after))

    def close(self) -> None:
        """Close all connections."""
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(ClientVerbs, Asynchronous):
    """As ``Client``, for one event loop; close it, or use ``async with``."""

    def queue(self, name: str) -> AsyncQueue:
        """A handle; asks the server nothing."""
        return AsyncQueue(self.transport, name)

    def topic(self, name: str) -> AsyncTopic:
        """A handle; asks the server nothing."""
        return AsyncTopic(self.transport, name)

    def stream(self, match: str = "**", after: int | str | None = None) -> AsyncGenerator[Event | Gap, None]:
        """As ``AsyncTopic.stream``, of all topics whose names match."""
        return stream_async(self.transport, _matching(match, after))

    async def close(self) -> None:
        """Close all connections."""
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _matching(match: str, after: int | str | None) -> Reader:
    return Reader(path("stream"), {"match": match}, after)
