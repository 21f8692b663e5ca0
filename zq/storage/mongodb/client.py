# SPDX-License-Identifier: Apache-2.0
"""The connection to the server: commands, transactions, deadlines, and the translation of PyMongo's errors.

The driver sends plain commands (``Database.command``), which cost a third less than PyMongo's helpers. This module and
``commands`` add what the helpers do besides: write concern, errors inside a reply, repetition after a change of the
primary.
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
from zq.storage.mongodb.commands import PORTION, TRANSIENT, checked, is_conflict, is_transient, parts, taken
from zq.storage.mongodb.layout import CODEC, MESSAGES, BsonDocument, QueueKey

T = TypeVar("T")
Client = MongoClient[BsonDocument]
Session = ClientSession

# Microseconds after which an idle transaction counts as abandoned.
IDLE: Final = 2_000_000


def end_orphans(client: Client) -> int:
    """End the abandoned transactions of zq servers and return their number. The user needs no additional rights."""
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
# Longest seconds between later attempts. Longer pauses starve the loser of two busy processes.
LONGEST_PAUSE: Final = 0.008
# Seconds of conflicts after which a transaction ends abandoned transactions: it may conflict with one of them.
PATIENCE: Final = 0.5
UNKNOWN: Final = "UnknownTransactionCommitResult"
# The code of an error that lasts for a moment after the collection was created.
SNAPSHOT_UNAVAILABLE: Final = 246
LOCAL: Final = ReadConcern("local")
PLAIN: Final = cast(CodecOptions[Mapping[str, Any]], CODEC)
UNJOURNALED: Final = {"w": 1}
# Documents of a snapshot that the server sends in one reply.
FEW: Final = 100_000

# The outcomes of a run of a transaction.
OUTCOMES: Final = ("committed", "conflict", "outdated", "failed")


class Aborted(Exception):
    """A transaction must not be committed, as its own work finds."""


class StoreClient:
    """An open database. Safe for any number of threads."""

    def __init__(self, client: Client, database: str, timeout: float, durable: WriteConcern, sharded: bool) -> None:
        self.pymongo = client
        self.database = client.get_database(database, codec_options=CODEC)
        self.messages = self.database.get_collection(MESSAGES, write_concern=durable)
        self.timeout = timeout
        self.sharded = sharded
        self.locks = StripedLocks(timeout)
        self.removals = removals()
        self.transactions = Tally("store_transactions_total", "outcome", *OUTCOMES)
        self._listener: Callable[[QueueRef], object] = lambda queue: None
        self._made_ready: WeakKeyDictionary[Session, set[QueueRef]] = WeakKeyDictionary()
        self._durable = durable
        self._write_concern = durable.document
        # A reader's marker must not depend on a write that a fail-over may undo; weaker writers get weaker readers.
        self._verb = threading.local()
        self._read_concern = {"level": "majority" if durable.document.get("w") == "majority" else "local"}

    @contextmanager
    def verb(self, timeout: float | None = None) -> Iterator[None]:
        """Bound the time of a verb, and turn PyMongo's errors into ``Unavailable`` or ``Invalid``; a context manager.

        ``timeout``: seconds for the verb, if not the store's.
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
        """Return a filter on messages of one queue; on a cluster it names the shard."""
        return {"s": key.shard, "q": key.messages, **conditions} if self.sharded else {"q": key.messages, **conditions}

    def shards(self, shards: Iterable[str]) -> BsonDocument:
        """Return the condition that sends a command to these shards only; empty unless on a cluster."""
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
        committed: bool = False,
        snapshot: bool | Timestamp = False,
        most_bytes: int = UNBOUNDED,
        session: Session | None = None,
    ) -> list[BsonDocument]:
        """Return documents of ``messages``, up to the one with which their bodies reach ``most_bytes``.

        ``committed`` reads majority-committed data, which no failover can undo. ``snapshot`` also reads from one point
        in time, which may be given.
        """
        command: BsonDocument = {"find": MESSAGES, "filter": conditions}
        if sort:
            command["sort"] = sort
        if limit:
            command["limit"] = limit
            command["batchSize"] = limit if most_bytes >= UNBOUNDED else min(limit, PORTION)
        if hint:
            command["hint"] = hint
        if fields:
            command["projection"] = fields
        if skip:
            command["skip"] = skip
        return self.read(command, session, committed=committed, snapshot=snapshot, most_bytes=most_bytes)

    def read(
        self,
        command: BsonDocument,
        session: Session | None = None,
        *,
        committed: bool = False,
        snapshot: bool | Timestamp = False,
        most_bytes: int = UNBOUNDED,
    ) -> list[BsonDocument]:
        """Return the documents that a command finds; ``committed``, ``snapshot`` and ``most_bytes`` as for ``find``."""
        if committed:
            command["readConcern"] = self._read_concern
        if snapshot:
            moment = {"atClusterTime": snapshot} if isinstance(snapshot, Timestamp) else {}
            command["readConcern"] = {"level": "snapshot", **moment}
        return self._again(
            lambda: taken(self.database.cursor_command(command, session=session, codec_options=CODEC), most_bytes),
            session,
        )

    def snapshot(self, conditions: Mapping[str, object]) -> tuple[Sequence[BsonDocument], Timestamp | bool]:
        """Return the few documents that fit, as a majority has them, and the moment of this snapshot.

        If writers do not wait for a majority, return the documents as they are now, and no moment: the snapshot might
        not have a write of the caller.
        """
        if self._read_concern["level"] != "majority":
            return self.find(conditions), False
        command = {"find": MESSAGES, "filter": conditions, "readConcern": {"level": "snapshot"}, "batchSize": FEW}
        reply = self._again(lambda: self.database.command(command, codec_options=PLAIN), None)
        return reply["cursor"]["firstBatch"], reply["cursor"]["atClusterTime"]

    def count(self, conditions: Mapping[str, object], hint: str, most: int = 0) -> int:
        """Count the documents of ``messages`` that fit, up to ``most``."""
        collection = self.database[MESSAGES]
        bound: Mapping[str, Any] = {"limit": most} if most else {}
        return self._again(lambda: collection.count_documents(conditions, hint=hint, **bound), None)

    def aggregate(
        self, stages: Sequence[BsonDocument], hint: str, session: Session | None = None
    ) -> list[BsonDocument]:
        """Return the result of a pipeline over the documents of ``messages``."""
        return self.read({"aggregate": MESSAGES, "pipeline": stages, "cursor": {}, "hint": hint}, session)

    def update(self, updates: Sequence[Mapping[str, object]], session: Session | None = None) -> int:
        """Run update statements in order, and return the number of documents that fitted.

        Outside a transaction the command may be repeated.
        """
        commands = parts(updates, lambda update: update["u"])
        return sum(self._write({"update": MESSAGES, "updates": part}, session)["n"] for part in commands)

    def upsert(self, where: Mapping[str, object], change: Mapping[str, object]) -> None:
        """Update a document or create it, even if others create it at the same time."""
        while True:
            try:
                self.update([{"q": where, "u": change, "upsert": True}])
                return
            except DuplicateKeyError:
                continue

    def insert(self, documents: Sequence[BsonDocument], session: Session) -> None:
        for part in parts(documents, lambda document: document):
            self._write({"insert": MESSAGES, "documents": part}, session)

    def delete(
        self, statements: Sequence[Mapping[str, object]], session: Session | None = None, *, durable: bool = True
    ) -> int:
        """Run delete statements and return the number of deleted documents.

        ``durable`` False: do not wait for durability, since any server would delete them again.
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
        """Delete all documents that fit and return their number."""
        return self.delete([{"q": conditions, "limit": 0, "hint": hint}], session, durable=durable)

    def modify(
        self,
        command: BsonDocument,
        session: Session | None = None,
        collection: str = MESSAGES,
        *,
        durable: bool = True,
    ) -> BsonDocument | None:
        """Run findAndModify and return the document.

        ``durable`` False: do not wait for durability, since any server would do it again.
        """
        found: BsonDocument | None = self._write({"findAndModify": collection, **command}, session, durable).get(
            "value"
        )
        return found

    def transaction(
        self,
        work: Callable[[Session], T],
        trace: Callable[[T], BsonDocument] = lambda _: {},
        *,
        retry_conflicts: bool = True,
    ) -> T:
        """Run ``work`` in a transaction, once or several times, and return the result of the run that was committed.

        ``trace`` returns, for the result of a run, a filter on a document that exists if, and only if, the run was
        committed. Raise ``Unavailable`` if the outcome of a commit stays unknown. Raise ``Aborted`` if ``work`` does,
        or if the transaction conflicts with another one and ``retry_conflicts`` is False; then nothing has changed.
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
                except Aborted:
                    self.transactions.add("outdated")
                    raise
                except PyMongoError as error:
                    if committing and self._was_committed(error, trace(result)):
                        self._committed(session)
                        return result
                    self.transactions.add("conflict" if is_conflict(error) else "failed")
                    if not is_transient(error) or self._late():
                        raise
                    if not retry_conflicts and is_conflict(error):
                        raise Aborted from error
            if time.monotonic() > patient_until:
                end_orphans(self.pymongo)
                patient_until = time.monotonic() + PATIENCE
            time.sleep(random.uniform(0.2, 1) * pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def listen(self, listener: Callable[[QueueRef], object]) -> None:
        """Notify the listener of each queue in which a transaction has made messages ready, once it is committed."""
        self._listener = listener

    def made_ready(self, session: Session, queue: QueueRef) -> None:
        """Note for the listener that this transaction makes messages of the queue ready."""
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
                if not error.has_error_label(UNKNOWN) or self._late():
                    raise
            time.sleep(LONGEST_PAUSE)

    def _was_committed(self, error: PyMongoError, stored: BsonDocument) -> bool:
        """Return whether a transaction whose commit failed with this error is stored durably; False: certainly not.

        A document that is found might still be lost. So a write that changes nothing waits before until all is durable.
        Raise ``Unavailable`` if the outcome is unknown.
        """
        try:
            if stored:
                self.update([{"q": {"_id": "", "s": stored["s"]}, "u": {"$unset": {"e": ""}}}])
                if self.find(stored, fields={"_id": 1}):
                    return True
        except PyMongoError as failure:
            raise Unavailable from failure
        if not error.has_error_label(TRANSIENT):
            raise Unavailable from error
        return False

    def _write(self, command: BsonDocument, session: Session | None, durable: bool = True) -> BsonDocument:
        if session is None:
            command["writeConcern"] = self._write_concern if durable else UNJOURNALED
        return self._again(
            lambda: checked(self.database.command(command, session=session, codec_options=PLAIN)), session
        )

    def _again(self, send: Callable[[], T], session: Session | None) -> T:
        """Send until a primary answers; in a transaction, once."""
        pause = FIRST_PAUSE
        while True:
            try:
                return send()
            except AutoReconnect as error:
                if session is not None or isinstance(error, ServerSelectionTimeoutError) or self._late():
                    raise
            except OperationFailure as error:
                if session is not None or error.code != SNAPSHOT_UNAVAILABLE or self._late():
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.25)

    def _late(self) -> bool:
        """Return whether the verb of this thread has used up its time."""
        return time.monotonic() > float(self._verb.deadline)
