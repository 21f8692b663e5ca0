# SPDX-License-Identifier: Apache-2.0
"""Unusable MongoDB stores: the start is refused with an error message that does not contain the password."""

import logging
import time
from collections.abc import Iterator

import pytest
from pymongo import MongoClient

from tests.servers import free_port
from tests.stores import MongoServer
from zq.errors import StartRefused, Unavailable, ZqError
from zq.storage.mongodb import connect, prepare

SECRET = "s3cr3tWord"


@pytest.fixture(scope="module")
def guarded() -> Iterator[MongoServer]:
    """Return a standalone server with an administrator and a user that may only read another database."""
    with MongoServer("--auth", replica_set="") as started:
        with started.client() as client:  # without users, a local client may create the first one
            everything = [{"role": "root", "db": "admin"}]
            client.admin.command("createUser", "chief", pwd=SECRET, roles=everything)
        with MongoClient(f"mongodb://chief:{SECRET}@{started.address}/?directConnection=true") as client:
            client.admin.command("createUser", "guest", pwd=SECRET, roles=[{"role": "read", "db": "other"}])
        yield started


def refusal(uri: str, kind: type[ZqError] = StartRefused, **options: object) -> str:
    """Return the error message, which contains neither the password nor the word PyMongo."""
    with pytest.raises(kind) as caught:
        connect(uri, **options).close()
    sentence = str(caught.value)
    assert SECRET not in sentence
    assert "pymongo" not in sentence.lower()
    assert sentence.endswith((".", "|", "?"))
    return sentence


def test_a_standalone_is_refused_with_the_way_out(guarded: MongoServer):
    """A standalone server has no transactions; a replica set with one member has."""
    uri = f"mongodb://chief:{SECRET}@{guarded.address}/zq?authSource=admin&directConnection=true"
    assert "--replSet" in refusal(uri)


def test_a_wrong_replica_set_is_named(mongodb: MongoServer):
    """The error names the server's set and the requested set."""
    sentence = refusal(mongodb.uri.replace("replicaSet=rs0", "replicaSet=other"), timeout=1.0)
    assert "'rs0'" in sentence
    assert "other" in sentence


@pytest.mark.parametrize("user", [f"chief:wrong{SECRET}", f"nobody:{SECRET}"])
def test_wrong_credentials_are_refused(guarded: MongoServer, user: str):
    """The error names user and address, not the password."""
    sentence = refusal(f"mongodb://{user}@{guarded.address}/zq?authSource=admin&directConnection=true")
    assert user.partition(":")[0] in sentence
    assert guarded.address in sentence


def test_a_user_without_the_right_to_the_database_is_refused(guarded: MongoServer):
    """The start fails, not the first post."""
    assert "readWrite" in refusal(f"mongodb://guest:{SECRET}@{guarded.address}/zq?authSource=admin")


def test_an_impossible_database_name_is_refused(mongodb: MongoServer):
    """This holds for names in the URI, however PyMongo parses them, and in the option."""
    for name in ("a%20b", "a%24b", "x" * 64, "a.b", "a%2Fb"):
        refusal(f"mongodb://{mongodb.address}/{name}?directConnection=true")
    refusal(f"mongodb://{mongodb.address}/?directConnection=true", database="a b")


def test_a_uri_that_makes_no_sense_is_refused():
    """The URI is refused before any connection."""
    for uri in (
        "mongodb://",
        "mongodb:///zq",
        "mongodb://host:port/zq",
        f"mongodb://me:{SECRET}@/zq",
        f"mongodb://me:{SECRET}/x@host/zq",
        "mongodb://host/zq?noSuchOption=1",
        "mongodb://host/zq?timeoutMS=soon",
        "mongodb://a,b/zq?directConnection=true",
        "mongodb://host/zq?w=0",
    ):
        refusal(uri)
    for timeout in (0, -1.0):  # PyMongo takes zero as no limit
        refusal("mongodb://host/zq", timeout=timeout)


def test_an_unreachable_server_is_unavailable_in_time():
    """The error names the hosts; with an option, the server waits for its store."""
    began = time.monotonic()
    address = f"127.0.0.1:{free_port()}"
    assert address in refusal(f"mongodb://me:{SECRET}@{address}/zq?replicaSet=rs0", Unavailable, timeout=1.0)
    assert time.monotonic() - began < 25


@pytest.mark.parametrize("uri_options", ["w=1", "journal=false", "w=2&journal=true"])
def test_a_weak_write_concern_is_warned_about(mongodb: MongoServer, caplog, uri_options: str):
    """The server starts and logs that messages may be lost."""
    with caplog.at_level(logging.WARNING, "zq"):
        connect(f"{mongodb.uri}&{uri_options}").close()
    assert "lost" in caplog.text


def test_the_default_write_concern_is_not_warned_about(mongodb: MongoServer, caplog):
    """The default is majority with journal."""
    with caplog.at_level(logging.WARNING):
        connect(mongodb.uri).close()
    assert [record for record in caplog.records if record.name.startswith("zq.storage")] == []


def test_options_of_the_uri_reach_pymongo_and_reads_go_to_the_primary(mongodb: MongoServer):
    """A read preference would violate the laws, so it is the only option that is not passed."""
    storage = connect(f"{mongodb.uri}&maxPoolSize=7&appName=mine&readPreference=secondary")
    try:
        client: MongoClient = storage._client.pymongo
        assert client.options.pool_options.max_pool_size == 7
        assert client.options.pool_options.appname == "mine"
        assert client.read_preference.name == "Primary"
        assert storage.ping() is None
    finally:
        storage.close()


def test_a_database_of_the_option_holds_the_store_when_the_uri_names_none(mongodb: MongoServer):
    """A name in the URI takes precedence."""
    bare = mongodb.uri_of("")
    for uri, name in [(bare, "chosen"), (mongodb.uri_of("named"), "named")]:
        connect(uri, database="chosen").close()
        with mongodb.client() as client:
            assert "messages" in client[name].list_collection_names()


def test_preparing_a_replica_set_twice_is_fine(mongodb: MongoServer):
    """The command creates the indexes; there is nothing to shard."""
    for _ in range(2):
        prepare(mongodb.uri_of("prepared"))
    with mongodb.client() as client:
        assert {"claims", "observers", "expiry"} <= set(client["prepared"]["messages"].index_information())
