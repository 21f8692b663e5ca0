# SPDX-License-Identifier: Apache-2.0
"""Readers that wait for open posts: listings by marker, and changes of a queue.

Messages whose sequences were drawn beside their transactions (see ``numbering``) do not become visible in the order of
their sequences. A listing that returns a message must not leave a lower sequence to an open transaction, because the
listing continues after the marker.

**Listings.** A listing reads the queue's document and the lanes, then the messages up to the queue's last sequence in
this view. If a range that begins at or below the page's last message is open in the view, the listing *settles* its
lane: it waits until no transaction holds the lane's document. Then it reads the page once more. A lower sequence can no
longer appear:

- If the view includes a later range of the same lane, the transaction had ended before.
- If its range is the lane's last one, it was committed in the view, or the lane was settled. The page is read after.

Most pages need no view:

- If the document that is read after the page has no ranges, no server has ever drawn sequences in the queue. The draws
  below a message precede its commit, so a page that includes the message would show them.
- A process remembers the *final* sequence of each queue: no message up to it can appear any more. It is below the first
  range that is open in a view.

**Changes.** A purge, a deletion and a change of the metadata settle the open lanes before they are answered. A post
that drew before the change is then committed before the answer, or never.

A process remembers the ranges that it has settled by their first sequence. The group does not identify a range, because
an aborted attempt and its repetition have the same group. A page that relies on something that is remembered is read as
of the time at which it was true, or later, even after a failover.

``tests/model/numbering.py`` searches all interleavings of these steps.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from bson.timestamp import Timestamp
from cachetools import LRUCache

from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.lanes import LANE, LANES
from zq.storage.mongodb.layout import LARGEST_MARKER, BsonDocument, QueueKey

# Maximum number of queues and of settled ranges that a process remembers.
MAX_REMEMBERED: Final = 10_000


class PageLimits(NamedTuple):
    """The limits of a page: sequences up to ``last``, in data of the time ``committed`` or later.

    - ``committed``: the argument of ``StoreClient.find``.
    - ``ranges``: the first sequence of each lane's open range in the queue.
    """

    last: int
    committed: Timestamp | bool
    ranges: Mapping[str, int]

    @property
    def bound(self) -> BsonDocument:
        """The condition on the sequence; empty if there is no limit."""
        return {} if self.last == LARGEST_MARKER else {"$lte": self.last}


NO_LANE: Final[BsonDocument] = {"l": 0}
# The messages of a page in the order of sequences, and the queue's document, which is read last.
Found = tuple[Sequence[BsonDocument], BsonDocument]


class OpenPosts:
    """The posts of all servers that are still open, as known to one process. Thread-safe."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._final = LRUCache[str, int](MAX_REMEMBERED)
        self._settled = LRUCache[tuple[str, str], int](MAX_REMEMBERED)
        self._time: Timestamp | None = None

    def read_page(self, key: QueueKey, search: Callable[[PageLimits], Found]) -> Found:
        """Read a page with ``search``. No message can later appear before the page's last message."""
        while True:
            with self._lock:
                final = self._final.get(key.counter, 0)
                limits = PageLimits(LARGEST_MARKER, (self._time if final else None) or True, {})
            found, counter = search(limits)
            if not found or found[-1]["k"] <= final or "x" not in counter:
                return found, counter
            limits = self._limits(key)
            found, counter = search(limits)
            if found:
                last = found[-1]["k"]
                waiting = {lane: first for lane, first in limits.ranges.items() if first <= last}
                if waiting:
                    found, counter = search(PageLimits(last, self._settle(key, waiting), {}))
            if found:
                return found, counter
            # Consumers have removed all messages up to the limit. An empty page would mean that none is left.

    def settle(self, key: QueueKey) -> None:
        """Wait until each post that has already drawn sequences in the queue is committed or aborted."""
        if not self._client.sharded:
            self._settle(key, self._limits(key, self._client.latest()).ranges)

    def _limits(self, key: QueueKey, after: Timestamp | None = None) -> PageLimits:
        """Return the limits of a page, from a view of the data at ``after`` or later. Settled ranges are not open.

        The page must be read as late as the last of them was settled, so ``committed`` is at least this time.
        """
        conditions: BsonDocument = {"$or": [{"_id": key.counter}, LANES]}
        found, committed = self._client.view(conditions, "_id_", after or self._time)
        documents = {one["_id"]: one for one in found}
        counter = documents.get(key.counter, {})
        last = int(counter.get("k1", 0))
        ranges = {
            lane: int(drawn["f"])
            for lane, drawn in counter.get("x", {}).items()
            if documents.get(LANE + lane, NO_LANE)["l"] < drawn["g"]
        }
        with self._lock:
            unsettled = {
                lane: first for lane, first in ranges.items() if self._settled.get((key.counter, lane)) != first
            }
            if isinstance(committed, Timestamp):
                committed = self._time = max(committed, self._time or committed)
            final = min([last, *(first - 1 for first in unsettled.values())])
            self._final[key.counter] = max(final, self._final.get(key.counter, 0))
        return PageLimits(last, committed, unsettled)

    def _settle(self, key: QueueKey, ranges: Mapping[str, int]) -> Timestamp | bool:
        """Wait for the open posts of these lanes. Return the earliest time at which a page includes their outcome."""
        for lane, first in ranges.items():
            settled = self._client.wait_for(LANE + lane)
            with self._lock:
                self._time = max(settled, self._time or settled)
                self._settled[key.counter, lane] = first
        return self._time or True
