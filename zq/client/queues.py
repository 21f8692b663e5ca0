# SPDX-License-Identifier: Apache-2.0
"""Verbs of a queue, each written once for both kinds of client."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET

from zq import wire
from zq.client import claims, posting
from zq.client.calls import EMPTY, Call, Page, Params, Repeat, listing, nothing, operation
from zq.client.resources import (
    Ids,
    finished_pages,
    finished_stretch,
    id_list,
    message_pages,
    message_stretch,
    messages_call,
)
from zq.client.subscriptions import SubscriptionVerbs
from zq.client.values import (
    Claim,
    Depth,
    Draft,
    Finished,
    LiveClaim,
    Message,
    Messages,
    RedriveDryRun,
    Redriven,
    ReplayDryRun,
    Stretch,
)
from zq.errors import Invalid
from zq.model import Fence, Settled
from zq.wire import extensions
from zq.wire.attributes import Attribute

T = TypeVar("T")

# The path in a patch of the metadata that pause a queue.
PAUSED: Final = "/metadata/_paused"


# Whether bodies are wanted whole, or only where they begin.
Bodies = Literal["start", "whole"]


class QueueVerbs(SubscriptionVerbs):
    """A queue of the client's project. It need not exist: the first message makes it."""

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
        """Store a message and return its id.

        ``body``: whatever msgspec writes as JSON; ``msgspec.Raw`` is JSON already. ``ttl``: seconds to live. ``delay``:
        seconds before it can be claimed; raises ``Invalid`` if the queue ignores delays. Repeats are safe: under
        ``key``, if another process may repeat it, too. ``group``: of a queue with ``_grouped``.
        ``attributes``: text, numbers, bytes or ``TypedValue`` by name, which travel with the message.
        """
        draft = body if group is None and attributes is None else Draft(body, group=group, attributes=attributes)
        return posting.first_id(self._post([draft], ttl, delay, key))

    @operation
    def post_batch(
        self, bodies: Iterable[Any], *, ttl: int | None = None, delay: int | None = None, key: str | None = None
    ) -> Call[Ids]:
        """Store messages in one request, all or none; their ids."""
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
        """Store messages in a stage, unseen until a commit publishes it; how many."""
        given = [*bodies]
        call = posting.staged_call(self.kind, self.name, posting.pack(given, ttl, delay), key, stage)
        return self._delay_checked(call, given, delay)

    @operation
    def pop(self, count: int = 1, *, wait: int = 0) -> Call[Messages]:
        """Take messages and delete them in one step; waits so many seconds for the first.

        An answer that is lost takes its messages along, so this is never sent twice: claim what must not be lost.
        """
        params: Params = {"pop": count, "wait": wait or None, "detailed": True}
        return messages_call("DELETE", self._path("messages"), params, wait, Repeat.UNSENT)

    @operation
    def delete_message(self, message: str, *, claim: str | None = None) -> Call[None]:
        """Delete one message. Raises ``MessageClaimed``, ``ClaimNotHeld``."""
        params = {"claim_id": claim}
        return Call(method="DELETE", path=self._path("messages", message), params=params, read=nothing)

    @operation
    def delete_messages(self, messages: Iterable[str]) -> Call[None]:
        """Delete messages, claimed ones too. No error for those that are not there."""
        ids = id_list(messages)
        where = self._path("messages")
        return Call(method="DELETE", path=where, params={"ids": ids}, read=nothing, local_answer=None if ids else EMPTY)

    @operation
    def share(
        self,
        *,
        paths: Sequence[str] = ("messages",),
        methods: Sequence[str] = ("GET",),
        expires: datetime | None = None,
    ) -> Call[dict[str, Any]]:
        """Sign a URL of the queue for those who have no account: ``paths``, ``methods``, ``project``, ``expires``,
        ``signature``.

        ``paths``: of messages, claims and subscriptions; ``expires``: None = in a day; without a zone it is of this
        machine's. Raises ``NotAuthorized``.
        """
        terms: dict[str, Any] = {"paths": paths, "methods": methods}
        if expires is not None:
            terms["expires"] = expires.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return Call(
            method="POST",
            path=self._path("share"),
            body=wire.encode(terms),
            read=lambda answer: msgspec.json.decode(answer.body, type=dict[str, Any]),
        )

    @operation
    def depth(self) -> Call[Depth]:
        """How many messages are in each state; costs little however many there are. Zeros of a missing queue."""
        return Call(
            method="GET",
            path=self._path("depth"),
            read=lambda answer: msgspec.json.decode(answer.body, type=Depth),
        )

    @operation
    def figures(self, window: int = 600) -> Call[dict[str, Any]]:
        """Its past within so many seconds, 300, 600 or 10800: messages by state, and rates; None = nobody looked."""
        return Call(
            method="GET",
            path=self._path("figures"),
            params={"window": window},
            read=lambda answer: msgspec.json.decode(answer.body, type=dict[str, Any]),
        )

    @operation
    def pause(self, what: Literal["claims", "posts", "all"] = "all") -> Call[dict[str, Any]]:
        """Let claims and pops find nothing, have posts refused, or both, until ``resume``; its metadata.

        What is claimed is settled, renewed and deleted as ever. Posts raise ``QueuePaused``. Raises ``QueueNotFound``.
        """
        return self._patch([{"op": "add", "path": PAUSED, "value": what}])

    @operation
    def resume(self) -> Call[dict[str, Any]]:
        """End a pause, whoever made it; its metadata. No error if there is none. Raises ``QueueNotFound``."""
        # What is added is there to be removed, so that a repeat is harmless.
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
        """Messages that are the caller's for ``ttl`` seconds; waits so many seconds for the first.

        The claim has a name of the client's, so an answer that is lost is asked for again; if none comes, or
        the caller is interrupted, the claim is given back. Under a ``name`` of yours it stays, for you to find it.
        """
        return claims.claim_call(
            self.name, name, claims.read_claim, limit=limit, ttl=ttl, grace=grace, wait=wait, fence=fence
        )

    @operation
    def held(self, claim: str) -> Call[Claim]:
        """What a claim holds now, and who it is held by. Raises ``ClaimNotFound``."""
        return claims.get_call(self.name, claim)

    @listing
    def claims(self, *, page: int | None = None) -> Call[Page[LiveClaim]]:
        """The queue's live claims, with their holders; ``page``: claims in a request."""
        return claims.list_call(self._path("claims"), page)

    @operation
    def renew(
        self, claim: str, *, ttl: int | None = None, grace: int | None = None, fence: Fence | None = None
    ) -> Call[None]:
        """The claim lives for another ``ttl`` seconds. Raises ``ClaimNotFound``."""
        return claims.renew_call(self.name, claim, ttl, grace, fence)

    @operation
    def release(self, claim: str, *, delay: int | None = None) -> Call[None]:
        """Give back all that the claim holds. No error if it is over."""
        return claims.release_call(self.name, claim, delay)

    @operation
    def settle(
        self,
        claim: str,
        *,
        delete: Sequence[str] | Literal["*"] = (),
        release: Iterable[extensions.Released] = (),
        move: Iterable[extensions.Moved] = (),
        bury: Iterable[extensions.Buried] = (),
        key: str | None = None,
        fence: Fence | None = None,
    ) -> Call[Settled]:
        """End the work on messages of a claim, in one step; ``"*"`` deletes all that are not named. What was done.

        Raises ``ClaimNotFound``.
        """
        gone: Ids | Literal["*"] = "*" if delete == "*" else [*delete]
        terms = extensions.SettleTerms(gone, [*release], [*move], [*bury])
        return claims.settle_call(self.name, claim, terms, key, fence)

    @operation
    def redrive(
        self, to: str | None = None, *, limit: int | None = None, ids: Iterable[str] | None = None
    ) -> Call[Redriven]:
        """Move dead letters, the oldest or those named, back to where they came from, or to another queue."""
        return self._redriving(_redrive_terms(to, limit, ids), Redriven)

    @operation
    def redrive_dry_run(
        self, to: str | None = None, *, limit: int | None = None, ids: Iterable[str] | None = None
    ) -> Call[RedriveDryRun]:
        """What ``redrive`` would do; nothing is moved."""
        return self._redriving(_redrive_terms(to, limit, ids, dry_run=True), RedriveDryRun)

    def _redriving(self, terms: extensions.RedriveTerms, answer: type[T]) -> Call[T]:
        return self._asked(self._path("redrive"), terms, lambda raw: msgspec.json.decode(raw, type=answer))

    def _asked(
        self, path: str, terms: extensions.RedriveTerms | extensions.ReplayTerms, read: Callable[[bytes], T]
    ) -> Call[T]:
        """A call that is not repeated once it was sent, but for dry runs."""
        return Call(
            method="POST",
            path=path,
            body=wire.encode(terms),
            read=lambda answer: read(answer.body),
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
        """Post copies of finished messages, those named or those of a time; how many."""
        terms = _replay_terms(ids, since, until, limit)
        path = self._path("history", "replay")
        return self._asked(path, terms, lambda raw: msgspec.json.decode(raw, type=dict[str, int])["replayed"])

    @operation
    def replay_dry_run(
        self,
        ids: Iterable[str] | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Call[ReplayDryRun]:
        """What ``replay`` would do; nothing is posted."""
        terms = _replay_terms(ids, since, until, limit, dry_run=True)
        path = self._path("history", "replay")
        return self._asked(path, terms, lambda raw: msgspec.json.decode(raw, type=ReplayDryRun))

    @listing
    def history(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        living: bool = False,
        bodies: Bodies = "whole",
        page: int | None = None,
    ) -> Call[Page[Finished]]:
        """What has finished, in the order of finishing; with ``living``, all messages in the order of posting."""
        params = _history_params(since, until, living, page)
        return finished_pages(self._path("history"), {**params, "bodies": _wanted(bodies)})

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
        """The messages in the order of posting; those that this client posted, are claimed, or delayed only if wanted.

        ``state``: those of the state alone, whoever posted them, ready and delayed ones in the order of claims.
        ``bodies`` "start": with ``body_start`` and ``body_bytes`` and without bodies. ``page``: messages in a request.
        """
        if state is not None and (claimed or delayed or not own):
            raise Invalid("own, claimed and delayed do not go with state.")
        flags: Params = {"echo": own, "include_claimed": claimed, "include_delayed": delayed}
        shown: Params = flags if state is None else {"state": state}
        params = {**shown, "limit": page, "bodies": _wanted(bodies), "detailed": True}
        return message_pages(self._path("messages"), params)

    @operation
    def stretch(self, after: int, *, page: int | None = None) -> Call[Stretch[Message]]:
        """One page of all living messages behind a sequence, and where it ends."""
        flags: Params = {"echo": True, "include_claimed": True, "include_delayed": True}
        return message_stretch(self._path("messages"), {**flags, "marker": after, "limit": page, "detailed": True})

    @operation
    def history_stretch(
        self,
        after: int,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        living: bool = False,
        page: int | None = None,
    ) -> Call[Stretch[Finished]]:
        """One page of ``history`` behind a marker, and where it ends."""
        params = _history_params(since, until, living, page)
        return finished_stretch(self._path("history"), {**params, "marker": after})

    def _post(self, bodies: Iterable[Any], ttl: int | None, delay: int | None, key: str | None) -> Call[Ids]:
        given = [*bodies]
        call = posting.post_call(self.kind, self.name, posting.pack(given, ttl, delay), key)
        return self._delay_checked(call, given, delay)

    def _delay_checked(self, call: Call[T], bodies: Sequence[Any], delay: int | None) -> Call[T]:
        """Return the post with a check that refuses a delay that the queue ignores."""
        delayed = delay or any(isinstance(body, Draft) and body.delay for body in bodies)
        return self.transport.warnings.delay_checked(self.name, call) if delayed else call


def _wanted(bodies: Bodies) -> str | None:
    return None if bodies == "whole" else bodies


def _history_params(since: datetime | None, until: datetime | None, living: bool, page: int | None) -> Params:
    moments = {name: moment.isoformat() for name, moment in (("since", since), ("until", until)) if moment}
    return {**moments, "state": "all" if living else None, "limit": page, "detailed": True}


def _redrive_terms(
    to: str | None, limit: int | None, ids: Iterable[str] | None, dry_run: bool = False
) -> extensions.RedriveTerms:
    return extensions.RedriveTerms(
        UNSET if to is None else to,
        UNSET if limit is None else limit,
        UNSET if ids is None else [*ids],
        dry_run,
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
