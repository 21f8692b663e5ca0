# SPDX-License-Identifier: Apache-2.0
"""Several ``zq-server``s on a store that is lost, hangs and returns, as seen by clients."""

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from tests.faults.refusal import sentence_of
from tests.servers import Answer, ZqServer, ask, every_message, free_port, soon, wait_for
from tests.stores import MongoServer, RedisServer, StoreServer

TIMEOUT = 1.5
# Seconds beyond the store's timeout that a response may take on a busy machine.
MARGIN = 1.5
CONFIG = f"[transport]\nstorage_timeout = {TIMEOUT}\n"
POSTS = "/v2/queues/jobs/messages"
CLAIMS = "/v2/queues/jobs/claims?limit=20"
LEASE = {"ttl": 300, "grace": 60}


@pytest.fixture(params=["mongodb", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """Return a store server of the test's own with durable writes."""
    lasting = ("--appendonly", "yes", "--appendfsync", "always")
    with MongoServer() if request.param == "mongodb" else RedisServer(None, *lasting) as server:
        yield server


def post(server: ZqServer, *bodies: str, **fields: int) -> Answer:
    return ask(server.url, "POST", POSTS, {"messages": [{"body": body, "ttl": 600, **fields} for body in bodies]})


def bodies(messages: list) -> list[str]:
    return [message["body"] for message in messages]


@pytest.mark.parametrize("scheme", ["mongodb", "redis"])
def test_a_store_that_does_not_answer_is_told_at_start(scheme: str, engine: str) -> None:
    """The error has the address, but no password; after its exit code systemd restarts the server."""
    address = f"127.0.0.1:{free_port()}"
    server = ZqServer(f"{scheme}://joe:hush@{address}/0", engine=engine, config=CONFIG)
    sentence = sentence_of(server)
    assert server.wait(1) == 1
    assert address in sentence
    assert "hush" not in sentence


def test_a_store_is_prepared_by_a_command_of_its_own(store: StoreServer) -> None:
    """``--init-store`` ends with a message and can be repeated, and a server starts on its store."""
    expected = "The store is prepared." if isinstance(store, MongoServer) else "This store needs no preparation."
    for _ in range(2):
        with closing(ZqServer(store.uri, "--init-store").launch()) as command:
            assert command.wait(60) == 0
            assert command.output.strip() == expected
    with ZqServer(store.uri) as server:
        assert post(server, "first").status == 201


def test_a_server_may_wait_for_its_store(store: StoreServer) -> None:
    """With ``--wait-for-store``, the server starts before the store and serves once the store is available."""
    store.kill()
    with closing(ZqServer(store.uri, "--wait-for-store", config=CONFIG).launch()) as server:
        wait_for(lambda: "Waiting for the store" in server.output, 60, "the server says that it waits")
        assert not server.accepts()
        store.start()
        wait_for(server.ready, 60, "the server serves")


@pytest.mark.store_of_the_day
@pytest.mark.parametrize("way", ["killed", "frozen"])
def test_a_store_that_is_lost_is_answered_503_in_time_and_forgiven(store: StoreServer, way: str) -> None:
    """Every verb answers 503 within ``storage_timeout``; afterwards the server works again, and no message is lost."""
    verbs = [("POST", POSTS, {"messages": [{"body": "late"}]}), ("GET", POSTS, None), ("POST", CLAIMS, LEASE)]
    verbs += [("DELETE", POSTS + "?pop=1", None), ("GET", "/v2/queues", None), ("GET", "/readyz", None)]
    with ZqServer(store.uri, config=CONFIG) as server:
        assert post(server, "kept").status == 201

        def all_refused() -> None:
            for method, path, document in verbs:
                answer = soon(TIMEOUT + MARGIN, partial(ask, server.url, method, path, document))
                assert answer.status == 503, (method, path, answer)
                assert store.uri.split("/")[2] not in answer.body.decode()

        if way == "killed":
            store.kill()
            all_refused()
            assert ask(server.url, "GET", "/healthz").status == 200
            store.start()
        else:
            with store.frozen():
                all_refused()
        wait_for(server.ready, 60, "the server has found its store again")
        told = [body for body in bodies(every_message(server.url, "jobs")) if body != "late"]
        # A frozen store may execute a request later that got 503, which says nothing about its effect.
        assert told in (["kept"], []) if way == "frozen" else told == ["kept"]
        # MongoDB ends an interrupted transaction some seconds later and keeps the counter locked until then.
        wait_for(lambda: post(server, "new").status == 201, 60, "posts are taken again")


@pytest.mark.store_of_the_day
def test_servers_whose_clocks_differ_by_a_minute_agree(store: StoreServer, shifted) -> None:
    """The store's clock determines ages, order, delays and claims, whichever server gets the post."""
    with (
        ZqServer(store.uri, env=shifted(60)) as ahead,
        ZqServer(store.uri, env=shifted(-60)) as behind,
    ):
        names = [f"m{number}" for number in range(6)]
        for name, server in zip(names, [ahead, behind] * 3, strict=True):
            assert post(server, name).status == 201
        for server in (ahead, behind):
            found = every_message(server.url, "jobs")
            assert bodies(found) == names
            assert max(message["age"] for message in found) <= 40
        claimed = ask(behind.url, "POST", CLAIMS, LEASE)
        assert bodies(claimed.document["messages"]) == names
        assert ask(ahead.url, "POST", CLAIMS, LEASE).status == 204
        held = ask(ahead.url, "GET", claimed.headers["location"])
        assert held.status == 200
        assert held.document["age"] <= 40


@pytest.mark.store_of_the_day
def test_a_delay_is_the_same_for_servers_whose_clocks_differ(store: StoreServer, shifted) -> None:
    """Neither server delivers a delayed message early, and both deliver it when it is due."""
    with (
        ZqServer(store.uri, env=shifted(60)) as ahead,
        ZqServer(store.uri, env=shifted(-60)) as behind,
    ):
        assert ask(ahead.url, "PUT", "/v2/queues/jobs", {"_default_message_delay": 1}).status == 201
        for poster, taker in ((ahead, behind), (behind, ahead)):
            started = time.monotonic()
            assert post(poster, "delayed").status == 201
            posted = time.monotonic()
            taken = wait_for(lambda taker=taker: _claimed(taker), 60, "the delayed message")
            ended = time.monotonic()
            assert taken == ["delayed"]
            assert ended - started > 1 - 0.05
            assert ended - posted < 1 + 40, "a minute is what the clocks differ by"


def _claimed(server: ZqServer) -> list[str]:
    answer = ask(server.url, "POST", CLAIMS, LEASE)
    return bodies(answer.document["messages"]) if answer.status == 201 else []
