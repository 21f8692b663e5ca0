# SPDX-License-Identifier: Apache-2.0
"""Operations on move tasks, which redrive the messages of a dead-letter queue."""

import binascii
from base64 import b64decode, b64encode
from typing import Any, Final

import msgspec
from msgspec import Struct

from zq.errors import Conflict, NotFound
from zq.model import Queue, QueueRef
from zq.sqs import errors, names
from zq.sqs.call import Call, Params
from zq.sqs.move_tasks import MoveTask, TaskStatus
from zq.sqs.queues import has_target

# Maximum rate of a task in messages per second.
MAX_RATE: Final = 500
# Maximum number of tasks in a listing.
MAX_TASKS: Final = 10
NO_QUEUE: Final = "The resource that you specified for the {} parameter doesn't exist."
NO_SOURCE: Final = "Source queue must be configured as a Dead Letter Queue."
RUNNING: Final = (
    "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
)
NO_TASK: Final = "Task does not exist."
NO_HANDLE: Final = "Value for parameter TaskHandle is invalid."


class TaskHandle(Struct, frozen=True, rename="camel"):
    """A move task's handle, decoded from the string that clients send."""

    task_id: str
    source_arn: str


class StartMessageMoveTask(Params, frozen=True):
    source_arn: str
    destination_arn: str = ""
    max_number_of_messages_per_second: int | None = None


class ListMessageMoveTasks(Params, frozen=True):
    source_arn: str
    max_results: int | None = None


class CancelMessageMoveTask(Params, frozen=True):
    task_handle: str


_handle: Final = msgspec.json.Decoder(TaskHandle).decode


def start_message_move_task(call: Call, request: StartMessageMoveTask) -> dict[str, Any]:
    """Start a task that moves the messages of a dead-letter queue, and return its handle."""
    source = _find_source(call, request.source_arn)
    if not any(has_target(queue, source.name) for queue in call.use_cases.queues.named(call.project)):
        raise errors.invalid_parameter(NO_SOURCE)
    destination = ""
    if request.destination_arn:
        destination = _find_existing(call, "DestinationArn", request.destination_arn).ref.name
        if destination == source.name:
            raise errors.invalid_value(request.destination_arn, "DestinationArn", "Must not be the source queue.")
    rate = request.max_number_of_messages_per_second
    if rate is not None and not 1 <= rate <= MAX_RATE:
        reason = f"Must be between 1 and {MAX_RATE}, if provided."
        raise errors.invalid_value(rate, "MaxNumberOfMessagesPerSecond", reason)
    ready = call.use_cases.queues.states(source).ready
    try:
        task = call.use_cases.move_tasks.start(source, destination, rate or 0, ready)
    except Conflict:
        raise errors.invalid_parameter(RUNNING) from None
    return {"TaskHandle": _encode_handle(call, task)}


def list_message_move_tasks(call: Call, request: ListMessageMoveTasks) -> dict[str, Any]:
    """Return the move tasks of a queue, latest first."""
    source = _find_source(call, request.source_arn)
    size = 1 if request.max_results is None else request.max_results
    if not 1 <= size <= MAX_TASKS:
        raise errors.invalid_value(size, "MaxResults", f"Must be between 1 and {MAX_TASKS}, if provided.")
    return {"Results": [_format_task(call, task) for task in call.use_cases.move_tasks.latest(source, size)]}


def cancel_message_move_task(call: Call, request: CancelMessageMoveTask) -> dict[str, Any]:
    """Cancel a task and return the number of messages that it has moved. These messages are not moved back."""
    try:
        handle = _handle(b64decode(request.task_handle, validate=True))
    except (binascii.Error, ValueError):
        raise errors.invalid_parameter(NO_HANDLE) from None
    source = _find_source(call, handle.source_arn)
    try:
        task = call.use_cases.move_tasks.cancel(source, handle.task_id)
    except NotFound:
        raise errors.resource_not_found(NO_TASK) from None
    return {"ApproximateNumberOfMessagesMoved": task.moved}


def _find_source(call: Call, arn: str) -> QueueRef:
    source = _find_existing(call, "SourceArn", arn).ref
    call.request.context.queue, call.request.context.params = source, {"queue": source.name}
    return source


def _find_existing(call: Call, parameter: str, arn: str) -> Queue:
    ref = names.parse_arn(call, arn)
    queue = call.use_cases.find(ref) if ref else None
    if queue is None:
        raise errors.resource_not_found(NO_QUEUE.format(parameter))
    return queue


def _encode_handle(call: Call, task: MoveTask) -> str:
    handle = TaskHandle(task.id, names.queue_arn(call, task.source))
    return b64encode(msgspec.json.encode(handle)).decode()


def _format_task(call: Call, task: MoveTask) -> dict[str, Any]:
    found: dict[str, Any] = {"TaskHandle": _encode_handle(call, task)} if task.status is TaskStatus.RUNNING else {}
    found |= {"Status": str(task.status), "SourceArn": names.queue_arn(call, task.source)}
    if task.destination:
        found["DestinationArn"] = names.queue_arn(call, task.destination)
    if task.rate:
        found["MaxNumberOfMessagesPerSecond"] = task.rate
    found["ApproximateNumberOfMessagesMoved"] = task.moved
    found["ApproximateNumberOfMessagesToMove"] = task.to_move
    if task.reason:
        found["FailureReason"] = task.reason
    return found | {"StartedTimestamp": int(task.started * 1000)}
