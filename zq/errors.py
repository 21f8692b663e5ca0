# SPDX-License-Identifier: Apache-2.0
"""Every deliberate failure of zq, for the server, the client and the command line.

``str(error)`` is one sentence for the caller: it names the field and the bound, and never holds a message body,
a credential or a vendor's text. What drivers refuse has the words of its class: ``sentence``, or the class method
``of``, which fills them in. ``zq.wire.refusals`` alone knows which status and title an error has on the wire.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self


class ZqError(Exception):
    """The root: whatever zq refuses or cannot do on purpose."""

    sentence: ClassVar[str] = ""
    """What the error says that is raised without one of its own."""

    def __init__(self, sentence: str | None = None) -> None:
        super().__init__(self.sentence if sentence is None else sentence)


class Invalid(ZqError):
    """A well-formed request that breaks a rule or a bound."""


class InvalidBody(Invalid):
    """A body that cannot be parsed, or has a missing, mistyped or forbidden member."""


class InvalidParameter(Invalid):
    """A query parameter that is not of its type."""


class InvalidName(Invalid):
    """A queue name or a project id outside its rules."""


class InvalidTopicName(InvalidName):
    """A topic name outside its rules, or the project id beside it."""


class InvalidHeader(Invalid):
    """A request header that is missing or malformed."""

    def __init__(self, title: str, sentence: str) -> None:
        super().__init__(sentence)
        self.title = title


class UnsupportedMediaType(ZqError):
    """A body in a format that this verb does not take."""


class NotAuthorized(ZqError):
    """The caller's roles, or the scopes of the credential, do not allow the operation."""


class NotAuthenticated(NotAuthorized):
    """The request has no credential, or one that is not valid. ``challenge``: what ``WWW-Authenticate`` says; ``why``:
    what is wrong with it, for the audit log only."""

    sentence = "The credential is not valid."

    def __init__(self, sentence: str | None = None, challenge: str = "", why: str = "") -> None:
        super().__init__(sentence)
        self.challenge = challenge
        self.why = why


class QuotaExceeded(NotAuthorized):
    """The project has as many of something as it may have."""


class TooManyRequests(ZqError):
    """More requests came in a short time than may: try again in ``retry_after`` seconds. Nothing has changed."""

    def __init__(self, sentence: str | None = None, retry_after: int = 1, limit: str = "") -> None:
        """``limit``: the name in ``[quota]`` of what was exceeded."""
        super().__init__(sentence)
        self.retry_after = retry_after
        self.limit = limit


class NotFound(ZqError):
    """The named thing does not exist, or not any more."""


class QueueNotFound(NotFound):
    """No queue of that name in the project."""


class TopicNotFound(NotFound):
    """No topic of that name in the project."""


class MessageNotFound(NotFound):
    """No such message in the queue, or it has expired."""


class ClaimNotFound(NotFound):
    """No live claim of that id in the queue."""

    sentence = "There is no live claim of this id in the queue."


class SubscriptionNotFound(NotFound):
    """No such subscription, or it has ended, or belongs to another source."""

    sentence = "There is no such subscription."


class StageNotFound(NotFound):
    """No such stage in the project, or it was dropped, or has expired."""

    @classmethod
    def of(cls, stage: str) -> Self:
        return cls(f"There is no stage {stage} in the project; nothing has changed.")


class ProducerNotFound(NotFound):
    """The producer has committed nothing yet, or not for long."""

    sentence = "The producer has committed nothing, or not for long."


class StageFull(Invalid):
    """A stage would hold more bytes or messages than it may."""

    sentence = "The stage would hold more than it may."


class KeyReused(ZqError):
    """The Idempotency-Key was given before, to another request."""

    sentence = "The Idempotency-Key was given before, to another request."


class Conflict(ZqError):
    """The request is against what others have done meanwhile."""


class SubscriptionExists(Conflict):
    """The source has a subscription of that subscriber."""


class NotAgreed(Conflict):
    """Nothing is delivered to the subscriber: it has not agreed."""

    sentence = "The subscriber has not agreed: nothing is delivered to it."


class QueuePaused(Conflict):
    """Posts to the queue are paused; nothing has changed."""

    @classmethod
    def of(cls, queue: str) -> Self:
        return cls(f"Posts to the queue {queue} are paused, by its _paused; nothing has changed.")


class Fenced(Conflict):
    """A newer epoch of the fence was given out: the holder of this one must stop."""

    sentence = "A newer epoch of the fence was given out, or this one never was."


class ClaimLapsed(Conflict):
    """A claim that a commit settles is not live any more; nothing has changed."""

    @classmethod
    def of(cls, claim: str) -> Self:
        return cls(f"The claim {claim} is not live any more, or holds nothing; nothing has changed.")


class StageDiffers(Conflict):
    """A stage holds another number of messages than the commit expects; nothing has changed."""

    @classmethod
    def of(cls, stage: str, count: int, expected: int) -> Self:
        return cls(f"The stage {stage} holds {count} messages, and {expected} are expected; nothing has changed.")


class CommitTooLarge(ZqError):
    """A commit is about more messages than one may be; nothing has changed."""

    @classmethod
    def of(cls, count: int, most: int) -> Self:
        return cls(f"A commit may publish and delete {most} messages together; this one has {count}.")


class CommitRunning(Conflict):
    """Another attempt at this producer's commit, or another commit with one of its stages, is under way."""

    sentence = "A commit of the producer, or with one of the stages, is being carried out: try again soon."


class Repeated(ZqError):
    """No refusal: the request was carried out before under its Idempotency-Key. ``answer``: the answer of that time;
    ``last``: of a post, the sequence that the last of its messages got, 0 if it is not known."""

    def __init__(self, answer: Any, last: int = 0) -> None:
        super().__init__("The request was carried out before.")
        self.answer = answer
        self.last = last


class DraftsRepeated(ZqError):
    """No refusal: some drafts of a post were posted before under their keys; nothing was stored. ``first``: of each of
    them, by its id, what that post was answered."""

    def __init__(self, first: Mapping[str, Repeated]) -> None:
        super().__init__("Some of the drafts were posted before.")
        self.first = first


class OtherMetadata(ZqError):
    """No refusal: the metadata of a queue are not those that the server expected; nothing has changed. ``metadata``:
    what they are."""

    def __init__(self, metadata: bytes) -> None:
        super().__init__("The queue's metadata are others than the server expected.")
        self.metadata = metadata


class MetadataConflict(ZqError):
    """A patch replaces or removes a metadata key that is not there."""


class MessageClaimed(ZqError):
    """The message is under a live claim that the caller did not name."""

    sentence = "The message is held by a claim that was not given as claim_id."


class ClaimNotHeld(Invalid):
    """The claim that the caller named does not hold the message."""

    sentence = "A claim given as claim_id or claim_ids does not hold the message; nothing was deleted."


class PoolsApart(Invalid):
    """What was asked for is about queues of two pools, and cannot be one step."""


class PoolNotFound(NotFound):
    """No pool of that name."""


class FlavorNotFound(NotFound):
    """No flavor of that name in the project."""


class PoolRefused(Invalid):
    """A pool that cannot be like this."""


class FlavorRefused(Invalid):
    """A new flavor that names a pool which does not exist."""


class FlavorUpdateRefused(Invalid):
    """The same of a flavor that is there."""


class PoolInUse(NotAuthorized):
    """A pool that must not go now."""


class PoolConflict(Conflict):
    """A pool's store is that of another one, or must not change now."""


class NotBuilt(ZqError):
    """Part of the interface, but not of this version of zq."""


class Unavailable(ZqError):
    """The store cannot serve now. The cause is chained, for the log only."""

    sentence = "The store cannot serve now. Try again later."


class Deposed(Unavailable):
    """Another server has taken the store over: this process can never serve it again."""

    sentence = "Another server owns this store now. Ask that one."


class StoreDamaged(Unavailable):
    """What the request reads is corrupt in the store's files: trying again does not help. The cause is for the log."""


class MessageUnreadable(StoreDamaged):
    """The body of a message is encrypted and cannot be opened: its key is missing, or it was changed in the store."""

    sentence = "The store is damaged where this request reads. Trying again does not help: it must be salvaged."


class Crowded(ZqError):
    """This server has no place left for a request that would hold one for long: try again later, or another server."""


class StartRefused(ZqError):
    """The server must not start like this: what is wrong, and the ways out."""
