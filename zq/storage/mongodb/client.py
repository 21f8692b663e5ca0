# SPDX-License-Identifier: Apache-2.0
"""The connection to MongoDB: commands, transactions, deadlines, and the translation of PyMongo's errors.

The driver sends all commands with ``Database.command``, which costs a third less than PyMongo's helper methods. The
driver therefore sets the write concern, raises the errors in replies and retries after a failover itself.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

import pymongo
from bson.codec_options import CodecOptions
from bson.errors import BSONError, InvalidDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient, ReadPreference
from pymongo.client_session import ClientSession
from pymongo.errors import (
    AutoReconnect,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from zq.errors import Invalid, Unavailable
from zq.model import UNBOUNDED, QueueRef
from zq.model.stats import Tally, removals
from zq.storage.concurrency import StripedLocks
from zq.storage.mongodb.commands import (
    FIRST_BATCH_SIZE,
    TRANSIENT,
    check_reply,
    is_conflict,
    is_transient,
    read_up_to,
    split,
)
from zq.storage.mongodb.counter_cache import SHARED_SECONDS, UNCACHED_SECONDS, CounterCache
from zq.storage.mongodb.layout import CODEC, MESSAGES, BsonDocument, QueueKey, size_of

T = TypeVar("T")
Client = MongoClient[BsonDocument]
Session = ClientSession

# Microseconds after which an idle transaction is considered abandoned.
IDLE: Final = 2_000_000


def end_orphans(client: Client) -> int:
    """End abandoned transactions of this MongoDB user, and return their number."""
    application = client.options.pool_options.appname
    abandoned = {
        "type": "idleSession",
        "appName": application,
        "transaction.timeInactiveMicros": {"$gt": IDLE},
    }
    own = {"$currentOp": {"allUsers": False, "idleSessions": True}}
    sessions = [{"id": found["lsid"]["id"]} for found in client.admin.aggregate([own, {"$match": abandoned}])]
    if sessions:
        client.admin.command({"killSessions": sessions})
    return len(sessions)


# Seconds between the first two attempts of a transaction.
FIRST_PAUSE: Final = 0.001
# Maximum seconds between later attempts. With longer pauses, the slower of two busy processes would starve.
LONGEST_PAUSE: Final = 0.008
# Seconds of conflicts after which abandoned transactions are ended, because one of them may cause the conflicts.
PATIENCE: Final = 0.5
# Maximum seconds for a plain write during a transaction. The transaction is idle meanwhile, so this is less than IDLE.
SEND_TIMEOUT: Final = 1.0
UNKNOWN_RESULT_LABEL: Final = "UnknownTransactionCommitResult"
# The code of a transient error that MongoDB returns shortly after the collection was created.
SNAPSHOT_UNAVAILABLE: Final = 246
LOCAL: Final = ReadConcern("local")
PLAIN_CODEC: Final = cast(CodecOptions[Mapping[str, Any]], CODEC)
UNJOURNALED_CONCERN: Final = {"w": 1}
MAJORITY: Final = WriteConcern("majority", j=True)
# A batch size that returns all documents of a snapshot in one reply.
SNAPSHOT_BATCH: Final = 100_000

# The outcomes of an attempt of a transaction, for the metric.
OUTCOMES: Final = ("committed", "conflict", "outdated", "failed")


class TransactionAborted(Exception):
    """Raised to abort a transaction that must not be retried."""


class StoreClient:
    """The connection to one MongoDB database. Thread-safe."""

    def __init__(
        self,
        client: Client,
        database: str,
        timeout: float,
        durable: WriteConcern,
        sharded: bool,
        draws: bool = False,
    ) -> None:
        """Wrap an open connection.

        Args:
            timeout: The default time limit of a storage operation, in seconds.
            durable: The write concern of durable writes.
            draws: Whether the configuration allows a post to reserve sequence numbers outside its transaction.
        """
        self.pymongo = client
        self.database = client.get_database(database, codec_options=CODEC)
        self.messages = self.database.get_collection(MESSAGES, write_concern=durable)
        self.timeout = timeout
        self.sharded = sharded
        self.locks = StripedLocks(timeout)
        self.removals = removals()
        self.transactions = Tally("store_transactions_total", "outcome", *OUTCOMES)
        self._draws = draws
        self._listener: Callable[[QueueRef], object] = lambda queue: None
        self._made_ready: WeakKeyDictionary[Session, set[QueueRef]] = WeakKeyDictionary()
        self._durable = durable
        self._write_concern = durable.document
        self._verb = threading.local()
        # A reader's marker must not depend on a write that a failover may undo. If the write concern permits this
        # anyway, a majority read would have no benefit.
        self._read_concern = {"level": "majority" if durable.document.get("w") == "majority" else "local"}
        self.counters = CounterCache(SHARED_SECONDS if self.can_draw else UNCACHED_SECONDS)

    @property
    def can_draw(self) -> bool:
        """Whether a post may reserve its sequence numbers outside its transaction. See the module ``numbering``."""
        return self._draws and not self.sharded and self._read_concern["level"] == "majority"

    @contextmanager
    def verb(self, timeout: float | None = None) -> Iterator[None]:
        """Return a context manager that sets a time limit for a storage operation and translates PyMongo's errors.

        The limit is ``timeout`` seconds or, if ``timeout`` is None, the configured timeout.

        Raises ``Invalid`` if MongoDB cannot store a value, and ``Unavailable`` for every other PyMongo error.
        """
        seconds = timeout or self.timeout
        self._verb.deadline = time.monotonic() + seconds
        try:
            with pymongo.timeout(seconds):
                yield
        except (InvalidDocument, OverflowError) as error:
            raise Invalid("A value is larger than the store can hold.") from error
        except (PyMongoError, BSONError) as error:
            raise Unavailable from error

    def where(self, key: QueueKey, **conditions: object) -> BsonDocument:
        """Return a filter for the queue's messages that meet ``conditions``."""
        return {"s": key.shard, "q": key.messages, **conditions} if self.sharded else {"q": key.messages, **conditions}

    def shards(self, shards: Iterable[str]) -> BsonDocument:
        """Return a filter that matches these shard key values, so that the router sends a command to few shards.

        If the store is not sharded, return an empty filter.
        """
        return {"s": {"$in": list(dict.fromkeys(shards))}} if self.sharded else {}

    def find(
        self,
        conditions: Mapping[str, object],
        *,
        limit: int = 0,
        sort: Mapping[str, int] | None = None,
        hint: str | Mapping[str, int] = "",
        fields: Mapping[str, int] | None = None,
        skip: int = 0,
        committed: bool | Timestamp = False,
        snapshot: bool | Timestamp = False,
        max_bytes: int = UNBOUNDED,
        session: Session | None = None,
    ) -> list[BsonDocument]:
        """Return the matching documents of ``messages``.

        Args:
            limit: Maximum number of documents; 0 = no limit.
            max_bytes: Total size in bytes at which the method stops reading. The last document may exceed this size.
            committed: Whether to read majority-committed data, which no failover can undo. If this is a timestamp, the
                data is at least as recent. If the write concern is weaker than ``majority``, local data is read.
            snapshot: Whether to read a majority-committed snapshot. If this is a timestamp, the snapshot has exactly
                this time. If this is True and ``committed`` is a timestamp, the snapshot is at least as recent.
        """
        command: BsonDocument = {"find": MESSAGES, "filter": conditions}
        if sort:
            command["sort"] = sort
        if limit:
            command["limit"] = limit
            command["batchSize"] = limit if max_bytes >= UNBOUNDED else min(limit, FIRST_BATCH_SIZE)
        if hint:
            command["hint"] = hint
        if fields:
            command["projection"] = fields
        if skip:
            command["skip"] = skip
        is_single = bool(limit) and command["batchSize"] == limit
        return self.read(
            command, session, committed=committed, snapshot=snapshot, max_bytes=max_bytes, is_single=is_single
        )

    def read(
        self,
        command: BsonDocument,
        session: Session | None = None,
        *,
        is_single: bool = False,
        committed: bool | Timestamp = False,
        snapshot: bool | Timestamp = False,
        max_bytes: int = UNBOUNDED,
    ) -> list[BsonDocument]:
        """Run a read command and return the documents of its cursor.

        Set ``is_single`` if one reply probably contains all documents. The call then needs less CPU time, but the
        result may exceed ``max_bytes``. For the other options, see ``find``.
        """
        later = {"afterClusterTime": committed} if isinstance(committed, Timestamp) else {}
        if committed:
            command["readConcern"] = {**self._read_concern, **later}
        if snapshot:
            moment = {"atClusterTime": snapshot} if isinstance(snapshot, Timestamp) else later
            command["readConcern"] = {"level": "snapshot", **moment}
        # The first reply is read without PyMongo's cursor, which saves a fifth of the CPU time. If the reply is
        # incomplete and smaller than ``max_bytes``, the command is sent again and read with a cursor.
        if is_single:
            cursor = self._retry(
                lambda: self.database.command(command, session=session, codec_options=PLAIN_CODEC)["cursor"], session
            )
            found: list[BsonDocument] = cursor["firstBatch"]
            if cursor["id"]:
                self.database.command({"killCursors": MESSAGES, "cursors": [cursor["id"]]}, session=session)
            if not cursor["id"] or sum(map(size_of, found)) >= max_bytes:
                return found
        return self._retry(
            lambda: read_up_to(self.database.cursor_command(command, session=session, codec_options=CODEC), max_bytes),
            session,
        )

    def snapshot(self, conditions: Mapping[str, object]) -> tuple[Sequence[BsonDocument], Timestamp | bool]:
        """Return the matching documents from a majority-committed snapshot, and the timestamp of the snapshot.

        The filter must match few documents, because the method reads one batch. If the write concern is weaker than
        ``majority``, a snapshot might lack the caller's writes. The method then returns current documents and False.
        """
        if self._read_concern["level"] != "majority":
            return self.find(conditions), False
        command = {
            "find": MESSAGES,
            "filter": conditions,
            "readConcern": {"level": "snapshot"},
            "batchSize": SNAPSHOT_BATCH,
        }
        reply = self._retry(lambda: self.database.command(command, codec_options=PLAIN_CODEC), None)
        return reply["cursor"]["firstBatch"], reply["cursor"]["atClusterTime"]

    def view(
        self, conditions: Mapping[str, object], hint: str, after: Timestamp | None
    ) -> tuple[Sequence[BsonDocument], Timestamp | bool]:
        """Return the matching majority-committed documents, and a value to pass to ``find`` as ``committed``.

        With this value, ``find`` reads data that is at least as recent as the returned documents, even after a
        failover. If ``after`` is given, the documents are as of this time or later. The filter must match few
        documents, because the method reads one batch.
        """
        concern = {**self._read_concern, **({"afterClusterTime": after} if after else {})}
        command: BsonDocument = {"find": MESSAGES, "filter": conditions, "hint": hint, "readConcern": concern}
        command["batchSize"] = SNAPSHOT_BATCH
        reply = self._retry(lambda: self.database.command(command, codec_options=PLAIN_CODEC), None)
        moment = reply["operationTime"] if self._read_concern["level"] == "majority" else True
        return reply["cursor"]["firstBatch"], moment

    def latest(self) -> Timestamp:
        """Return the logical time of the primary's last write."""
        moment: Timestamp = self._retry(lambda: self.database.command("ping"), None)["operationTime"]
        return moment

    def count(self, conditions: Mapping[str, object], hint: str, limit: int = 0) -> int:
        """Count the matching documents of ``messages``, up to ``limit`` (0 = no limit)."""
        collection = self.database[MESSAGES]
        bound: Mapping[str, Any] = {"limit": limit} if limit else {}
        return self._retry(lambda: collection.count_documents(conditions, hint=hint, **bound), None)

    def aggregate(
        self, stages: Sequence[BsonDocument], hint: str, session: Session | None = None
    ) -> list[BsonDocument]:
        """Run an aggregation pipeline on ``messages``, and return its results."""
        return self.read({"aggregate": MESSAGES, "pipeline": stages, "cursor": {}, "hint": hint}, session)

    def update(self, updates: Sequence[Mapping[str, object]], session: Session | None = None) -> int:
        """Run update statements in order, and return the number of matched and upserted documents.

        Outside a transaction, the method retries after a connection failure, so a statement may be executed twice.
        """
        commands = split(updates, lambda update: update["u"])
        return sum(self._write({"update": MESSAGES, "updates": part}, session)["n"] for part in commands)

    def upsert(self, where: Mapping[str, object], change: Mapping[str, object]) -> None:
        """Update or create a document, even if another process creates the document at the same time."""
        while True:
            try:
                self.update([{"q": where, "u": change, "upsert": True}])
                return
            except DuplicateKeyError:
                continue

    def repeat(self, write: Callable[[], T]) -> T:
        """Return the result of an idempotent write, which an abandoned transaction may block.

        A plain write waits for transactions that have written the same document. If the write fails within half of the
        configured timeout, the method therefore ends abandoned transactions, and repeats the write.
        """
        try:
            with self.verb(self.timeout / 2):
                return write()
        except Unavailable:
            with self.verb(self.timeout / 2):
                end_orphans(self.pymongo)
                return write()

    def insert(self, documents: Sequence[BsonDocument], session: Session) -> None:
        for part in split(documents, lambda document: document):
            self._write({"insert": MESSAGES, "documents": part}, session)

    def delete(
        self, statements: Sequence[Mapping[str, object]], session: Session | None = None, *, durable: bool = True
    ) -> int:
        """Run delete statements, and return the number of deleted documents.

        If ``durable`` is False, a failover may undo the deletions. Use this option only for deletions that a server
        repeats later, such as the removal of expired documents.
        """
        deleted: int = self._write({"delete": MESSAGES, "deletes": statements}, session, durable)["n"]
        return deleted

    def delete_all(
        self,
        conditions: Mapping[str, object],
        *,
        hint: str = "_id_",
        session: Session | None = None,
        durable: bool = True,
    ) -> int:
        """Delete all matching documents, and return the number of deleted documents."""
        return self.delete([{"q": conditions, "limit": 0, "hint": hint}], session, durable=durable)

    def modify(
        self,
        command: BsonDocument,
        session: Session | None = None,
        collection: str = MESSAGES,
        *,
        durable: bool = True,
    ) -> BsonDocument | None:
        """Run ``findAndModify``, and return the document in the reply, or None if no document matched."""
        found: BsonDocument | None = self._write({"findAndModify": collection, **command}, session, durable).get(
            "value"
        )
        return found

    def send_once(self, command: BsonDocument) -> BsonDocument:
        """Send a write without retries and without waiting for the store's write concern, and return the reply.

        If the method raises ``PyMongoError``, MongoDB may still execute the write afterwards.
        """
        with pymongo.timeout(SEND_TIMEOUT):
            return check_reply(
                self.database.command({**command, "writeConcern": UNJOURNALED_CONCERN}, codec_options=PLAIN_CODEC)
            )

    def touch(self, doc_id: str) -> Timestamp | None:
        """Write the document's field ``t``, and return the timestamp of the write.

        If an open transaction has written the document, do not wait for the transaction, and return None. Otherwise,
        reads at the timestamp include the outcome of all transactions that wrote the document before, even after a
        failover.
        """
        statement = {"q": {"_id": doc_id}, "u": {"$inc": {"t": 1}}, "hint": "_id_"}
        with self.pymongo.start_session() as session:
            session.start_transaction(LOCAL, MAJORITY, ReadPreference.PRIMARY)
            try:
                self.update([statement], session)
                self._commit(session)
            except PyMongoError as error:
                if not is_transient(error) and not isinstance(error, AutoReconnect):
                    raise
                return None
            return session.operation_time

    def transaction(
        self,
        work: Callable[[Session], T],
        trace: Callable[[T], BsonDocument] = lambda _: {},
        *,
        retry_conflicts: bool = True,
    ) -> T:
        """Run ``work`` in a transaction, and return the result of the committed attempt.

        The method retries the transaction after transient errors, so it may call ``work`` several times.

        Args:
            trace: Maps the result of an attempt to a filter that matches a document if, and only if, the attempt was
                committed. The method uses the filter if the reply to the commit is lost. If the filter is empty, the
                outcome stays unknown.
            retry_conflicts: Whether to retry after a conflict with another transaction.

        Raises:
            TransactionAborted: ``work`` raised it, or a conflict occurred and ``retry_conflicts`` is False. Nothing has
                changed.
            Unavailable: It is unknown whether the transaction was committed.
        """
        pause = FIRST_PAUSE
        patient_until = time.monotonic() + PATIENCE
        while True:
            committing = False
            with self.pymongo.start_session() as session:
                session.start_transaction(LOCAL, self._durable, ReadPreference.PRIMARY)
                try:
                    result = work(session)
                    committing = True
                    self._commit(session)
                    self._committed(session)
                    return result
                except TransactionAborted:
                    self.transactions.add("outdated")
                    raise
                except PyMongoError as error:
                    if committing and self._was_committed(error, trace(result)):
                        self._committed(session)
                        return result
                    self.transactions.add("conflict" if is_conflict(error) else "failed")
                    if not is_transient(error) or self._is_late():
                        raise
                    if not retry_conflicts and is_conflict(error):
                        raise TransactionAborted from error
            if time.monotonic() > patient_until:
                end_orphans(self.pymongo)
                patient_until = time.monotonic() + PATIENCE
            time.sleep(random.uniform(0.2, 1) * pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def listen(self, listener: Callable[[QueueRef], object]) -> None:
        """Set the listener. After each commit, it is called with every queue that was passed to ``made_ready``."""
        self._listener = listener

    def made_ready(self, session: Session, queue: QueueRef) -> None:
        """Notify the listener that the queue has ready messages. The notification follows the transaction's commit."""
        self._made_ready.setdefault(session, set()).add(queue)

    def _committed(self, session: Session) -> None:
        self.transactions.add("committed")
        for queue in self._made_ready.pop(session, ()):
            self._listener(queue)

    def _commit(self, session: Session) -> None:
        while True:
            try:
                session.commit_transaction()
                return
            except PyMongoError as error:
                if not error.has_error_label(UNKNOWN_RESULT_LABEL) or self._is_late():
                    raise
            time.sleep(LONGEST_PAUSE)

    def _was_committed(self, error: PyMongoError, stored: BsonDocument) -> bool:
        """Return whether a transaction was committed although its commit command failed with ``error``.

        1. Send a write that changes nothing, with the store's write concern. After the reply, no failover can undo this
           write or any earlier one.
        2. Search the majority-committed data of this time or later for a document that matches ``stored``. If there is
           one, the transaction was committed.

        Raises ``Unavailable`` if the outcome is unknown.
        """
        try:
            if stored:
                nothing = {"q": {"_id": "", "s": stored["s"]}, "u": {"$unset": {"e": ""}}}
                moment = self._write({"update": MESSAGES, "updates": [nothing]}, None)["operationTime"]
                if self.find(stored, fields={"_id": 1}, committed=moment):
                    return True
        except PyMongoError as failure:
            raise Unavailable from failure
        if not error.has_error_label(TRANSIENT):
            raise Unavailable from error
        return False

    def _write(self, command: BsonDocument, session: Session | None, durable: bool = True) -> BsonDocument:
        if session is None:
            command.setdefault("writeConcern", self._write_concern if durable else UNJOURNALED_CONCERN)
        return self._retry(
            lambda: check_reply(self.database.command(command, session=session, codec_options=PLAIN_CODEC)), session
        )

    def _retry(self, send: Callable[[], T], session: Session | None) -> T:
        """Call ``send`` until a primary replies or the deadline has passed. In a transaction, do not retry."""
        pause = FIRST_PAUSE
        while True:
            try:
                return send()
            except AutoReconnect as error:
                if session is not None or isinstance(error, ServerSelectionTimeoutError) or self._is_late():
                    raise
            except OperationFailure as error:
                if session is not None or error.code != SNAPSHOT_UNAVAILABLE or self._is_late():
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.25)

    def _is_late(self) -> bool:
        return time.monotonic() > float(self._verb.deadline)
