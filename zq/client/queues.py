# SPDX-License-Identifier: Apache-2.0
"""The operations on a queue, common to the blocking and the asynchronous client."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET

from zq import wire
from zq.client import claims, posting
from zq.client.calls import (
    EMPTY_RESPONSE,
    Call,
    Page,
    Params,
    Repeat,
    Response,
    decode_as,
    listing,
    operation,
    pages,
    read_empty,
)
from zq.client.resources import FINISHED, MESSAGES, Ids, id_list, message_page_call, message_pages, messages_call
from zq.client.subscriptions import SubscriptionOperations
from zq.client.values import (
    Claim,
    Draft,
    FinishedMessage,
    LiveClaim,
    Message,
    MessagePage,
    Messages,
    RedriveDryRun,
    RedriveResult,
    ReplayDryRun,
)
from zq.errors import Invalid
from zq.model import Fence, SettleResult
from zq.wire import extensions
from zq.wire.answers import Depth, ReplayResult
from zq.wire.attributes import Attribute
from zq.wire.figures import Points
from zq.wire.tokens import Share

T = TypeVar("T")

# JSON Patch path of the metadata key that pauses a queue.
PAUSED: Final = "/metadata/_paused"


# Whether a listing contains whole bodies or only their first characters.
Bodies = Literal["start", "whole"]


class QueueOperations(SubscriptionOperations):
    """A queue of the client's project. If the queue does not exist, the first post creates it."""

    kind: ClassVar[str] = "queues"

    @operation
    def post(
        self,
        body: Any,
        *,
        ttl: int | None = None,
        delay: int | None = None,
        key: str | None = None,
        group: str | None = None,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> Call[str]:
        """Post a message and return its id. Retries by the client create no duplicates.

        Args:
            body: Any value that msgspec encodes as JSON. ``msgspec.Raw`` is sent unchanged.
            ttl: Retention in seconds.
            delay: Seconds until the message can be claimed. Raises ``Invalid`` if the queue ignores delays.
            key: Idempotency key. Set it if another process may repeat the post.
            group: Message group, for a queue with ``_grouped``.
            attributes: Attributes by name. Values are strings, numbers, bytes or ``TypedValue``.
        """
        draft = body if group is None and attributes is None else Draft(body, group=group, attributes=attributes)
        return posting.with_first_id(self._post([draft], ttl, delay, key))

    @operation
    def post_batch(
        self, bodies: Iterable[Any], *, ttl: int | None = None, delay: int | None = None, key: str | None = None
    ) -> Call[Ids]:
        """Post messages atomically in one request and return their ids."""
        return self._post(bodies, ttl, delay, key)

    @operation
    def stage(
        self,
        stage: str,
        bodies: Iterable[Any],
        *,
        ttl: int | None = None,
        delay: int | None = None,
        key: str | None = None,
    ) -> Call[int]:
        """Add messages to a stage, and return the number of messages.

        A stage keeps messages invisible until a commit publishes the stage.
        """
        given = [*bodies]
        call = posting.staged_call(self.kind, self.name, posting.pack(given, ttl, delay), key, stage)
        return self._with_delay_check(call, given, delay)

    @operation
    def pop(self, count: int = 1, *, wait: int = 0) -> Call[Messages]:
        """Receive messages and delete them in one step (at-most-once delivery).

        If the response is lost, the messages are lost, so the client never retries. Use ``claim`` if messages must not
        be lost. ``wait``: seconds to wait for the first message.
        """
        params: Params = {"pop": count, "wait": wait or None, "detailed": True}
        return messages_call("DELETE", self._path("messages"), params, wait, Repeat.UNSENT)

    @operation
    def delete_message(self, message: str, *, claim: str | None = None) -> Call[None]:
        """Delete a message. If it is claimed, ``claim`` is required.

        Raises ``MessageClaimed`` if ``claim`` is missing, and ``ClaimNotHeld`` if the claim does not hold the message.
        """
        params = {"claim_id": claim}
        return Call(method="DELETE", path=self._path("messages", message), params=params, read=read_empty)

    @operation
    def delete_messages(self, messages: Iterable[str]) -> Call[None]:
        """Delete messages, even if they are claimed. Unknown ids are ignored."""
        ids = id_list(messages)
        where = self._path("messages")
        return Call(
            method="DELETE",
            path=where,
            params={"ids": ids},
            read=read_empty,
            local_response=None if ids else EMPTY_RESPONSE,
        )

    @operation
    def share(
        self,
        *,
        paths: Sequence[str] = ("messages",),
        methods: Sequence[str] = ("GET",),
        expires: datetime | None = None,
    ) -> Call[Share]:
        """Create a signed URL of the queue, for callers without an account.

        Args:
            paths: Resources that the URL gives access to: "messages", "claims", "subscriptions".
            methods: HTTP methods that the URL permits.
            expires: Expiry time. Default: in one day. A time without a time zone is local.
        """
        terms: dict[str, Any] = {"paths": paths, "methods": methods}
        if expires is not None:
            terms["expires"] = expires.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return Call(
            method="POST",
            path=self._path("share"),
            body=wire.encode(terms),
            read=decode_as(Share),
        )

    @operation
    def depth(self) -> Call[Depth]:
        """Return the number of messages per state, in constant time. All counts of a missing queue are 0."""
        return Call(
            method="GET",
            path=self._path("depth"),
            read=decode_as(Depth),
        )

    @operation
    def figures(self, window: int = 600) -> Call[Points[datetime]]:
        """Return message counts and rates over the last ``window`` seconds (300, 600, 10800, 86400 or 604800).

        Unknown values are ``None``.
        """
        return Call(
            method="GET",
            path=self._path("figures"),
            params={"window": window},
            read=decode_as(Points[datetime]),
        )

    @operation
    def pause(self, what: Literal["claims", "posts", "all"] = "all") -> Call[dict[str, Any]]:
        """Pause claims and pops (``"claims"``), posts, or both. Return the queue's new metadata.

        Until ``resume`` is called, paused claims and pops return no messages, and paused posts raise ``QueuePaused``.
        Existing claims can still be settled, renewed and released.
        """
        return self._patch([{"op": "add", "path": PAUSED, "value": what}])

    @operation
    def resume(self) -> Call[dict[str, Any]]:
        """Resume a paused queue and return its metadata. Raises ``QueueNotFound``."""
        # Removing an absent key fails, so the key is added first: a retry of the request then succeeds.
        return self._patch([{"op": "add", "path": PAUSED, "value": None}, {"op": "remove", "path": PAUSED}])

    @operation
    def claim(
        self,
        limit: int | None = None,
        *,
        ttl: int | None = None,
        grace: int | None = None,
        wait: int = 0,
        name: str | None = None,
        fence: Fence | None = None,
    ) -> Call[Claim]:
        """Claim messages for ``ttl`` seconds.

        If the request gets no response or is interrupted, the server may have created the claim. The client then
        releases the claim, unless ``name`` is set.

        Args:
            limit: Maximum number of messages.
            grace: Minimum seconds from the end of the claim to the expiry of its messages.
            wait: Seconds to wait for the first message.
            name: Claim id. A repeated request with this id returns the same claim.
            fence: Fencing token. If the token is outdated, the server rejects the request.
        """
        return claims.claim_call(
            self.name, name, claims.read_claim, limit=limit, ttl=ttl, grace=grace, wait=wait, fence=fence
        )

    @operation
    def get_claim(self, claim: str) -> Call[Claim]:
        """Return a claim with its messages and the client that holds it. Raises ``ClaimNotFound``."""
        return claims.get_call(self.name, claim)

    @listing
    def claims(self, *, page: int | None = None) -> Call[Page[LiveClaim]]:
        """List the queue's live claims with the clients that hold them."""
        return pages("claims", LiveClaim, self._path("claims"), {"limit": page})

    @operation
    def renew(
        self, claim: str, *, ttl: int | None = None, grace: int | None = None, fence: Fence | None = None
    ) -> Call[None]:
        """Renew the claim for another ``ttl`` seconds. Raises ``ClaimNotFound`` if the claim has expired."""
        return claims.renew_call(self.name, claim, ttl, grace, fence)

    @operation
    def release(self, claim: str, *, delay: int | None = None) -> Call[None]:
        """Release all messages of the claim. Has no effect if the claim has expired."""
        return claims.release_call(self.name, claim, delay)

    @operation
    def settle(
        self,
        claim: str,
        *,
        delete: Sequence[str] | Literal["*"] = (),
        release: Iterable[extensions.ReleaseTerms] = (),
        move: Iterable[extensions.MoveTerms] = (),
        bury: Iterable[extensions.BuryTerms] = (),
        key: str | None = None,
        fence: Fence | None = None,
    ) -> Call[SettleResult]:
        """Delete, release, move and bury messages of a claim atomically.

        Raises ``ClaimNotFound`` if the claim has expired. A buried message is moved to the queue's dead-letter queue.

        Args:
            delete: Message ids; "*" = all messages of the claim except those in ``release``, ``move`` and ``bury``.
        """
        gone: Ids | Literal["*"] = "*" if delete == "*" else [*delete]
        terms = extensions.SettleTerms(gone, [*release], [*move], [*bury])
        return claims.settle_call(self.name, claim, terms, key, fence)

    @operation
    def redrive(
        self,
        to: str | None = None,
        *,
        limit: int | None = None,
        ids: Iterable[str] | None = None,
        origin: str | None = None,
    ) -> Call[RedriveResult]:
        """Move dead letters back to their origin queues, or to the queue ``to``.

        Args:
            limit: Maximum number of messages, oldest first. Default: the server's limit.
            ids: Ids of the messages to move. Default: the oldest messages.
            origin: Move only messages that came from this queue.
        """
        terms = _redrive_terms(to, limit, ids, origin)
        return self._replay_call(self._path("redrive"), terms, decode_as(RedriveResult))

    @operation
    def redrive_dry_run(
        self,
        to: str | None = None,
        *,
        limit: int | None = None,
        ids: Iterable[str] | None = None,
        origin: str | None = None,
    ) -> Call[RedriveDryRun]:
        """Predict the result of ``redrive`` without moving messages."""
        terms = _redrive_terms(to, limit, ids, origin, dry_run=True)
        return self._replay_call(self._path("redrive"), terms, decode_as(RedriveDryRun))

    def _replay_call(
        self, path: str, terms: extensions.RedriveTerms | extensions.ReplayTerms, read: Callable[[Response], T]
    ) -> Call[T]:
        return Call(
            method="POST",
            path=path,
            body=wire.encode(terms),
            read=read,
            repeat=Repeat.SAFE if terms.dry_run else Repeat.UNSENT,
        )

    @operation
    def replay(
        self,
        ids: Iterable[str] | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Call[int]:
        """Post copies of finished messages, selected by id or by time. Return the number of copies."""
        terms = _replay_terms(ids, since, until, limit)
        path = self._path("history", "replay")
        return self._replay_call(
            path, terms, lambda response: msgspec.json.decode(response.body, type=ReplayResult).replayed
        )

    @operation
    def replay_dry_run(
        self,
        ids: Iterable[str] | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Call[ReplayDryRun]:
        """Predict the result of ``replay`` without posting messages."""
        terms = _replay_terms(ids, since, until, limit, dry_run=True)
        path = self._path("history", "replay")
        return self._replay_call(path, terms, decode_as(ReplayDryRun))

    @listing
    def history(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        living: bool = False,
        bodies: Bodies = "whole",
        newest_first: bool = False,
        page: int | None = None,
    ) -> Call[Page[FinishedMessage]]:
        """List finished messages in the order in which they finished.

        Args:
            living: Include live messages, and list all messages in the order of posting. Not permitted together with
                ``since``, ``until`` or ``newest_first``.
            bodies: "start" = return only the start of each body and its size (``body_start``, ``body_bytes``).
        """
        params = {**_history_params(since, until, living, page), "order": "desc" if newest_first else None}
        return message_pages(FINISHED, self._path("history"), {**params, "bodies": _bodies_parameter(bodies)})

    @listing
    def list(
        self,
        *,
        own: bool = True,
        claimed: bool = False,
        delayed: bool = False,
        state: Literal["ready", "delayed", "claimed"] | None = None,
        bodies: Bodies = "whole",
        page: int | None = None,
    ) -> Call[Page[Message]]:
        """List messages, by default in the order of posting.

        Args:
            own: Include messages that this client posted.
            state: List only messages in this state; ready or delayed messages are then listed in claim order.
            bodies: "start" = return only the start of each body and its size (``body_start``, ``body_bytes``).
        """
        if state is not None and (claimed or delayed or not own):
            raise Invalid("own, claimed and delayed cannot be combined with state.")
        flags: Params = {"echo": own, "include_claimed": claimed, "include_delayed": delayed}
        shown: Params = flags if state is None else {"state": state}
        params = {**shown, "limit": page, "bodies": _bodies_parameter(bodies), "detailed": True}
        return message_pages(MESSAGES, self._path("messages"), params)

    @operation
    def read_page(self, after: int, *, page: int | None = None) -> Call[MessagePage[Message]]:
        """Return a page of live messages after the sequence number ``after``.

        To read the next page, pass the page's ``end`` as ``after``.
        """
        flags: Params = {"echo": True, "include_claimed": True, "include_delayed": True}
        return message_page_call(
            MESSAGES, self._path("messages"), {**flags, "marker": after, "limit": page, "detailed": True}
        )

    @operation
    def read_history_page(
        self,
        after: int,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        living: bool = False,
        page: int | None = None,
    ) -> Call[MessagePage[FinishedMessage]]:
        """Return a page of ``history`` after the marker ``after``.

        To read the next page, pass the page's ``end`` as ``after``.
        """
        params = _history_params(since, until, living, page)
        return message_page_call(FINISHED, self._path("history"), {**params, "marker": after})

    def _post(self, bodies: Iterable[Any], ttl: int | None, delay: int | None, key: str | None) -> Call[Ids]:
        given = [*bodies]
        call = posting.post_call(self.kind, self.name, posting.pack(given, ttl, delay), key)
        return self._with_delay_check(call, given, delay)

    def _with_delay_check(self, call: Call[T], bodies: Sequence[Any], delay: int | None) -> Call[T]:
        delayed = delay or any(isinstance(body, Draft) and body.delay for body in bodies)
        return self.transport.warnings.with_delay_check(self.name, call) if delayed else call


def _bodies_parameter(bodies: Bodies) -> str | None:
    return None if bodies == "whole" else bodies


def _history_params(since: datetime | None, until: datetime | None, living: bool, page: int | None) -> Params:
    moments = {name: moment.isoformat() for name, moment in (("since", since), ("until", until)) if moment}
    return {**moments, "state": "all" if living else None, "limit": page, "detailed": True}


def _redrive_terms(
    to: str | None, limit: int | None, ids: Iterable[str] | None, origin: str | None, dry_run: bool = False
) -> extensions.RedriveTerms:
    return extensions.RedriveTerms(
        UNSET if to is None else to,
        UNSET if limit is None else limit,
        UNSET if ids is None else [*ids],
        dry_run,
        UNSET if origin is None else origin,
    )


def _replay_terms(
    ids: Iterable[str] | None,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    dry_run: bool = False,
) -> extensions.ReplayTerms:
    return extensions.ReplayTerms(
        UNSET if ids is None else [*ids],
        UNSET if since is None else since.isoformat(),
        UNSET if until is None else until.isoformat(),
        UNSET if limit is None else limit,
        dry_run,
    )
