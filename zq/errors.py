# SPDX-License-Identifier: Apache-2.0
"""All expected errors of zq, shared by server, client and command line.

``str(error)`` is one sentence for the caller. It names the field and the bound, and never contains a message body, a
credential or text of a vendor's library. Errors raised by drivers have fixed sentences: the class attribute
``sentence``, or the class method ``of``, which fills in values. ``zq.wire.refusals`` maps errors to HTTP statuses and
titles.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self


class ZqError(Exception):
    """The base class of all expected errors."""

    sentence: ClassVar[str] = ""
    """Sentence of an error that is raised without one."""

    def __init__(self, sentence: str | None = None) -> None:
        super().__init__(self.sentence if sentence is None else sentence)


class Invalid(ZqError):
    """A well-formed request that violates a rule or limit."""


class InvalidBody(Invalid):
    """A body that cannot be parsed, or has a missing, mistyped or forbidden member."""


class InvalidParameter(Invalid):
    """A query parameter of the wrong type."""


class InvalidName(Invalid):
    """An invalid queue name or project id."""


class InvalidTopicName(InvalidName):
    """An invalid topic name, or an invalid project id of a topic."""


class InvalidHeader(Invalid):
    """A missing or malformed request header."""

    def __init__(self, title: str, sentence: str) -> None:
        super().__init__(sentence)
        self.title = title


class UnsupportedMediaType(ZqError):
    """A body in a format that the route does not support."""


class NotAuthorized(ZqError):
    """An operation that the caller's roles, or the scopes of the credential, do not permit."""


class NotAuthenticated(NotAuthorized):
    """A request without a valid credential.

    Attributes:
        challenge: Value of the header ``WWW-Authenticate``.
        why: Reason for the audit log only.
    """

    sentence = "The credential is not valid."

    def __init__(self, sentence: str | None = None, challenge: str = "", why: str = "") -> None:
        super().__init__(sentence)
        self.challenge = challenge
        self.why = why


class QuotaExceeded(NotAuthorized):
    """A project that has reached a quota."""


class TooManyRequests(ZqError):
    """A request that exceeds a rate limit. Nothing has changed; the client may retry after ``retry_after`` seconds.

    Attributes:
        limit: Name of the exceeded limit in ``[quota]``.
    """

    def __init__(self, sentence: str | None = None, retry_after: int = 1, limit: str = "") -> None:
        super().__init__(sentence)
        self.retry_after = retry_after
        self.limit = limit


class NotFound(ZqError):
    """A named object that does not exist."""


class QueueNotFound(NotFound):
    """A queue that does not exist in the project."""


class TopicNotFound(NotFound):
    """A topic that does not exist in the project."""


class MessageNotFound(NotFound):
    """A message that does not exist in the queue, or has expired."""


class ClaimNotFound(NotFound):
    """A claim that does not exist in the queue or has expired."""

    sentence = "There is no live claim of this id in the queue."


class SubscriptionNotFound(NotFound):
    """A subscription that does not exist, has expired, or belongs to another source."""

    sentence = "There is no such subscription."


class StageNotFound(NotFound):
    """A stage that does not exist in the project, was dropped, or has expired."""

    @classmethod
    def of(cls, stage: str) -> Self:
        return cls(f"There is no stage {stage} in the project; nothing has changed.")


class ProducerNotFound(NotFound):
    """A producer that has not committed yet, or whose last commit is not remembered any more."""

    sentence = "The producer has not committed anything, or its last commit is no longer remembered."


class StageFull(Invalid):
    """A stage that would exceed its limit of bytes or messages."""

    sentence = "The stage would exceed its limit."


class KeyReused(ZqError):
    """An Idempotency-Key that was used before for a different request."""

    sentence = "The Idempotency-Key was used before for a different request."


class Conflict(ZqError):
    """A request that conflicts with a concurrent change."""


class SubscriptionExists(Conflict):
    """A subscription that already exists for the subscriber."""


class NotAgreed(Conflict):
    """A delivery to a subscriber that has not confirmed the subscription."""

    sentence = "The subscriber has not confirmed the subscription, so nothing is delivered to it."


class QueuePaused(Conflict):
    """A post to a queue whose posts are paused. Nothing has changed."""

    @classmethod
    def of(cls, queue: str) -> Self:
        return cls(f"Posts to the queue {queue} are paused (_paused); nothing has changed.")


class Fenced(Conflict):
    """A request with an outdated epoch of a fence. Its sender must stop."""

    sentence = "The fence has a newer epoch, or this epoch was never assigned."


class ClaimLapsed(Conflict):
    """A commit of a claim that has expired or holds no messages. Nothing has changed."""

    @classmethod
    def of(cls, claim: str) -> Self:
        return cls(f"The claim {claim} is no longer live, or holds no messages; nothing has changed.")


class StageDiffers(Conflict):
    """A commit of a stage that has more or fewer messages than the commit expects. Nothing has changed."""

    @classmethod
    def of(cls, stage: str, count: int, expected: int) -> Self:
        return cls(f"The stage {stage} has {count} messages, but {expected} are expected; nothing has changed.")


class CommitTooLarge(ZqError):
    """A commit that exceeds the message limit. Nothing has changed."""

    @classmethod
    def of(cls, count: int, most: int) -> Self:
        return cls(f"A commit may publish and delete at most {most} messages in total, not {count}.")


class CommitRunning(Conflict):
    """A commit that must wait for another commit of the producer, or for one with a stage in common."""

    sentence = "Another commit of the producer, or with one of the stages, is still running. Try again soon."


class Repeated(ZqError):
    """A signal, not a refusal: an earlier request with the same idempotency key has been applied.

    Attributes:
        answer: Result of the earlier request.
        last: Sequence of the last message of the earlier post; 0 = unknown.
    """

    def __init__(self, answer: Any, last: int = 0) -> None:
        super().__init__("The request was already applied.")
        self.answer = answer
        self.last = last


class DraftsRepeated(ZqError):
    """A signal, not a refusal: an earlier post already contained some of the drafts. Nothing was stored.

    Attributes:
        first: The earlier result for each of these drafts, by id.
    """

    def __init__(self, first: Mapping[str, Repeated]) -> None:
        super().__init__("Some of the drafts were already posted.")
        self.first = first


class OtherMetadata(ZqError):
    """A signal, not a refusal: a queue's metadata differs from the expected metadata. Nothing has changed.

    Attributes:
        metadata: The current metadata.
    """

    def __init__(self, metadata: bytes) -> None:
        super().__init__("The queue's metadata differs from the expected metadata.")
        self.metadata = metadata


class MetadataConflict(ZqError):
    """A patch that replaces or removes a missing metadata key, or a change that lost against concurrent ones."""


class MessageClaimed(ZqError):
    """A message of a live claim, which the request did not name."""

    sentence = "The message is held by a claim that was not given as claim_id."


class ClaimNotHeld(Invalid):
    """A claim to which the message does not belong."""

    sentence = "A claim given as claim_id or claim_ids does not hold the message; nothing was deleted."


class PoolsApart(Invalid):
    """An atomic operation on queues in different pools."""


class PoolNotFound(NotFound):
    """A pool that does not exist."""


class FlavorNotFound(NotFound):
    """A flavor that does not exist in the project."""


class PoolRefused(Invalid):
    """A pool with invalid properties."""


class FlavorRefused(Invalid):
    """A new flavor that names a missing pool."""


class FlavorUpdateRefused(Invalid):
    """An update of a flavor that names a missing pool."""


class PoolInUse(NotAuthorized):
    """A pool that cannot be deleted, because it has queues or is the only pool of its flavor."""


class PoolConflict(Conflict):
    """A pool whose store belongs to another pool, or cannot be changed at present."""


class NotBuilt(ZqError):
    """A part of the API that this server does not support."""


class Unavailable(ZqError):
    """A store that is temporarily unavailable. The cause is chained, for the log only."""

    sentence = "The store is temporarily unavailable. Try again later."


class Deposed(Unavailable):
    """A store that another server has taken over. This process cannot use it again."""

    sentence = "Another server has taken over this store. Use that server."


class StoreDamaged(Unavailable):
    """A request that reads corrupt data of the store. Retries do not help.

    The cause is chained, for the log only.
    """


class MessageUnreadable(StoreDamaged):
    """A message that cannot be decrypted, because its key is missing or the stored body was modified."""

    sentence = "The data for this request is damaged. Retries do not help: the store must be salvaged."


class Crowded(ZqError):
    """A long-running request for which this server has no free slot. Retry later or on another server."""


class StartRefused(ZqError):
    """A configuration with which the server refuses to start. The sentence says how to fix it."""
