# SPDX-License-Identifier: Apache-2.0
"""Tasks that move the messages of a dead-letter queue in the background, at a rate (SQS contract 10).

The documents, as JSON:

    ("", "sqs-task", project/queue)          the task of that queue that is under way: one at most
    (project, "sqs-task", queue/moment)      one that has ended, for a while; the latest comes first

A task is carried on by whichever server leases it; one that is killed loses it when the lease ends. Each step writes
what was done, if nobody else has written since. What a lost server had moved is not moved again, for a move is one
step of the store per message; only the count of what was moved may fall short then.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Final
from uuid import uuid4

import msgspec
from msgspec import Struct, structs

from zq.clock import Clock
from zq.core.rules import RulesCache
from zq.errors import Conflict, NotFound, Unavailable
from zq.events import Events
from zq.model import ListFilter, Message, Move, Outcome, QueueRef, Seconds
from zq.model.documents import Document, DocumentRef
from zq.storage.api import Storage

# The kind of the documents.
TASK: Final = "sqs-task"
# Seconds of a lease; each step begins it anew.
LEASE: Final = 10.0
# Messages that a step moves, of a task without a rate. A step is made every second.
UNRATED: Final = 1000
# Messages, and bytes of their bodies, that are read and moved at a time.
CHUNK: Final = 100
CHUNK_BYTES: Final = 4_000_000
# Tasks that are carried on in one round, and seconds after which the rest of them waits for the next one.
MOST: Final = 100
ROUND: Final = 1.0
# Tasks of a queue that have ended and are kept, and for how many seconds.
KEPT: Final = 10
KEPT_FOR: Final = 30 * 86_400
# Seconds by which stores round moments.
ROUNDING: Final = 0.001
# Microseconds above all moments: until the year 9999.
END: Final = 253_402_300_800_000_000
TRIES: Final = 20


class TaskStatus(StrEnum):
    """The states of a task, by SQS's names."""

    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


ENDED: Final = frozenset({TaskStatus.CANCELLED, TaskStatus.COMPLETED, TaskStatus.FAILED})


class Failure(StrEnum):
    """The reason for the failure of a task."""

    NO_DESTINATION = "AWS.SimpleQueueService.NonExistentQueue"
    NO_ORIGIN = "CouldNotDetermineMessageSource"


class MoveTask(Struct, frozen=True, omit_defaults=True):
    """A task. ``destination`` "": each message goes to where it came from; ``rate``: messages a second, 0 = any number.

    ``to_move``: how many were ready at the start, maybe counted to a bound; ``marker``: up to where they were looked
    at; ``runner`` has it until ``lease``.
    """

    id: str
    project: str
    source: str
    destination: str
    rate: int
    started: Seconds
    to_move: int
    status: TaskStatus = TaskStatus.RUNNING
    moved: int = 0
    marker: int = 0
    reason: str = ""
    runner: str = ""
    lease: Seconds = 0.0

    @property
    def queue(self) -> QueueRef:
        """Return the queue whose messages are moved."""
        return QueueRef(self.project, self.source)


_decode: Final = msgspec.json.Decoder(MoveTask).decode
_encode: Final = msgspec.json.Encoder().encode


class MoveTasks:
    """The move tasks of all projects."""

    def __init__(self, storage: Storage, clock: Clock, rules_cache: RulesCache, events: Events) -> None:
        self._storage = storage
        self._documents = storage.documents
        self._clock = clock
        self._rules_cache = rules_cache
        self._events = events
        self._runner = uuid4().hex
        self._after = ""
        """The name of the last task in this round, if others still wait for their step."""

    def start(self, queue: QueueRef, destination: str, rate: int, to_move: int) -> MoveTask:
        """Start to move the queue's messages. Raises ``Conflict`` if a task of the queue is running."""
        now, ref = self._clock.now(), _under_way(queue)
        task = MoveTask(uuid4().hex, queue.project, queue.name, destination, rate, now, to_move)
        if (former := self._documents.get(ref, now)) is not None:
            self._keep_if_ended(former, _decode(former.value))
        if not self._documents.put(ref, _encode(task), now, expected=""):
            raise Conflict("A task of the queue is under way.")
        return task

    def latest(self, queue: QueueRef, most: int) -> Sequence[MoveTask]:
        """Return the queue's tasks, the latest first."""
        now = self._clock.now()
        running = self._documents.get(_under_way(queue), now)
        ended = self._documents.list(queue.project, TASK, f"{queue.name}/", "", most, now).items
        found = [_decode(document.value) for document in ([running] if running else [])]
        ids = {task.id for task in found}
        return [*found, *(task for task in map(_read, ended) if task.id not in ids)][:most]

    def cancel(self, queue: QueueRef, id: str) -> MoveTask:
        """Cancel the task before its next step. Raises ``NotFound`` if it is not running."""
        task = self._change(queue, id, lambda task: structs.replace(task, status=TaskStatus.CANCELLING))
        if task is None:
            raise NotFound("There is no such task.")
        return task

    def resume(self) -> None:
        """Make a step of every task that no other server leases, within a second. Call this every second."""
        began = time.monotonic()
        page = self._documents.list("", TASK, "", self._after, MOST, self._clock.now())
        self._after = page.items[-1].ref.name if len(page.items) == MOST else ""
        for document in page.items:
            with suppress(Unavailable):  # of one store of several; its tasks go on when it is back
                self._step(document)
            if time.monotonic() - began > ROUND:
                self._after = document.ref.name
                break

    def _step(self, document: Document) -> None:
        task, now = _decode(document.value), self._clock.now()
        if self._keep_if_ended(document, task) or (task.runner != self._runner and task.lease > now):
            return
        leased = structs.replace(task, runner=self._runner, lease=now + LEASE)
        mine = task.runner == self._runner and task.lease > now
        if not (mine or self._documents.put(document.ref, _encode(leased), now, expected=document.version)):
            return
        done = leased if task.status is TaskStatus.CANCELLING else self._moved(leased)

        def advanced(current: MoveTask) -> MoveTask:
            status = done.status
            if current.status is TaskStatus.CANCELLING and status not in ENDED:
                status = TaskStatus.CANCELLED
            return structs.replace(done, status=status, lease=self._clock.now() + LEASE)

        written = self._change(task.queue, task.id, advanced, self._runner)
        if written is not None and written.status in ENDED and (last := self._documents.get(document.ref, now)):
            self._keep_if_ended(last, _decode(last.value))

    def _moved(self, task: MoveTask) -> MoveTask:
        """Move as many messages as one step may, and return the task afterwards."""
        left = task.rate or UNRATED
        while left > 0 and task.status is TaskStatus.RUNNING:
            now = self._clock.now()
            page = self._storage.messages.list(
                task.queue, task.marker, min(CHUNK, left), ListFilter(), now, CHUNK_BYTES
            )
            due = [message for message in page.items if message.available <= task.started + ROUNDING]
            moves, failure = self._moves(task, due)
            if moves is None:
                break  # no posts are taken there now
            if moves:
                history = self._rules_cache.recent(task.queue).history_ttl
                self._rules_cache.admit_moves(task.queue, moves, now)
                went = len(self._storage.messages.move(task.queue, moves, now, history))
                self._events.finished(task.queue, Outcome.MOVED, went)
                task = structs.replace(task, moved=task.moved + went)
            if failure is not None:
                return structs.replace(task, status=TaskStatus.FAILED, reason=str(failure))
            if page.next is None:
                return structs.replace(task, status=TaskStatus.COMPLETED)
            task = structs.replace(task, marker=int(page.next))
            left -= len(page.items)
        return task

    def _moves(self, task: MoveTask, messages: Sequence[Message]) -> tuple[list[Move] | None, Failure | None]:
        """Return moves of the messages before the first one without a target, and the reason why it has none.

        None instead of moves: posts to the target are paused.
        """
        moves: list[Move] = []
        for message in messages:
            name = task.destination or message.origin
            if not name:
                return moves, Failure.NO_ORIGIN
            target = QueueRef(task.project, name)
            if not moves or moves[-1].to != name:
                if self._storage.queues.get(target) is None:
                    return moves, Failure.NO_DESTINATION
                if self._rules_cache.recent(target).posts_paused:
                    return None, None
            moves.append(Move(message.id, name, keeps_age=True))
        return moves, None

    def _change(
        self, queue: QueueRef, id: str, edit: Callable[[MoveTask], MoveTask], runner: str | None = None
    ) -> MoveTask | None:
        """The task under way as it is then, if it has this id and has not ended; None if it has. ``runner``: only if
        this one has it."""
        for _ in range(TRIES):
            now = self._clock.now()
            document = self._documents.get(_under_way(queue), now)
            task = _decode(document.value) if document else None
            if document is None or task is None or task.id != id or task.status in ENDED:
                return None
            if runner is not None and task.runner != runner:
                return None
            edited = edit(task)
            if self._documents.put(document.ref, _encode(edited), now, expected=document.version):
                return edited
        raise Conflict("Others change the task at the same time. Try again.")

    def _keep_if_ended(self, document: Document, task: MoveTask) -> bool:
        """Move an ended task to the tasks that are kept. Return whether it has ended. Idempotent."""
        if task.status not in ENDED:
            return False
        now = self._clock.now()
        name = f"{task.source}/{END - int(task.started * 1_000_000):018d}"
        self._documents.put(DocumentRef(task.project, TASK, name), document.value, now, expires=now + KEPT_FOR)
        self._documents.delete(document.ref, now, expected=document.version)
        for old in self._documents.list(task.project, TASK, f"{task.source}/", "", 2 * KEPT, now).items[KEPT:]:
            self._documents.delete(old.ref, now)
        return True


def _under_way(queue: QueueRef) -> DocumentRef:
    return DocumentRef("", TASK, f"{queue.project}/{queue.name}")


def _read(document: Document) -> MoveTask:
    return _decode(document.value)
