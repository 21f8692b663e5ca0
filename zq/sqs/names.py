# SPDX-License-Identifier: Apache-2.0
"""Queue URLs and ARNs, and the queues of zq to which they refer."""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from zq.limits import LONG_QUEUE_NAME
from zq.model import Queue, QueueRef
from zq.sqs import errors
from zq.sqs.accounts import ACCOUNT
from zq.sqs.call import Call

# A queue's ARN, with groups for its account and name. Partition and region are ignored.
ARN: Final = re.compile(rf"arn:[a-z-]+:sqs:[A-Za-z0-9-]*:({ACCOUNT.pattern}):({LONG_QUEUE_NAME.pattern})", re.ASCII)
# The maximum characters of a name in an error message.
MAX_SHOWN: Final = 256
# The maximum characters of a URL that is cached.
MAX_CACHED_URL: Final = 512


class Named(NamedTuple):
    """The parts of a queue URL."""

    account: str
    """The account; "" if the URL contains none."""
    name: str
    ref: QueueRef | None
    """The project's queue with this name; None if the name is invalid."""


def queue_url(call: Call, name: str) -> str:
    """Return the URL of one of the caller's queues."""
    return f"{call.base}/{call.account}/{name}"


def queue_arn(call: Call, name: str) -> str:
    """Return the ARN of one of the caller's queues."""
    return f"arn:aws:sqs:{call.region}:{call.account}:{name}"


def named(project: str, url: str) -> Named:
    """Parse a queue URL, of which only the last two segments count, or a bare name, as a queue of the project."""
    return _parse_cached(project, url) if len(url) <= MAX_CACHED_URL else _parse(project, url)


def _parse(project: str, url: str) -> Named:
    before, _, name = url.rstrip("/").rpartition("/")
    account = before.rpartition("/")[2]
    ref = QueueRef(project, name) if LONG_QUEUE_NAME.fullmatch(name) else None
    return Named(account if ACCOUNT.fullmatch(account) else "", name, ref)


_parse_cached: Final = lru_cache(maxsize=4096)(_parse)


def queue_of(call: Call, url: str) -> QueueRef:
    """Return the queue of a URL or bare name without looking it up in the store.

    Raises ``SqsError`` for an invalid name and for another account's queue.
    """
    account, _, ref = named(call.project, url)
    if ref is None:
        raise errors.queue_does_not_exist()
    if account and account != call.account:
        raise errors.access_denied(f"Access to the resource {url[:MAX_SHOWN]} is denied.")
    return ref


def existing(call: Call, url: str) -> Queue:
    """Look up the queue of a URL or bare name in the store. Raises ``SqsError`` if the queue does not exist."""
    queue = call.use_cases.find(queue_of(call, url))
    if queue is None:
        raise errors.queue_does_not_exist()
    return queue


def named_by(call: Call, arn: str) -> QueueRef | None:
    """Return the caller's queue with this ARN, which may not exist; None for another account's or an invalid ARN."""
    found = ARN.fullmatch(arn)
    return QueueRef(call.project, found[2]) if found and found[1] == call.account else None
