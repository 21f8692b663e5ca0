# SPDX-License-Identifier: Apache-2.0
"""Every deliberate failure of zq, for the server, the client and the command line.

``str(error)`` is one sentence for the caller: it names the field and the bound, and never holds a message body,
a credential or a vendor's text. ``zq.wire.refusals`` alone knows which status and title an error has on the wire.
"""

from typing import Any


class ZqError(Exception):
    """The root: whatever zq refuses or cannot do on purpose."""


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
    """The caller's roles do not allow the operation."""


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


class StageNotFound(NotFound):
    """No such stage in the project, or it was dropped."""


class ProducerNotFound(NotFound):
    """The producer has committed nothing yet, or not for long."""


class StageFull(Invalid):
    """A stage would hold more bytes than it may."""


class KeyReused(ZqError):
    """The Idempotency-Key was given before, to another request."""


class Conflict(ZqError):
    """The request is against what others have done meanwhile."""


class Fenced(Conflict):
    """A newer epoch of the fence was given out: whoever holds this one must stop."""


class ClaimLapsed(Conflict):
    """A claim that a commit settles is not live any more; nothing has changed."""


class StageDiffers(Conflict):
    """A stage holds another number of messages than the commit expects; nothing has changed."""


class CommitTooLarge(ZqError):
    """A commit is about more messages than one may be; nothing has changed."""


class CommitRunning(Conflict):
    """Another attempt at this producer's commit is under way: try again soon."""


class Repeated(ZqError):
    """No refusal: the request was carried out before under its Idempotency-Key. ``answer``: what it was told then."""

    def __init__(self, answer: Any) -> None:
        super().__init__("The request was carried out before.")
        self.answer = answer


class MetadataConflict(ZqError):
    """A patch replaces or removes a metadata key that is not there."""


class MessageClaimed(ZqError):
    """The message is under a live claim that the caller did not name."""


class ClaimNotHeld(Invalid):
    """The claim that the caller named does not hold the message."""


class NotBuilt(ZqError):
    """Part of the interface, but not of this version of zq."""


class Unavailable(ZqError):
    """The store cannot serve now. The cause is chained, for the log only."""


class StoreDamaged(Unavailable):
    """What the request reads is corrupt in the store's files: trying again does not help. The cause is for the log."""


class Crowded(ZqError):
    """This server has no place left for a request that would hold one for long: try again later, or another server."""


class StartRefused(ZqError):
    """The server must not start like this: what is wrong, and the ways out."""
