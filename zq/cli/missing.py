# SPDX-License-Identifier: Apache-2.0
"""Names of queues and topics that are not there: told with the one that is most like them."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, Literal, TypeVar

from zq.cli.session import Session
from zq.client.cautions import did_you_mean
from zq.errors import NotFound

T = TypeVar("T")
Kind = Literal["queues", "topics"]
MOST: Final = 500
"""Names of a project that are looked through."""


def missing(session: Session, name: str, kind: Kind = "queues") -> NotFound:
    """What to raise for a queue or a topic that is not there."""
    page = session.client.limits()["max_queues_per_page"]
    listed = session.client.queues(page=page) if kind == "queues" else session.client.topics(page=page)
    ending = did_you_mean(name, [entry.name for entry in islice(listed, MOST)])
    return NotFound(f"There is no {kind[:-1]} {name} in the project{ending}")


def check_there(session: Session, name: str, kind: Kind = "queues") -> None:
    """Raises ``NotFound`` for a queue or a topic that is not there."""
    handle = session.queue(name) if kind == "queues" else session.client.topic(name)
    if not handle.exists():
        raise missing(session, name, kind)


def some_of(session: Session, queue: str, found: Iterable[T]) -> Iterator[T]:
    """What was found in a queue. Raises ``NotFound`` if it is nothing because the queue is not there."""
    empty = True
    for item in found:
        empty = False
        yield item
    if empty:
        check_there(session, queue)
