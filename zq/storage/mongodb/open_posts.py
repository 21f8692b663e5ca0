# SPDX-License-Identifier: Apache-2.0
"""Waiting for open posts, which is necessary for listings by marker and for changes of a queue.

A post may reserve its sequences by a write outside its transaction, called a *draw* (see ``numbering``). Messages with
drawn sequences do not become visible in the order of their sequences. A listing continues after the sequence of the
last message that it has returned. It must therefore not return a message while an open transaction can still add a
message with a lower sequence.

**Listings.** A listing takes these steps:

1. Read the queue's document and the lanes. The result is called a *view*.
2. Read a page of messages, up to the queue's last sequence in the view.
3. If a range in the view is open and begins at or below the page's last message, wait until the range's transaction has
   ended. This is called *settling* the range. Then read the page again.

Afterwards, no message with a lower sequence can appear, because each transaction that has drawn lower sequences ended
before the page was last read:

- If the view has a later range of the same lane, the transaction had ended before the view.
- If the range is the last one of its lane, it was committed in the view or was settled.

Pages of ready messages are in the order of (available-at, sequence). The messages of an open range may belong anywhere
in such a page, so the listing settles all open ranges. The page ends before the first message that was drawn after the
view.

**Settling.** A range is settled as soon as a later view includes the commit of its group, or a later range of its lane.
A server with slow transactions therefore delays a listing for the rest of one transaction only. If the transaction is
aborted, a later view may include neither. The listing therefore also tries to write the lane's document, which fails
while a transaction of the lane is in progress.

**Pages without a view.** Most pages need no view:

- A search reads the queue's document after the page. If this document contains no ranges, no server has drawn sequences
  below those of the page's messages.
- A process remembers the *final* sequence of each queue, which is below the first open range of a view. No message can
  appear at or below the final sequence.

**Changes.** A purge, a deletion and a change of the metadata settle the open ranges before the server responds. Posts
that drew sequences before the change are therefore committed or aborted before the response.

**Remembered attempts.** A process remembers the last attempt of each lane that has ended. Attempts of a lane never
overlap, and each attempt has its own number. If a page relies on remembered values, it is read from data that is at
least as recent as these values, even after a failover.

``tests/model/numbering.py`` searches all interleavings of these steps.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from bson.timestamp import Timestamp
from cachetools import TTLCache
from pymongo.errors import AutoReconnect

from zq.storage.mongodb.client import FIRST_PAUSE, PATIENCE, StoreClient, end_orphans
from zq.storage.mongodb.lanes import LANE, LANES
from zq.storage.mongodb.layout import LARGEST_MARKER, BsonDocument, QueueKey

# Maximum number of queues whose final sequence a process remembers.
MAX_REMEMBERED: Final = 10_000
# Seconds for which a process remembers it. The document of a deleted queue, with its last sequence, is kept for longer.
REMEMBERED: Final = 86_400.0
# Maximum seconds between two views while a listing waits for a range.
LONGEST_PAUSE: Final = 0.05
# Seconds after which a waiting listing tries to write the lane's document.
LANE_WAIT: Final = 0.05


class OpenRange(NamedTuple):
    """The last range of sequences that a lane has reserved in a queue, if the posts of this range are not committed.

    A lane is the series of posts of one process; see ``lanes``. ``first`` is the first sequence of the range, and
    ``attempt`` is the number of the attempt that has reserved the range.
    """

    first: int
    attempt: int


class PageLimits(NamedTuple):
    """The limits within which a page is read.

    - ``last``: the highest sequence that the page may contain.
    - ``committed``: the argument ``committed`` of ``StoreClient.find``, which is the earliest time of the data to read.
    - ``ranges``: the range of sequences that each lane (series of posts of one process) has not committed yet.
    """

    last: int
    committed: Timestamp | bool
    ranges: Mapping[str, OpenRange]

    @property
    def bound(self) -> BsonDocument:
        """The condition on the sequence; empty if there is no limit."""
        return {} if self.last == LARGEST_MARKER else {"$lte": self.last}


UNLIMITED: Final = PageLimits(LARGEST_MARKER, True, {})
NO_LANE: Final[BsonDocument] = {"l": 0}
# The messages of a page in their order, and the queue's document, which is read last.
Found = tuple[Sequence[BsonDocument], BsonDocument]


class OpenPosts:
    """A reader of message pages, which waits for posts that any server has not committed yet. Thread-safe."""

    def __init__(self, client: StoreClient, timer: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._final = TTLCache[str, int](MAX_REMEMBERED, REMEMBERED, timer)
        self._ended: dict[str, int] = {}
        self._touching = threading.Lock()
        self._time: Timestamp | None = None

    def read_page(self, key: QueueKey, search: Callable[[PageLimits], Found], *, is_by_sequence: bool = True) -> Found:
        """Read a page with ``search``, and return it when no concurrent post can add a message before the page's end.

        A post may commit after other posts with higher sequences. The method therefore waits for each open post whose
        sequences begin before the page's end, and then reads the page again. If the page is not in the order of
        sequences, the method waits for all open posts of the queue.
        """
        while True:
            with self._lock:
                final = self._final.get(key.counter, 0) if is_by_sequence else 0
                limits = UNLIMITED._replace(committed=(self._time if final else None) or True)
            found, counter = search(limits)
            if not found or "x" not in counter or (is_by_sequence and found[-1]["k"] <= final):
                return found, counter
            limits = self._limits(key)
            found, counter = search(limits)
            if found:
                last = found[-1]["k"] if is_by_sequence else limits.last
                waiting = {lane: one for lane, one in limits.ranges.items() if one.first <= last}
                if waiting:
                    full_size = len(found)
                    found, counter = search(PageLimits(last, self._settle(key, waiting), {}))
                    # If consumers have removed messages, later messages must fill the page.
                    if len(found) < full_size and last < limits.last:
                        committed = self._settle(key, limits.ranges)
                        found, counter = search(PageLimits(limits.last, committed, {}))
            if found:
                return found, counter
            # Consumers have removed all messages that the limits permit. An empty page would mean that none is left.

    def settle(self, key: QueueKey) -> None:
        """Wait until each post that has already reserved sequence numbers in the queue is committed or aborted."""
        if not self._client.sharded:
            self._settle(key, self._limits(key, self._client.latest()).ranges)

    def _limits(self, key: QueueKey, after: Timestamp | None = None) -> PageLimits:
        """Read the queue's document and the lanes at the time ``after`` or later, and return the limits of a page.

        A lane is the series of posts of one process; see ``lanes``.

        Ranges whose transactions are known to have ended are not in the result. A page that is read with the result's
        ``committed`` includes the messages of these transactions.
        """
        conditions: BsonDocument = {"$or": [{"_id": key.counter}, LANES]}
        found, committed = self._client.view(conditions, "_id_", after or self._time)
        documents = {one["_id"]: one for one in found}
        counter = documents.get(key.counter, {})
        last = int(counter.get("k1", 0))
        with self._lock:
            ranges = {
                lane: OpenRange(int(drawn["f"]), int(drawn["a"]))
                for lane, drawn in counter.get("x", {}).items()
                if documents.get(LANE + lane, NO_LANE)["l"] < drawn["g"] and drawn["a"] > self._ended.get(lane, 0)
            }
            if isinstance(committed, Timestamp):
                committed = self._time = max(committed, self._time or committed)
            final = min([last, *(one.first - 1 for one in ranges.values())])
            self._final[key.counter] = max(final, self._final.get(key.counter, 0))
        return PageLimits(last, committed, ranges)

    def _settle(self, key: QueueKey, ranges: Mapping[str, OpenRange]) -> Timestamp | bool:
        """Wait until the transactions of the ranges have ended, and return a value for ``PageLimits.committed``.

        A page that is read with this value includes the messages of these transactions.
        """
        began = time.monotonic()
        pause, patient_until = FIRST_PAUSE, began + PATIENCE
        while ranges:
            time.sleep(pause)
            pause, now = min(2 * pause, LONGEST_PAUSE), time.monotonic()
            # Many listings may wait for the same transaction, but one of them at a time is enough for this.
            if now > began + LANE_WAIT and self._touching.acquire(blocking=False):
                try:
                    self._touch(ranges)
                    if now > patient_until:
                        patient_until = now + PATIENCE
                        with suppress(AutoReconnect):
                            end_orphans(self._client.pymongo)
                finally:
                    self._touching.release()
            still_open = self._limits(key).ranges
            ranges = {lane: one for lane, one in ranges.items() if still_open.get(lane) == one}
        return self._time or True

    def _touch(self, ranges: Mapping[str, OpenRange]) -> None:
        """Try to write the document of each range's lane, and record the attempts that have ended.

        A lane is the series of posts of one process; see ``lanes``. A write succeeds only if no transaction of the lane
        is in progress.
        """
        for lane, one in ranges.items():
            touched = self._client.touch(LANE + lane)
            if touched:
                with self._lock:
                    self._time = max(touched, self._time or touched)
                    self._ended[lane] = max(one.attempt, self._ended.get(lane, 0))
