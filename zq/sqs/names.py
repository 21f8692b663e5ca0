# SPDX-License-Identifier: Apache-2.0
"""Conversion between zq queues and the URLs and ARNs that SQS clients use."""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from zq.model import Queue, QueueRef
from zq.model.limits import LONG_QUEUE_NAME
from zq.sqs import errors
from zq.sqs.accounts import ACCOUNT
from zq.sqs.call import Call

# A queue ARN, with groups for the account id and the queue name. The partition and region are ignored.
ARN: Final = re.compile(rf"arn:[a-z-]+:sqs:[A-Za-z0-9-]*:({ACCOUNT.pattern}):({LONG_QUEUE_NAME.pattern})", re.ASCII)
# Maximum length of a name in an error message.
MAX_SHOWN: Final = 256
# Maximum length of a URL in the cache of parsed URLs.
MAX_CACHED_URL: Final = 512


class ParsedUrl(NamedTuple):
    """A parsed queue URL."""

    account: str
    """The account id, or "" if the URL has none."""
    name: str
    ref: QueueRef | None
    """The queue, which need not exist, or None if the name is invalid."""


def queue_url(call: Call, name: str) -> str:
    """Return the URL of a queue in the call's project."""
    return f"{call.base}/{call.account}/{name}"


def queue_arn(call: Call, name: str) -> str:
    """Return the ARN of a queue in the call's project."""
    return f"arn:aws:sqs:{call.region}:{call.account}:{name}"


def parse_url(project: str, url: str) -> ParsedUrl:
    """Parse a queue URL or a bare queue name. All segments of the URL except the last two are ignored."""
    return _parse_cached(project, url) if len(url) <= MAX_CACHED_URL else _parse(project, url)


def _parse(project: str, url: str) -> ParsedUrl:
    before, _, name = url.rstrip("/").rpartition("/")
    account = before.rpartition("/")[2]
    ref = QueueRef(project, name) if LONG_QUEUE_NAME.fullmatch(name) else None
    return ParsedUrl(account if ACCOUNT.fullmatch(account) else "", name, ref)


_parse_cached: Final = lru_cache(maxsize=4096)(_parse)


def parse_queue(call: Call, url: str) -> QueueRef:
    """Parse a queue URL or bare name. The queue need not exist.

    Raises ``SqsError`` if the URL is not valid or belongs to another account.
    """
    account, _, ref = parse_url(call.project, url)
    if ref is None:
        raise errors.queue_does_not_exist()
    if account and account != call.account:
        raise errors.access_denied(f"Access to the resource {url[:MAX_SHOWN]} is denied.")
    return ref


def get_queue(call: Call, url: str) -> Queue:
    """Read a queue by its URL or bare name. Raises ``SqsError`` if the queue does not exist."""
    queue = call.use_cases.find(parse_queue(call, url))
    if queue is None:
        raise errors.queue_does_not_exist()
    return queue


def parse_arn(call: Call, arn: str) -> QueueRef | None:
    """Parse a queue ARN. Return None if it is not valid or belongs to another account. The queue need not exist."""
    found = ARN.fullmatch(arn)
    return QueueRef(call.project, found[2]) if found and found[1] == call.account else None
