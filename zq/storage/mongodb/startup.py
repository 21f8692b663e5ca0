# SPDX-License-Identifier: Apache-2.0
"""Connection to the database at startup: parse the URI, connect, and prepare the database.

Every PyMongo option in the URI takes precedence over the settings, except the read preference: all reads go to the
primary, because secondaries may lag behind.
"""

import contextlib
import logging
import warnings
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    DuplicateKeyError,
    InvalidName,
    InvalidURI,
    OperationFailure,
    PyMongoError,
)
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from zq.errors import StartRefused, Unavailable
from zq.model import levels
from zq.model.levels import Initial
from zq.storage.mongodb.client import Client
from zq.storage.mongodb.layout import CLOCK, FEED, INDEXES, LAYOUT, MESSAGES, SHARD_KEY, VERSION, BsonDocument

LOG = logging.getLogger(__name__)
AUTHENTICATION_FAILED: Final = 18
UNAUTHORIZED: Final = 13
PROBE_MS: Final = 1000
ILLEGAL: Final = '/\\."$*<>:|?'


class Address(Struct, frozen=True):
    """The address and options of a store. Only ``uri`` contains a password."""

    uri: str
    hosts: tuple[tuple[str, int | None], ...]
    options: Mapping[str, Any]
    user: str
    database: str
    timeout: float
    durable: WriteConcern

    @property
    def where(self) -> str:
        """The hosts, formatted for error messages."""
        return ", ".join(host if port is None else f"{host}:{port}" for host, port in self.hosts)


def parse(uri: str, timeout: float, database: str, write_concern: str, journal: bool) -> Address:
    """Combine a URI and the settings into an address.

    Raises ``StartRefused`` if a value is invalid, and ``Unavailable`` if the DNS records of the URI cannot be read.
    """
    if not timeout > 0:
        raise StartRefused(f"[storage:mongodb] timeout must be greater than 0 seconds; it is {timeout}.")
    try:
        found = parse_uri(uri, validate=True, warn=False)
    except InvalidURI as error:
        raise StartRefused(f"The store's URI is not a valid MongoDB URI: {_reason(error, uri)}") from error
    except (ConfigurationError, ValueError, TypeError) as error:
        if uri.startswith("mongodb+srv:") and not isinstance(error, ValueError) and "option" not in str(error).lower():
            raise Unavailable("The DNS records of the store's mongodb+srv address cannot be read.") from error
        raise StartRefused(f"The store's URI has an option that cannot be used: {_reason(error, uri)}") from error
    except OSError as error:
        raise StartRefused(
            f"An option of the store's URI names a file that cannot be read: {_reason(error, uri)}"
        ) from error
    if found.get("collection"):
        raise StartRefused(
            "The database name in the store's URI has a dot. A name must not contain any of / \\ . \" $ * < > : | ?"
        )
    name = found["database"] or database
    if not 0 < len(name.encode()) < 64 or set(name) & {*ILLEGAL, " ", "\0"}:
        raise StartRefused(
            f"{name!r} is not a valid MongoDB database name: use 1 to 63 bytes without spaces and {' '.join(ILLEGAL)}"
        )
    options: dict[str, Any] = {key.lower(): value for key, value in found["options"].items()}
    durable = _write_concern(options, write_concern, journal)
    return Address(uri, tuple(found["nodelist"]), options, found["username"] or "", name, timeout, durable)


def _write_concern(options: Mapping[str, Any], write_concern: str, journal: bool) -> WriteConcern:
    """Return the write concern from the URI or the settings. Raises ``StartRefused`` if the write concern is 0."""
    requested = options.get("w", write_concern)
    w = int(requested) if isinstance(requested, str) and requested.isdigit() else requested
    j = options.get("journal", journal)
    if w == 0:
        raise StartRefused(
            "With write concern 0, MongoDB acknowledges messages that it may not store: use majority or at least 1."
        )
    if w != "majority" or not j:
        LOG.warning(
            "Write concern w=%s journal=%s: an acknowledged message may be lost, and a claimed message delivered "
            "twice, if %s. Use majority with journal to prevent this.",
            w,
            j,
            "a server fails" if w == "majority" else "the primary changes",
        )
    return WriteConcern(w=w, j=j, wtimeout=options.get("wtimeoutms"))


def connect(address: Address) -> tuple[Client, bool]:
    """Connect to a primary or to a router (mongos), and return the client and whether the server is a router."""
    client = _client(address)
    try:
        hello = client.admin.command("hello")
        client.get_database(address.database).command({"listCollections": 1, "nameOnly": True, "filter": {"name": "-"}})
        return client, _is_cluster(hello, address)
    except (StartRefused, Unavailable):
        client.close()
        raise
    except PyMongoError as error:
        client.close()
        raise _refusal(address, error) from error


def _client(address: Address) -> Client:
    wait = round(address.timeout * 1000)
    defaults: Mapping[str, Any] = {"serverSelectionTimeoutMS": wait, "connectTimeoutMS": wait, "appName": "zq"}
    chosen = {name: value for name, value in defaults.items() if name.lower() not in address.options}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return MongoClient(address.uri, readPreference="primary", **chosen)
    except (ConfigurationError, InvalidName, ValueError, TypeError, OSError) as error:
        reason = _reason(error, address.uri)
        raise StartRefused(f"The store's URI has options that cannot be used together: {reason}") from error
    except PyMongoError as error:
        raise _refusal(address, error) from error


def _is_cluster(hello: Mapping[str, Any], address: Address) -> bool:
    """Return whether the server is a router (mongos). Raises ``StartRefused`` for a standalone server."""
    if hello.get("msg") == "isdbgrid":
        return True
    if "setName" not in hello:
        raise StartRefused(
            f"The MongoDB server at {address.where} is a standalone, which has no transactions. Start mongod with "
            "--replSet rs0 and call rs.initiate() once in mongosh; a set with one member is sufficient."
        )
    if not hello.get("isWritablePrimary"):
        raise Unavailable(
            f"The MongoDB server at {address.where} is not the primary of its replica set. Remove directConnection "
            "from the URI and add replicaSet, so that zq finds the primary."
        )
    return False


def _refusal(address: Address, error: PyMongoError) -> StartRefused | Unavailable:
    if isinstance(error, OperationFailure) and error.code in (AUTHENTICATION_FAILED, UNAUTHORIZED):
        who = f"the user {address.user!r}" if address.user else "a client without a user"
        return StartRefused(
            f"MongoDB at {address.where} does not let {who} use the database {address.database!r}: check the user "
            "name, the password, authSource in the URI, and that the user has the role readWrite."
        )
    wanted = address.options.get("replicaset")
    if isinstance(error, ConnectionFailure | ConfigurationError) and wanted:
        actual = _set_name(address)
        if actual is not None and actual != wanted:
            named = f"belongs to the replica set {actual!r}" if actual else "belongs to no replica set"
            return StartRefused(f"The server at {address.where} {named}, but the URI says replicaSet={wanted}.")
    return Unavailable(f"No usable MongoDB server replied at {address.where} within {address.timeout:g} s.")


def _set_name(address: Address) -> str | None:
    """Return the name of the replica set to which the hosts belong.

    If the hosts do not belong to a replica set, return "". If no host replies, return None.
    """
    for host, port in address.hosts:
        tls = {name: value for name, value in address.options.items() if name.startswith("tls")}
        probe: MongoClient[BsonDocument] = MongoClient(
            host, port, directConnection=True, serverSelectionTimeoutMS=PROBE_MS, connectTimeoutMS=PROBE_MS, **tls
        )
        try:
            return str(probe.admin.command("hello").get("setName", ""))
        except PyMongoError:
            continue
        finally:
            probe.close()
    return None


def _reason(error: Exception, uri: str) -> str:
    """Return PyMongo's error message, or a generic message if PyMongo's message might contain a secret."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    secret = uri.rpartition("@")[0].rpartition("/")[2]
    parts = [part for part in (secret, secret.partition(":")[2]) if part]
    return "its user and password cannot be read." if any(part in text for part in parts) else text.rstrip(".") + "."


OPTIONS_CONFLICT: Final = frozenset({85, 86})
NAMESPACE_EXISTS: Final = 48
FEED_BYTES: Final = 4 << 20
# Maximum duration of a command that builds missing indexes, in milliseconds.
INDEX_TIMEOUT_MS: Final = 600_000


def check_layout(client: Client, database: str, initial: Initial = levels.initial) -> bool:
    """Check that this version of zq can use the store, without writing. Return whether the store is new.

    The store contains a layout version and a format level; see ``zq.model.levels``. A store without a layout version
    has layout 1 and the level that ``initial`` returns.

    Raises ``StartRefused`` if this version of zq cannot use the store, and ``Unavailable`` if the version or the level
    cannot be read.
    """
    try:
        found = client.get_database(database)[CLOCK].find_one({"_id": LAYOUT})
    except PyMongoError as error:
        raise _unprepared() from error
    _compare(found or {"n": 1, "level": initial()}, database)
    return found is None


def store_layout(client: Client, database: str, initial: Initial = levels.initial) -> None:
    """Write the layout version and the format level (see ``zq.model.levels``) into a store that has neither.

    Raises ``StartRefused`` if this version of zq cannot use the store, and ``Unavailable`` if the command fails.
    """
    new: BsonDocument = {"n": VERSION} | ({"level": level} if (level := initial()) else {})
    try:
        # A layout version waits for the primary only: if a failover undoes the write, the next start repeats it.
        concern = WriteConcern(w="majority" if "level" in new else 1)
        collection = client.get_database(database)[CLOCK].with_options(write_concern=concern)
        with contextlib.suppress(DuplicateKeyError):  # another server has written it at the same time
            collection.update_one({"_id": LAYOUT}, {"$setOnInsert": new}, upsert=True)
        found = collection.find_one({"_id": LAYOUT})
    except PyMongoError as error:
        raise _unprepared() from error
    _compare(found or {}, database)


def _compare(found: BsonDocument, database: str) -> None:
    if found.get("n") != VERSION:
        raise StartRefused(
            f"The store in the database {database} has layout {found.get('n')}, but this version of zq "
            f"requires {VERSION}. Use the version of zq that wrote the store, or another database."
        )
    levels.check(found.get("level"))


def ensure_indexes(client: Client, database: str) -> None:
    """Create missing indexes with a single command, which is fast if none is missing."""
    try:
        client.get_database(database).command(
            {"createIndexes": MESSAGES, "indexes": list(INDEXES), "maxTimeMS": INDEX_TIMEOUT_MS}
        )
    except OperationFailure as error:
        if error.code in OPTIONS_CONFLICT:
            raise StartRefused(
                f"The collection {database}.{MESSAGES} has conflicting indexes: use another database."
            ) from error
        raise _unprepared() from error
    except PyMongoError as error:
        raise _unprepared() from error


def ensure_feed(client: Client, database: str) -> None:
    """Create the capped collection ``feed``, or enlarge an earlier version's collection."""
    store = client.get_database(database)
    try:
        store.command({"create": FEED, "capped": True, "size": FEED_BYTES})
    except OperationFailure as error:
        if error.code != NAMESPACE_EXISTS:
            raise _unprepared() from error
        _enlarge_feed(store)
    except PyMongoError as error:
        raise _unprepared() from error


def _enlarge_feed(store: Database[BsonDocument]) -> None:
    """Enlarge the feed. If the server cannot do this, the feed stays small, and readers miss notices more often."""
    with contextlib.suppress(OperationFailure):
        found = list(store.list_collections(filter={"name": FEED}))
        if found and found[0]["options"].get("size", FEED_BYTES) < FEED_BYTES:
            store.command({"collMod": FEED, "cappedSize": FEED_BYTES})


def check_sharded(client: Client, database: str) -> None:
    """Raise ``StartRefused`` if the collection does not have the shard key that ``shard`` sets."""
    try:
        found = client.get_database("config")["collections"].find_one({"_id": f"{database}.{MESSAGES}"})
    except PyMongoError as error:
        raise _unprepared() from error
    if found is None or found.get("dropped") or found.get("key") != SHARD_KEY:
        raise StartRefused(
            f"The collection {database}.{MESSAGES} is not sharded by {{s: 'hashed'}}: run zq-server --init-store once, "
            "as a user with the role clusterAdmin."
        )


def shard(client: Client, database: str) -> None:
    """Shard the collection ``messages`` on a cluster. Do nothing if the collection is already sharded."""
    try:
        client.admin.command({"enableSharding": database})
        client.admin.command({"shardCollection": f"{database}.{MESSAGES}", "key": SHARD_KEY})
    except OperationFailure as error:
        raise StartRefused(
            f"The collection {database}.{MESSAGES} cannot be sharded by {{s: 'hashed'}}. Check that the user has the "
            "role clusterAdmin, and that the collection is not sharded by another key."
        ) from error
    except PyMongoError as error:
        raise _unprepared() from error


def _unprepared() -> Unavailable:
    return Unavailable("The store's collection and indexes could not be created or checked. Try again later.")
