# SPDX-License-Identifier: Apache-2.0
"""The estimated usage of projects. The usage is an estimate because removals are not counted (decision 0072).

Messages, history entries and idempotency keys are counted with the index ``observers``, whose keys begin with the type
of document and the project. Document bodies are read only for a sample.

- A small project is counted on each query.
- A large project is counted in the next maintenance round of the server that received the query. The count is stored in
  the document ``("", "usage", project)``. Until the next count, the growth of the queues' counters is added to it.
- Stages store their sizes, which are read on each query.

The document is also a lease, so only one server counts at a time. If this server dies, another server may count after
``LEASE`` seconds.
"""

import logging
import random
import time
from typing import Final

import msgspec
from msgspec import Struct, structs

from zq.errors import Unavailable
from zq.model import Seconds
from zq.model.documents import Document, DocumentRef
from zq.model.quotas import OVERHEAD, Usage
from zq.storage.mongodb import layout
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.documents import DocumentController, drop
from zq.storage.mongodb.floors import below, find_pending
from zq.storage.mongodb.layout import BsonDocument

LOG = logging.getLogger(__name__)
# The kind of the documents that store counts. They belong to the deployment, not to a project.
KIND: Final = "usage"
# Maximum number of messages, history entries or idempotency keys of a project that is counted on each query.
SMALL_PROJECT: Final = 1000
# Minimum seconds between two counts of a project.
INTERVAL: Final = 10.0
# Minimum pause between counts, as a multiple of a count's duration. Counts then take at most a tenth of the time.
PAUSE_FACTOR: Final = 10
# Seconds after which a count is aborted; the previous count stays valid.
MAX_DURATION: Final = 30.0
# Seconds after which another server may count a project whose count was started but not completed.
LEASE: Final = 60.0
# Retention of a count in seconds.
RETENTION: Final = 86_400
# Limits of the sample of bodies whose sizes one count reads: maximum number, maximum bytes, and minimum number.
MAX_SAMPLE: Final = 10_000
MAX_SAMPLE_BYTES: Final = 32 << 20
MIN_SAMPLE: Final = 100


class Totals(Struct, frozen=True):
    """A message count, and the total size in bytes, including ``OVERHEAD`` for each message."""

    messages: int = 0
    bytes: int = 0

    def plus(self, other: "Totals") -> "Totals":
        return Totals(self.messages + other.messages, self.bytes + other.bytes)

    def since(self, before: "Totals") -> "Totals":
        """Return the growth since ``before``. If a total has decreased because queues were deleted, its growth is 0."""
        return Totals(max(0, self.messages - before.messages), max(0, self.bytes - before.bytes))


class Count(Struct, frozen=True):
    """The last count of a project, as stored in its document.

    ``moment`` is the time at which the count started. If a wrong clock has set ``moment`` to a time in the future, the
    project is counted again. ``until`` is the expiry of the lease. ``entered`` has the number and size of all messages
    that had been posted to the project before the count started.
    """

    moment: Seconds = 0.0
    due: Seconds = 0.0
    until: Seconds = 0.0
    found: Totals | None = None
    entered: Totals = Totals()


class UsageEstimates:
    """A server's estimates of the usage of projects."""

    def __init__(self, client: StoreClient, documents: DocumentController) -> None:
        self._client = client
        self._documents = documents
        # Projects to be counted in the next maintenance round.
        self._queried: set[str] = set()

    def usage(self, project: str, now: Seconds) -> Usage:
        """Return the project's estimated usage, with ``exact`` False."""
        count = _decoded(self._documents.get(_ref(project), now))
        found, due = count.found, not count.moment <= now < count.due
        with self._client.verb():
            entered, staged = self._posted(project), self._staged(project)
            if found is None or (due and found.messages <= SMALL_PROJECT):
                few, whole = self._total(project, entered, SMALL_PROJECT)
                if whole:
                    return _usage(few.plus(staged), 0)
                found = found or few
        if due:
            self._queried.add(project)
        if count.found is None:
            return _usage(found.plus(staged), 0)
        return _usage(found.plus(entered.since(count.entered)).plus(staged), int(now - count.moment))

    def count_due(self, now: Seconds) -> None:
        """Count the messages of each project whose usage was queried and whose last count is too old."""
        while self._queried:
            self._count(self._queried.pop(), now)

    def forget(self, project: str) -> None:
        """Discard the last count, which is too high after many messages were removed."""
        drop(self._client, _ref(project))

    def _count(self, project: str, now: Seconds) -> None:
        """Count a project and store the count, unless another server is counting or has just counted the project."""
        ref = _ref(project)
        document = self._documents.get(ref, now)
        before = _decoded(document)
        if before.moment <= now < max(before.due, before.until):
            return
        lease = msgspec.json.encode(structs.replace(before, until=now + LEASE))
        version = document.version if document else ""
        if not self._documents.put(ref, lease, now, expected=version, expires=now + RETENTION):
            return
        began = time.monotonic()
        with self._client.verb():
            entered = self._posted(project)
        found = self._count_all(project, entered) or before.found
        due = now + max(INTERVAL, PAUSE_FACTOR * (time.monotonic() - began))
        count = msgspec.json.encode(Count(now, due, 0.0, found, entered))
        self._documents.put(ref, count, now, expires=due + RETENTION)

    def _count_all(self, project: str, entered: Totals) -> Totals | None:
        began = time.monotonic()
        try:
            with self._client.verb(MAX_DURATION):
                return self._total(project, entered)[0]
        except Unavailable:
            if time.monotonic() - began < MAX_DURATION:
                raise
        LOG.warning("The usage of project %r could not be counted within %s seconds.", project, MAX_DURATION)
        return None

    def _total(self, project: str, entered: Totals, max_count: int = 0) -> tuple[Totals, bool]:
        """Return the message count and data size of a project, and whether the count was completed.

        If the project has more than ``max_count`` messages, history entries or idempotency keys, the count ends early,
        and the numbers are too low. If ``max_count`` is 0, there is no limit.

        ``entered`` has the number and size of all messages ever posted. They determine the estimated mean size of a
        message.
        """
        mean = entered.bytes // entered.messages if entered.messages else OVERHEAD
        found = Totals()
        for kind in "mho":
            within = self._filter(kind, project)
            number = self._number(within, max_count)
            if max_count and number > max_count:
                return found.plus(Totals(number if kind == "m" else 0, number * mean)), False
            size = self._sizes(kind, within, number, mean) + OVERHEAD * number if number else 0
            found = found.plus(Totals(number if kind == "m" else 0, size))
        return found, True

    def _filter(self, kind: str, project: str) -> BsonDocument:
        prefix = layout.project_prefix(project)
        within: BsonDocument = {"q": {"$gt": kind + prefix, "$lt": kind + layout.after(prefix)}}
        removed = below(kind, find_pending(self._client, project))
        return within | ({"$nor": removed} if removed else {})

    def _number(self, where: BsonDocument, max_count: int) -> int:
        limit = [{"$limit": max_count + 1}] if max_count else []
        found = self._client.aggregate([{"$match": where}, *limit, {"$count": "n"}], layout.OBSERVERS)
        return int(found[0]["n"]) if found else 0

    def _sizes(self, kind: str, where: BsonDocument, number: int, mean: int) -> int:
        """Return the total size of the matching documents in bytes, extrapolated from a sample if there are many.

        ``number`` is the number of matching documents. ``mean`` is the estimated size of a document in bytes, which
        limits the sample.
        """
        sample = max(MIN_SAMPLE, min(MAX_SAMPLE, MAX_SAMPLE_BYTES // max(1, mean)))
        every = -(-number // sample)
        size = {"$add": [{"$binarySize": "$b"}, {"$binarySize": {"$ifNull": ["$v", b""]}}]}
        total: BsonDocument = {"_id": None, "n": {"$sum": 1}, "size": {"$sum": size}}
        sums = {"$group": total}
        found: list[BsonDocument] = []
        if every > 1 and kind != "o":
            spread = {**where, "k": {"$mod": [every, random.randrange(every)]}}
            found = self._client.aggregate([{"$match": spread}, sums], layout.OBSERVERS)
        if not found:
            found = self._client.aggregate([{"$match": where}, {"$limit": sample}, sums], layout.OBSERVERS)
        return int(found[0]["size"]) * number // int(found[0]["n"]) if found else 0

    def _posted(self, project: str) -> Totals:
        prefix = layout.project_prefix(project)
        named = {"$match": {"n": {"$gt": prefix, "$lt": layout.after(prefix)}}}
        sums = {"$group": {"_id": None, "messages": {"$sum": "$n1"}, "bytes": {"$sum": "$w1"}}}
        found = self._client.aggregate([named, sums], layout.NAMES)
        return Totals(int(found[0]["messages"]), int(found[0]["bytes"])) if found else Totals()

    def _staged(self, project: str) -> Totals:
        """Return the number and size of the drafts in the project's stages. Drafts that were published do not count."""
        prefix = layout.project_prefix(project)
        within = {"_id": {"$gt": "s" + prefix, "$lt": "s" + layout.after(prefix)}}
        stages = self._client.find(within, hint="_id_", fields={"_id": 0, "s": 1, "token": 1, "count": 1, "bytes": 1})
        found = Totals()
        for stage in stages:
            drafts = {"q": "d" + stage["token"], **self._client.shards([stage["s"]])}
            left = self._number(drafts, stage["count"]) if stage["count"] else 0
            size = stage["bytes"] * left // max(1, stage["count"]) + OVERHEAD * left
            found = found.plus(Totals(left, size))
        return found


def _ref(project: str) -> DocumentRef:
    return DocumentRef("", KIND, project)


def _decoded(document: Document | None) -> Count:
    return msgspec.json.decode(document.value, type=Count) if document else Count()


def _usage(figures: Totals, age: int) -> Usage:
    return Usage(figures.messages, figures.bytes, exact=False, age=max(0, age))
