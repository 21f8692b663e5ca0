# SPDX-License-Identifier: Apache-2.0
"""``Client`` and ``AsyncClient``: a project at a server."""

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
from zq.client.values import Event, Gap, JobCommit, JobFence, JobStage, LastCommit, Listed, LiveClaim, Located
from zq.errors import Invalid
from zq.model import Committed, Fence
from zq.wire import extensions

if TYPE_CHECKING:
    from zq.client.attempts import Auth

T = TypeVar("T")
# Seconds for one attempt, unless the caller chooses others.
TIMEOUT = 10.0


class ClientVerbs:
    """The verbs of a client that are about no single queue or topic."""

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
        """Create the client; it connects at its first call.

        ``project`` "": that of the credential. ``client_id``: a UUID, fresh if not given. ``auth``: whatever httpx
        takes. ``timeout``: of one attempt. ``token``: goes to this server alone; None = ``ZQ_TOKEN`` of the environment
        (unless there is an ``auth``), "" = none. ``check_delays``: refuse delays that a queue ignores.
        """
        from zq.client import attempts, transport  # here: with httpx they take longer to import than all the rest

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
        """The project's queues in the order of names: those whose names hold ``name`` and metadata the filters.

        ``detailed`` brings metadata; ``page``: queues in a request.
        """
        return resource_page("queues", page, detailed, {"name": name, **filters})

    @listing
    def topics(
        self, /, *, name: str | None = None, detailed: bool = False, page: int | None = None, **filters: str | int
    ) -> Call[Page[Listed]]:
        """As ``queues``."""
        return resource_page("topics", page, detailed, {"name": name, **filters})

    @operation
    def figures(self, window: int = 600) -> Call[dict[str, Any]]:
        """What matters in the project, and its past within so many seconds: 300, 600 or 10800."""
        return Call(method="GET", path=path("figures"), params={"window": window}, read=_document)

    @listing
    def queue_figures(
        self, /, *, sort: str = "oldest", order: str | None = None, name: str | None = None, page: int | None = None
    ) -> Call[Page[dict[str, Any]]]:
        """All queues with their figures, each once: by ``oldest``, ``ready``, ``delayed``, ``claimed``, ``in``, ``out``
        or ``growth``, or by ``name``; ``order``: ``asc`` or ``desc``. ``page``: queues in a request, 100 at most."""
        params: Params = {"sort": sort, "order": order, "name": name, "limit": page}
        return _pages("queues", dict[str, Any], path("figures", "queues"), params)

    @operation
    def servers(self) -> Call[list[dict[str, Any]]]:
        """What each server process of the deployment says of itself; for administrators."""
        return Call(method="GET", path=path("servers"), read=lambda answer: _document(answer)["servers"])

    @operation
    def limits(self) -> Call[dict[str, int]]:
        """The limits that the server has in force."""
        read = msgspec.json.Decoder(dict[str, int]).decode
        return Call(method="GET", path=path("limits"), read=lambda answer: read(answer.body))

    @operation
    def find(self, message: str) -> Call[Located]:
        """Where in the project a message is, by its id alone, or its latest record. Raises ``MessageNotFound``."""
        return Call(
            method="GET",
            path=path("messages", message),
            params={"detailed": True},
            read=lambda answer: msgspec.json.decode(answer.body, type=Located),
        )

    @listing
    def claims(self, /, *, page: int | None = None) -> Call[Page[LiveClaim]]:
        """The live claims of all queues of the project, with their holders; ``page``: claims in a request."""
        return list_call(path("claims"), page)

    @operation
    def ping(self) -> Call[None]:
        """Raises ``Unavailable`` if the server or its store does not answer."""
        return Call(method="GET", path=path("ping"), read=nothing)

    @operation
    def whoami(self) -> Call[dict[str, Any]]:
        """Whose the token is: ``project``, ``user``, ``roles``, ``scopes``, ``credential`` and ``expires``."""
        return Call(method="GET", path=path("whoami"), read=_document)

    @operation
    def me(self) -> Call[dict[str, Any]]:
        """What the caller may do: ``project``, ``projects`` (None = any), ``roles``, ``rules`` and ``admin``; of the
        server ``auth``, ``console`` and ``version``."""
        return Call(method="GET", path=path("me"), read=_document)

    @operation
    def revoke_shares(self) -> Call[None]:
        """End all URLs that were signed for the project."""
        return Call(method="POST", path=path("share", "revoke"), read=nothing)

    @operation
    def quota(self) -> Call[dict[str, Any]]:
        """What the project may use (``limits``), and what it uses (``used``). Raises ``NotBuilt`` without tokens."""
        return Call(method="GET", path=path("quota"), read=_document)

    @listing
    def tokens(self, /, *, page: int | None = None) -> Call[Page[dict[str, Any]]]:
        """The project's tokens, without their secrets; ``page``: tokens in a request."""
        return _pages("tokens", dict[str, Any], path("tokens"), {"limit": page})

    @operation
    def token(self, id: str) -> Call[dict[str, Any]]:
        """A token of the project, without its secret. Raises ``NotFound``."""
        return Call(method="GET", path=path("tokens", id), read=_document)

    @operation
    def create_token(
        self, *, name: str = "", scopes: Iterable[str] | None = None, roles: Iterable[str] = (), days: int | None = None
    ) -> Call[dict[str, Any]]:
        """A new token: member ``token`` has its text, this once. It is for no more than the credential that makes it.

        ``scopes`` None: for as much as that. Not repeated after a lost answer, since it would be a second one.
        """
        terms: dict[str, Any] = {"name": name, "roles": [*roles]}
        terms |= {} if scopes is None else {"scopes": [*scopes]}
        terms |= {} if days is None else {"days": days}
        return Call(method="POST", path=path("tokens"), body=wire.encode(terms), read=_document, repeat=Repeat.UNSENT)

    @operation
    def rotate_token(self, id: str) -> Call[dict[str, Any]]:
        """A twin of a token, shown as by ``create_token``; the old one ends within a day. Raises ``NotFound``."""
        return Call(method="POST", path=path("tokens", id, "rotate"), read=_document, repeat=Repeat.UNSENT)

    @operation
    def revoke_token(self, id: str) -> Call[None]:
        """End a token of the project. No error if there is none."""
        return Call(method="DELETE", path=path("tokens", id), read=nothing)

    @listing
    def audit(self, /, *, since: datetime | None = None, page: int | None = None) -> Call[Page[dict[str, Any]]]:
        """What was changed, and by whom, the latest first: in the project, for administrators in all.

        ``since``: what was done then or later, UTC unless it has a zone; ``page``: entries in a request.
        """
        told = None if since is None else since.isoformat()
        return _pages("entries", dict[str, Any], path("audit"), {"limit": page, "since": told})

    @operation
    def fence(self, name: str) -> Call[Fence]:
        """The next epoch of a fence: jobs with an earlier one are refused from now on."""
        return Call(
            method="POST",
            path=path("fences", name),
            read=lambda answer: Fence(name, msgspec.json.decode(answer.body, type=dict[str, int])["epoch"]),
        )

    @listing
    def fences(self, /, *, page: int | None = None) -> Call[Page[JobFence]]:
        """The project's fences in the order of names; ``page``: fences in a request."""
        return _pages("fences", JobFence, path("fences"), {"limit": page})

    @listing
    def stages(self, /, *, page: int | None = None) -> Call[Page[JobStage]]:
        """Stages, likewise."""
        return _pages("stages", JobStage, path("stages"), {"limit": page})

    @listing
    def commits(self, /, *, page: int | None = None) -> Call[Page[JobCommit]]:
        """Producers with their last batches, likewise."""
        return _pages("commits", JobCommit, path("commits"), {"limit": page})

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
        publish: Iterable[tuple[str, int]] = (),
        settle: Iterable[tuple[str, str]] = (),
        fence: Fence | None = None,
    ) -> Call[Committed]:
        """Publish stages and delete the messages of claims: both or neither, once for each batch.

        ``publish``: pairs of a stage and how many messages were staged there, as ``stage`` and ``post_many`` return
        it; a stage that holds another number is refused. ``settle``: pairs of a queue and a claim. The client repeats
        a large commit until it is complete; the result is then ``replayed``.
        Raises ``Fenced``, ``ClaimLapsed``, ``StageNotFound``, ``StageDiffers``, ``CommitTooLarge``; then nothing has
        changed. Raises ``Invalid`` for a stage without its count.
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
        """A producer's last batch. Raises ``ProducerNotFound``."""
        return Call(
            method="GET",
            path=path("commits", producer),
            read=lambda answer: msgspec.json.decode(answer.body, type=LastCommit),
        )


def _counted(stage: object) -> extensions.CountedStage:
    if not (isinstance(stage, tuple) and len(stage) == 2 and isinstance(stage[1], int)):
        raise Invalid(f"publish must name pairs of a stage and the messages staged there; it names {stage!r}.")
    return extensions.CountedStage(*stage)


def _document(answer: Answer) -> dict[str, Any]:
    return msgspec.json.decode(answer.body, type=dict[str, Any])


def _pages(member: str, kind: type[T], target: str, params: Params) -> Call[Page[T]]:
    """The first page of what an answer has as this member. It is the link that says whether more follow."""

    def read(answer: Answer) -> Page[T]:
        found = _document(answer)
        items = [msgspec.convert(item, kind) for item in found[member]]
        link = f"{target.partition('?')[0]}?{_query(found['links'])}"
        return Page(items, _pages(member, kind, link, {}) if found["links"] else None)

    return Call(method="GET", path=target, params=params, read=read)


def _query(links: list[dict[str, str]]) -> str:
    return links[0]["href"].partition("?")[2] if links else ""


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


def _matching(match: str, after: int | str | None) -> EventReader:
    return EventReader(path("stream"), {"match": match}, after)
