# SPDX-License-Identifier: Apache-2.0
"""Queue URLs and ARNs, and the queues of zq that they name."""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from zq.limits import LONG_QUEUE_NAME
from zq.model import Queue, QueueRef
from zq.sqs import errors
from zq.sqs.accounts import ACCOUNT
from zq.sqs.call import Call

# The ARN of a queue with its account and name. Partition and region are ignored.
ARN: Final = re.compile(rf"arn:[a-z-]+:sqs:[A-Za-z0-9-]*:({ACCOUNT.pattern}):({LONG_QUEUE_NAME.pattern})", re.ASCII)
# Characters of a name in an error.
MOST_SHOWN: Final = 256
# Characters of the longest URL that is cached.
LONGEST_REMEMBERED: Final = 512


class Named(NamedTuple):
    """A queue named by a URL."""

    account: str
    """"" = it names none."""
    name: str
    ref: QueueRef | None
    """The queue of this name; None if the name is invalid."""


def queue_url(call: Call, name: str) -> str:
    """Return the URL of a queue of the caller."""
    return f"{call.base}/{call.account}/{name}"


def queue_arn(call: Call, name: str) -> str:
    """Return the ARN of a queue of the caller."""
    return f"arn:aws:sqs:{call.region}:{call.account}:{name}"


def named(project: str, url: str) -> Named:
    """Return the queue of a project that a URL or a bare name names. Only the last two segments of a URL count."""
    return _remembered(project, url) if len(url) <= LONGEST_REMEMBERED else _named(project, url)


def _named(project: str, url: str) -> Named:
    before, _, name = url.rstrip("/").rpartition("/")
    account = before.rpartition("/")[2]
    ref = QueueRef(project, name) if LONG_QUEUE_NAME.fullmatch(name) else None
    return Named(account if ACCOUNT.fullmatch(account) else "", name, ref)


_remembered: Final = lru_cache(maxsize=4096)(_named)


def queue_of(call: Call, url: str) -> QueueRef:
    """Return the queue of a URL or bare name without looking it up. Raises ``SqsError`` for another account's queue."""
    account, _, ref = named(call.project, url)
    if ref is None:
        raise errors.queue_does_not_exist()
    if account and account != call.account:
        raise errors.access_denied(f"Access to the resource {url[:MOST_SHOWN]} is denied.")
    return ref


def existing(call: Call, url: str) -> Queue:
    """Return the stored queue of a URL or bare name. Raises ``SqsError`` if it does not exist."""
    queue = call.use_cases.find(queue_of(call, url))
    if queue is None:
        raise errors.queue_does_not_exist()
    return queue


def named_by(call: Call, arn: str) -> QueueRef | None:
    """Return the caller's queue with this ARN, which need not exist; None for another account's ARN."""
    found = ARN.fullmatch(arn)
    return QueueRef(call.project, found[2]) if found and found[1] == call.account else None
