# SPDX-License-Identifier: Apache-2.0
"""Names of SQS: accounts, queue URLs, ARNs, and the queues of zq that they mean."""

import re
from typing import Final

from zq.http.sqs import errors
from zq.http.sqs.call import Call
from zq.model import QueueRef

# An account.
ACCOUNT: Final = re.compile(r"[0-9]{12}", re.ASCII)
# The name of a queue, be it made here or by REST; it may hold dots.
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,80}", re.ASCII)
# An ARN of a queue; its partition and region say nothing here.
ARN: Final = re.compile(r"arn:[a-z-]+:sqs:[A-Za-z0-9-]*:([0-9]{12}):([A-Za-z0-9_.-]{1,80})", re.ASCII)


def queue_url(call: Call, name: str) -> str:
    """The URL of a queue of the caller's."""
    return f"{call.base}/{call.account}/{name}"


def queue_arn(call: Call, name: str) -> str:
    """The ARN of a queue of the caller's."""
    return f"arn:aws:sqs:{call.region}:{call.account}:{name}"


def queue_of(call: Call, url: str) -> QueueRef:
    """The queue that a URL, or a bare name, means; whether it exists is not looked at.

    Only the last two segments count. Raises ``SqsError``.
    """
    *_, account, name = ["", *url.rstrip("/").split("/")]
    if NAME.fullmatch(name) is None:
        raise errors.queue_does_not_exist()
    if ACCOUNT.fullmatch(account) and account != call.account:
        raise errors.access_denied(f"Access to the resource {url[:256]} is denied.")
    return QueueRef(call.project, name)
