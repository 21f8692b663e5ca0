# SPDX-License-Identifier: Apache-2.0
"""The operations on queues."""

from typing import Any

from msgspec import field

from zq.http.sqs import errors, names
from zq.http.sqs.call import Call, Params
from zq.model import QueueRef


class GetQueueUrl(Params, frozen=True):
    queue_name: str
    queue_owner: str = field(default="", name="QueueOwnerAWSAccountId")


def get_queue_url(call: Call, given: GetQueueUrl) -> dict[str, Any]:
    """The URL of an existing queue of this name."""
    ref = QueueRef(call.project, given.queue_name)
    if given.queue_owner not in ("", call.account) or call.broker.storage.queues.get(ref) is None:
        raise errors.queue_does_not_exist()
    return {"QueueUrl": names.queue_url(call, ref.name)}
