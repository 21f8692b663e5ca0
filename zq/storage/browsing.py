# SPDX-License-Identifier: Apache-2.0
"""What a driver inherits that has no other way: messages of one state, and a message by its id alone, sought among all
that there is."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from zq.model import (
    Browsed,
    HistoryEntry,
    ListFilter,
    Located,
    Message,
    Outcome,
    Position,
    QueueRef,
    Seconds,
    State,
    portion,
)
from zq.storage.capabilities import Missing

if TYPE_CHECKING:
    from zq.storage.api import MessageController, QueueController, Storage

# Messages, or queues, that are read at a time.
PAGE: Final = 1000
ALL: Final = ListFilter(claimed=True, delayed=True)


def browse(
    controller: "MessageController",
    queue: QueueRef,
    state: State,
    after: Position,
    limit: int,
    now: Seconds,
    most_bytes: int,
) -> Browsed:
    """As ``MessageController.browse``, by all messages of the queue."""
    behind = [
        (position, one)
        for one in _messages(controller, queue, now)
        if (position := position_of(one, state, now)) > after
    ]
    behind.sort(key=lambda item: item[0])
    found = list(portion(behind[:limit], most_bytes, lambda item: item[1].body))
    return Browsed([one for _, one in found], found[-1][0] if found else None)


def position_of(message: Message, state: State, now: Seconds) -> Position:
    """Where it stands among messages of the state; before all places if it is in another one."""
    if message.state(now) != state:
        return Position()
    return Position(0 if state is State.CLAIMED else round(message.available * 1000), message.sequence)


def _messages(controller: "MessageController", queue: QueueRef, now: Seconds) -> Iterator[Message]:
    marker = 0
    while (page := controller.list(queue, marker, PAGE, ALL, now)).next is not None:
        yield from page.items
        marker = int(page.next)


def locate(storage: "Storage", project: str, message: str, now: Seconds) -> Located | None:
    """As ``Storage.locate``, by all queues of the project."""
    for queue in queues(storage.queues, project):
        for found in storage.messages.get(queue, [message], now):
            return Located(queue, HistoryEntry(found))
    return latest(storage, project, message, now)


def latest(storage: "Storage", project: str, message: str, now: Seconds) -> Located | None:
    """The latest record of a message that lives nowhere."""
    if isinstance(storage.history, Missing):
        return None
    return latest_of(
        [
            Located(queue, record)
            for queue in queues(storage.queues, project)
            for record in storage.history.get(queue, [message], now)
        ]
    )


def latest_of(records: Sequence[Located]) -> Located | None:
    """The one that finished last; of one moment the one of a queue that it did not leave for another one."""
    return max(records, key=lambda record: (record.entry.finished, record.entry.outcome in ENDS), default=None)


ENDS: Final = (Outcome.DELETED, Outcome.POPPED)


def queues(controller: "QueueController", project: str) -> Iterator[QueueRef]:
    """All queues of the project."""
    return (queue for page in pages(controller, project) for queue in page)


def pages(controller: "QueueController", project: str) -> Iterator[Sequence[QueueRef]]:
    """The same, some at a time."""
    after = ""
    while (page := controller.list(project, after, PAGE)).next is not None:
        yield [queue.ref for queue in page.items]
        after = page.next
