# SPDX-License-Identifier: Apache-2.0
"""Waiting for open posts, which is necessary for listings by marker and for changes of a queue.

A *draw* reserves the sequences of a post outside the post's transaction (see ``numbering``). Messages with drawn
sequences do not become visible in the order of their sequences. A listing continues after the sequence of the last
message that it has returned. It must therefore not return a message while an open transaction can still add a message
with a lower sequence.

**Listings.** A listing reads the queue's document and the lanes, then the messages up to the queue's last sequence in
this view. If a range that begins at or below the page's last message is open in the view, the listing *settles* the
range: it waits until the range's transaction has ended. Then it reads the page once more. A lower sequence can no
longer appear:

- If the view includes a later range of the same lane, the transaction had ended before.
- If its range is the lane's last one, it was committed in the view, or it was settled. The page is read after.

Pages of ready messages are in the order of (available-at, sequence). An open range may precede any message of such a
page, so all of them are settled. The page ends before the first message that was drawn after the view.

**Settling.** A range is settled as soon as a later view includes the commit of its group, or a later range of its lane.
This does not require a moment in which the lane is free, so a server with slow transactions delays a listing for the
rest of one transaction only. After an abort, there may be nothing to see. The listing therefore also tries to write the
lane's document, which fails while a transaction holds the lane.

Most pages need no view:

- A search reads the queue's document after the page. If this document contains no ranges, no server has ever drawn
  sequences in the queue. All draws of lower sequences precede the commit of a message. If the page includes the
  message, the document would therefore contain these draws.
- A process remembers the *final* sequence of each queue. No further message can appear up to the final sequence,
  because it is below the first range that is open in a view.

**Changes.** A purge, a deletion and a change of the metadata settle the open ranges before they are answered. A post
that drew before the change is then committed before the answer, or never.

A process remembers the last attempt of each lane that has ended. Attempts of a lane never overlap, and no two of them
have the same number. The group does not identify a range, because an aborted attempt and its repetition have the same
group. If a page relies on remembered values, it is read from data that is at least as recent as these values, even
after a failover.

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
    """An open range of sequences: the last range that a lane has drawn in a queue, if its group is not committed.

    ``first`` is the first sequence of the range, and ``attempt`` is the attempt that has drawn the range.
    """

    first: int
    attempt: int


class PageLimits(NamedTuple):
    """The limits within which a page is read.

    - ``last``: the highest sequence that the page may contain.
    - ``committed``: the argument ``committed`` of ``StoreClient.find``, which is the earliest time of the data to read.
    - ``ranges``: the open range of each lane in the queue.
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
    """Reads pages of messages, and waits for posts of all servers that are not committed yet. Thread-safe."""

    def __init__(self, client: StoreClient, timer: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._final = TTLCache[str, int](MAX_REMEMBERED, REMEMBERED, timer)
        self._ended: dict[str, int] = {}
        self._touching = threading.Lock()
        self._time: Timestamp | None = None

    def read_page(self, key: QueueKey, search: Callable[[PageLimits], Found], *, is_by_sequence: bool = True) -> Found:
        """Read a page with ``search``, and return the result.

        Afterwards, no new message can appear before the page's end. To ensure this, settle the open ranges that begin
        before the page's end. If the page is not in the order of sequences, settle all open ranges.
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
        """Wait until each post that has already drawn sequences in the queue is committed or aborted."""
        if not self._client.sharded:
            self._settle(key, self._limits(key, self._client.latest()).ranges)

    def _limits(self, key: QueueKey, after: Timestamp | None = None) -> PageLimits:
        """Read the queue's document and the lanes at the time ``after`` or later, and return the limits of a page.

        Ranges that this process has settled do not count as open. The page must be read from data that includes the
        outcomes of these ranges. ``committed`` is therefore not earlier than the time at which the last of these ranges
        was settled.
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
        """Settle the ranges. Return the earliest time at which a read includes the outcome of the ranges."""
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
        """Try to write the lanes of the ranges. If no transaction holds a lane, its attempt has ended."""
        for lane, one in ranges.items():
            touched = self._client.touch(LANE + lane)
            if touched:
                with self._lock:
                    self._time = max(touched, self._time or touched)
                    self._ended[lane] = max(one.attempt, self._ended.get(lane, 0))
