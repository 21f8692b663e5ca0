# SPDX-License-Identifier: Apache-2.0
"""All expected errors of zq, shared by server, client and command line.

``str(error)`` is one sentence for the caller. It names the field and the bound, and never contains a message body, a
credential or text of a vendor's library. ``zq.wire.refusals`` maps errors to HTTP statuses.
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
    """The request is well-formed but violates a rule or limit."""


class InvalidBody(Invalid):
    """The body cannot be parsed, or has a missing, mistyped or forbidden member."""


class InvalidParameter(Invalid):
    """A query parameter has the wrong type or an invalid value."""


class InvalidName(Invalid):
    """The queue name or project id is not valid."""


class InvalidTopicName(InvalidName):
    """The topic name, or the project id of a topic, is not valid."""


class InvalidHeader(Invalid):
    """A request header is missing or malformed."""

    def __init__(self, title: str, sentence: str) -> None:
        super().__init__(sentence)
        self.title = title


class UnsupportedMediaType(ZqError):
    """The body has a format that the route does not support."""


class NotAuthorized(ZqError):
    """The caller's roles, or the scopes of the credential, do not permit the operation."""


class ProjectInactive(NotAuthorized):
    """The project is suspended, or it is read-only and the request changes something."""


class NotAuthenticated(NotAuthorized):
    """The request has no valid credential.

    Attributes:
        why: The reason, which appears only in the audit log.
    """

    sentence = "The credential is not valid."

    def __init__(self, sentence: str | None = None, challenge: str = "", reason: str = "") -> None:
        super().__init__(sentence)
        self.challenge = challenge
        self.why = reason


class QuotaExceeded(NotAuthorized):
    """The project has reached a quota.

    Attributes:
        limit: Name of the option in ``[quota]`` that sets the quota, or "" if no option sets the quota.
    """

    def __init__(self, sentence: str | None = None, limit: str = "") -> None:
        super().__init__(sentence)
        self.limit = limit


class TooManyRequests(ZqError):
    """The request exceeds a rate limit. Nothing has changed; the client may retry after ``retry_after`` seconds."""

    def __init__(self, sentence: str | None = None, retry_after: int = 1, limit: str = "") -> None:
        super().__init__(sentence)
        self.retry_after = retry_after
        self.limit = limit


class NotFound(ZqError):
    """The named object does not exist."""


class QueueNotFound(NotFound):
    """The queue does not exist in the project."""


class TopicNotFound(NotFound):
    """The topic does not exist in the project."""


class MessageNotFound(NotFound):
    """The message does not exist in the queue, or has expired."""


class ClaimNotFound(NotFound):
    """The claim does not exist in the queue, or has expired."""

    sentence = "The queue has no active claim with this id."


class SubscriptionNotFound(NotFound):
    """The subscription does not exist, has expired, or belongs to another queue or topic."""

    sentence = "There is no such subscription."


class StageNotFound(NotFound):
    """The transaction stage does not exist in the project, was dropped, or has expired."""

    @classmethod
    def of(cls, stage: str) -> Self:
        return cls(f"There is no stage {stage} in the project; nothing has changed.")


class ProducerNotFound(NotFound):
    """The transactional producer has not committed yet, or the record of its last commit has expired."""

    sentence = "The producer has not committed yet, or its last commit has expired."


class StageFull(Invalid):
    """The request would add more bytes or messages to a transaction stage than its limit allows."""

    sentence = "The stage would exceed its limit."


class KeyReused(ZqError):
    """The Idempotency-Key was used before for a different request."""

    sentence = "The Idempotency-Key was used before for a different request."


class Conflict(ZqError):
    """The request conflicts with a concurrent change."""


class SubscriptionExists(Conflict):
    """The subscriber already has a subscription."""


class NotAgreed(Conflict):
    """The subscriber has not confirmed the subscription, so nothing is delivered to it."""

    sentence = "The subscriber has not confirmed the subscription, so nothing is delivered to it."


class QueuePaused(Conflict):
    """Posts to the queue are paused. Nothing has changed."""

    @classmethod
    def of(cls, queue: str) -> Self:
        return cls(f"Posts to the queue {queue} are paused (_paused); nothing has changed.")


class Fenced(Conflict):
    """The fencing token of the request is outdated or was never assigned. The sender of the request must stop.

    A fencing token consists of the name of a fence and a number, the epoch.
    """

    sentence = "The fence has a newer epoch, or this epoch was never assigned."


class ClaimLapsed(Conflict):
    """The commit settles a claim that has expired or holds no messages. Nothing has changed."""

    @classmethod
    def of(cls, claim: str) -> Self:
        return cls(f"The claim {claim} has ended or has no messages; nothing has changed.")


class StageDiffers(Conflict):
    """The commit publishes a stage with an unexpected number of messages. Nothing has changed.

    A stage is a group of messages that become visible together when a commit publishes them.
    """

    @classmethod
    def of(cls, stage: str, count: int, expected: int) -> Self:
        return cls(f"The stage {stage} has {count} messages, but {expected} are expected; nothing has changed.")


class CommitTooLarge(ZqError):
    """The commit exceeds the message limit. Nothing has changed."""

    @classmethod
    def of(cls, count: int, max_messages: int) -> Self:
        return cls(f"A commit may publish and delete at most {max_messages} messages in total, not {count}.")


class CommitRunning(Conflict):
    """Another commit of the same producer, or another commit that publishes one of the stages, is still running."""

    sentence = "Another commit of the producer, or of one of the stages, is still running. Try again soon."


class Repeated(ZqError):
    """A signal to the caller: an earlier request with the same idempotency key has been applied."""

    def __init__(self, answer: Any, last: int = 0) -> None:
        super().__init__("The request was already applied.")
        self.answer = answer
        self.last = last


class DraftsRepeated(ZqError):
    """A signal to the caller: an earlier request has already posted some of the messages. Nothing was stored."""

    def __init__(self, first: Mapping[str, Repeated]) -> None:
        super().__init__("Some of the drafts were already posted.")
        self.first = first


class OtherMetadata(ZqError):
    """A signal to the caller: a queue's metadata differs from the expected metadata. Nothing has changed."""

    def __init__(self, metadata: bytes) -> None:
        super().__init__("The queue's metadata differs from the expected metadata.")
        self.metadata = metadata


class MetadataConflict(ZqError):
    """The change conflicts with the stored state.

    The metadata key to patch does not exist, the attribute can be set only at creation, or another request has changed
    the object.
    """


class MessageClaimed(ZqError):
    """The message belongs to a live claim that the request did not name."""

    sentence = "The message is claimed: to delete it, send the id of its claim as claim_id."


class ClaimNotHeld(Invalid):
    """The message does not belong to the claim that the request named."""

    sentence = "The message is not in the claim that claim_id or claim_ids names; nothing was deleted."


class PoolsApart(Invalid):
    """The queues of an atomic operation are in different storage pools."""


class PoolNotFound(NotFound):
    """The pool does not exist."""


class FlavorNotFound(NotFound):
    """The flavor does not exist in the project."""


class PoolRefused(Invalid):
    """The store of the pool is not allowed, cannot be used, or does not fit the pool's flavor."""


class FlavorRefused(Invalid):
    """The flavor cannot be created: a pool does not exist, or the pools of the flavor have different capabilities."""


class FlavorUpdateRefused(Invalid):
    """The flavor cannot be updated: a pool does not exist, or the pools of the flavor have different capabilities."""


class PoolInUse(NotAuthorized):
    """The pool cannot be deleted, because it has queues or is the only pool of its flavor."""


class PoolConflict(Conflict):
    """The store of the pool belongs to another pool, or cannot be changed while the pool has queues."""


class MoveNotFound(NotFound):
    """The id does not belong to a move of a queue to this pool."""

    sentence = "The pool has no move with this id."


class MoveRefused(Conflict):
    """The queue cannot move to the pool, or the move cannot be cancelled."""


class NotBuilt(ZqError):
    """This server does not support the requested part of the API."""


class Unavailable(ZqError):
    """The store is temporarily unavailable. The original error (``__cause__``) is intended only for the log."""

    sentence = "The store is temporarily unavailable. Try again later."


class Deposed(Unavailable):
    """Another process has opened the store. This process must end, because its state in memory is out of date."""

    sentence = "Another server has taken over this store. Use that server."


class StoreDamaged(Unavailable):
    """The request reads corrupt data in the store, so retries do not help."""


class MessageUnreadable(StoreDamaged):
    """The message cannot be decrypted: its key is missing, or the stored body was modified."""

    sentence = "The data for this request is damaged. Retries do not help: the store must be salvaged."


class Crowded(ZqError):
    """This server has no free slot for a long-running request. The client may retry later or use another server."""


class Restricted(Unavailable):
    """The mode of the service, or the move of a queue, forbids the request for now. The request had no effect."""

    retry_after: ClassVar[int] = 5


class ReadOnly(Restricted):
    """The service accepts no changes."""

    sentence = "The mode of this service is read_only, so it accepts no changes; nothing has changed."


class NoPosts(Restricted):
    """The service accepts no messages, because of its mode or because the store has little free disk space."""


class QueueMoving(Restricted):
    """The queue is being moved to another pool and accepts no changes. Nothing has changed."""

    retry_after: ClassVar[int] = 2

    @classmethod
    def of(cls, queue: str) -> Self:
        return cls(f"The queue {queue} is moving to another pool; nothing has changed. Try again in a few seconds.")


class StartRefused(ZqError):
    """The server refuses to start with this configuration. The message explains how to fix the problem."""
