# SPDX-License-Identifier: Apache-2.0
"""Requests that are given up on the thread that reads all connections, and begun anew (``zq.prompt``)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pytest

from tests.http.api import Api
from tests.http.promptly import Promptly
from tests.http.scoped import Scoped
from zq import prompt
from zq.broker import Broker
from zq.broker.rates import Rates
from zq.clock import ManualClock
from zq.http.app import create_app
from zq.model.quotas import Quota
from zq.storage import connect, memory
from zq.storage.api import Storage
from zq.storage.ordered import ready, scans
from zq.storage.ordered.store import Range, Write

JOBS = "/v2/queues/jobs"


@pytest.fixture
def own_store() -> Iterator[Storage]:
    with closing(connect("memory:")) as opened:
        yield opened


@pytest.fixture
def engine(own_store: Storage, clock: ManualClock) -> Promptly:
    return Promptly(create_app(Broker(own_store, clock), strict_client_id=True, admin_mode=False))


@pytest.fixture
def stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write meets a stall, as RocksDB has them."""
    plain = memory.MemoryStore.write

    def write(store: memory.MemoryStore, writes: Sequence[Write], gone: Sequence[Range] = ()) -> None:
        prompt.may_take_long()
        plain(store, writes, gone)

    monkeypatch.setattr(memory.MemoryStore, "write", write)


@pytest.fixture
def given_up(engine: Promptly) -> Callable[[], int]:
    """How many requests were given up since it was asked before."""
    seen = 0

    def since() -> int:
        nonlocal seen
        before, seen = seen, engine.given_up
        return seen - before

    return since


@pytest.mark.usefixtures("stalls")
def test_what_meets_a_stall_is_done_once(engine: Promptly, given_up: Callable[[], int]) -> None:
    """Each verb that writes is given up before its first write, and what it does is done exactly once."""
    api = Api(engine)
    ids = api.send("jobs", 1, 2, 3, 4, 5)
    assert given_up() == 1
    claim, held = api.claim("jobs", 2)
    assert given_up() == 1
    assert [message["body"] for message in held] == [1, 2]
    api.patch(claim, 204, {"ttl": 100})
    assert given_up() == 1
    api.post(f"{claim}/settle", 200, {"delete": [ids[0]]})
    assert given_up() == 1
    api.delete(claim, 204)
    assert given_up() == 1
    popped = api.call("DELETE", f"{JOBS}/messages?pop=1", 200).json["messages"]
    assert given_up() == 1
    api.delete(f"{JOBS}/messages?ids={ids[4]}", 204)
    assert given_up() == 1
    assert sorted(api.seen("jobs") + [message["body"] for message in popped]) == [2, 3, 4]
    assert given_up() == 0
    stats = api.get(f"{JOBS}/stats", 200).json["messages"]
    assert (stats["free"], stats["claimed"], stats["total"]) == (2, 0, 2)


def test_a_listing_with_a_long_way_is_given_up(
    engine: Promptly, given_up: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows what it would have shown."""
    monkeypatch.setattr(scans, "SHORT", 1)
    api = Api(engine)
    for _ in range(20):
        api.send("jobs", *range(10))
    for _ in range(19):
        api.claim("jobs", 10)
    assert given_up() == 0
    assert len(api.seen("jobs")) == 10
    assert given_up() == 1


def test_a_claim_that_steps_over_much_is_given_up(
    engine: Promptly, given_up: Callable[[], int], monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """Over expired messages; it holds what it would have held."""
    monkeypatch.setattr(ready, "SHORT_STEPS", 5)
    api = Api(engine)
    api.send("jobs", *range(10), ttl=60)
    clock.advance(30)
    api.send("jobs", "alive", ttl=600)
    clock.advance(40)
    assert given_up() == 0
    assert [message["body"] for message in api.claim("jobs")[1]] == ["alive"]
    assert given_up() == 1


@pytest.mark.usefixtures("stalls")
def test_a_request_that_is_given_up_is_counted_once(own_store: Storage, clock: ManualClock) -> None:
    """However often it was begun."""
    unbounded = dict.fromkeys(Quota.__struct_fields__, 0) | {"share": 25}
    quota = Quota(**unbounded | {"requests": 10, "messages": 20})
    broker = Broker(own_store, clock, quota=quota, rates=Rates(8, clock.now))
    engine = Promptly(lambda *_: ())
    scoped = Scoped(lambda options: create_app(broker, **options), "")
    engine.app = scoped.app

    def passed(app: object, project: str, size: int) -> int:
        caller = scoped.api(project=project, app=app)
        answers = [caller.call("POST", f"{JOBS}/messages", None, {"messages": [{"body": 1}] * size}) for _ in range(40)]
        statuses = [answer.status_int for answer in answers]
        assert set(statuses) == {201, 429}
        return statuses.index(429)

    for size in (1, 3):
        plain, prompt_ones = passed(scoped.app, f"plain{size}", size), passed(engine, f"prompt{size}", size)
        assert plain == prompt_ones
    assert engine.given_up > 10
