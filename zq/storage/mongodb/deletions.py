# SPDX-License-Identifier: Apache-2.0
"""Deletions of messages by id.

**Transactions.** A deletion uses a transaction if the queue keeps a history or has message groups. A deletion that is
limited to given claims also uses a transaction if it names several messages or claims. Concurrent requests share a
transaction, because separate transactions on one queue would conflict on the queue's history counter.

**Shared commands.** Other deletions need no transaction, and concurrent requests share a delete command. If the command
deletes fewer messages than requested, each caller repeats its request in a transaction. If a message is missing because
another request has just deleted it, the commit of this transaction ensures that no failover restores the message.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from bson.datetime_ms import DatetimeMS

from zq.errors import ClaimNotHeld, MessageClaimed
from zq.model import Outcome
from zq.storage.mongodb import groups, layout
from zq.storage.mongodb.changes import FinishTerms, finish, held_condition
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.floors import find_visible
from zq.storage.mongodb.group_commit import ShardGroups
from zq.storage.mongodb.layout import UNGROUPED_FILTER, BsonDocument, QueueKey
from zq.storage.mongodb.shared_commands import CAPACITY, SharedCommands


class Deletion(NamedTuple):
    """A request to delete messages. ``now`` is in milliseconds.

    ``claims`` lists the claims that may hold the messages. If it is None, claimed messages are deleted too.
    """

    key: QueueKey
    doc_ids: Sequence[str]
    now: int
    claims: Sequence[str] | None
    history: int
    idempotency_key: None = None


class Deletions:
    """The executor of deletions in one process."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._shared = SharedCommands(client, client.delete)
        self._finish_groups = ShardGroups[Deletion, None](client, self._finish, lambda one: len(one.doc_ids), CAPACITY)

    def delete(self, deletion: Deletion, is_grouped: bool) -> None:
        """Delete messages; see ``MessageController.delete``."""
        claims = deletion.claims
        if is_grouped or deletion.history or (claims is not None and (len(deletion.doc_ids) != 1 or len(claims) > 1)):
            self._finish_groups.submit(deletion)
            return
        living = self._client.where(deletion.key, _id={"$in": deletion.doc_ids}, e={"$gt": DatetimeMS(deletion.now)})
        conditions = living if claims is None else {**living, **_holder(claims, deletion.now)}
        if not self._delete(conditions, len(deletion.doc_ids)):
            self._finish_groups.submit(deletion)

    def _delete(self, conditions: BsonDocument, count: int) -> bool:
        statement = {"q": {**conditions, **UNGROUPED_FILTER}, "limit": 0, "hint": "_id_"}
        return self._shared.submit([statement], count)

    def _finish(self, deletions: Sequence[Deletion]) -> Sequence[Exception | None]:
        """Execute several requests in one transaction, and return an error or None for each request."""
        with self._client.locks.locked(*{one.key.history_counter for one in deletions if one.history}):
            return self._client.transaction(partial(self._finish_all, deletions))

    def _finish_all(self, deletions: Sequence[Deletion], session: Session) -> Sequence[Exception | None]:
        now = max(deletion.now for deletion in deletions)  # the deletions of a group share one time
        keys = list(dict.fromkeys(one.key for one in deletions))
        shards = self._client.shards(key.shard for key in keys)
        named = {"_id": {"$in": [doc_id for one in deletions for doc_id in one.doc_ids]}, **shards}
        messages = find_visible(
            self._client, keys, named, fields={"e": 1, "c": 1, "h1": 1}, hint="_id_", session=session
        )
        found = {message["_id"]: message for message in messages if int(message["e"]) > now}
        answers: list[Exception | None] = []
        ending: defaultdict[tuple[QueueKey, int], list[BsonDocument]] = defaultdict(list)
        for one in deletions:
            there = [found[doc_id] for doc_id in one.doc_ids if doc_id in found]
            mine = [message for message in there if message["q"] == one.key.messages]
            refusals = (refusal_of(message.get("c", {}), one.claims, now) for message in mine)
            answers.append(next((refusal for refusal in refusals if refusal), None))
            if answers[-1] is None:
                ending[one.key, one.history] += [found.pop(message["_id"]) for message in mine]
        for (key, history), its in sorted(ending.items(), key=lambda item: item[0][0].shard):
            doc_ids = [message["_id"] for message in its]
            finish(self._client, session, key, doc_ids, FinishTerms(Outcome.DELETED, now, history))
            groups.update_entries(self._client, session, key, its, now)
        return answers


def refusal_of(claim: BsonDocument, claims: Sequence[str] | None, now: int) -> MessageClaimed | ClaimNotHeld | None:
    """Return the error if the claim of a message does not permit a deletion with ``claims``, else None.

    ``claim`` is the field ``c`` of the message. If ``claims`` is None, the deletion is always permitted.
    """
    if claims is None:
        return None
    held = claim.get("e", 0) > now
    if held and claim["i"] not in [layout.encode_text(one) for one in claims]:
        return MessageClaimed()
    if claims and not held:
        return ClaimNotHeld()
    return None


def _holder(claims: Sequence[str], now: int) -> BsonDocument:
    """Return the condition under which a request may delete a message (contract section 7.6)."""
    return held_condition(claims[0], now) if claims else {"c.e": {"$not": {"$gt": now}}}
