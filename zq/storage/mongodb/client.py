# SPDX-License-Identifier: Apache-2.0
"""The way to the server: commands, transactions, deadlines, and the one place where PyMongo's errors are translated.

Commands are sent as they are (``Database.command``), which costs a third less than PyMongo's helpers; what these do
beyond that stands here and in ``commands``: write concern, errors inside a reply, repetition after a change of the
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

# Microseconds after which an idle transaction is taken for abandoned.
IDLE: Final = 2_000_000


def end_orphans(client: Client) -> int:
    """End the abandoned transactions of this application's servers; returns how many. Needs no rights of its own."""
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
# Seconds between later attempts at most. Longer pauses starve the loser of two busy processes.
LONGEST_PAUSE: Final = 0.008
# Seconds of conflicts after which a transaction ends abandoned transactions, which may be what it conflicts with.
PATIENCE: Final = 0.5
UNKNOWN: Final = "UnknownTransactionCommitResult"
# The code of an error that comes for a moment after the collection was made.
SNAPSHOT_UNAVAILABLE: Final = 246
LOCAL: Final = ReadConcern("local")
PLAIN: Final = cast(CodecOptions[Mapping[str, Any]], CODEC)
UNJOURNALED: Final = {"w": 1}
# Documents of a snapshot that the server sends in one reply.
FEW: Final = 100_000


# What becomes of a run of a transaction.
OUTCOMES: Final = ("committed", "conflict", "outdated", "failed")


class Aborted(Exception):
    """A transaction's own work finds that it must not be committed."""


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
        # A reader's marker must not depend on what a fail-over may take back; weaker writers get weaker readers.
        self._verb = threading.local()
        self._read_concern = {"level": "majority" if durable.document.get("w") == "majority" else "local"}

    @contextmanager
    def verb(self, timeout: float | None = None) -> Iterator[None]:
        """All of one verb: it ends in time, and what PyMongo raises becomes ``Unavailable``, or ``Invalid``.

        ``timeout``: seconds for it, if not the store's.
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
        """A filter on messages of one queue; on a cluster it names the shard."""
        return {"s": key.shard, "q": key.messages, **conditions} if self.sharded else {"q": key.messages, **conditions}

    def shards(self, shards: Iterable[str]) -> BsonDocument:
        """What a filter says on a cluster of the shard keys, so that no other shard is asked."""
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
        """Documents of ``messages``; ``committed`` = only what no fail-over can take back, ``snapshot`` = of one moment
        besides, maybe a given one. It ends where there are ``most_bytes`` of bodies."""
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
        """Return the few documents that fit, as no fail-over can change them, and the moment at which they were so.

        Writers that do not wait for a majority would not find what they wrote, so there it is of now, and no moment.
        """
        if self._read_concern["level"] != "majority":
            return self.find(conditions), False
        command = {"find": MESSAGES, "filter": conditions, "readConcern": {"level": "snapshot"}, "batchSize": FEW}
        reply = self._again(lambda: self.database.command(command, codec_options=PLAIN), None)
        return reply["cursor"]["firstBatch"], reply["cursor"]["atClusterTime"]

    def count(self, conditions: Mapping[str, object], hint: str, most: int = 0) -> int:
        """How many documents of ``messages`` fit, counted up to ``most``."""
        collection = self.database[MESSAGES]
        bound: Mapping[str, Any] = {"limit": most} if most else {}
        return self._again(lambda: collection.count_documents(conditions, hint=hint, **bound), None)

    def aggregate(
        self, stages: Sequence[BsonDocument], hint: str, session: Session | None = None
    ) -> list[BsonDocument]:
        """What becomes of the documents of ``messages``."""
        return self.read({"aggregate": MESSAGES, "pipeline": stages, "cursor": {}, "hint": hint}, session)

    def update(self, updates: Sequence[Mapping[str, object]], session: Session | None = None) -> int:
        """Run update statements in order; how many documents fitted. May be repeated, but in a transaction."""
        commands = parts(updates, lambda update: update["u"])
        return sum(self._write({"update": MESSAGES, "updates": part}, session)["n"] for part in commands)

    def upsert(self, where: Mapping[str, object], change: Mapping[str, object]) -> None:
        """Update a document, or make it, though others make it at once."""
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
        """Run delete statements; how many went. ``durable`` False: for what anybody would delete again."""
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
        """Delete all that fit; how many."""
        return self.delete([{"q": conditions, "limit": 0, "hint": hint}], session, durable=durable)

    def modify(
        self,
        command: BsonDocument,
        session: Session | None = None,
        collection: str = MESSAGES,
        *,
        durable: bool = True,
    ) -> BsonDocument | None:
        """A findAndModify; the document. ``durable`` False: for what anybody would do again."""
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
        """Whether a transaction whose commit failed so is there, as durably as others; False: surely not.

        What is found now might still be lost, so a write that changes nothing waits before until all is durable.
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
        """Send until the set has a primary that answers; inside a transaction once only."""
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
        """Whether this thread's verb has used up its time."""
        return time.monotonic() > float(self._verb.deadline)
