# SPDX-License-Identifier: Apache-2.0
"""Makes the collections and the indexes, and shards on a cluster what is to be sharded."""

import contextlib
from typing import Final

from pymongo.database import Database
from pymongo.errors import OperationFailure, PyMongoError

from zq.errors import StartRefused, Unavailable
from zq.storage.mongodb.layout import FEED, INDEXES, MESSAGES, SHARD_KEY, Document
from zq.storage.mongodb.port import Client

OPTIONS_CONFLICT: Final = frozenset({85, 86})
NAMESPACE_EXISTS: Final = 48
FEED_BYTES: Final = 4 << 20
WITHIN_MS: Final = 600_000
"""For building an index that is missing in a large collection."""


def ensure_indexes(client: Client, database: str) -> None:
    """Make what is missing; costs one quick command when nothing is. Raises ``StartRefused``, ``Unavailable``."""
    try:
        client.get_database(database).command(
            {"createIndexes": MESSAGES, "indexes": list(INDEXES), "maxTimeMS": WITHIN_MS}
        )
    except OperationFailure as error:
        if error.code in OPTIONS_CONFLICT:
            raise StartRefused(
                f"The collection {database}.{MESSAGES} has indexes of another layout: use another database."
            ) from error
        raise _unprepared() from error
    except PyMongoError as error:
        raise _unprepared() from error


def ensure_feed(client: Client, database: str) -> None:
    """Make the capped collection that carries what waiters are told, or let one of an earlier version grow."""
    place = client.get_database(database)
    try:
        place.command({"create": FEED, "capped": True, "size": FEED_BYTES})
    except OperationFailure as error:
        if error.code != NAMESPACE_EXISTS:
            raise _unprepared() from error
        _enlarge_feed(place)
    except PyMongoError as error:
        raise _unprepared() from error


def _enlarge_feed(place: Database[Document]) -> None:
    """A server that cannot has a feed that breaks, and is mended, more often."""
    with contextlib.suppress(OperationFailure):
        found = list(place.list_collections(filter={"name": FEED}))
        if found and found[0]["options"].get("size", FEED_BYTES) < FEED_BYTES:
            place.command({"collMod": FEED, "cappedSize": FEED_BYTES})


def check_sharded(client: Client, database: str) -> None:
    """Refuse a cluster on which the collection was not prepared."""
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
    """Shard the collection, if it is not yet; on a cluster only."""
    try:
        client.admin.command({"enableSharding": database})
        client.admin.command({"shardCollection": f"{database}.{MESSAGES}", "key": SHARD_KEY})
    except OperationFailure as error:
        raise StartRefused(
            f"The collection {database}.{MESSAGES} cannot be sharded by {{s: 'hashed'}}: the user needs the role "
            "clusterAdmin, and a collection that is sharded otherwise must be dropped first."
        ) from error
    except PyMongoError as error:
        raise _unprepared() from error


def _unprepared() -> Unavailable:
    return Unavailable("The store's collection and indexes could not be made or checked. Try again later.")
