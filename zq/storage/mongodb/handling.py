# SPDX-License-Identifier: Apache-2.0
"""Deletion, extension and release of individual claimed messages.

A caller identifies a message by its id, claim and claim count, which form a ``MessageHandle``. Concurrent requests in a
process share a transaction, which reads the messages before it changes them.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from zq.model import HandleOutcome, MessageHandle, Outcome
from zq.storage.mongodb import groups, layout
from zq.storage.mongodb.changes import FinishTerms, finish
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.floors import find_visible
from zq.storage.mongodb.group_commit import ShardGroups
from zq.storage.mongodb.layout import BsonDocument, QueueKey

# Maximum number of messages in one transaction.
CAPACITY: Final = 256


class HandleRequest(NamedTuple):
    """A request to delete claimed messages or change their claims. ``now`` is in milliseconds, ``history`` in seconds.

    ``accepts_expired`` permits the handle of an expired claim if the message has not been claimed since.
    """

    key: QueueKey
    handles: Sequence[MessageHandle]
    now: int
    accepts_expired: bool
    history: int
    idempotency_key: None = None


class HandleResult(NamedTuple):
    """The result of a ``HandleRequest``.

    It has an outcome for each handle, and ``is_earlier`` is true if any message becomes available earlier than before.
    """

    handled: Sequence[HandleOutcome]
    is_earlier: bool


class Handler:
    """The component that deletes, extends and releases claimed messages for all threads of a process."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._groups = ShardGroups[HandleRequest, HandleResult](
            client, self._execute, lambda one: len(one.handles), CAPACITY
        )

    def handle(self, request: HandleRequest) -> HandleResult:
        """Execute the request, and return the outcomes after the transaction is committed."""
        return self._groups.submit(request)

    def _execute(self, requests: Sequence[HandleRequest]) -> Sequence[HandleResult]:
        with self._client.locks.locked(*{one.key.history_counter for one in requests if one.history}):
            return self._client.transaction(partial(self._handle, requests))

    def _handle(self, requests: Sequence[HandleRequest], session: Session) -> Sequence[HandleResult]:
        now = max(request.now for request in requests)  # the requests of a group share one time
        ids = {layout.doc_id(request.key, handle.id) for request in requests for handle in request.handles}
        keys = list(dict.fromkeys(request.key for request in requests))
        named = {"_id": {"$in": list(ids)}, **self._client.shards(key.shard for key in keys)}
        fields = {"d": 1, "e": 1, "c": 1, "h1": 1}
        found = find_visible(self._client, keys, named, fields=fields, hint="_id_", session=session)
        changes = _PendingChanges({one["_id"]: one for one in found if int(one["e"]) > now}, now)
        results = [changes.apply(request) for request in requests]
        self._client.update(changes.updates(self._client), session)
        for (key, history), doc_ids in sorted(changes.deleted.items(), key=lambda item: item[0][0].shard):
            finish(self._client, session, key, doc_ids, FinishTerms(Outcome.DELETED, now, history))
        for key, changed in changes.changed.items():
            groups.update_entries(self._client, session, key, changed, now)
        return results


class _PendingChanges:
    """The changes to claimed messages that a transaction collects in memory before it writes them."""

    def __init__(self, found: dict[str, BsonDocument], now: int) -> None:
        self._found = found
        self._now = now
        self._held: dict[str, tuple[QueueKey, int, int]] = {}
        """The queue, the new expiry of the claim and the new available-at of each message with a changed claim.

        If a later request of the transaction deletes the message, the history entry has these values.
        """
        self.deleted: defaultdict[tuple[QueueKey, int], list[str]] = defaultdict(list)
        self.changed: defaultdict[QueueKey, list[BsonDocument]] = defaultdict(list)

    def apply(self, request: HandleRequest) -> HandleResult:
        before = {doc_id: one["d"] for doc_id, one in self._found.items()}
        handled = [self._one(request, handle) for handle in request.handles]
        ids = [layout.doc_id(request.key, handle.id) for handle in request.handles]
        return HandleResult(handled, any(one in self._found and self._found[one]["d"] < before[one] for one in ids))

    def updates(self, client: StoreClient) -> Sequence[BsonDocument]:
        by_end: defaultdict[tuple[QueueKey, int, int], list[str]] = defaultdict(list)
        for doc_id, end in self._held.items():
            by_end[end].append(doc_id)
        return [
            {
                "q": client.where(key, _id={"$in": doc_ids}),
                "u": {"$set": {"c.e": ends, "d": available}},
                "multi": True,
                "hint": "_id_",
            }
            for (key, ends, available), doc_ids in by_end.items()
        ]

    def _one(self, request: HandleRequest, handle: MessageHandle) -> HandleOutcome:
        doc_id = layout.doc_id(request.key, handle.id)
        found = self._found.get(doc_id)
        if found is None or found["q"] != request.key.messages:
            return HandleOutcome.GONE
        # The claim id of a message that a commit has reserved is binary.
        claim = found.get("c", layout.NO_CLAIM)
        holder = claim.get("i", "")
        known = layout.decode_text(holder) if isinstance(holder, str) else ""
        age = (self._now - int(claim.get("s", self._now))) // 1000
        handled = handle.decide(known, claim["n"], request.accepts_expired or claim.get("e", 0) > self._now, age)
        if handled is not HandleOutcome.DONE:
            return handled
        self.changed[request.key].append(found)
        if handle.hold is None:
            del self._found[doc_id]
            self.deleted[request.key, request.history].append(doc_id)
        else:
            wait = found["d"] - claim["e"]
            claim["e"] = self._now + handle.hold * 1000
            found["d"] = claim["e"] + wait
            self._held[doc_id] = request.key, claim["e"], found["d"]
        return handled
