# SPDX-License-Identifier: Apache-2.0
"""Readers that wait for open posts: listings by marker, and changes of a queue.

A *draw* reserves the sequences of a post outside the post's transaction (see ``numbering``). Messages with drawn
sequences do not become visible in the order of their sequences. A listing continues after the sequence of the last
message that it has returned. It must therefore not return a message while an open transaction can still add a message
with a lower sequence.

**Listings.** A listing reads the queue's document and the lanes (the *view*), and then a page of messages up to the
queue's last sequence in the view. If a range is open in the view and begins at or below the page's last message, the
listing *settles* the range's lane: it waits until no transaction holds the lane's document. Then it reads the page
again. After that, no message with a lower sequence can appear. For each transaction that has drawn a lower sequence,
one of these cases applies:

- The view includes a later range of the same lane. The transaction had ended before the view was read.
- The transaction's range is the last range of its lane. Either the range was committed in the view, or the listing has
  settled the lane. In both cases, the listing reads the page afterwards.

Most pages need no view:

- A search reads the queue's document after the page. If this document contains no ranges, no server has ever drawn
  sequences in the queue. All draws of lower sequences precede the commit of a message. If the page includes the
  message, the document would therefore contain these draws.
- A process remembers the *final* sequence of each queue. No further message can appear up to the final sequence,
  because it is below the first range that is open in a view.

**Changes.** A purge, a deletion and a change of the metadata settle the open lanes before the server sends the
response. A post that drew its sequences before the change is then either committed before the response, or never
committed.

A process remembers which ranges it has settled, and identifies a range by its first sequence. The group does not
identify a range, because an aborted attempt and its repetition have the same group. If a page depends on a remembered
fact, the page is read from data at least as recent as the fact, even after a failover.

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
    """One process's knowledge about the open posts of all servers, used to read pages and to wait for these posts.

    Thread-safe.
    """

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
        """Return the limits of a page, from a view of the data at the time ``after`` or later.

        Ranges that this process has settled do not count as open. The page must be read from data that includes the
        outcomes of these ranges. ``committed`` is therefore not earlier than the time at which the last of these ranges
        was settled.
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
