# SPDX-License-Identifier: Apache-2.0
"""``Client`` and ``AsyncClient``: access to one project of a server."""

from collections.abc import AsyncGenerator, Generator, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from zq import wire
from zq.client.calls import (
    Answer,
    Asynchronous,
    Blocking,
    Call,
    Page,
    Params,
    Repeat,
    Retries,
    listing,
    nothing,
    operation,
    path,
)
from zq.client.claims import fenced, list_call
from zq.client.credentials import chosen_token
from zq.client.handles import AsyncQueue, AsyncTopic, Queue, Topic
from zq.client.resources import resource_page
from zq.client.streams import EventReader, stream, stream_async
from zq.client.subscriptions import project_subscriptions_call
from zq.client.values import (
    Event,
    Gap,
    JobCommit,
    JobFence,
    JobStage,
    LastCommit,
    Listed,
    LiveClaim,
    Located,
    ProjectSubscription,
)
from zq.errors import Invalid
from zq.model import Committed, Fence
from zq.wire import extensions

if TYPE_CHECKING:
    from zq.client.attempts import Auth

T = TypeVar("T")
# Default timeout of an attempt in seconds.
TIMEOUT = 10.0


class ClientVerbs:
    """The verbs of a client that concern no single queue or topic."""

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
        """Create the client. It connects on the first call.

        Args:
            project: Project id; "" = the credential's project.
            client_id: A UUID; a new one by default.
            auth: Any authentication that httpx accepts.
            timeout: Timeout of one attempt in seconds.
            token: Token, sent to this server only. ``None`` = the environment variable ``ZQ_TOKEN``, unless ``auth`` is
                set; "" = no token.
            check_delays: Whether to refuse delays that a queue ignores.
        """
        from zq.client import (
            attempts,
            transport,
        )  # imported here, because httpx takes longer to import than everything else

        secret = chosen_token(token, otherwise=auth is not None)
        settings = attempts.settings(url, project, client_id, auth, secret, timeout, retries or Retries())
        waits = isinstance(self, Blocking)
        make: Any = transport.HttpTransport if waits else transport.AsyncHttpTransport
        self.transport: Any = make(settings, check_delays)
        self._text = f"{type(self).__name__}({settings.safe_url()}, project={project!r})"

    def __repr__(self) -> str:
        return self._text

    @listing
    def queues(
        self, /, *, name: str | None = None, detailed: bool = False, page: int | None = None, **filters: str | int
    ) -> Call[Page[Listed]]:
        """List the project's queues, ordered by name.

        Args:
            name: Text that the names must contain.
            detailed: Whether to include the metadata.
            page: Number of queues per request.
            filters: Required metadata values by key.
        """
        return resource_page("queues", page, detailed, {"name": name, **filters})

    @listing
    def topics(
        self, /, *, name: str | None = None, detailed: bool = False, page: int | None = None, **filters: str | int
    ) -> Call[Page[Listed]]:
        """List the project's topics, with the arguments of ``queues``."""
        return resource_page("topics", page, detailed, {"name": name, **filters})

    @operation
    def figures(self, window: int = 600) -> Call[dict[str, Any]]:
        """Return the project's metrics, with their history over ``window`` seconds (300, 600 or 10800)."""
        return Call(method="GET", path=path("figures"), params={"window": window}, read=_document)

    @listing
    def queue_figures(
        self, /, *, sort: str = "oldest", order: str | None = None, name: str | None = None, page: int | None = None
    ) -> Call[Page[dict[str, Any]]]:
        """List all queues with their metrics, each queue once.

        Args:
            sort: ``oldest``, ``ready``, ``delayed``, ``claimed``, ``in``, ``out``, ``growth`` or ``name``.
            order: ``asc`` or ``desc``.
            page: Number of queues per request, at most 100.
        """
        params: Params = {"sort": sort, "order": order, "name": name, "limit": page}
        return _pages("queues", dict[str, Any], path("figures", "queues"), params)

    @operation
    def servers(self) -> Call[list[dict[str, Any]]]:
        """Return the latest report of each server process of the deployment; for administrators."""
        return Call(method="GET", path=path("servers"), read=lambda answer: _document(answer)["servers"])

    @operation
    def limits(self) -> Call[dict[str, int]]:
        """Return the limits of the server."""
        read = msgspec.json.Decoder(dict[str, int]).decode
        return Call(method="GET", path=path("limits"), read=lambda answer: read(answer.body))

    @operation
    def find(self, message: str) -> Call[Located]:
        """Find a message by id in the whole project, or its latest history entry. Raises ``MessageNotFound``."""
        return Call(
            method="GET",
            path=path("messages", message),
            params={"detailed": True},
            read=lambda answer: msgspec.json.decode(answer.body, type=Located),
        )

    @listing
    def claims(self, /, *, page: int | None = None) -> Call[Page[LiveClaim]]:
        """List the live claims of all queues of the project, with their holders.

        Args:
            page: Number of claims per request.
        """
        return list_call(path("claims"), page)

    @listing
    def subscriptions(self, /, *, page: int | None = None) -> Call[Page[ProjectSubscription]]:
        """List the subscriptions of all queues and topics of the project, sorted by source.

        Args:
            page: Number of subscriptions per request.
        """
        return project_subscriptions_call(page)

    @operation
    def ping(self) -> Call[None]:
        """Raise ``Unavailable`` if the server or its store does not answer."""
        return Call(method="GET", path=path("ping"), read=nothing)

    @operation
    def whoami(self) -> Call[dict[str, Any]]:
        """Return the caller's ``project``, ``user``, ``roles``, ``scopes``, ``credential`` and ``expires``."""
        return Call(method="GET", path=path("whoami"), read=_document)

    @operation
    def me(self) -> Call[dict[str, Any]]:
        """Return the caller's permissions and properties of the server.

        The permissions are ``project``, ``projects`` (``None`` = all), ``roles``, ``rules`` and ``admin``. The
        properties are ``auth``, ``console`` and ``version``.
        """
        return Call(method="GET", path=path("me"), read=_document)

    @operation
    def revoke_shares(self) -> Call[None]:
        """Revoke all signed URLs of the project."""
        return Call(method="POST", path=path("share", "revoke"), read=nothing)

    @operation
    def quota(self) -> Call[dict[str, Any]]:
        """Return the project's quotas (``limits``) and usage (``used``). Raises ``NotBuilt`` without authentication."""
        return Call(method="GET", path=path("quota"), read=_document)

    @listing
    def tokens(self, /, *, page: int | None = None) -> Call[Page[dict[str, Any]]]:
        """List the project's tokens, without their secrets.

        Args:
            page: Number of tokens per request.
        """
        return _pages("tokens", dict[str, Any], path("tokens"), {"limit": page})

    @operation
    def token(self, id: str) -> Call[dict[str, Any]]:
        """Return a token of the project without its secret. Raises ``NotFound``."""
        return Call(method="GET", path=path("tokens", id), read=_document)

    @operation
    def create_token(
        self, *, name: str = "", scopes: Iterable[str] | None = None, roles: Iterable[str] = (), days: int | None = None
    ) -> Call[dict[str, Any]]:
        """Create a token. Only this result contains its secret, in the member ``token``.

        The token never exceeds the credential that creates it. The call is not repeated after a lost answer, because
        that would create a second token.

        Args:
            scopes: Scopes of the token; ``None`` = those of the creating credential.
        """
        terms: dict[str, Any] = {"name": name, "roles": [*roles]}
        terms |= {} if scopes is None else {"scopes": [*scopes]}
        terms |= {} if days is None else {"days": days}
        return Call(method="POST", path=path("tokens"), body=wire.encode(terms), read=_document, repeat=Repeat.UNSENT)

    @operation
    def rotate_token(self, id: str) -> Call[dict[str, Any]]:
        """Create a replacement for a token, with a result like ``create_token``. The old token expires within a day.

        Raises ``NotFound``.
        """
        return Call(method="POST", path=path("tokens", id, "rotate"), read=_document, repeat=Repeat.UNSENT)

    @operation
    def revoke_token(self, id: str) -> Call[None]:
        """Revoke a token of the project. An unknown token is ignored."""
        return Call(method="DELETE", path=path("tokens", id), read=nothing)

    @listing
    def audit(self, /, *, since: datetime | None = None, page: int | None = None) -> Call[Page[dict[str, Any]]]:
        """List audit entries, latest first: of the project, or of all projects for administrators.

        Args:
            since: Earliest time, in UTC unless it has a time zone.
            page: Number of entries per request.
        """
        told = None if since is None else since.isoformat()
        return _pages("entries", dict[str, Any], path("audit"), {"limit": page, "since": told})

    @operation
    def fence(self, name: str) -> Call[Fence]:
        """Advance a fence and return its new epoch. Jobs with an earlier epoch are refused from now on."""
        return Call(
            method="POST",
            path=path("fences", name),
            read=lambda answer: Fence(name, msgspec.json.decode(answer.body, type=dict[str, int])["epoch"]),
        )

    @listing
    def fences(self, /, *, page: int | None = None) -> Call[Page[JobFence]]:
        """List the project's fences, ordered by name.

        Args:
            page: Number of fences per request.
        """
        return _pages("fences", JobFence, path("fences"), {"limit": page})

    @listing
    def stages(self, /, *, page: int | None = None) -> Call[Page[JobStage]]:
        """List the project's stages, ordered by name.

        Args:
            page: Number of stages per request.
        """
        return _pages("stages", JobStage, path("stages"), {"limit": page})

    @listing
    def commits(self, /, *, page: int | None = None) -> Call[Page[JobCommit]]:
        """List the project's producers with their last batches, ordered by name.

        Args:
            page: Number of producers per request.
        """
        return _pages("commits", JobCommit, path("commits"), {"limit": page})

    @operation
    def drop_stage(self, name: str) -> Call[None]:
        """Delete staged messages. An unknown stage is ignored."""
        return Call(method="DELETE", path=path("stages", name), read=nothing)

    @operation
    def commit(
        self,
        producer: str,
        batch: int,
        *,
        publish: Iterable[tuple[str, int]] = (),
        settle: Iterable[tuple[str, str]] = (),
        fence: Fence | None = None,
    ) -> Call[Committed]:
        """Publish stages and delete the messages of claims atomically, once per batch.

        The client repeats a large commit until it is complete; the result is then ``replayed``. After an error, nothing
        has changed.

        Args:
            publish: Pairs of a stage and its message count, as returned by ``stage`` and ``post_many``. A stage with
                another count is refused.
            settle: Pairs of a queue and a claim.

        Raises ``Fenced``, ``ClaimLapsed``, ``StageNotFound``, ``StageDiffers``, ``CommitTooLarge``, and ``Invalid`` for
        a stage without a count.
        """
        stages: list[str | extensions.CountedStage] = [_counted(stage) for stage in publish]
        claims = [extensions.HeldClaim(queue, claim) for queue, claim in settle]
        return Call(
            method="POST",
            path=path("commits"),
            params=fenced(fence),
            body=wire.encode(extensions.CommitTerms(producer, batch, stages, claims)),
            read=lambda answer: Committed(batch, **msgspec.json.decode(answer.body, type=dict[str, Any])),
        )

    @operation
    def committed(self, producer: str) -> Call[LastCommit]:
        """Return a producer's last batch. Raises ``ProducerNotFound``."""
        return Call(
            method="GET",
            path=path("commits", producer),
            read=lambda answer: msgspec.json.decode(answer.body, type=LastCommit),
        )


def _counted(stage: object) -> extensions.CountedStage:
    if not (isinstance(stage, tuple) and len(stage) == 2 and isinstance(stage[1], int)):
        raise Invalid(f"publish must contain pairs of a stage and its message count, not {stage!r}.")
    return extensions.CountedStage(*stage)


def _document(answer: Answer) -> dict[str, Any]:
    return msgspec.json.decode(answer.body, type=dict[str, Any])


def _pages(member: str, kind: type[T], target: str, params: Params) -> Call[Page[T]]:
    """Return the call for the first page of a listing in one member of the answer.

    A link shows that more pages follow.
    """

    def read(answer: Answer) -> Page[T]:
        found = _document(answer)
        items = [msgspec.convert(item, kind) for item in found[member]]
        link = f"{target.partition('?')[0]}?{_query(found['links'])}"
        return Page(items, _pages(member, kind, link, {}) if found["links"] else None)

    return Call(method="GET", path=target, params=params, read=read)


def _query(links: list[dict[str, str]]) -> str:
    return links[0]["href"].partition("?")[2] if links else ""


class Client(ClientVerbs, Blocking):
    """A client of one project. Threads may share it; connections are pooled. Close it, or use ``with``."""

    def queue(self, name: str) -> Queue:
        """Return a handle of the queue, without a request."""
        return Queue(self.transport, name)

    def topic(self, name: str) -> Topic:
        """Return a handle of the topic, without a request."""
        return Topic(self.transport, name)

    def stream(self, match: str = "**", after: int | str | None = None) -> Generator[Event | Gap, None, None]:
        """Stream messages of all topics whose names match; see ``Topic.stream``."""
        return stream(self.transport, _matching(match, after))

    def close(self) -> None:
        """Close all connections."""
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(ClientVerbs, Asynchronous):
    """An asynchronous client of one project, for one event loop. Close it, or use ``async with``."""

    def queue(self, name: str) -> AsyncQueue:
        """Return a handle of the queue, without a request."""
        return AsyncQueue(self.transport, name)

    def topic(self, name: str) -> AsyncTopic:
        """Return a handle of the topic, without a request."""
        return AsyncTopic(self.transport, name)

    def stream(self, match: str = "**", after: int | str | None = None) -> AsyncGenerator[Event | Gap, None]:
        """Stream messages of all topics whose names match; see ``Topic.stream``."""
        return stream_async(self.transport, _matching(match, after))

    async def close(self) -> None:
        """Close all connections."""
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _matching(match: str, after: int | str | None) -> EventReader:
    return EventReader(path("stream"), {"match": match}, after)
