# SPDX-License-Identifier: Apache-2.0
"""Servers that are killed or suspended during posts, and others that take over their store."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.object.work import Producers, listed
from tests.rotation import rotated
from tests.servers import Lost, ZqServer, ask, wait_for
from zq.serving.lifecycle import STORE_LOST_EXIT_CODE

pytestmark = pytest.mark.slow

LEASE = 3
CONFIG = """\
[storage:object]
cache = {cache}
lease = {lease}
owner_timeout = 3
checkpoint_records = {records}
keep = {keep}
fencing = {fencing}
"""
ENOUGH = 100


class Machines:
    """Servers on one store, each with its own disk."""

    def __init__(self, uri: str, folder: Path) -> None:
        self._uri = uri
        self._folder = folder
        self._running = ExitStack()

    def launched(
        self,
        name: str,
        engine: str = "gunicorn",
        lease: int = LEASE,
        records: int = 50,
        keep: int = 86400,
        fencing: str = "look",
    ) -> ZqServer:
        """Launch a server without waiting for it."""
        config = CONFIG.format(cache=self._folder / name, lease=lease, records=records, keep=keep, fencing=fencing)
        server = ZqServer(self._uri, config=config, engine=engine)
        self._running.callback(server.close)
        return server.launch()

    def started(self, name: str, **options: Any) -> ZqServer:
        server = self.launched(name, **options)
        wait_for(server.ready, 60, f"{name} serves:\n{server.output}")
        return server

    def close(self) -> None:
        self._running.close()


@pytest.fixture
def machines(uri: str, tmp_path: Path) -> Iterator[Machines]:
    made = Machines(uri, tmp_path)
    yield made
    made.close()


def whole(there: list[str], acknowledged: list[str]) -> None:
    """Assert that no acknowledged message is missing and none is stored twice."""
    assert [body for body, times in Counter(there).items() if times > 1] == []
    assert sorted(set(acknowledged) - set(there)) == []


FENCINGS = pytest.mark.parametrize(
    ("uri", "fencing"), rotated([("swift", "look"), ("s3", "position")], 1), indirect=["uri"]
)


@FENCINGS
def test_a_killed_owner_loses_nothing(machines: Machines, fencing: str) -> None:
    """The owner is killed during posts, three times; each time a server with an empty disk takes over."""
    acknowledged: list[str] = []
    for round in range(3):
        server = machines.started(f"machine {round}", fencing=fencing)
        whole(listed(server.url), acknowledged)
        with Producers(server.url, f"{round}") as producers:
            wait_for(lambda: len(producers.acknowledged) >= ENOUGH, 60, f"{ENOUGH} messages")
            server.kill()
        acknowledged += producers.acknowledged
    whole(listed(machines.started("last").url), acknowledged)


def test_the_same_machine_serves_again_at_once(machines: Machines) -> None:
    """No other server uses the machine's directory, so the server knows that its former process has ended."""
    server = machines.started("machine")
    with Producers(server.url, "early") as producers:
        wait_for(lambda: len(producers.acknowledged) >= ENOUGH, 60, f"{ENOUGH} messages")
        server.kill()
    server.start(120)
    whole(listed(server.url), producers.acknowledged)


@pytest.mark.parametrize(
    ("loaded", "engine"),
    rotated(
        [
            pytest.param(False, "gunicorn", id="idle"),
            pytest.param(True, "gunicorn", id="under load"),
            pytest.param(True, "granian", id="under load, Granian"),
        ],
        1,
    ),
)
def test_an_owner_that_slept_is_fenced(machines: Machines, loaded: bool, engine: str) -> None:
    """After it resumes, it acknowledges nothing and returns no removed messages, and ends."""
    first = machines.started("first", engine=engine)
    with Producers(first.url, "early") as early:
        wait_for(lambda: len(early.acknowledged) >= ENOUGH, 60, f"{ENOUGH} messages")
    with ExitStack() as stack:
        producers = stack.enter_context(Producers(first.url, "late", 4 if loaded else 0))
        wait_for(lambda: not loaded or producers.acknowledged, 60, "the load")
        with first.frozen():
            second = machines.started("second")
            there = listed(second.url)
            whole(there, early.acknowledged)
            assert ask(second.url, "DELETE", "/v2/queues/jobs/messages?pop=10").status == 200
            decided = set(producers.acknowledged)
        with pytest.raises(Lost):  # it has ended
            refuses(first)
        assert first.wait(60) == STORE_LOST_EXIT_CODE
    left = set(producers.acknowledged) - decided
    assert left <= set(there), "what was acknowledged after it woke is not with its successor"
    whole(there, [*early.acknowledged, *producers.acknowledged])


def refuses(server: ZqServer) -> None:
    """Assert that the server responds only with 503, until it ends."""
    while True:
        for method, document in (("GET", None), ("POST", MESSAGE)):
            assert ask(server.url, method, "/v2/queues/jobs/messages", document).status == 503


MESSAGE = {"messages": [{"body": "too late", "ttl": 3600}]}


def test_a_server_that_ended_well_is_followed_at_once(machines: Machines) -> None:
    """After SIGTERM of the owner, the waiting standby soon serves all messages."""
    first = machines.started("first")
    standby = machines.launched("second")
    with Producers(first.url, "early") as producers:
        wait_for(lambda: len(producers.acknowledged) >= ENOUGH, 60, f"{ENOUGH} messages")
    assert not standby.ready()
    assert first.terminate() == 0
    ended = time.monotonic()
    wait_for(standby.ready, 60, "the standby serves")
    assert time.monotonic() - ended < 60
    whole(listed(standby.url), producers.acknowledged)


@pytest.mark.parametrize("uri", ["s3"], indirect=True)
@pytest.mark.parametrize("engine", rotated(["gunicorn", "granian"], 1))
def test_a_standby_ends_at_once(machines: Machines, engine: str) -> None:
    """After SIGTERM the standby ends within seconds with exit code 0, and the owner continues."""
    first = machines.started("first")
    standby = machines.launched("second", engine=engine)
    wait_for(lambda: "follows the log" in standby.output, 60, "the standby follows")
    began = time.monotonic()
    assert standby.terminate() == 0
    assert time.monotonic() - began < 25, "it was killed after its graceful timeout"
    assert ask(first.url, "POST", "/v2/queues/jobs/messages", MESSAGE).status == 201
