# SPDX-License-Identifier: Apache-2.0
"""Lanes: documents that show readers which posts are in progress.

A transaction that stores posts may reserve their sequences by a separate write, called a draw (see ``numbering``). Such
a transaction first writes the document of its process's lane. Transactions of one lane therefore never overlap, and
another write of the document succeeds only if no transaction is in progress. The document has these fields:

========= ==============================================================================================================
``_id``   "j" name; ``s``: "j"
``l``     number of the last committed group of posts
``o``     owner: a random text that each process generates when it starts
``u``     end of the owner's lease, which each group extends; after this time, another process may take the lane
``r``     how often the lane has changed hands
``t``     how often readers have found that no transaction holds the lane
========= ==============================================================================================================

A process with an expired lease does no harm: its next write of the lane's document finds another owner. If the
transaction of a dead owner is still in progress, other processes do not take over its lane. A reader that has to wait
for this transaction ends it. Lanes are never removed; there are about as many lanes as processes that have ever posted
at the same time.

The queue's document stores the last range of each lane in ``x``, as ``{lane: {f, g, d, a}}``: the first sequence, the
group, the available-at time of messages without delay, and the attempt. A range is *open* if its group is not
committed, because the transaction is still running or was aborted.
"""

from contextlib import suppress
from typing import Final
from uuid import uuid4

from pymongo.errors import DuplicateKeyError

from zq.storage.mongodb.client import Session, StoreClient, TransactionAborted
from zq.storage.mongodb.layout import BsonDocument

LANE: Final = "j"
# The filter on all lanes.
LANES: Final[BsonDocument] = {"_id": {"$gte": LANE, "$lt": "k"}}
# Milliseconds for which an unused lane stays with its owner.
LEASE: Final = 30_000
LEASE_END: Final[BsonDocument] = {"$add": ["$$NOW", LEASE]}
# The number of attempts that one owner of a lane can make.
MAX_ATTEMPTS: Final = 1 << 32


class SequencesNotReserved(TransactionAborted):
    """An error that is raised if sequences cannot be reserved outside a transaction.

    The caller then reserves the sequences inside a transaction.
    """


class Lane:
    """The lane of one process: a document that a transaction writes first if it reserves sequences by a separate write.

    Only one of these transactions can therefore run at a time.

    - ``name``: the number of the lane; "" before the first transaction.
    - ``group``: the number that the current group of posts gets if its transaction commits.
    - ``attempt``: a number that increases with every transaction of the lane, even if the owner of the lane changes.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._owner = uuid4().hex
        self.name = ""
        self.group = 0
        self.attempt = 0

    def hold(self, session: Session) -> None:
        """Write the lane's document, so that other writers wait for the end of the session's transaction.

        This must be the first write of the transaction.

        Raises ``SequencesNotReserved`` if the stored lane is not as expected. In this case, another process has taken
        the lane, or an earlier transaction was committed although its commit command failed. The next call then
        acquires a lane again.
        """
        if not self.name:
            self._acquire()
        self.attempt += 1
        own = {"_id": LANE + self.name, "o": self._owner, "l": self.group - 1}
        step = [{"$set": {"l": self.group, "u": LEASE_END}}]
        if self._client.update([{"q": own, "u": step, "hint": "_id_"}], session) != 1:
            self.name = ""
            raise SequencesNotReserved

    def finish_group(self) -> None:
        """Advance ``group`` to the next group of posts. Call this method after each committed transaction."""
        self.group += 1

    def _acquire(self) -> None:
        found = self._take_over() or self._make()
        self.name = found["_id"][len(LANE) :]
        self.group = found["l"] + 1
        self.attempt = found["r"] * MAX_ATTEMPTS

    def _take_over(self) -> BsonDocument | None:
        """Take over a lane whose lease has expired or that this process already owns, and return its document.

        Return None if no lane is available. A lane is not available while a transaction of its former owner still holds
        its document.
        """
        is_free = {"$expr": {"$or": [{"$lt": ["$u", "$$NOW"]}, {"$eq": ["$o", self._owner]}]}}
        for lane in self._client.find({**LANES, **is_free}, sort={"_id": 1}, fields={"_id": 1}):
            if self._client.touch(lane["_id"]):
                command = {"query": {**lane, **is_free}, "update": [{"$set": self._ownership}], "new": True}
                found = self._client.modify(command)
                if found:
                    return found
        return None

    def _make(self) -> BsonDocument:
        """Make a new lane, and return its document."""
        number = len(self._client.find(LANES, fields={"_id": 1}))
        found: BsonDocument | None = None
        while not found:
            number += 1
            where = {"_id": f"{LANE}{number}", "o": {"$exists": False}}
            step = [{"$set": {**self._ownership, "s": LANE, "l": 0}}]
            with suppress(DuplicateKeyError):  # another process has made it at the same time
                found = self._client.modify({"query": where, "update": step, "upsert": True, "new": True})
        return found

    @property
    def _ownership(self) -> BsonDocument:
        return {"o": self._owner, "u": LEASE_END, "r": {"$add": [{"$ifNull": ["$r", 0]}, 1]}}
