# SPDX-License-Identifier: Apache-2.0
"""``/metrics`` (extensions 10): the metrics of requests, on every store."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.api import Api
from tests.http.stores import BrokenStore, bug, down
from tests.servers import wait_for
from tests.stores import Stores, options_of
from zq.clock import Clock, ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.serving.metrics.counting import Metrics
from zq.serving.metrics.definitions import COUNTED, PREFIX, READ, STORE_GAUGES, STORE_TOTALS
from zq.serving.metrics.timed import measure_verbs
from zq.serving.settings.sections import MetricsOptions
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.capabilities import Snapshots

NOBODY = {"Client-ID": None, "X-Project-ID": None}
QUEUE = "/v2/queues/jobs"
MESSAGES, CLAIMS = f"{QUEUE}/messages", f"{QUEUE}/claims"
LEASE = {"ttl": 60, "grace": 60}
PER_QUEUE = MetricsOptions(per_queue=True, max_queues=100_000)


@pytest.fixture(autouse=True)
def each_page_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render each page afresh, because a test reads the page more than once a second."""
    monkeypatch.setattr("zq.serving.metrics.counting.PAGE_TTL", 0.0)


class Watched:
    """An app with metrics, and its metrics page."""

    def __init__(
        self, storage: Storage, clock: Clock, project_suffix: str = "", options: MetricsOptions | None = None
    ) -> None:
        self.metrics = Metrics(storage, clock, store="some", engine="none", max_waiters=3, options=options)
        self.broker = Broker(measure_verbs(storage, self.metrics), clock, max_waiters=3, events=self.metrics)
        self.api = Api(create_app(self.broker, events=self.metrics, metrics_page=self.metrics.page), project_suffix)

    def shown(self) -> dict[str, float]:
        """Return the samples of the page by name and labels."""
        page = self.api.get("/metrics", 200, NOBODY).text
        return {
            sample.name.removeprefix(PREFIX) + "".join(f" {value}" for _, value in sorted(sample.labels.items())): (
                sample.value
            )
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }


@pytest.fixture(scope="module")
def storage(store_name: str, stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """Return an open store for this file, because pages of the folder's store would count thousands of queues."""
    opened = connect(stores.empty(store_name, tmp_path_factory.mktemp("metrics"), "c"))
    yield opened
    opened.close()


@pytest.fixture
def watched(storage: Storage, clock: ManualClock, project_suffix: str) -> Watched:
    return Watched(storage, clock, project_suffix)


@pytest.fixture
def absent() -> Watched:
    """Return an app on a store that is unavailable."""
    return Watched(BrokenStore(down), ManualClock(time.time()))


def post(api: Api, *bodies: int, **fields: int) -> None:
    api.post(MESSAGES, 201, {"messages": [{"body": body, **fields} for body in bodies]})


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text;version=1.0.0", "image/png"])
def test_the_page_needs_no_header(watched: Watched, accept: str) -> None:
    """Extensions 10: GET and HEAD return the page in its own format, whatever the Accept header says."""
    headers = {**NOBODY, "Accept": accept}
    page = watched.api.get("/metrics", 200, headers)
    assert page.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# TYPE zq_requests_total counter" in page.text
    head = watched.api.call("HEAD", "/metrics", 200, headers=headers)
    assert head.headers["Content-Type"] == page.headers["Content-Type"]
    assert head.body == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_page_can_only_be_read(absent: Watched, method: str) -> None:
    """1.1: Other methods get 405 with Allow."""
    assert "GET" in absent.api.call(method, "/metrics", 405, headers=NOBODY).headers["Allow"]


def test_an_app_without_metrics_has_an_empty_page(door: Api) -> None:
    assert door.get("/metrics", 200, NOBODY).body == b""


@pytest.mark.every_store
def test_work_through_the_interface_is_counted(watched: Watched, clock: ManualClock) -> None:
    """Posts, claims, expired claims, deletions, pops and settlements have exact counts."""
    api = watched.api
    post(api, 1, 2, 3, ttl=900)
    clock.advance(5)
    api.post(f"{CLAIMS}?limit=2", 201, LEASE)
    clock.advance(61)
    claim = api.post(f"{CLAIMS}?limit=2", 201, LEASE)
    ids = [message["href"].split("/")[-1].split("?")[0] for message in claim.json["messages"]]
    api.post(f"{claim.headers['Location']}/settle", 200, {"delete": ids[:1]})
    api.delete(f"{MESSAGES}?ids={ids[1]}", 204)
    last = api.delete(f"{MESSAGES}?pop=2", 200).json["messages"]
    page = watched.shown()
    assert len(last) == 1
    assert page["messages_posted_total"] == 3
    assert page["message_ttl_seconds_sum"] == 2700
    assert page["claims_total"] == 2
    assert page["messages_claimed_total"] == 4
    assert page["messages_redelivered_total"] == 1
    assert page["messages_lapsed_total"] == 1
    assert page["message_dwell_seconds_count"] == 3
    assert page["messages_finished_total deleted"] == 2
    assert page["messages_finished_total popped"] == 1
    assert page["requests_total POST /v2/queues/{queue}/claims 201"] == 2
    assert page["request_seconds_count DELETE /v2/queues/{queue}/messages"] == 2
    assert page["storage_seconds_count messages.pop"] == 1


def test_what_was_counted_before_is_not_counted_again(watched: Watched) -> None:
    """A post with a repeated Idempotency-Key, a repeated named claim and a repeated commit count once."""
    api = watched.api
    for _ in range(2):
        api.call("POST", MESSAGES, 201, {"messages": [{"body": 1}]}, {"Idempotency-Key": "k"})
    for status in (201, 200):
        api.put(f"{CLAIMS}/a.b", status, LEASE)
    batch = {"producer": "p", "batch": 1, "publish": [], "settle": [{"queue": "jobs", "claim": "a.b"}]}
    for _ in range(2):
        api.post("/v2/commits", 200, batch)
    page = watched.shown()
    assert page["messages_posted_total"] == 1
    assert page["claims_total"] == 1
    assert page["messages_finished_total deleted"] == 1
    assert (page["commits_total made"], page["commits_total replayed"]) == (1, 1)


def test_a_moved_and_a_buried_message_finish_differently(watched: Watched) -> None:
    """The counter has the outcome as a label."""
    api = watched.api
    api.put(QUEUE, 201, {"_dead_letter_queue": "dead", "_max_claim_count": 9})
    post(api, 1, 2)
    claim = api.post(CLAIMS, 201, LEASE)
    ids = [message["href"].split("/")[-1].split("?")[0] for message in claim.json["messages"]]
    ends = {"move": [{"id": ids[0], "queue": "next"}], "bury": [{"id": ids[1], "reason": "bad"}]}
    api.post(f"{claim.headers['Location']}/settle", 200, ends)
    assert watched.shown()["messages_finished_total moved"] == 1
    assert watched.shown()["messages_finished_total dead_lettered"] == 1
    api.post("/v2/queues/dead/redrive", 200, {})
    assert watched.shown()["messages_finished_total moved"] == 2


def test_a_request_that_waits_is_seen_and_timed_apart(watched: Watched) -> None:
    """The request counts as a waiter while it waits, and then as a long poll and a successful wake-up."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(watched.api.post, f"{CLAIMS}?wait=30", 201, LEASE)
        wait_for(lambda: watched.shown()["waiters"] == 1, 60, "the request waits")
        post(watched.api, 1)
        answer.result(25)
    page = watched.shown()
    assert page["waiters"] == 0
    assert page["waiters_limit"] == 3
    assert page["wakeups_total true"] == 1
    assert page["long_poll_seconds_count POST /v2/queues/{queue}/claims"] == 1
    assert "request_seconds_count POST /v2/queues/{queue}/claims" not in page


def test_a_request_that_is_woken_in_vain_is_counted(watched: Watched) -> None:
    """Here the shutdown of the server wakes the request."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(watched.api.post, f"{CLAIMS}?wait=30", 204, LEASE)
        wait_for(lambda: watched.shown()["waiters"] == 1, 60, "the request waits")
        watched.broker.waiters.close()
        answer.result(25)
    assert watched.shown()["wakeups_total false"] == 1
    assert watched.shown()["wakeups_total true"] == 0


def test_a_request_that_finds_no_place_to_wait_is_counted(
    storage: Storage, clock: ManualClock, project_suffix: str
) -> None:
    """A request that finds messages at once does not count."""
    metrics = Metrics(storage, clock, store="some", engine="none")
    api = Api(
        create_app(Broker(storage, clock, max_waiters=0, events=metrics), events=metrics, metrics_page=metrics.page),
        project_suffix,
    )
    api.post(f"{CLAIMS}?wait=1", 204, LEASE)
    post(api, 1)
    api.post(f"{CLAIMS}?wait=1", 201, LEASE)
    assert b"zq_waits_turned_away_total 1.0" in metrics.page()


def test_a_path_that_leads_nowhere_makes_no_line_of_its_own(absent: Watched) -> None:
    """Callers cannot create series by requesting arbitrary paths."""
    for name in ("a", "b"):
        absent.api.get(f"/nowhere/{name}", 404)
    assert absent.shown()["requests_total GET unmatched 404"] == 2


@pytest.mark.every_store
def test_queues_are_shown_by_state(storage: Storage, clock: ManualClock, project_suffix: str) -> None:
    """Each queue has its project and name as labels, and the age of its oldest ready message."""
    watched = Watched(storage, clock, project_suffix, PER_QUEUE)
    api, name = watched.api, f" acme{project_suffix} jobs"
    api.put(QUEUE, 201, {"_default_message_delay": 0})
    post(api, 1, 2, 3, ttl=900)
    api.post(f"{CLAIMS}?limit=1", 201, LEASE)
    clock.advance(7)
    page = watched.shown()
    assert page[f"queue_messages{name} ready"] == 2
    assert page[f"queue_messages{name} claimed"] == 1
    assert page[f"queue_messages{name} delayed"] == 0
    assert page[f"queue_oldest_ready_seconds{name}"] == pytest.approx(7, abs=0.1)
    assert page["queues"] >= 1


@pytest.mark.every_store
def test_dead_letters_are_reported_by_when_they_came(storage: Storage, clock: ManualClock, project_suffix: str) -> None:
    """Dead letters are reported apart from messages that wait for consumers, on every store."""
    watched = Watched(storage, clock, project_suffix, PER_QUEUE)
    api, name = watched.api, f" acme{project_suffix} jobs"
    api.put(QUEUE, 201, {"_dead_letter_queue": "dead"})
    api.send("jobs", "bad")
    claim, [message] = api.claim("jobs", limit=1)
    clock.advance(5)
    api.post(f"{claim}/settle", 200, {"bury": [{"id": message["id"], "reason": "bad"}]})
    clock.advance(7)
    page = watched.shown()
    assert page[f"queue_oldest_dead_letter_seconds acme{project_suffix} dead"] == pytest.approx(7, abs=0.1)
    assert page[f"queue_oldest_ready_seconds{name}"] == 0
    assert f"queue_oldest_ready_seconds acme{project_suffix} dead" not in page


def test_a_store_that_does_not_answer_leaves_the_rest_of_the_page(absent: Watched) -> None:
    """The server answers 200 with its own metrics, which include errors by status."""
    absent.api.get(MESSAGES, 503)
    page = absent.shown()
    assert page["store_up"] == 0
    assert page["requests_total GET /v2/queues/{queue}/messages 503"] == 1
    assert page["storage_seconds_count queues.get"] == 1


def test_a_defect_is_counted_as_one() -> None:
    """The request gets 500."""
    metrics = Metrics(BrokenStore(down), ManualClock(time.time()), store="some", engine="none")
    api = Api(create_app(Broker(BrokenStore(bug), ManualClock(time.time())), events=metrics, metrics_page=metrics.page))
    api.get(MESSAGES, 500)
    assert b'zq_requests_total{method="GET",route="/v2/queues/{queue}/messages",status="500"} 1.0' in metrics.page()


@pytest.mark.every_store
def test_a_page_has_everything_that_is_defined(watched: Watched) -> None:
    """The page has every metric that does not depend on the kind of store."""
    page = watched.api.get("/metrics", 200, NOBODY).text
    names = {family.name for family in text_string_to_metric_families(page)}
    expected = {PREFIX + name.removesuffix("_total") for name in {*COUNTED, *READ}}
    assert expected - names == set()


@pytest.fixture(scope="module")
def measures(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, tuple[str, ...]]]:
    """Return the names and label names of the metrics of all kinds of stores."""
    told = set()
    for driver in ("rocksdb", "mongodb", "redis", "s3"):
        folder = tmp_path_factory.mktemp("metrics")
        opened = connect(stores.empty(driver, folder, "a"), options_of(driver, folder))
        if driver == "rocksdb":
            assert isinstance(opened, Snapshots)
            with opened.snapshot() as snapshot:
                snapshot.is_complete = True
        for measure in opened.measures(opened.now()):
            told.add((measure.name, tuple(name for name, _ in measure.labels)))
        opened.close()
    return told


@pytest.mark.every_store
@pytest.mark.slow
def test_what_stores_tell_is_what_is_defined(measures: set[tuple[str, tuple[str, ...]]]) -> None:
    """Each measure has a definition with its labels, and some store reports each defined metric."""
    defined = STORE_TOTALS | STORE_GAUGES
    assert measures == {(name, definition.labels) for name, definition in defined.items()}
