# SPDX-License-Identifier: Apache-2.0
"""Requests that store something go together, one transaction for all that wait in this process, whatever they are for.

A transaction is three or four round trips and one wait for the journal, however much it holds, and two that meet at a
counter cost a repetition. So a process has one under way at a time. On a sharded cluster, where many counters would
mean many shards, it is one for each of them.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from bson.errors import BSONError
from pymongo.errors import OperationFailure, PyMongoError

from zq.errors import Unavailable
from zq.storage.mongodb import once
from zq.storage.mongodb.combine import LINGER, Combiner
from zq.storage.mongodb.layout import QueueKey
from zq.storage.mongodb.port import Port

CAPACITY: Final = 4 << 20
"""Bytes of bodies in one group."""
AT_LEAST: Final = 8 << 10
"""Bytes that a message weighs at least, so that a group is no more than 512 of them."""


class Keyed(once.Keyed, Protocol):
    """A request for one queue or log."""

    @property
    def key(self) -> QueueKey: ...


Request = TypeVar("Request", bound=Keyed)
Answer = TypeVar("Answer")


class Groups(Generic[Request, Answer]):
    """Groups of one process. ``store`` stores a group in one transaction, and returns what each is told or raised."""

    def __init__(
        self,
        port: Port,
        store: Callable[[Sequence[Request]], Sequence[Answer | Exception]],
        weigh: Callable[[Request], int],
    ) -> None:
        self._store = store
        self._sharded = port.sharded
        self._combiners: defaultdict[str, Combiner[Request, Answer]] = defaultdict(
            lambda: Combiner(self._serve, weigh, CAPACITY, port.timeout, LINGER)
        )

    def ask(self, request: Request) -> Answer:
        """Return when it is stored, as durably as the write concern says."""
        return self._combiners[request.key.shard if self._sharded else ""].ask(request)

    def _serve(self, requests: Sequence[Request]) -> Sequence[Answer | Exception]:
        if _meet(requests):  # the first of them has to be stored before the next one is judged
            return [self._alone(request) for request in requests]
        try:
            return self._store(requests)
        except (OperationFailure, BSONError, OverflowError) as failure:
            if len(requests) == 1:
                return [failure]
            return [self._alone(request) for request in requests]

    def _alone(self, request: Request) -> Answer | Exception:
        """A group failed, maybe by one member's fault: try each by itself."""
        try:
            return self._store([request])[0]
        except (Unavailable, PyMongoError, BSONError, OverflowError) as failure:
            return failure


def _meet(requests: Sequence[Keyed]) -> bool:
    """Whether two of the requests have the same key."""
    keyed = [one.place for request in requests for one in request.attempts]
    return len(set(keyed)) < len(keyed)
