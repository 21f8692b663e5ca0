# SPDX-License-Identifier: Apache-2.0
"""Parcels: the stored data of a project as a sequence of records that do not depend on the driver.

``zq-server migrate`` copies parcels between stores. Parcels contain everything that a client can observe, except
claims: a claimed message becomes available when its claim would have ended. Each new kind of stored data needs a
parcel; otherwise, a migration loses the data.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from zq.model import UNBOUNDED, Grouping, HistoryEntry, Message, Seconds, SettleResult
from zq.model.documents import Document, DocumentRef
from zq.model.topics import Batch

# Value of ``KeyParcel.queue`` for the idempotency keys of the topic log. No queue has this name.
LOG: Final = ""
# The result of the first request with an idempotency key: the ids of a post, the result of a settlement, or the first
# sequence number of a publish operation.
Answer = list[str] | SettleResult | int
T = TypeVar("T")


class Counters(NamedTuple):
    """The counters of a queue.

    Attributes:
        fresh: Available-at time of the last message that was posted without a delay.
        position: The last position in the history.
        finished: Time of the last history entry.
    """

    sequence: int = 0
    fresh: Seconds = 0.0
    position: int = 0
    finished: Seconds = 0.0


class QueueParcel(Struct, frozen=True):
    """The exported form of a queue, without messages.

    If ``metadata`` is None, the queue does not exist, but the store contains idempotency keys for its name.
    """

    queue: str
    metadata: bytes | None
    grouping: Grouping = Grouping.NONE
    counters: Counters = Counters()


class MessageParcel(Struct, frozen=True):
    """The exported form of a live message. Claims are not exported, so ``message.claim`` is ""."""

    queue: str
    message: Message


class HistoryParcel(Struct, frozen=True):
    """The exported form of a history entry: a finished message that the queue keeps."""

    queue: str
    entry: HistoryEntry


class KeyParcel(Struct, frozen=True):
    """The exported form of an idempotency key. ``queue`` is the queue of the key, or ``LOG`` for the topic log.

    If the key belongs to a post, ``last`` is the sequence number of the last posted message. Otherwise, it is 0.
    """

    queue: str
    key: str
    digest: bytes
    expires: Seconds
    answer: Answer
    last: int = 0


class LogParcel(Struct, frozen=True):
    """The exported state of the project's topic log.

    Attributes:
        dropped: Sequence number of the last trimmed message.
        messages: Number of messages that were published and not trimmed.
    """

    last: int
    dropped: int
    messages: int
    bytes: int


class BatchParcel(Struct, frozen=True):
    """A batch of the topic log.

    ``messages`` and ``bytes`` are the totals of all earlier batches in the log.
    """

    batch: Batch
    messages: int
    bytes: int


class DocumentParcel(Struct, frozen=True):
    """The exported form of a document, with its version."""

    kind: str
    name: str
    value: bytes
    version: str
    expires: Seconds | None

    def of(self, project: str) -> Document:
        """Return the document, which belongs to the given project."""
        return Document(DocumentRef(project, self.kind, self.name), self.value, self.version, self.expires)


class FenceParcel(Struct, frozen=True):
    """The exported form of a fence. ``advanced`` is the time at which its epoch began; None = unknown."""

    fence: str
    epoch: int
    advanced: Seconds | None


class ProducerParcel(Struct, frozen=True):
    """The exported form of a producer. ``decided`` is the time of its last commit; None = unknown."""

    producer: str
    batch: int
    published: int
    deleted: int
    decided: Seconds | None
    expires: Seconds


Parcel = (
    QueueParcel
    | MessageParcel
    | HistoryParcel
    | KeyParcel
    | LogParcel
    | BatchParcel
    | DocumentParcel
    | FenceParcel
    | ProducerParcel
)


class StoredItem(NamedTuple):
    """An item of a project, such as a message. ``content`` is everything that a client can observe of the item."""

    kind: str
    content: object
    expires: Seconds


def facts(parcel: Parcel, now: Seconds) -> Iterator[StoredItem]:
    """Yield a parcel's unexpired items, such as messages, in a form that does not depend on the store.

    Sequence counters are omitted, because stores may skip different sequence numbers.
    """
    match parcel:
        case QueueParcel(queue=queue, metadata=metadata, grouping=grouping):
            if metadata is not None:
                yield StoredItem("queues", (queue, metadata, str(grouping)), expiry_of(parcel))
        case LogParcel(dropped=dropped):
            yield StoredItem("topic logs", dropped, expiry_of(parcel))
        case BatchParcel(batch=batch):
            for message in batch.messages(0, now):
                yield StoredItem("topic messages", message, message.created + message.entry.ttl)
        case _:
            yield StoredItem(KINDS[type(parcel)], parcel, expiry_of(parcel))


KINDS: Final[dict[type[Parcel], str]] = {
    MessageParcel: "messages",
    HistoryParcel: "history entries",
    KeyParcel: "idempotency keys",
    DocumentParcel: "records",
    FenceParcel: "fences",
    ProducerParcel: "producers",
}


def only(kind: type[T], parcels: Sequence[Parcel]) -> list[T]:
    """Return the parcels of one kind."""
    return [one for one in parcels if isinstance(one, kind)]


def size_of(parcel: Parcel) -> int:
    """Return the approximate size of a parcel in bytes."""
    match parcel:
        case MessageParcel(message=message) | HistoryParcel(entry=HistoryEntry(message=message)):
            return message.size
        case BatchParcel(batch=batch):
            return batch.size
        case DocumentParcel(value=value):
            return len(value)
    return 0


def expiry_of(parcel: Parcel) -> Seconds:
    """Return the time at which a parcel expires, or ``UNBOUNDED`` if it never expires."""
    match parcel:
        case MessageParcel(message=message):
            return message.expires
        case HistoryParcel(entry=entry):
            return entry.expires
        case BatchParcel(batch=batch):
            return batch.created + max(entry.ttl for entry in batch.entries)
        case KeyParcel(expires=expires) | ProducerParcel(expires=expires):
            return expires
        case DocumentParcel(expires=expires) if expires is not None:
            return expires
    return float(UNBOUNDED)
