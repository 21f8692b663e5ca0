# SPDX-License-Identifier: Apache-2.0
"""Names of SQS: queue URLs and ARNs, and the queues of zq that they mean."""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from zq.limits import LONG_QUEUE_NAME
from zq.model import Queue, QueueRef
from zq.sqs import errors
from zq.sqs.accounts import ACCOUNT
from zq.sqs.call import Call

# An ARN of a queue: its account and its name. Its partition and region say nothing here.
ARN: Final = re.compile(rf"arn:[a-z-]+:sqs:[A-Za-z0-9-]*:({ACCOUNT.pattern}):({LONG_QUEUE_NAME.pattern})", re.ASCII)
# Characters of a name that an error says back.
MOST_SHOWN: Final = 256
# Characters of a URL that one process remembers.
LONGEST_REMEMBERED: Final = 512


class Named(NamedTuple):
    """A queue as a URL names it."""

    account: str
    """"" = it names none."""
    name: str
    ref: QueueRef | None
    """The queue of this name; None: there can be none."""


def queue_url(call: Call, name: str) -> str:
    """The URL of a queue of the caller's."""
    return f"{call.base}/{call.account}/{name}"


def queue_arn(call: Call, name: str) -> str:
    """The ARN of a queue of the caller's."""
    return f"arn:aws:sqs:{call.region}:{call.account}:{name}"


def named(project: str, url: str) -> Named:
    """What a URL, or a bare name, names in a project. Only the last two segments count, whatever host the URL has."""
    return _remembered(project, url) if len(url) <= LONGEST_REMEMBERED else _named(project, url)


def _named(project: str, url: str) -> Named:
    before, _, name = url.rstrip("/").rpartition("/")
    account = before.rpartition("/")[2]
    ref = QueueRef(project, name) if LONG_QUEUE_NAME.fullmatch(name) else None
    return Named(account if ACCOUNT.fullmatch(account) else "", name, ref)


_remembered: Final = lru_cache(maxsize=4096)(_named)


def queue_of(call: Call, url: str) -> QueueRef:
    """The queue that a URL, or a bare name, means; whether it exists is not looked at. Raises ``SqsError``."""
    account, _, ref = named(call.project, url)
    if ref is None:
        raise errors.queue_does_not_exist()
    if account and account != call.account:
        raise errors.access_denied(f"Access to the resource {url[:MOST_SHOWN]} is denied.")
    return ref


def existing(call: Call, url: str) -> Queue:
    """The same queue as it is stored. Raises ``SqsError`` if there is none."""
    queue = call.use_cases.find(queue_of(call, url))
    if queue is None:
        raise errors.queue_does_not_exist()
    return queue


def named_by(call: Call, arn: str) -> QueueRef | None:
    """The queue of the caller's that an ARN means, whether it exists or not; None if it is none of the caller's."""
    found = ARN.fullmatch(arn)
    return QueueRef(call.project, found[2]) if found and found[1] == call.account else None
