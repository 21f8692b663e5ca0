# SPDX-License-Identifier: Apache-2.0
"""Metrics: counting, and the rendered page, on a stub store."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from zq.clock import ManualClock
from zq.core.usage_quotas import LargestUse
from zq.errors import Unavailable
from zq.model import Claim, CommitResult, Draft, Message, Outcome, Page, Queue, QueueRef
from zq.model.modes import Mode
from zq.model.stats import Depth, Measure
from zq.serving.metrics.collector import PAGE, CachedCall
from zq.serving.metrics.counting import MAX_BUFFERED, Metrics
from zq.serving.metrics.server import ServerCollector, read_open_files_ratio
from zq.serving.settings.sections import MetricsOptions

NOW = 1000.0
A, B, C = QueueRef("acme", "a"), QueueRef("acme", "b"), QueueRef("other", "a")


@pytest.fixture(autouse=True)
def each_page_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the cache of the page, because tests read it more than once a second."""
    monkeypatch.setattr("zq.serving.metrics.counting.PAGE_TTL", 0.0)


class Figures:
    """A store that returns the measures and rows that a test sets."""

    def __init__(self) -> None:
        self.told: list[Measure] = []
        self.rows: list[tuple[QueueRef, Depth]] = []
        self.asked: list[str] = []
        self.failing = False
        self.metadata: dict[QueueRef, bytes] = {}
        self.queues = self

    def list(self, project: str, after: str, limit: int) -> Page[Queue]:
        names = sorted(queue.name for queue, _ in self.rows if queue.project == project and queue.name > after)
        refs = [QueueRef(project, name) for name in names[:limit]]
        return Page([Queue(ref, self.metadata.get(ref, b"{}")) for ref in refs], refs[-1].name if refs else None)

    def measures(self, now: float) -> Sequence[Measure]:
        return self._answer("measures", self.told)

    def depths(self, now: float, queues: int, max_count: int) -> Sequence[tuple[QueueRef, Depth]]:
        return self._answer(f"depths {queues} {max_count}", self.rows[:queues])

    def _answer(self, what: str, answer: list) -> list:
        self.asked.append(what)
        if self.failing:
            raise Unavailable("down")
        return answer


def counting(store: Figures, **options: int | bool) -> Metrics:
    clock = ManualClock(NOW)
    return Metrics(store, clock, store="list", engine="none", max_waiters=40, options=MetricsOptions(**options))


@pytest.fixture
def store() -> Figures:
    return Figures()


@pytest.fixture
def metrics(store: Figures) -> Metrics:
    return counting(store)


def shown(metrics: Metrics) -> dict[str, float]:
    """Return each sample of the page by its name and labels in Prometheus' notation, without the prefix."""
    found = {}
    for family in text_string_to_metric_families(metrics.page().decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            name = sample.name.removeprefix("zq_") + (f"{{{labels}}}" if labels else "")
            assert name not in found, f"{name} stands there twice"
            found[name] = sample.value
    return found


def message(claim_count: int, created: float = NOW - 3) -> Message:
    return Message("m", b"1", 60, created, created + 60, created, 1, "client", claim_count=claim_count)


def test_work_is_counted(metrics: Metrics) -> None:
    """Each event changes only its own metrics."""
    before = shown(metrics)
    metrics.posted(A, [Draft("1", b"1", 60, 0, "c"), Draft("2", b"1", 300, 0, "c")])
    metrics.claimed(A, Claim("c", 60, NOW, [message(1), message(2), message(5)], lapsed=2), NOW)
    metrics.popped(A, [message(0), message(1)], NOW)
    metrics.finished(A, Outcome.DELETED, 4)
    metrics.committed(CommitResult(1, 5, 3))
    metrics.committed(CommitResult(1, 5, 3, replayed=True))
    metrics.poll_refused()
    metrics.woken(True)
    metrics.waiting(1)
    after = shown(metrics)
    grown = {name: value - before.get(name, 0) for name, value in after.items() if "_bucket" not in name}
    assert {name: value for name, value in grown.items() if value} == {
        "messages_posted_total": 2,
        "message_ttl_seconds_count": 2,
        "message_ttl_seconds_sum": 360,
        "claims_total": 1,
        "messages_claimed_total": 3,
        "messages_redelivered_total": 2,
        "messages_lapsed_total": 2,
        "message_dwell_seconds_count": 2,
        "message_dwell_seconds_sum": 6,
        "messages_finished_total{outcome=popped}": 2,
        "messages_finished_total{outcome=deleted}": 4,
        "commits_total{outcome=made}": 1,
        "commits_total{outcome=replayed}": 1,
        "commit_messages_published_total": 5,
        "waits_turned_away_total": 1,
        "wakeups_total{found=true}": 1,
        "waiters": 1,
    }


def test_a_sweep_is_counted(metrics: Metrics) -> None:
    """A sweep's duration, removals and pauses are counted, and whether it reached its limit."""
    metrics.swept(2.5, 10, True, 0.5)
    metrics.swept(0.1, 0, False, 0.0)
    metrics.throttled(2.0, 0.1)
    page = shown(metrics)
    assert page["sweep_seconds_count"] == 2
    assert page["sweep_seconds_bucket{le=0.1}"] == 1
    assert page["sweep_removed_total"] == 10
    assert page["sweep_limit_reached_total"] == 1
    assert page["sweep_rest_seconds_total"] == 0.5
    assert page["sweep_latency_ratio"] == 2.0
    assert page["sweep_share"] == 0.1


def test_a_refusal_is_counted_by_its_cause(metrics: Metrics) -> None:
    for reason in ("forbidden", "throttled", "forbidden"):
        metrics.auth_failed(reason)
    metrics.quota_refused("queues")
    page = shown(metrics)
    assert page["auth_failures_total{reason=forbidden}"] == 2
    assert page["auth_failures_total{reason=throttled}"] == 1
    assert page["quota_refusals_total{limit=queues}"] == 1


def test_a_page_shows_the_state_of_the_server(metrics: Metrics) -> None:
    """The page shows the state at the time of the scrape; without a certificate or quotas their samples are omitted."""
    state: dict[str, Any] = {"leaving": False, "expires": None, "names": False}
    uses = {"stored_bytes": LargestUse(0.5, "acme")}
    metrics.register(
        ServerCollector(
            ManualClock(NOW),
            lambda: state["leaving"],
            lambda: state["expires"],
            lambda: uses,
            lambda: state["names"],
        )
    )
    page = shown(metrics)
    assert page["draining"] == 0
    assert 0 < page["open_files_ratio"] < 1
    assert page["quota_used_ratio{limit=stored_bytes,project=}"] == 0.5
    assert "certificate_expires_seconds" not in page
    state |= {"leaving": True, "expires": NOW + 60, "names": True}
    page = shown(metrics)
    assert page["draining"] == 1
    assert page["certificate_expires_seconds"] == 60
    assert page["quota_used_ratio{limit=stored_bytes,project=acme}"] == 0.5


def test_open_files_are_absent_where_the_system_does_not_list_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zq.serving.metrics.server.OPEN_FILES", "/nowhere")
    assert read_open_files_ratio() is None


def test_the_mode_is_a_number(metrics: Metrics) -> None:
    metrics.set_mode(Mode.READ_ONLY)
    assert shown(metrics)["mode"] == 2


def test_a_request_counts_under_its_route(metrics: Metrics) -> None:
    """Requests are counted by method, route and status; long polls have their own histogram."""
    for _ in range(3):
        metrics.answered("GET", "/v2/queues", 200, 0.003, False)
    metrics.answered("POST", "/v2/queues/{queue}/claims", 204, 9.0, True)
    page = shown(metrics)
    assert page["requests_total{method=GET,route=/v2/queues,status=200}"] == 3
    assert page["request_seconds_bucket{le=0.005,method=GET,route=/v2/queues}"] == 3
    assert page["requests_total{method=POST,route=/v2/queues/{queue}/claims,status=204}"] == 1
    assert page["long_poll_seconds_count{method=POST,route=/v2/queues/{queue}/claims}"] == 1
    assert "request_seconds_count{method=POST,route=/v2/queues/{queue}/claims}" not in page


def test_invented_methods_and_paths_add_no_samples(metrics: Metrics) -> None:
    """Unknown methods and unmatched paths share one sample each."""
    for invented in ("BREW", "SPAM", "EGGS"):
        metrics.answered(invented, "", 404, 0.001, False)
    requests = {name: value for name, value in shown(metrics).items() if name.startswith("requests_total")}
    assert requests == {"requests_total{method=OTHER,route=unmatched,status=404}": 3}


def test_nothing_is_lost_when_threads_count_while_the_page_is_read(metrics: Metrics) -> None:
    """Some buffered requests are added to the metrics while others are recorded."""
    each, threads = 5 * MAX_BUFFERED, 4

    def work() -> None:
        for _ in range(each):
            metrics.answered("GET", "/", 200, 0.001, False)
            metrics.store_called("messages.post", 0.001)

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(work) for _ in range(threads)]
        while not all(done.done() for done in running):
            metrics.page()
    page = shown(metrics)
    assert page["requests_total{method=GET,route=/,status=200}"] == each * threads
    assert page["storage_seconds_count{verb=messages.post}"] == each * threads


def test_a_page_has_the_measures_of_the_store(store: Figures, metrics: Metrics) -> None:
    """Gauges are shown unchanged; measures without a definition are omitted."""
    store.told = [
        Measure("expired_waiting", 7),
        Measure("store_bytes", 5, (("part", "data"),)),
        Measure("store_bytes", 6, (("part", "indexes"),)),
        Measure("nobody_knows_this", 1),
    ]
    page = shown(metrics)
    assert page["expired_waiting"] == 7
    assert page["store_bytes{part=data}"] == 5
    assert page["store_bytes{part=indexes}"] == 6
    assert page["store_up"] == 1
    assert page["waiters_limit"] == 40
    assert page["clock_offset_seconds"] == 0
    assert [name for name in page if name.startswith("info{engine=none,store=list,version=")]
    assert not [name for name in page if "nobody" in name]


def test_totals_of_a_store_only_rise(store: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    """The totals continue from one scrape to the next; a reopened store restarts its counts at 0."""
    monkeypatch.setattr("zq.serving.metrics.collector.MEASURES_AGE", 0.0)
    monkeypatch.setattr("zq.serving.metrics.collector.AGE_FACTOR", 0)
    metrics = counting(store)
    seen = []
    for value in (5, 5, 8, 2):
        store.told = [Measure("expired_removed_total", value, (("layer", "sweep"),)), Measure("store_syncs_total", 1)]
        seen.append(shown(metrics)["expired_removed_total{layer=sweep}"])
    assert seen == [5, 5, 8, 10]
    assert shown(metrics)["store_syncs_total"] == 1


def test_a_sweep_takes_over_the_totals_too(store: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of other processes then have the totals, as does this process's page when the store is down."""
    monkeypatch.setattr("zq.serving.metrics.collector.MEASURES_AGE", 0.0)
    monkeypatch.setattr("zq.serving.metrics.collector.AGE_FACTOR", 0)
    metrics = counting(store)
    store.told = [Measure("store_syncs_total", 4)]
    metrics.swept(0.1, 0, False, 0.0)
    store.failing = True
    assert shown(metrics)["store_syncs_total"] == 4


def test_a_page_reports_that_the_store_does_not_respond(store: Figures, metrics: Metrics) -> None:
    """The page has all other samples; the store is neither queried again at once nor for the other metrics."""
    store.failing = True
    metrics.poll_refused()
    for _ in range(3):
        page = shown(metrics)
    assert page["store_up"] == 0
    assert page["waits_turned_away_total"] == 1
    assert page["clock_offset_seconds"] == 0
    assert "queues" not in page
    assert store.asked == ["measures"]


def test_queues_are_summed_up(store: Figures, metrics: Metrics) -> None:
    """Each state is summed over all queues; the age is that of the oldest ready message of all queues."""
    store.rows = [(A, Depth(1, 2, 3, 4, NOW - 5)), (B, Depth(10, 20, 30, 40, NOW - 7)), (C, Depth())]
    page = shown(metrics)
    assert page["queues"] == 3
    counts = [page[f"queue_messages{{state={state}}}"] for state in ("ready", "delayed", "claimed", "expired")]
    assert counts == [11, 22, 33, 44]
    assert page["queue_oldest_ready_seconds"] == 7


def test_a_store_without_queues_is_shown_as_zeros(metrics: Metrics) -> None:
    """Without queues, the page has zeros and no gaps."""
    page = shown(metrics)
    assert page["queues"] == 0
    assert page["queue_messages{state=ready}"] == 0
    assert page["queue_oldest_ready_seconds"] == 0


def test_queues_have_lines_of_their_own_on_request(store: Figures, metrics: Metrics) -> None:
    """The samples appear from the next page on and disappear with the option; their number is limited."""
    store.rows = [(A, Depth(1)), (C, Depth(2, oldest_ready=NOW - 4))]
    metrics.page()
    metrics.configure(MetricsOptions(per_queue=True, max_queues=5, max_counted=77))
    page = shown(metrics)
    assert store.asked[-1] == "depths 5 77"
    assert page["queue_messages{project=acme,queue=a,state=ready}"] == 1
    assert page["queue_messages{project=other,queue=a,state=ready}"] == 2
    assert page["queue_oldest_ready_seconds{project=other,queue=a}"] == 4
    assert "queue_messages{state=ready}" not in page
    metrics.configure(MetricsOptions())
    assert shown(metrics)["queue_messages{state=ready}"] == 3


def test_dead_letters_have_an_age_of_their_own(store: Figures, metrics: Metrics) -> None:
    """Dead-letter queues are excluded from the oldest ready message, on which alerts are based.

    A dead-letter queue is identified by its project too, even if its source queue is listed on another page.
    """
    many = [(QueueRef("acme", f"q{number:03}"), Depth()) for number in range(2 * PAGE)]
    dead, same_name = QueueRef("acme", "dead"), QueueRef("other", "dead")
    store.rows = [*many, (dead, Depth(1, oldest_ready=NOW - 9)), (same_name, Depth(1, oldest_ready=NOW - 2))]
    store.metadata[many[-1][0]] = b'{"_dead_letter_queue":"dead"}'
    page = shown(metrics)
    assert page["queue_oldest_ready_seconds"] == 2
    assert page["queue_oldest_dead_letter_seconds"] == 9
    metrics.configure(MetricsOptions(per_queue=True))
    page = shown(metrics)
    assert page["queue_oldest_dead_letter_seconds{project=acme,queue=dead}"] == 9
    assert page["queue_oldest_ready_seconds{project=other,queue=dead}"] == 2
    assert "queue_oldest_ready_seconds{project=acme,queue=dead}" not in page


def test_removals_are_counted_by_queue_up_to_a_bound(store: Figures) -> None:
    """Queues beyond the limit share a sample without a name; without the option there are no such samples."""
    metrics = counting(store, per_queue=True, max_queues=2)
    for queue in (A, B, C, A, C):
        metrics.expired(10, queue)
    quiet = counting(store)
    quiet.expired(10, A)
    lines = {name: value for name, value in shown(metrics).items() if name.startswith("queue_expired")}
    assert lines == {
        "queue_expired_removed_total{project=acme,queue=a}": 20,
        "queue_expired_removed_total{project=acme,queue=b}": 10,
        "queue_expired_removed_total{project=,queue=}": 20,
    }
    assert not [name for name in shown(quiet) if name.startswith("queue_expired")]


def test_many_pages_query_the_store_once(store: Figures, metrics: Metrics) -> None:
    """The queues are queried once in ten seconds, however many clients scrape."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: metrics.page(), range(20)))
    assert [asked for asked in store.asked if asked.startswith("depths")] == ["depths 1000 10000"]


def test_a_result_is_cached_for_its_time_and_a_failure_for_a_second() -> None:
    """The test advances the clock."""
    moment, answers = [0.0], ["one", Unavailable("down"), "two"]
    asked: list[float] = []

    def ask() -> str:
        asked.append(moment[0])
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            moment[0] += 5.0
            raise answer
        return answer

    remembered = CachedCall(ask, 10.0, lambda: moment[0])
    got = []
    for moment[0] in (0.0, 9.9, 10.0, 15.9, 16.0, 25.9):
        got.append(remembered.get())
    assert got == ["one", "one", None, None, "two", "two"]
    assert asked == [0.0, 10.0, 16.0]


def test_a_slow_call_is_made_less_often() -> None:
    """The calls take at most a twentieth of the time."""
    moment, asked = [0.0], 0

    def ask() -> int:
        nonlocal asked
        asked += 1
        moment[0] += 2.0
        return asked

    remembered = CachedCall(ask, 10.0, lambda: moment[0])
    got = []
    for moment[0] in (0.0, 41.9, 42.0):
        got.append(remembered.get())
    assert got == [1, 1, 2]


def test_a_store_that_hangs_holds_up_no_request(store: Figures, metrics: Metrics) -> None:
    """Requests are counted while a page waits for the store."""
    asked, answer = threading.Event(), threading.Event()

    def hang(now: float) -> Sequence[Measure]:
        asked.set()
        answer.wait(120)
        raise Unavailable("down")

    store.measures = hang
    with ThreadPoolExecutor(1) as pool:
        page = pool.submit(metrics.page)
        assert asked.wait(60)
        for _ in range(2 * MAX_BUFFERED):
            metrics.answered("GET", "/", 200, 0.001, False)
        assert not page.done()
        answer.set()
        assert b"zq_store_up 0.0" in page.result(60)


def test_a_page_is_rendered_once_a_second_for_all_readers(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other readers get the same bytes, also concurrently, and a new page after that second (S7)."""
    monkeypatch.setattr(metrics._pages, "_ttl", lambda _: 3600.0)
    page = metrics.page()
    metrics.woken(True)
    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(lambda _: metrics.page(), range(50))} == {page}
    metrics._pages.clear()
    assert metrics.page() != page
