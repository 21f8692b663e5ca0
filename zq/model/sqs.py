# SPDX-License-Identifier: Apache-2.0
"""The options of the SQS protocol, section ``[sqs]``, and the names of its operations."""

from typing import Final

from msgspec import Struct

# The kind of the documents that are access keys, and of the notes by which a project has them.
KEY: Final = "sqs-key"
# The kind of the documents that are tasks which move messages.
TASK: Final = "sqs-task"
# What a key may allow.
ACTIONS: Final = frozenset(
    {
        *("AddPermission", "CancelMessageMoveTask", "ChangeMessageVisibility", "ChangeMessageVisibilityBatch"),
        *("CreateQueue", "DeleteMessage", "DeleteMessageBatch", "DeleteQueue", "GetQueueAttributes", "GetQueueUrl"),
        *("ListDeadLetterSourceQueues", "ListMessageMoveTasks", "ListQueueTags", "ListQueues", "PurgeQueue"),
        *("ReceiveMessage", "RemovePermission", "SendMessage", "SendMessageBatch", "SetQueueAttributes"),
        *("StartMessageMoveTask", "TagQueue", "UntagQueue"),
    }
)


class SqsOptions(Struct, frozen=True, kw_only=True):
    """How SQS is served. ``enabled`` False: it is not."""

    enabled: bool = False
    auth: str = "sigv4"
    """How callers prove who they are: sigv4, or none."""
    region: str = "us-east-1"
    """Where a request names none."""
    public_url: str = ""
    """Scheme and host of queue URLs; "" = those by which the caller came."""
    project: str = "000000000000"
    """Whose the queues are where nobody is authenticated."""
    auth_none_anywhere: bool = False
    purge_interval: int = 60
    """Seconds between two purges of a queue; 0 = any time."""
    name_rest: int = 0
    """Seconds from the deletion of a queue until another one of its name may be created; 0 = at once."""
    kms: str = "ignore"
    """What KMS keys of queues are: ignore, for nothing is encrypted by them, or refuse."""
    key_file: str = ""
    """The file of the keys that seal secrets of access keys; "" = these are plain, or there are none."""
