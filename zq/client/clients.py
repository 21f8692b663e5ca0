# SPDX-License-Identifier: Apache-2.0
"""The blocking and the asynchronous client of a project."""

from collections.abc import AsyncGenerator, Generator, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from zq import wire
from zq.client.administration import AdministrationOperations
from zq.client.calls import (
    AsyncOperations,
    BlockingOperations,
    Call,
    Page,
    Params,
    Repeat,
    Retries,
    decode_as,
    listing,
    operation,
    pages,
    path,
    read_empty,
    read_object,
)
from zq.client.claims import fence_params
from zq.client.credentials import resolve_token
from zq.client.handles import AsyncQueue, AsyncTopic, Queue, Topic
from zq.client.resources import resource_page
from zq.client.streams import EventReader, stream, stream_async
from zq.client.values import Event, Gap, ListedResource, LiveClaim, LocatedMessage
from zq.errors import Invalid
from zq.model import CommitResult, Fence
from zq.model.audit import Entry
from zq.wire import extensions
from zq.wire.answers import Epoch, JobCommit, JobFence, JobStage, LastCommit
from zq.wire.figures import FiguresRow, Overview, Server, Servers
from zq.wire.quotas import QuotaReport
from zq.wire.subscriptions import ProjectSubscription

if TYPE_CHECKING:
    from zq.client.attempts import Auth

T = TypeVar("T")
# Default timeout of an attempt in seconds.
TIMEOUT = 10.0


class ClientOperations(AdministrationOperations):
    """The operations on a whole project, common to ``Client`` and ``AsyncClient``."""

    def __init__(
        self,
        url: str,
        project: str = "",
        client_id: str | None = None,
        auth: "Auth | None" = None,
        timeout: float = TIMEOUT,
        retries: Retries | None = None,
        token: str | None = None,
        check_delays: bool = True,
    ) -> None:
        """Create the client without connecting to the server.

        Args:
            project: Project id. Default: the credential's project.
            client_id: UUID that identifies this client. Default: a new UUID.
            auth: Any authentication that httpx accepts.
            timeout: Timeout of one attempt in seconds.
            token: Access token. ``None`` reads ``ZQ_TOKEN`` from the environment unless ``auth`` is set; "" sends no
                token.
            check_delays: Raise ``Invalid`` for a delay on a queue that ignores delays.
        """
        # Importing httpx takes longer than all other imports of this package together.
        from zq.client import attempts, transport

        secret = resolve_token(token, otherwise=auth is not None)
        settings = attempts.make_settings(url, project, client_id, auth, secret, timeout, retries or Retries())
        is_blocking = isinstance(self, BlockingOperations)
        make: Any = transport.HttpTransport if is_blocking else transport.AsyncHttpTransport
        self.transport: Any = make(settings, check_delays)
        self._text = f"{type(self).__name__}({settings.safe_url()}, project={project!r})"

    def __repr__(self) -> str:
        return self._text

    @listing
    def queues(
        self, /, *, name: str | None = None, detailed: bool = False, page: int | None = None, **filters: str | int
    ) -> Call[Page[ListedResource]]:
        """List the project's queues, ordered by name.

        Args:
            name: Text that the names must contain.
            page: Number of queues per request.
            filters: Metadata keys and the values that they must have.
        """
        return resource_page("queues", page, detailed, {"name": name, **filters})

    @listing
    def topics(
        self, /, *, name: str | None = None, detailed: bool = False, page: int | None = None, **filters: str | int
    ) -> Call[Page[ListedResource]]:
        """List the project's topics, ordered by name. For the arguments, see ``queues``."""
        return resource_page("topics", page, detailed, {"name": name, **filters})

    @operation
    def figures(self, window: int = 600) -> Call[Overview[datetime]]:
        """Return the project's metrics over the last ``window`` seconds (300, 600, 10800, 86400 or 604800)."""
        read = decode_as(Overview[datetime])
        return Call(method="GET", path=path("figures"), params={"window": window}, read=read)

    @listing
    def queue_figures(
        self, /, *, sort: str = "oldest", order: str | None = None, name: str | None = None, page: int | None = None
    ) -> Call[Page[FiguresRow]]:
        """List all queues with their metrics.

        Args:
            sort: ``oldest``, ``ready``, ``delayed``, ``claimed``, ``in``, ``out``, ``growth`` or ``name``.
            page: Number of queues per request, at most 100.
        """
        params: Params = {"sort": sort, "order": order, "name": name, "limit": page}
        return pages("queues", FiguresRow, path("figures", "queues"), params)

    @operation
    def servers(self) -> Call[list[Server[datetime]]]:
        """Return the latest report of each server process. Requires the administrator role."""
        read = decode_as(Servers[datetime])
        return Call(method="GET", path=path("servers"), read=lambda response: read(response).servers)

    @operation
    def limits(self) -> Call[dict[str, int]]:
        """Return the limits of the server."""
        read = msgspec.json.Decoder(dict[str, int]).decode
        return Call(method="GET", path=path("limits"), read=lambda response: read(response.body))

    @operation
    def find(self, message: str) -> Call[LocatedMessage]:
        """Find a live or finished message by id in all queues of the project. Raises ``MessageNotFound``."""
        return Call(
            method="GET",
            path=path("messages", message),
            params={"detailed": True},
            read=decode_as(LocatedMessage),
        )

    @listing
    def claims(self, /, *, page: int | None = None) -> Call[Page[LiveClaim]]:
        """List the live claims of all queues, with the clients that hold them."""
        return pages("claims", LiveClaim, path("claims"), {"limit": page})

    @listing
    def subscriptions(self, /, *, page: int | None = None) -> Call[Page[ProjectSubscription]]:
        """List the subscriptions of all queues and topics of the project, sorted by source."""
        return pages("subscriptions", ProjectSubscription, path("subscriptions"), {"limit": page})

    @operation
    def ping(self) -> Call[None]:
        """Check the server and its store. Raises ``Unavailable`` if one of them does not respond."""
        return Call(method="GET", path=path("ping"), read=read_empty)

    @operation
    def whoami(self) -> Call[dict[str, Any]]:
        """Return the caller's ``project``, ``user``, ``roles``, ``scopes``, ``credential`` and ``expires``."""
        return Call(method="GET", path=path("whoami"), read=read_object)

    @operation
    def me(self) -> Call[dict[str, Any]]:
        """Return the caller's permissions and the server's properties.

        Keys of permissions: ``project``, ``projects`` (``None`` = all), ``roles``, ``rules`` (the permitted operations)
        and ``admin``. Keys of properties: ``auth``, ``console`` and ``version``.
        """
        return Call(method="GET", path=path("me"), read=read_object)

    @operation
    def revoke_shares(self) -> Call[None]:
        """Revoke all signed URLs of the project."""
        return Call(method="POST", path=path("share", "revoke"), read=read_empty)

    @operation
    def quota(self) -> Call[QuotaReport]:
        """Return the project's quotas (``limits``) and usage (``used``).

        Raises ``NotBuilt`` if the server does not authenticate callers.
        """
        return Call(method="GET", path=path("quota"), read=decode_as(QuotaReport))

    @listing
    def tokens(self, /, *, page: int | None = None) -> Call[Page[dict[str, Any]]]:
        """List the project's tokens, without their secrets."""
        return pages("tokens", dict[str, Any], path("tokens"), {"limit": page})

    @operation
    def token(self, id: str) -> Call[dict[str, Any]]:
        """Return a token of the project without its secret. Raises ``NotFound`` for an unknown id."""
        return Call(method="GET", path=path("tokens", id), read=read_object)

    @operation
    def create_token(
        self, *, name: str = "", scopes: Iterable[str] | None = None, roles: Iterable[str] = (), days: int | None = None
    ) -> Call[dict[str, Any]]:
        """Create a token and return it with its secret, under the key ``token``.

        The secret cannot be retrieved later. The client does not retry, because a retry could create a second token.

        Args:
            scopes: Scopes of the token. Default: the scopes of the caller's credential.
            days: Lifetime of the token in days. Default: the server's default lifetime.
        """
        terms: dict[str, Any] = {"name": name, "roles": [*roles]}
        terms |= {} if scopes is None else {"scopes": [*scopes]}
        terms |= {} if days is None else {"days": days}
        return Call(method="POST", path=path("tokens"), body=wire.encode(terms), read=read_object, repeat=Repeat.UNSENT)

    @operation
    def rotate_token(self, id: str) -> Call[dict[str, Any]]:
        """Replace a token. Return the new token with its secret, like ``create_token``.

        The old token expires within a day. Raises ``NotFound`` for an unknown id.
        """
        return Call(method="POST", path=path("tokens", id, "rotate"), read=read_object, repeat=Repeat.UNSENT)

    @operation
    def revoke_token(self, id: str) -> Call[None]:
        """Revoke a token of the project. An unknown token is ignored."""
        return Call(method="DELETE", path=path("tokens", id), read=read_empty)

    @listing
    def audit(self, /, *, since: datetime | None = None, page: int | None = None) -> Call[Page[Entry]]:
        """List audit entries, newest first. Administrators get the entries of all projects.

        Args:
            since: Time of the oldest entry to list. A time without a time zone is UTC.
        """
        since_text = None if since is None else since.isoformat()
        return pages("entries", Entry, path("audit"), {"limit": page, "since": since_text})

    @operation
    def fence(self, name: str) -> Call[Fence]:
        """Advance a fence (a named fencing token) and return its new epoch. Earlier epochs are then rejected."""
        return Call(
            method="POST",
            path=path("fences", name),
            read=lambda response: Fence(name, msgspec.json.decode(response.body, type=Epoch).epoch),
        )

    @listing
    def fences(self, /, *, page: int | None = None) -> Call[Page[JobFence]]:
        """List the project's fences (named fencing tokens), ordered by name."""
        return pages("fences", JobFence, path("fences"), {"limit": page})

    @listing
    def stages(self, /, *, page: int | None = None) -> Call[Page[JobStage]]:
        """List the project's stages (messages that wait for a commit), ordered by name."""
        return pages("stages", JobStage, path("stages"), {"limit": page})

    @listing
    def commits(self, /, *, page: int | None = None) -> Call[Page[JobCommit]]:
        """List the last committed batch of each producer (batch job or stream), ordered by producer."""
        return pages("commits", JobCommit, path("commits"), {"limit": page})

    @operation
    def drop_stage(self, name: str) -> Call[None]:
        """Delete a stage with its uncommitted messages. Has no effect if the stage does not exist."""
        return Call(method="DELETE", path=path("stages", name), read=read_empty)

    @operation
    def commit(
        self,
        producer: str,
        batch: int,
        *,
        publish: Iterable[tuple[str, int]] = (),
        settle: Iterable[tuple[str, str]] = (),
        fence: Fence | None = None,
    ) -> Call[CommitResult]:
        """Publish staged messages and delete claimed messages in one atomic commit. A batch is committed only once.

        ``replayed`` in the result means that the batch was committed before. After an error, nothing has changed.

        Args:
            publish: Pairs of a stage and its message count, as returned by ``stage`` and ``post_many``.
            settle: Pairs of a queue and a claim id.

        Raises ``Fenced``, ``ClaimLapsed``, ``StageNotFound`` or ``CommitTooLarge``. Raises ``StageDiffers`` if a stage
        has another message count, and ``Invalid`` if the count of a stage is missing.
        """
        stages: list[str | extensions.CountedStage] = [_counted_stage(stage) for stage in publish]
        claims = [extensions.HeldClaim(queue, claim) for queue, claim in settle]
        return Call(
            method="POST",
            path=path("commits"),
            params=fence_params(fence),
            body=wire.encode(extensions.CommitTerms(producer, batch, stages, claims)),
            read=lambda response: CommitResult(batch, **msgspec.json.decode(response.body, type=dict[str, Any])),
        )

    @operation
    def committed(self, producer: str) -> Call[LastCommit]:
        """Return the producer's last committed batch. Raises ``ProducerNotFound`` if the producer has no commit."""
        return Call(
            method="GET",
            path=path("commits", producer),
            read=decode_as(LastCommit),
        )


def _counted_stage(stage: object) -> extensions.CountedStage:
    if not (isinstance(stage, tuple) and len(stage) == 2 and isinstance(stage[1], int)):
        raise Invalid(f"publish must contain pairs of a stage and its message count, not {stage!r}.")
    return extensions.CountedStage(*stage)


class Client(ClientOperations, BlockingOperations):
    """A thread-safe, blocking client of one project.

    To close the connection pool, call ``close`` or use ``with``.
    """

    def queue(self, name: str) -> Queue:
        """Return a handle of the queue without sending a request."""
        return Queue(self.transport, name)

    def topic(self, name: str) -> Topic:
        """Return a handle of the topic without sending a request."""
        return Topic(self.transport, name)

    def stream(self, match: str = "**", after: int | str | None = None) -> Generator[Event | Gap, None, None]:
        """Stream the messages of all topics whose names match the glob ``match``; see ``Topic.stream``."""
        return stream(self.transport, _event_reader(match, after))

    def close(self) -> None:
        """Close all connections."""
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(ClientOperations, AsyncOperations):
    """An asynchronous client of one project, for one event loop. Call ``close`` or use ``async with``."""

    def queue(self, name: str) -> AsyncQueue:
        """Return a handle of the queue without sending a request."""
        return AsyncQueue(self.transport, name)

    def topic(self, name: str) -> AsyncTopic:
        """Return a handle of the topic without sending a request."""
        return AsyncTopic(self.transport, name)

    def stream(self, match: str = "**", after: int | str | None = None) -> AsyncGenerator[Event | Gap, None]:
        """Stream the messages of all topics whose names match the glob ``match``; see ``Topic.stream``."""
        return stream_async(self.transport, _event_reader(match, after))

    async def close(self) -> None:
        """Close all connections."""
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _event_reader(match: str, after: int | str | None) -> EventReader:
    return EventReader(path("stream"), {"match": match}, after)
