# SPDX-License-Identifier: Apache-2.0
"""Token buckets, and the shares of a rate among several processes (tenancy 6)."""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.scoped import Scoped
from tests.http.test_streams import Reader
from zq.clock import ManualClock
from zq.core import Broker
from zq.core.rates import BURST, CONTENTION_SECONDS, MAX_HEAVY, Account, Exchange, Rates, fair_share
from zq.errors import TooManyRequests
from zq.http import streams
from zq.http.app import create_app
from zq.http.streams import EventStream
from zq.model.quotas import Quota
from zq.model.topics import Entry, Retention, TopicRef
from zq.storage import connect
from zq.turns import Contention

QUOTA = Quota(requests=10, messages=100, bytes=1000)


class Time:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def served(account: Account, now: float, times: int, messages: int = 0, size: int = 0) -> int:
    """Return how many of ``times`` concurrent requests are admitted."""
    count = 0
    for _ in range(times):
        try:
            account.enter(now)
        except TooManyRequests:
            continue
        account.leave(now, messages, size)
        count += 1
    return count


def test_a_burst_of_two_seconds_and_then_the_rate() -> None:
    """With a rate of 10 a second, 20 requests are admitted at once, and 10 in each second after."""
    account = Account(QUOTA, 64)
    assert served(account, 0.0, 100) == 20
    assert [served(account, float(second), 100) for second in (1, 2, 3)] == [10, 10, 10]
    assert served(account, 100.0, 100) == 20, "no more than a burst is saved"


def test_a_refusal_says_which_limit_and_when_to_come_again() -> None:
    account = Account(QUOTA, 64)
    served(account, 0.0, 20)
    with pytest.raises(TooManyRequests, match=r"^The project may make at most 10 requests per second\.$") as refusal:
        account.enter(0.0)
    assert (refusal.value.limit, refusal.value.retry_after) == ("requests", 1)


def test_a_raised_quota_applies_at_once() -> None:
    """A debt that takes days at the former rate is cancelled."""
    rates = Rates(64, Time())
    account = rates.account("p", Quota(requests=0, messages=0, bytes=1))
    assert served(account, 1000.0, 2, size=1_000_000) == 1
    assert rates.account("p", QUOTA) is account
    assert served(account, 1001.0, 2) == 2


@pytest.mark.parametrize(("messages", "size", "limit"), [(500, 0, "messages"), (0, 5000, "bytes")])
def test_the_size_of_a_request_is_charged_afterwards(messages: int, size: int, limit: str) -> None:
    """A request may exceed the rate; then requests are refused until the debt is small enough, after 3 of 5 seconds."""
    account = Account(QUOTA, 64)
    assert served(account, 0.0, 1, messages, size) == 1
    with pytest.raises(TooManyRequests) as refusal:
        account.enter(0.0)
    assert (refusal.value.limit, refusal.value.retry_after) == (limit, 3)
    assert served(account, 2.9, 1) == 0
    assert served(account, 3.1, 1) == 1


def test_a_project_takes_its_share_of_threads() -> None:
    """The share is a quarter of eight threads; a thread that is released can be used again."""
    account = Account(Quota(requests=0, share=25), 8)
    account.enter(0.0)
    account.enter(0.0)
    with pytest.raises(TooManyRequests) as refusal:
        account.enter(0.0)
    assert refusal.value.limit == "share"
    account.leave(0.0, 0, 0)
    account.enter(0.0)


def test_a_project_has_two_heavy_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third one waits, and is refused if the wait takes too long; other requests are admitted."""
    monkeypatch.setattr("zq.core.rates.HEAVY_WAIT", 0.01)
    account = Account(Quota(requests=0), 64)
    for _ in range(MAX_HEAVY + 1):
        account.enter(0.0)
    for _ in range(MAX_HEAVY):
        account.begin_heavy(float, 0, 0)
    with pytest.raises(TooManyRequests, match=r"^The project may have at most 2 concurrent heavy requests") as refusal:
        account.begin_heavy(float, 0, 0)
    assert (refusal.value.limit, refusal.value.retry_after) == ("heavy", 1)
    account.enter(0.0)
    monkeypatch.setattr("zq.core.rates.HEAVY_WAIT", 60.0)
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(account.begin_heavy, float, 0, 0)
        account.end_heavy(0.0, 0, 0)
        third.result(60)


@pytest.mark.parametrize(("messages", "size"), [(201, 0), (0, 2001)])
def test_a_heavy_request_pays_an_estimate_before_it_begins(messages: int, size: int) -> None:
    """The next request is refused although the first one is still running; the difference is settled at the end."""
    account = Account(QUOTA, 64)
    for _ in range(2):
        account.enter(0.0)
    account.begin_heavy(float, messages, size)
    with pytest.raises(TooManyRequests) as refusal:
        account.begin_heavy(float, messages, size)
    assert refusal.value.limit == ("messages" if messages else "bytes")
    account.end_heavy(0.0, messages, size)
    account.leave(0.0, messages // 3, size // 3)
    account.leave(0.0, 0, 0)
    assert account.owes(0.0) == pytest.approx(0.67 - BURST, abs=0.01)
    account.begin_heavy(float, messages, size)


def test_a_refunded_estimate_is_not_a_negative_demand() -> None:
    """Other processes would take a negative demand for free capacity."""
    account = Account(QUOTA, 64)
    account.enter(0.0)
    account.begin_heavy(float, 100, 1000)
    assert account.demand() == (1, 100, 1000)
    account.end_heavy(0.0, 100, 1000)
    account.leave(0.0, 1, 1)
    assert account.demand() == (0, 0, 0)


def test_heavy_requests_know_their_contention() -> None:
    """Contention is a light request in progress of any project, recent requests of other projects, or none."""
    processes = Rates(64, Time())
    heavy, other = (processes.account(name, Quota()) for name in ("heavy", "other"))

    def contention(now: float) -> Contention:
        return processes.recent_projects.contention(heavy, now)

    heavy.enter(0.0)
    assert contention(0.0) is Contention.NOW, "it is light until it has a place"
    heavy.begin_heavy(float, 0, 0)
    assert contention(0.0) is Contention.NONE
    other.enter(1.0)
    assert contention(5.0) is Contention.NOW
    other.leave(5.0, 0, 0)
    heavy.enter(1.0)
    heavy.begin_heavy(float, 0, 0)
    assert [contention(1.0 + CONTENTION_SECONDS * part) for part in (0.5, 1.5)] == [Contention.RECENT, Contention.NONE]


def test_without_limits_all_requests_pass_and_nothing_is_reported() -> None:
    account = Account(Quota(requests=0, messages=0, bytes=0), 64)
    assert served(account, 0.0, 1000, 1000, 10**9) == 1000
    assert account.scarcest_rate(0.0) is None


def test_the_remaining_rate_is_that_of_the_scarcest_limit() -> None:
    account = Account(QUOTA, 64)
    assert account.scarcest_rate(0.0) == ("requests", 10, 1)
    served(account, 0.0, 15)
    assert account.scarcest_rate(0.0) == ("requests", 5, 2)
    served(account, 0.0, 1, size=2000)
    assert account.scarcest_rate(0.0) == ("bytes", 0, 2)


@given(st.floats(1, 1000), st.lists(st.floats(0, 2000), max_size=20))
def test_a_share_is_max_min_fair(limit: float, demands: list[float]) -> None:
    """A process with unlimited demand gets what the others leave, at least an equal part; the sum fits the limit."""
    share = fair_share(limit, demands)
    assert limit / (len(demands) + 1) - 1e-6 <= share <= limit + 1e-6
    assert abs(sum(min(demand, share) for demand in demands) + share - limit) < 1e-6 * limit * (len(demands) + 1)


@pytest.mark.parametrize("wanted", [[300.0], [150.0, 150.0], [60.0, 300.0, 300.0], [400.0, 10.0, 10.0, 10.0]])
def test_processes_keep_the_rate_together_from_the_second_exchange_on(wanted: list[float]) -> None:
    """With steady demand on 1 to 4 processes, even or uneven, the sum is within 10 % of the limit or of the demand."""
    storage, clock, time = connect("memory:", {}), ManualClock(1_700_000_000.0), Time()
    quota = Quota(requests=100, messages=0, bytes=0)
    processes = [Rates(4096, time) for _ in wanted]
    exchanges = [Exchange(rates, storage.documents, clock) for rates in processes]
    carry, dice = [0.0] * len(wanted), random.Random(7)
    counts: list[int] = []
    for _second in range(12):
        count = 0
        for _step in range(20):
            time.now += 0.05
            for at, rates in enumerate(processes):
                carry[at] += wanted[at] / 20
                count += served(rates.account("acme", quota), time.now, int(carry[at]))
                carry[at] %= 1
        clock.advance(1)
        for exchange in dice.sample(exchanges, len(exchanges)):
            exchange.exchange_reports()
        counts.append(count)
    assert all(abs(count - min(100, sum(wanted))) <= 10 for count in counts[5:]), counts
    assert sum(counts[:5]) <= 100 * (len(wanted) * (BURST + 2) + 5)
    storage.close()


def test_refused_requests_count_as_demand() -> None:
    """A refused request counts as large as an average admitted one, or as before if none was admitted since."""
    account = Account(QUOTA, 64)
    assert served(account, 0.0, 30, messages=5, size=50) == 20
    assert account.demand() == (30, 150, 1500)
    assert served(account, 0.0, 4) == 0
    assert account.demand() == (4, 20, 200)
    assert account.demand() == (0, 0, 0)


def test_nothing_is_written_far_below_the_limit() -> None:
    storage, clock, time = connect("memory:", {}), ManualClock(1_700_000_000.0), Time()
    rates = Rates(64, time)
    exchange = Exchange(rates, storage.documents, clock)
    served(rates.account("acme", Quota(requests=1000)), time.now, 50)
    exchange.exchange_reports()
    assert storage.documents.list("", "rate", "", "", 10, clock.now()).items == []
    served(rates.account("acme", Quota(requests=1000)), time.now, 100)
    exchange.exchange_reports()
    assert len(storage.documents.list("", "rate", "", "", 10, clock.now()).items) == 1
    clock.advance(6)
    assert storage.documents.list("", "rate", "", "", 10, clock.now()).items == [], "it lives five seconds"
    storage.close()


def test_a_stream_pays_for_messages_and_is_held_back_in_debt(monkeypatch: pytest.MonkeyPatch) -> None:
    """In debt, the stream sends heartbeats, and then the messages that were published; with both kinds of engines."""
    monkeypatch.setattr(streams, "CHECK_INTERVAL", 0.01)
    storage, clock = connect("memory:", {}), ManualClock(1_700_000_000.0)
    broker = Broker(storage, clock, quota=Quota(messages=10, topics=0), rates=Rates(64, clock.now))
    caller = Scoped(lambda options: create_app(broker, **options), "").api()

    def publish(*bodies: bytes) -> None:
        entries = [Entry(body, 3600) for body in bodies]
        storage.topics.publish(TopicRef("acme", "news"), entries, clock.now(), Retention(1 << 26, 1000), None)

    with closing(Reader(caller, "/v2/topics/news/stream", x_auth_token=caller.token)) as reader:
        stream = reader.portions
        assert isinstance(stream, EventStream)
        assert next(stream).startswith(b": zq")
        publish(*[b"%d" % number for number in range(25)])
        assert next(stream).count(b"event: message") == 25
        publish(b"25")
        assert stream.step() == next(stream) == b""
        assert 0 < stream.seconds_left() <= 0.5
        assert caller.call("GET", "/v2/queues", None).json["limit"] == "messages"
        monkeypatch.setattr(streams, "HEARTBEAT", 0.0)
        assert stream.step() == next(stream) == b": heartbeat\nid: 25\n\n"
        monkeypatch.setattr(streams, "HEARTBEAT", 15.0)
        clock.advance(0.51)
        publish(b"26")
        assert [data["body"] for _, _, data in reader.events(2)] == [25, 26]
    storage.close()
