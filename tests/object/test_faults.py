# SPDX-License-Identifier: Apache-2.0
"""An object store that hangs, replies late, refuses or loses replies, and a local disk that is full.

The errors are specific, and no acknowledged message is lost.
"""

import itertools
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.object.between import CUT, Between
from tests.object.conftest import LEASE, Open
from tests.object.work import Producers, bodies, listed, post
from tests.servers import ZqServer, ask, soon, wait_for
from tests.swift import Swift
from zq.errors import StartRefused, Unavailable
from zq.storage.api import Storage
from zq.storage.object import epochs, shipping
from zq.storage.object import swift as swift_objects

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("uri", ["swift"], indirect=True)]

PATIENCE = 2


def of_the_log(method: str, path: str) -> bool:
    return method == "PUT" and "/log/" in path


def posted(storage: Storage, start: int, end: int) -> list[str]:
    """Post the numbers and return the acknowledged ones."""
    done = []
    for number in range(start, end):
        try:
            post(storage, f"{number}")
        except Unavailable:
            continue
        done.append(f"{number}")
    return done


def holds(machine: Open, acknowledged: list[str]) -> None:
    """Assert that another machine has the acknowledged messages in order, and none twice."""
    there = bodies(machine("another"))
    assert len(set(there)) == len(there)
    assert [body for body in there if body in set(acknowledged)] == acknowledged


def test_lost_answers_cost_nothing(machine: Open, between: Between) -> None:
    """Swift's reply to every third record is cut off: the record is put again, and no message is stored twice."""
    storage = machine("first")
    turn = itertools.count()
    with between.doing(lambda method, path: CUT if of_the_log(method, path) and next(turn) % 3 == 0 else 0):
        acknowledged = posted(storage, 0, 30)
    assert between.harmed > 5
    assert acknowledged == [f"{number}" for number in range(30)]
    holds(machine, acknowledged)


def test_an_object_store_that_refuses_is_named(
    machine: Open, between: Between, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swift is full or refuses to write: posts and the log show it, reads continue, and posts work again afterwards."""
    monkeypatch.setattr(shipping, "REFUSED_PAUSE", 0.5)
    storage = machine("first", patience=1)
    acknowledged = []
    for number, status in enumerate((403, 413, 507)):

        def refusing(method: str, path: str, status: int = status) -> int:
            return status if of_the_log(method, path) else 0

        with between.doing(refusing):
            with pytest.raises(Unavailable, match=f"status {status}"):
                post(storage, f"refused by {status}")
            assert not answers(storage)
            time.sleep(LEASE if status == 403 else 0)
            assert [body for body in bodies(storage) if "refused" not in body] == acknowledged
        assert any(entry.levelname == "CRITICAL" and str(status) in entry.message for entry in caplog.records)
        acknowledged += wait_for(lambda: posted(storage, number, number + 1), 60, "a post")  # noqa: B023
    holds(machine, acknowledged)


def answers(storage: Storage) -> bool:
    """Return whether the store responds, as ``/readyz`` does."""
    try:
        storage.ping()
    except Unavailable:
        return False
    return True


def test_an_unavailable_object_store_is_reported_at_once(
    machine: Open, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is reported as unavailable long before reads end, and as available soon after the outage."""
    monkeypatch.setattr(epochs, "PATIENCE", 1.0)
    storage = machine("first", lease=60)
    post(storage, "kept")
    assert answers(storage)
    with between.doing(lambda *_: 503):
        wait_for(lambda: not answers(storage), 60, "it is told")
        assert bodies(storage) == ["kept"]
    wait_for(lambda: answers(storage), 60, "it is told that all is well")


def test_readiness_fails_and_health_does_not(swift: Swift, uri: str, tmp_path: Path) -> None:
    """While Swift hangs, each response is in time for a probe."""
    config = f"[storage:object]\ncache = {tmp_path}/cache\nlease = 60\n"
    with ZqServer(uri, config=config) as server:
        with swift.frozen():
            wait_for(lambda: ask(server.url, "GET", "/readyz", timeout=20).status == 503, 60, "it is not ready")
            assert ask(server.url, "GET", "/healthz", timeout=20).status == 200
            assert ask(server.url, "GET", "/v2/queues", timeout=20).status == 200
        wait_for(server.ready, 60, "it is ready again")


def test_a_token_that_expired_is_renewed(machine: Open, between: Between) -> None:
    """No request fails because the token has expired."""
    storage = machine("first")
    turn = itertools.count()
    with between.doing(lambda method, path: 401 if of_the_log(method, path) and next(turn) % 2 == 0 else 0):
        assert len(posted(storage, 0, 10)) == 10
    assert between.harmed >= 5


def test_a_swift_that_stands_still_ends_reads_with_the_lease(
    machine: Open, swift: Swift, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Posts fail with 503 within their patience, and reads continue for at most a lease; then everything works."""
    monkeypatch.setattr(epochs, "PATIENCE", 1.0)
    monkeypatch.setattr(swift_objects, "TIMEOUT", 3)  # shorter than the outage, so that requests time out
    storage = machine("first", patience=PATIENCE)
    acknowledged = posted(storage, 0, 3)
    with swift.frozen():
        soon(PATIENCE + 2, lambda: unavailable(lambda: post(storage, "unknown")))
        wait_for(lambda: not reads(storage), 60, "reads end")
        for _ in range(3):
            soon(2, lambda: unavailable(lambda: bodies(storage)))
    wait_for(lambda: posted(storage, 3, 4), 60, "a post")
    assert bodies(storage)[:3] == acknowledged
    holds(machine, [*acknowledged, "3"])


def unavailable(work: Callable[[], object]) -> None:
    with pytest.raises(Unavailable):
        work()


def reads(storage: Storage) -> bool:
    """Return whether the server can prove that it owns the store."""
    try:
        bodies(storage)
    except Unavailable:
        return False
    return True


def test_a_swift_that_is_started_again_goes_on(machine: Open, swift: Swift) -> None:
    """Connections to the former process are replaced."""
    storage = machine("first", patience=PATIENCE)
    acknowledged = posted(storage, 0, 3)
    swift.kill()
    assert posted(storage, 3, 4) == []
    swift.launch("proxy")
    wait_for(lambda: posted(storage, 4, 5), 60, "a post")
    holds(machine, [*acknowledged, "4"])


@pytest.mark.parametrize(("ahead", "sentence"), [(3 * 86400, "3 days after"), (-120, "was in use at")])
def test_a_machine_whose_clock_is_wrong_does_not_take_over(
    machine: Open, monkeypatch: pytest.MonkeyPatch, ahead: int, sentence: str
) -> None:
    """Its clock would make messages expire. Another machine serves the store that this one refused."""
    storage = machine("first")
    post(storage, "kept")
    storage.maintain(storage.now())  # it records the time
    storage.close()
    with monkeypatch.context() as wrong:
        right = time.time
        wrong.setattr(time, "time", lambda: right() + ahead)
        with pytest.raises(StartRefused, match=sentence):
            machine("second")
    assert bodies(machine("third")) == ["kept"]


CONFIG = """\
[storage:object]
cache = {}
lease = 2
checkpoint_records = 20
"""


def test_a_full_local_disk_is_only_a_cache(uri: str, tmp_path: Path) -> None:
    """Writes are refused while the disk is full; with space again, the store is downloaded again with all messages."""
    with ZqServer(uri, config=CONFIG.format(tmp_path / "cache")) as server:
        with Producers(server.url, "early") as early:
            wait_for(lambda: len(early.acknowledged) >= 50, 60, "50 messages")
        limit(server, 0)
        with Producers(server.url, "late") as late:
            wait_for(lambda: not server.ready(), 60, f"it is not ready:\n{server.output}")
            limit(server, resource.RLIM_INFINITY)
            wait_for(server.ready, 60, f"it is ready:\n{server.output}")
        assert ask(server.url, "POST", "/v2/queues/jobs/messages", {"messages": [{"body": "last"}]}).status == 201
        there = listed(server.url)
    assert set(early.acknowledged) | set(late.acknowledged) <= set(there)
    assert len(set(there)) == len(there)
    assert there[-1] == "last"


def limit(server: ZqServer, size: int) -> None:
    """Limit the size of the server's files."""
    for pid in (server.pid, *server.worker_pids):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
