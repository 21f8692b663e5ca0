# SPDX-License-Identifier: Apache-2.0
"""Full-scan implementations of ``browse`` and ``locate`` for drivers without a suitable index."""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from zq.model import (
    BrowsePage,
    HistoryEntry,
    ListFilter,
    LocatedMessage,
    Message,
    Messages,
    Outcome,
    Page,
    Position,
    Queue,
    QueueRef,
    Seconds,
    State,
    take_portion,
)
from zq.storage.capabilities import HistoryController, MissingCapability

# Number of messages or queues in one page.
PAGE: Final = 1000
ALL: Final = ListFilter(claimed=True, delayed=True)


class QueueLister(Protocol):
    """The method of ``QueueController`` that a full scan of a project uses."""

    def list(self, project: str, after: str, limit: int) -> Page[Queue]: ...


class MessageReader(Protocol):
    """The methods of ``MessageController`` that a full scan of a queue uses."""

    def list(
        self, queue: QueueRef, marker: int, limit: int, list_filter: ListFilter, now: Seconds
    ) -> Page[Message]: ...

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages: ...


class SearchableStorage(Protocol):
    """The controllers of a ``Storage`` that a full scan of a project uses."""

    @property
    def queues(self) -> QueueLister: ...

    @property
    def messages(self) -> MessageReader: ...

    @property
    def history(self) -> HistoryController: ...


def browse(
    controller: MessageReader,
    queue: QueueRef,
    state: State,
    after: Position,
    limit: int,
    now: Seconds,
    max_bytes: int,
) -> BrowsePage:
    """Implement ``MessageController.browse`` by reading all messages of the queue."""
    behind = [
        (position, one)
        for one in _messages(controller, queue, now)
        if (position := position_of(one, state, now)) > after
    ]
    behind.sort(key=lambda item: item[0])
    found = list(take_portion(behind[:limit], max_bytes, lambda item: item[1].size))
    return BrowsePage([one for _, one in found], found[-1][0] if found else None)


def position_of(message: Message, state: State, now: Seconds) -> Position:
    """Return the message's position in a listing of messages in ``state``.

    If the message is in another state, return the lowest position, which no listing includes.
    """
    if message.state(now) != state:
        return Position()
    return Position(0 if state is State.CLAIMED else round(message.available * 1000), message.sequence)


def _messages(controller: MessageReader, queue: QueueRef, now: Seconds) -> Iterator[Message]:
    marker = 0
    while (page := controller.list(queue, marker, PAGE, ALL, now)).next is not None:
        yield from page.items
        marker = int(page.next)


def locate(storage: SearchableStorage, project: str, message: str, now: Seconds) -> LocatedMessage | None:
    """Implement ``Storage.locate`` by reading all queues of the project."""
    for queue in queues(storage.queues, project):
        for found in storage.messages.get(queue, [message], now):
            return LocatedMessage(queue, HistoryEntry(found))
    return find_latest(storage, project, message, now)


def find_latest(storage: SearchableStorage, project: str, message: str, now: Seconds) -> LocatedMessage | None:
    """Search all queues of the project for history entries of a message, and return the latest entry.

    Return None if there is no entry.
    """
    if isinstance(storage.history, MissingCapability):
        return None
    return select_latest(
        [
            LocatedMessage(queue, record)
            for queue in queues(storage.queues, project)
            for record in storage.history.get(queue, [message], now)
        ]
    )


def select_latest(records: Sequence[LocatedMessage]) -> LocatedMessage | None:
    """Return the history entry with the latest time, or None if there are no entries.

    If several entries have the latest time, prefer an entry for a deletion or a pop to an entry for a move.
    """
    return max(
        records, key=lambda record: (record.entry.finished, record.entry.outcome in FINAL_OUTCOMES), default=None
    )


FINAL_OUTCOMES: Final = (Outcome.DELETED, Outcome.POPPED)


def queues(controller: QueueLister, project: str) -> Iterator[QueueRef]:
    return (queue for page in pages(controller, project) for queue in page)


def pages(controller: QueueLister, project: str) -> Iterator[Sequence[QueueRef]]:
    after = ""
    while (page := controller.list(project, after, PAGE)).next is not None:
        yield [queue.ref for queue in page.items]
        after = page.next
