# SPDX-License-Identifier: Apache-2.0
"""Assignment of sequences to a group of posts: by the transaction that stores the posts, or by a separate write.

- ``TransactionNumbering``: the transaction advances the counters itself. This takes the fewest commands, but two
  servers that post to the same queue abort each other's transactions.
- ``DrawnNumbering``: a write outside the transaction, called a *draw*, reserves the sequences. A draw locks a counter
  only briefly, so servers that post to the same queue do not abort each other's transactions. Readers must wait for
  open posts: see ``open_posts``. To show which posts are open, the transaction writes the document of its process's
  lane before the draw: see ``lanes``.

If a process finds that another process has advanced a counter, it uses draws for the next ``SHARED_SECONDS``; see
``counter_cache``. Different processes may use both methods for one counter at the same time. A draw waits for a
transaction that has written the counter. If the snapshot of a transaction does not include the latest draw, MongoDB
aborts the transaction when it writes the counter.

**Draws.** A draw changes the queue's document only if the queue exists and no later attempt of the lane has already
drawn sequences in the queue. MongoDB may execute a draw after the server has stopped waiting for the reply. The
condition ensures that such a late draw never replaces the range of a running transaction. If a transaction is aborted,
its sequences stay unused, and the usage of the project includes its messages until the next count. If a draw fails,
nothing is stored, and the posts are repeated with ``TransactionNumbering``.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from pymongo.errors import OperationFailure, PyMongoError

from zq.model import Grouping
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.commands import is_conflict
from zq.storage.mongodb.counter_cache import CachedCounter, SequenceRange
from zq.storage.mongodb.counters import Arrivals, StaleCounter, advance_cached, available_at, find_missing
from zq.storage.mongodb.floors import counters_of, floor_of
from zq.storage.mongodb.lanes import Lane, SequencesNotReserved
from zq.storage.mongodb.layout import MESSAGES, BsonDocument, QueueKey


class Numbering(Protocol):
    """The assignment of sequences in one transaction."""

    def begin(self, session: Session) -> None:
        """Run the commands that must precede all other commands of the transaction."""

    def find_missing(self, session: Session, keys: Iterable[QueueKey]) -> set[QueueKey]:
        """Return the queues in ``keys`` that are known not to exist."""

    def assign(self, session: Session, arrivals: Mapping[QueueKey, Arrivals]) -> Mapping[QueueKey, SequenceRange]:
        """Reserve sequences for the ``arrivals`` (new messages) of each queue.

        Raises ``TransactionAborted`` if the sequences cannot be reserved, and ``QueueNotFound`` if a missing queue must
        not be created.
        """


class TransactionNumbering:
    """The assignment of sequences within the transaction that stores the messages; see ``counters``.

    Args:
        cached: The counters that this process has cached.
        gives_way: Whether ``assign`` raises ``StaleCounter`` if another transaction is writing one of the counters.
    """

    def __init__(self, client: StoreClient, cached: Mapping[QueueKey, CachedCounter], *, gives_way: bool) -> None:
        self._client = client
        self._cached = cached
        self._gives_way = gives_way

    def begin(self, session: Session) -> None:
        """Do nothing, because the transaction needs no preparation."""

    def find_missing(self, session: Session, keys: Iterable[QueueKey]) -> set[QueueKey]:
        """Return the queues in ``keys`` that do not exist. A queue with a cached counter is assumed to exist.

        If ``assign`` finds that a queue is missing, all posts of the transaction must be repeated.
        """
        return find_missing(self._client, session, [key for key in keys if key not in self._cached])

    def assign(self, session: Session, arrivals: Mapping[QueueKey, Arrivals]) -> Mapping[QueueKey, SequenceRange]:
        try:
            return advance_cached(self._client, session, arrivals, self._cached)
        except OperationFailure as error:
            if self._gives_way and is_conflict(error):
                raise StaleCounter from error
            raise


class DrawnNumbering:
    """The assignment of sequences by a write outside the transaction that stores the messages.

    During this write, the transaction holds its process's lane, a document that shows other processes which posts are
    in progress; see ``lanes``.
    """

    def __init__(self, client: StoreClient, lane: Lane) -> None:
        self._client = client
        self._lane = lane

    def begin(self, session: Session) -> None:
        """Write the document of the process's lane, which prevents other transactions of this lane; see ``lanes``."""
        self._lane.hold(session)

    def find_missing(self, session: Session, keys: Iterable[QueueKey]) -> set[QueueKey]:
        """Return the queues in ``keys`` that do not exist.

        A queue whose counter is in the process's cache is assumed to exist. If it was deleted, ``assign`` fails.
        """
        unknown = [key for key in keys if not self._client.counters.is_known(key)]
        return find_missing(self._client, session, unknown)

    def assign(self, session: Session, arrivals: Mapping[QueueKey, Arrivals]) -> Mapping[QueueKey, SequenceRange]:
        """Reserve sequences for the ``arrivals`` (new messages) of each queue, by a write outside the transaction.

        Raises ``SequencesNotReserved`` if a queue does not exist, or if the outcome of this write is unknown.
        """
        # Otherwise, the posts that create queues would waste sequences of all other queues in the group.
        if self.find_missing(session, arrivals):
            raise SequencesNotReserved
        try:
            counters = {one["_id"]: one for one in self._draw(arrivals)}
        except PyMongoError as error:
            raise SequencesNotReserved from error
        for key in arrivals:
            if "b" not in counters.get(key.counter, {}):
                self._client.counters.forget(key)
        ranges = {key: self._range(counters.get(key.counter, {}), one.number) for key, one in arrivals.items()}
        for key, one in ranges.items():
            self._client.counters.record(key.counter, one.sequence - 1, one.last)
        return ranges

    def _draw(self, arrivals: Mapping[QueueKey, Arrivals]) -> Iterable[BsonDocument]:
        """Reserve a range of sequences in each queue outside the transaction, and return the queues' documents."""
        fields = {f"x.{self._lane.name}": 1, "b": 1, "h": 1, "m0": 1, "g": 1}
        steps = [({"_id": key.counter}, self._step(arrival)) for key, arrival in arrivals.items()]
        if len(steps) == 1:
            ((where, step),) = steps
            command = {"findAndModify": MESSAGES, "query": where, "update": step, "new": True, "fields": fields}
            return [self._client.send_once(command)["value"] or {"_id": ""}]
        self._client.send_once({"update": MESSAGES, "updates": [{"q": where, "u": step} for where, step in steps]})
        return self._client.find(counters_of(self._client, arrivals), fields=fields)

    def _step(self, arrival: Arrivals) -> list[BsonDocument]:
        lane = self._lane
        last = {"$ifNull": ["$k1", 0]}
        made: BsonDocument = {
            "k1": {"$add": [last, arrival.number]},
            "n1": {"$add": [{"$ifNull": ["$n1", 0]}, arrival.messages]},
            "w1": {"$add": [{"$ifNull": ["$w1", 0]}, arrival.bytes]},
        }
        available: BsonDocument = {"$ifNull": ["$d1", 0]}
        if arrival.fresh is not None:
            made["d1"] = available = available_at(arrival.fresh)
        drawn = {"f": {"$add": [last, 1]}, "g": lane.group, "d": available, "a": lane.attempt}
        made["x"] = {"$mergeObjects": ["$x", {lane.name: drawn}]}
        is_newest = {"$lt": [{"$ifNull": [f"$x.{lane.name}.a", 0]}, lane.attempt]}
        exists = {"$ne": [{"$type": "$n"}, "missing"]}
        changed = {"$mergeObjects": ["$$ROOT", made]}
        return [{"$replaceWith": {"$cond": [{"$and": [is_newest, exists]}, changed, "$$ROOT"]}}]

    def _range(self, counter: Mapping[str, Any], number: int) -> SequenceRange:
        """Return the range of sequences that ``_draw`` has reserved in a queue.

        ``counter`` is the queue's document after ``_draw``. Raises ``SequencesNotReserved`` if the document does not
        contain the range, or if a purge or deletion has removed the range.
        """
        drawn = counter.get("x", {}).get(self._lane.name, {})
        floor = floor_of(counter)
        if drawn.get("a") != self._lane.attempt or "b" not in counter or floor >= drawn["f"]:
            raise SequencesNotReserved
        grouping = Grouping(counter.get("h", ""))
        return SequenceRange(int(drawn["f"]), number, int(drawn["d"]), counter["b"], grouping, floor)
