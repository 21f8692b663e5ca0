# SPDX-License-Identifier: Apache-2.0
"""Background tasks that redrive the messages of a dead-letter queue at a limited rate (SQS contract 10).

The tasks are JSON documents:

    ("", "sqs-task", project/queue)          the queue's running task, at most one per queue
    (project, "sqs-task", queue/time)        an ended task; the latest is listed first

The server that holds a task's lease runs the task. If the server is killed, another server takes over when the lease
expires. Each step saves its progress by compare-and-set.

Each message is moved atomically, so no message is moved twice. If a server is killed, the reported number of moved
messages can be too low.
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
from zq.core.modes import Modes
from zq.core.rules import RulesCache
from zq.errors import Conflict, NotFound, Unavailable
from zq.events import Events
from zq.model import ListFilter, Message, Move, Outcome, QueueRef, Seconds
from zq.model.documents import Document, DocumentRef
from zq.model.modes import Mode
from zq.storage.api import Storage

# Document kind.
TASK: Final = "sqs-task"
# Duration of a lease in seconds. Each step renews the lease.
LEASE: Final = 10.0
# Number of messages per step of a task without a rate limit. A step runs every second.
DEFAULT_RATE: Final = 1000
# Messages are read and moved in chunks. Maximum number of messages in a chunk, and maximum size of their bodies in
# bytes.
CHUNK: Final = 100
CHUNK_BYTES: Final = 4_000_000
# Maximum number of tasks per round, and time limit of a round in seconds. The next round continues with later tasks.
MAX_TASKS: Final = 100
MAX_ROUND_SECONDS: Final = 1.0
# Ended tasks that are kept per queue: maximum number, and retention in seconds.
MAX_ENDED_TASKS: Final = 10
ENDED_TASK_TTL: Final = 30 * 86_400
# Precision of stored timestamps in seconds.
ROUNDING: Final = 0.001
# The latest possible time in microseconds: the end of the year 9999.
LATEST_TIME: Final = 253_402_300_800_000_000
MAX_TRIES: Final = 20


class TaskStatus(StrEnum):
    """The status of a task, as named by SQS."""

    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


ENDED_STATUSES: Final = frozenset({TaskStatus.CANCELLED, TaskStatus.COMPLETED, TaskStatus.FAILED})


class Failure(StrEnum):
    """The reason why a task failed."""

    NO_DESTINATION = "AWS.SimpleQueueService.NonExistentQueue"
    NO_ORIGIN = "CouldNotDetermineMessageSource"


class MoveTask(Struct, frozen=True, omit_defaults=True):
    """A task that moves the messages of a dead-letter queue to another queue or to their origins.

    Args:
        destination: The target queue; "" = each message returns to its origin.
        rate: The maximum number of messages per second; 0 = ``DEFAULT_RATE``.
        to_move: The number of ready messages when the task started. Counting may have stopped at a limit.
        marker: The sequence number of the last listed message of the source queue. The next step continues after it.
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

    def __init__(self, storage: Storage, clock: Clock, rules_cache: RulesCache, events: Events, modes: Modes) -> None:
        self._storage = storage
        self._documents = storage.documents
        self._clock = clock
        self._rules_cache = rules_cache
        self._events = events
        self._modes = modes
        self._runner = uuid4().hex
        self._after = ""
        """The document name of the last task that ran; "" = the next round starts with the first task."""

    def start(self, queue: QueueRef, destination: str, rate: int, to_move: int) -> MoveTask:
        """Create a task that moves the queue's messages. Raises ``Conflict`` if the queue has a running task."""
        now, ref = self._clock.now(), _running_ref(queue)
        task = MoveTask(uuid4().hex, queue.project, queue.name, destination, rate, now, to_move)
        if (former := self._documents.get(ref, now)) is not None:
            self._keep_if_ended(former, _decode(former.value))
        if not self._documents.put(ref, _encode(task), now, expected=""):
            raise Conflict("The queue has a running task.")
        return task

    def latest(self, queue: QueueRef, limit: int) -> Sequence[MoveTask]:
        """Return up to ``limit`` tasks of the queue, latest first."""
        now = self._clock.now()
        running = self._documents.get(_running_ref(queue), now)
        ended = self._documents.list(queue.project, TASK, f"{queue.name}/", "", limit, now).items
        found = [_decode(document.value) for document in ([running] if running else [])]
        ids = {task.id for task in found}
        return [*found, *(task for task in map(_read, ended) if task.id not in ids)][:limit]

    def cancel(self, queue: QueueRef, id: str) -> MoveTask:
        """Cancel a task. The task stops before its next step. Raises ``NotFound`` if the task has already ended."""
        task = self._change(queue, id, lambda task: structs.replace(task, status=TaskStatus.CANCELLING))
        if task is None:
            raise NotFound("There is no such task.")
        return task

    def resume(self) -> None:
        """Run one step of each task, except tasks whose lease another server holds. Call this method every second.

        A call ends after ``MAX_ROUND_SECONDS`` seconds or after ``MAX_TASKS`` tasks. The next call continues with the
        remaining tasks.
        """
        if self._modes.current is Mode.READ_ONLY:
            return
        began = time.monotonic()
        page = self._documents.list("", TASK, "", self._after, MAX_TASKS, self._clock.now())
        self._after = page.items[-1].ref.name if len(page.items) == MAX_TASKS else ""
        for document in page.items:
            with suppress(Unavailable):  # the next round retries the step
                self._step(document)
            if time.monotonic() - began > MAX_ROUND_SECONDS:
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
        done = leased if task.status is TaskStatus.CANCELLING else self._move_step(leased)

        def advance(current: MoveTask) -> MoveTask:
            status = done.status
            if current.status is TaskStatus.CANCELLING and status not in ENDED_STATUSES:
                status = TaskStatus.CANCELLED
            return structs.replace(done, status=status, lease=self._clock.now() + LEASE)

        written = self._change(task.queue, task.id, advance, self._runner)
        if (
            written is not None
            and written.status in ENDED_STATUSES
            and (last := self._documents.get(document.ref, now))
        ):
            self._keep_if_ended(last, _decode(last.value))

    def _move_step(self, task: MoveTask) -> MoveTask:
        left = task.rate or DEFAULT_RATE
        while left > 0 and task.status is TaskStatus.RUNNING:
            now = self._clock.now()
            page = self._storage.messages.list(
                task.queue, task.marker, min(CHUNK, left), ListFilter(), now, CHUNK_BYTES
            )
            due = [message for message in page.items if message.available <= task.started + ROUNDING]
            moves, failure = self._plan_moves(task, due)
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

    def _plan_moves(self, task: MoveTask, messages: Sequence[Message]) -> tuple[list[Move] | None, Failure | None]:
        """Plan the moves of the messages. Return the moves and the failure of the task, if any.

        - If the target queue of a message is unknown or does not exist, return the moves of the preceding messages and
          the failure. The caller must make these moves before it ends the task.
        - If posts to a target queue are paused, return (None, None). The task must wait.
        - Otherwise, return the moves of all messages and None.
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
        """Atomically replace the queue's running task with the result of ``edit``, and return the new task.

        ``edit`` may be called several times. Return None if the queue's running task has another id, has ended, or runs
        on a server other than ``runner``. Raises ``Conflict`` after ``MAX_TRIES`` attempts.
        """
        for _ in range(MAX_TRIES):
            now = self._clock.now()
            document = self._documents.get(_running_ref(queue), now)
            task = _decode(document.value) if document else None
            if document is None or task is None or task.id != id or task.status in ENDED_STATUSES:
                return None
            if runner is not None and task.runner != runner:
                return None
            edited = edit(task)
            if self._documents.put(document.ref, _encode(edited), now, expected=document.version):
                return edited
        raise Conflict("The task was changed concurrently. Try again.")

    def _keep_if_ended(self, document: Document, task: MoveTask) -> bool:
        """Archive the task if it has ended, and delete the queue's oldest archived tasks. Return whether it has ended.

        Repeated calls for one task have the same result.
        """
        if task.status not in ENDED_STATUSES:
            return False
        now = self._clock.now()
        name = f"{task.source}/{LATEST_TIME - int(task.started * 1_000_000):018d}"
        self._documents.put(DocumentRef(task.project, TASK, name), document.value, now, expires=now + ENDED_TASK_TTL)
        self._documents.delete(document.ref, now, expected=document.version)
        for old in self._documents.list(task.project, TASK, f"{task.source}/", "", 2 * MAX_ENDED_TASKS, now).items[
            MAX_ENDED_TASKS:
        ]:
            self._documents.delete(old.ref, now)
        return True


def _running_ref(queue: QueueRef) -> DocumentRef:
    return DocumentRef("", TASK, f"{queue.project}/{queue.name}")


def _read(document: Document) -> MoveTask:
    return _decode(document.value)
