# SPDX-License-Identifier: Apache-2.0
"""Tasks that move the messages of a dead-letter queue in the background, at a limited rate (SQS contract 10).

The tasks are JSON documents:

    ("", "sqs-task", project/queue)          the queue's running task; a queue has at most one
    (project, "sqs-task", queue/moment)      an ended task, kept for a time; the latest task is listed first

The server that holds a task's lease runs the task. If that server is killed, another server continues when the lease
expires. Each step writes its progress if the document's version is unchanged.

The store moves each message atomically, so no message is moved twice. Only the count of moved messages may be too low
after a server was killed.
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
# The duration of a lease in seconds. Each step renews it.
LEASE: Final = 10.0
# The messages that one step of a task without a rate limit moves. A step runs every second.
UNRATED: Final = 1000
# The maximum number of messages that are read and moved at a time, and the maximum bytes of their bodies.
CHUNK: Final = 100
CHUNK_BYTES: Final = 4_000_000
# The maximum number of tasks in one round, and the seconds after which a round ends. The next round continues there.
MAX_TASKS: Final = 100
ROUND: Final = 1.0
# The number of ended tasks of a queue that are kept, and their retention in seconds.
KEPT: Final = 10
KEPT_FOR: Final = 30 * 86_400
# The precision of moments in stores, in seconds.
ROUNDING: Final = 0.001
# A moment after all others in microseconds: the end of the year 9999.
END: Final = 253_402_300_800_000_000
TRIES: Final = 20


class TaskStatus(StrEnum):
    """The states of a task, with the names of SQS."""

    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


ENDED: Final = frozenset({TaskStatus.CANCELLED, TaskStatus.COMPLETED, TaskStatus.FAILED})


class Failure(StrEnum):
    """The reasons for the failure of a task."""

    NO_DESTINATION = "AWS.SimpleQueueService.NonExistentQueue"
    NO_ORIGIN = "CouldNotDetermineMessageSource"


class MoveTask(Struct, frozen=True, omit_defaults=True):
    """A move task.

    Args:
        destination: The queue to which messages are moved; "" = the queue from which each message came.
        rate: The maximum number of messages per second; 0 = unlimited.
        to_move: The number of ready messages at the start; counting may stop at a limit.
        marker: The position in the source queue from which the next step continues.
        reason: The reason for a failure.
        runner: The id of the server that holds the lease.
        lease: The moment at which the lease expires.
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
        """Return the source queue."""
        return QueueRef(self.project, self.source)


_decode: Final = msgspec.json.Decoder(MoveTask).decode
_encode: Final = msgspec.json.Encoder().encode


class MoveTasks:
    """The use cases of move tasks, and their execution in the background."""

    def __init__(self, storage: Storage, clock: Clock, rules_cache: RulesCache, events: Events) -> None:
        self._storage = storage
        self._documents = storage.documents
        self._clock = clock
        self._rules_cache = rules_cache
        self._events = events
        self._runner = uuid4().hex
        self._after = ""
        """The name of the task after which the next round continues; "" = the next round begins with the first task."""

    def start(self, queue: QueueRef, destination: str, rate: int, to_move: int) -> MoveTask:
        """Create a task that moves the queue's messages. Raises ``Conflict`` if a task of the queue is running."""
        now, ref = self._clock.now(), _under_way(queue)
        task = MoveTask(uuid4().hex, queue.project, queue.name, destination, rate, now, to_move)
        if (former := self._documents.get(ref, now)) is not None:
            self._keep_if_ended(former, _decode(former.value))
        if not self._documents.put(ref, _encode(task), now, expected=""):
            raise Conflict("A task of the queue is under way.")
        return task

    def latest(self, queue: QueueRef, most: int) -> Sequence[MoveTask]:
        """Return up to ``most`` tasks of the queue, the latest first."""
        now = self._clock.now()
        running = self._documents.get(_under_way(queue), now)
        ended = self._documents.list(queue.project, TASK, f"{queue.name}/", "", most, now).items
        found = [_decode(document.value) for document in ([running] if running else [])]
        ids = {task.id for task in found}
        return [*found, *(task for task in map(_read, ended) if task.id not in ids)][:most]

    def cancel(self, queue: QueueRef, id: str) -> MoveTask:
        """Cancel the task before its next step, and return it. Raises ``NotFound`` if it is not running."""
        task = self._change(queue, id, lambda task: structs.replace(task, status=TaskStatus.CANCELLING))
        if task is None:
            raise NotFound("There is no such task.")
        return task

    def resume(self) -> None:
        """Run one step of every task that no other server has leased. Call this every second.

        The round ends after ``ROUND`` seconds or ``MAX_TASKS`` tasks. The next call continues with the remaining tasks.
        """
        began = time.monotonic()
        page = self._documents.list("", TASK, "", self._after, MAX_TASKS, self._clock.now())
        self._after = page.items[-1].ref.name if len(page.items) == MAX_TASKS else ""
        for document in page.items:
            with suppress(Unavailable):  # a pool is unavailable; its tasks continue when it is available again
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
        """Move the messages of one step, and return the task with its progress."""
        left = task.rate or UNRATED
        while left > 0 and task.status is TaskStatus.RUNNING:
            now = self._clock.now()
            page = self._storage.messages.list(
                task.queue, task.marker, min(CHUNK, left), ListFilter(), now, CHUNK_BYTES
            )
            due = [message for message in page.items if message.available <= task.started + ROUNDING]
            moves, failure = self._moves(task, due)
            if moves is None:
                break  # posts to the target are paused
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
        """Return the moves of the messages up to the first one without a target, and the failure of that one or None.

        Return None instead of the moves if posts to a target are paused.
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
        """Replace the queue's running task by the result of ``edit``, and return it.

        Return None if the running task has another id, has ended, or is not run by ``runner``. ``edit`` is called again
        if another server changes the task concurrently. Raises ``Conflict`` after ``TRIES`` attempts.
        """
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
        """Archive the task if it has ended, and delete the oldest archived tasks. Return whether it has ended.

        Idempotent.
        """
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
