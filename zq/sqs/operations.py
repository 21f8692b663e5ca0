# SPDX-License-Identifier: Apache-2.0
"""Registry of the SQS operations and their parameters."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from zq.sqs import batches, errors, messages, permissions, queues, tasks
from zq.sqs.call import Call, Params, QueueParams

# msgspec error messages for a missing member of a list entry, and for a member of the wrong type.
MISSING_MEMBER: Final = re.compile(r"Object missing required field `(\w+)` - at `\$\.?(.*)`")
WRONG_TYPE: Final = re.compile(r"(Expected .*?)(?: - at `\$\.?(.*)`)?")

Answer = Mapping[str, Any] | Struct | None


class Operation(Struct, frozen=True):
    """An SQS operation: the type of its parameters, and the function that executes it."""

    params: type[Params]
    run: Callable[[Call, Any], Answer]

    def __call__(self, call: Call, parameters: Mapping[str, Any], params: Params | None) -> Answer:
        """Execute the operation. If the decoded parameters ``params`` are None, decode the raw ``parameters`` first."""
        return self.run(call, read(self.params, parameters) if params is None else params)


def read(kind: type[Params], params: Mapping[str, Any]) -> Params:
    """Decode the parameters of an operation. Raises ``SqsError`` for a missing parameter or a wrong type."""
    members = {name: value for name, value in params.items() if value is not None}
    for name in _get_required_names(kind):
        if members.get(name, "") == "":
            raise errors.missing_parameter(name)
    try:
        return msgspec.convert(members, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _translate_error(str(error)) from error


@cache
def _get_required_names(kind: type[Params]) -> tuple[str, ...]:
    return tuple(field.encode_name for field in msgspec.structs.fields(kind) if field.required)


def _translate_error(sentence: str) -> errors.SqsError:
    if found := MISSING_MEMBER.fullmatch(sentence):
        return errors.missing_parameter(f"{_to_dotted(found[2])}.{found[1]}")
    found = WRONG_TYPE.fullmatch(sentence)
    return errors.malformed(f"{found[1]} at {_to_dotted(found[2] or '')}." if found else "A parameter is malformed.")


def _to_dotted(path: str) -> str:
    """Convert a msgspec path to the notation of the query protocol: ``Entries[0].Id`` becomes ``Entries.1.Id``."""
    return re.sub(r"\[(\d+)\]", lambda found: f".{int(found[1]) + 1}", path)


OPERATIONS: Final[Mapping[str, Operation]] = {
    "CreateQueue": Operation(queues.CreateQueue, queues.create_queue),
    "GetQueueUrl": Operation(queues.GetQueueUrl, queues.get_queue_url),
    "ListQueues": Operation(queues.ListQueues, queues.list_queues),
    "DeleteQueue": Operation(QueueParams, queues.delete_queue),
    "PurgeQueue": Operation(QueueParams, queues.purge_queue),
    "GetQueueAttributes": Operation(queues.GetQueueAttributes, queues.get_queue_attributes),
    "SetQueueAttributes": Operation(queues.SetQueueAttributes, queues.set_queue_attributes),
    "TagQueue": Operation(queues.TagQueue, queues.tag_queue),
    "UntagQueue": Operation(queues.UntagQueue, queues.untag_queue),
    "ListQueueTags": Operation(QueueParams, queues.list_queue_tags),
    "ListDeadLetterSourceQueues": Operation(queues.ListDeadLetterSourceQueues, queues.list_dead_letter_source_queues),
    "AddPermission": Operation(permissions.AddPermission, permissions.add_permission),
    "RemovePermission": Operation(permissions.RemovePermission, permissions.remove_permission),
    "StartMessageMoveTask": Operation(tasks.StartMessageMoveTask, tasks.start_message_move_task),
    "ListMessageMoveTasks": Operation(tasks.ListMessageMoveTasks, tasks.list_message_move_tasks),
    "CancelMessageMoveTask": Operation(tasks.CancelMessageMoveTask, tasks.cancel_message_move_task),
    "SendMessage": Operation(messages.SendMessage, messages.send_message),
    "SendMessageBatch": Operation(batches.SendMessageBatch, batches.send_message_batch),
    "ReceiveMessage": Operation(messages.ReceiveMessage, messages.receive_message),
    "DeleteMessage": Operation(messages.DeleteMessage, messages.delete_message),
    "DeleteMessageBatch": Operation(batches.DeleteMessageBatch, batches.delete_message_batch),
    "ChangeMessageVisibility": Operation(messages.ChangeMessageVisibility, messages.change_message_visibility),
    "ChangeMessageVisibilityBatch": Operation(
        batches.ChangeMessageVisibilityBatch, batches.change_message_visibility_batch
    ),
}

# Operations that cannot be sent to a queue URL: those without the parameter QueueUrl. As in AWS, GetQueueUrl can.
SERVICE_OPERATIONS: Final = frozenset(
    name for name, operation in OPERATIONS.items() if "QueueUrl" not in _get_required_names(operation.params)
) - {"GetQueueUrl"}
# JSON decoders of the parameters with a QueueUrl. If a decoder fails, ``read`` finds out the exact error.
DECODERS: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    name: msgspec.json.Decoder(operation.params, strict=False)
    for name, operation in OPERATIONS.items()
    if "QueueUrl" in _get_required_names(operation.params)
}
