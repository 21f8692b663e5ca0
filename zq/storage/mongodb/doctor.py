# SPDX-License-Identifier: Apache-2.0
"""Read-only health checks of MongoDB for the command ``zq-server doctor``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from functools import partial
from typing import Any, Final

from pymongo.errors import OperationFailure, PyMongoError

from zq.diagnosis import Check, Finding, fail, judge_clock, judge_round_trip, ok, skip, warn
from zq.errors import NotAuthorized, Unavailable
from zq.model import Seconds
from zq.storage.mongodb import startup
from zq.storage.mongodb.client import Client
from zq.storage.mongodb.layout import VERSION, BsonDocument
from zq.storage.mongodb.startup import Address
from zq.storage.options import MongodbOptions

# Hours of changes that the oplog should keep, for secondaries and backups that were away.
OPLOG_HOURS: Final = 24
# Used share of the oplog from which old changes are removed.
FULL_OPLOG_SHARE: Final = 0.9
# States of usable members: primary, secondary, arbiter.
USABLE_STATES: Final = (1, 2, 7)
# MongoDB's error code Unauthorized.
UNAUTHORIZED: Final = 13


@contextmanager
def diagnose(uri: str, now: Callable[[], Seconds], **options: Any) -> Iterator[Sequence[Check]]:
    """Return a context manager that provides the health checks of a MongoDB store. See ``zq.storage.diagnose``."""
    chosen = MongodbOptions(**options)
    found = startup.parse(uri, chosen.timeout, chosen.database, chosen.write_concern, chosen.journal)
    client, is_cluster = startup.connect(found)
    try:
        startup.check_layout(client, found.database)
        if is_cluster:
            startup.check_sharded(client, found.database)
        yield (
            Check("store version", partial(check_version, client)),
            Check("replica set", partial(check_members, client, is_cluster)),
            Check("write concern", partial(check_write_concern, found)),
            Check("oplog", partial(check_oplog, client, is_cluster)),
            Check("store clock", partial(check_clock, client, now)),
            Check("round trip", partial(judge_round_trip, lambda: run(client, "admin", {"ping": 1}), "MongoDB")),
        )
    finally:
        client.close()


def run(client: Client, database: str, command: BsonDocument) -> BsonDocument:
    """Run a command and return the reply.

    Raises ``NotAuthorized`` if the user lacks a role that only this check needs, and ``Unavailable`` with MongoDB's
    reason if the command fails.
    """
    name = next(iter(command))
    try:
        return client.get_database(database).command(command)
    except PyMongoError as error:
        if isinstance(error, OperationFailure) and error.code == UNAUTHORIZED:
            raise NotAuthorized(
                f"This user may not run {name}. For this check, grant the roles clusterMonitor on admin and read on "
                "local."
            ) from error
        raise Unavailable(f"MongoDB rejects {name}: {str(error).partition(',')[0]}.") from error


def check_version(client: Client) -> Finding:
    return ok(f"MongoDB {run(client, 'admin', {'buildInfo': 1})['version']}, layout {VERSION}.")


def check_members(client: Client, is_cluster: bool) -> Finding:
    if is_cluster:
        return skip("A router of a sharded cluster does not report members.")
    hosts = run(client, "admin", {"hello": 1})["hosts"]
    if len(hosts) == 1:
        return warn(
            "The replica set has one member, so a failed machine makes the messages unavailable.", "Add two members."
        )
    members = run(client, "admin", {"replSetGetStatus": 1})["members"]
    gone = [member["name"] for member in members if member["state"] not in USABLE_STATES]
    if gone:
        return fail(f"Members of the replica set are unusable: {', '.join(gone)}.", "See their logs and the network.")
    return ok(f"The replica set has {len(members)} usable members.")


def check_write_concern(address: Address) -> Finding:
    chosen = address.durable.document
    if chosen["w"] == "majority" and chosen["j"]:
        return ok("Write concern majority with journal.")
    return warn(
        f"With write concern w={chosen['w']} and journal={chosen['j']}, a failure loses acknowledged messages.",
        "Use majority with journal.",
    )


def check_oplog(client: Client, is_cluster: bool) -> Finding:
    if is_cluster:
        return skip("A router of a sharded cluster has no oplog.")
    size = run(client, "local", {"collStats": "oplog.rs"})
    first, last = (
        run(client, "local", {"find": "oplog.rs", "sort": {"$natural": order}, "limit": 1})["cursor"]["firstBatch"][0]
        for order in (1, -1)
    )
    hours, used = (last["ts"].time - first["ts"].time) / 3600, size["size"] / size["maxSize"]
    found = f"The oplog covers {hours:,.1f} hours and is {used:.0%} full."
    if used > FULL_OPLOG_SHARE and hours < OPLOG_HOURS:
        return warn(found, f"Enlarge it to {OPLOG_HOURS} hours with replSetResizeOplog.")
    return ok(found)


def check_clock(client: Client, now: Callable[[], Seconds]) -> Finding:
    began = now()
    moment = run(client, "admin", {"hello": 1})["localTime"].replace(tzinfo=UTC).timestamp()
    return judge_clock((began + now()) / 2 - moment, "MongoDB")
