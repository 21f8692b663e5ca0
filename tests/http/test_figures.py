# SPDX-License-Identifier: Apache-2.0
"""Metrics for people: of all queues, of a queue, of a project, and of servers."""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.http.api import Api
from tests.http.scoped import Scoped
from zq.clock import ManualClock
from zq.figures.counting import Counts
from zq.figures.feature import FiguresFeature

QUEUES = "/v2/figures/queues"
ADMIN = {"X-Roles": "admin"}


def names(api: Api, **query: object) -> list[str]:
    path = QUEUES + "?" + "&".join(f"{name}={value}" for name, value in query.items())
    return [row["name"] for row in api.get(path, 200).json["queues"]]


def pages(api: Api, path: str, meanwhile: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Yield all names page by page, and call ``meanwhile`` between pages."""
    while path:
        answer = api.get(path, 200).json
        yield from (row["name"] for row in answer["queues"])
        path = answer["links"][0]["href"] if answer["links"] else ""
        meanwhile()


def turn(api: Api, clock: ManualClock) -> None:
    """Let an interval of ten seconds end, and let its metrics be reported and read."""
    clock.advance(10 - clock.now() % 10 + 5)
    api.get(QUEUES, 200)
    clock.advance(5)
    api.get(QUEUES, 200)


@pytest.mark.every_store
def test_queues_are_shown_with_what_is_in_them(api: Api, clock: ManualClock) -> None:
    """A row has the messages by state, the age of the oldest, and the number of the queue's dead letters."""
    metadata = {"_dead_letter_queue": "dead", "_max_claim_count": 3, "_default_message_delay": 30}
    api.put("/v2/queues/jobs", 201, metadata)
    api.send("dead", 1, 2)
    api.send("jobs", 1, 2, 3, delay=0)
    clock.advance(30)
    api.claim("jobs", 1)
    api.send("jobs", 4, delay=60)
    told = api.get(f"{QUEUES}?sort=name", 200).json
    assert (told["total"], told["complete"], told["links"]) == (2, True, [])
    dead, jobs = told["queues"]
    assert jobs["oldest_ready"] == pytest.approx(30, abs=0.1)
    assert {name: jobs[name] for name in ("name", "ready", "delayed", "claimed", "at_least")} == {
        **{"name": "jobs", "ready": 2, "delayed": 1, "claimed": 1, "at_least": False}
    }
    assert (jobs["dead_letter_queue"], jobs["dead"]) == ("dead", 2)
    assert (dead["dead_letter_queue"], dead["dead"]) == (None, None)
    assert len(jobs["recent"]) == 20
    assert jobs["recent"][-1] == 2


def test_queues_are_sorted_by_any_figure_and_found_by_a_part_of_their_name(api: Api, clock: ManualClock) -> None:
    """Rows are in descending order unless the request asks for ascending order; names are ascending."""
    for number, name in enumerate(("mail.a", "mail.b", "jobs")):
        api.send(name, *range(3 - number))
        clock.advance(10)
    api.claim("jobs", 1)
    assert names(api) == names(api, sort="oldest") == ["mail.a", "mail.b", "jobs"]
    assert names(api, sort="claimed") == ["jobs", "mail.a", "mail.b"]
    assert names(api, sort="ready", order="asc") == ["jobs", "mail.b", "mail.a"]
    assert names(api, sort="name") == ["jobs", "mail.a", "mail.b"]
    assert names(api, sort="name", order="desc") == ["mail.b", "mail.a", "jobs"]
    assert names(api, name="ail", sort="ready") == ["mail.a", "mail.b"]
    assert names(api, name="nothing") == []


@pytest.mark.every_store
@pytest.mark.parametrize("sort", ["ready", "name&order=desc", "oldest&order=asc"])
def test_pages_have_each_queue_once_whatever_changes(api: Api, sort: str) -> None:
    """The first page determines the order, even if its first queue becomes the last between pages."""
    for number in range(7):
        api.send(f"q{number}", *range(number + 1))
    found = list(pages(api, f"{QUEUES}?sort={sort}&limit=2", lambda: api.send("q0", *range(9))))
    assert sorted(found) == [f"q{number}" for number in range(7)]


def test_another_process_goes_on_behind_the_last_row(compose: Callable[..., Api]) -> None:
    """The process does not know the order; the marker has the metric and the name of the last row."""
    one, other = compose(), compose()
    for number in range(7):
        one.send(f"q{number}", *range(number // 2 + 1))
    for sort in ("ready", "ready&order=asc", "name", "name&order=desc"):
        first = one.get(f"{QUEUES}?sort={sort}&limit=3", 200).json
        rest = list(pages(other, first["links"][0]["href"]))
        assert [row["name"] for row in first["queues"]] + rest == list(pages(one, f"{QUEUES}?sort={sort}&limit=20"))


def test_a_marker_shows_nobody_the_names_of_others(api: Api) -> None:
    """The marker, used in another project, lists queues of that project."""
    api.send("a", 1)
    api.send("b", 1)
    path = api.get(f"{QUEUES}?limit=1", 200).json["links"][0]["href"]
    assert list(pages(api.tenant("other"), path)) == []


def test_what_cannot_be_asked_is_refused_by_its_name(api: Api) -> None:
    """The error names the allowed values."""
    for query, said in (
        ("sort=size", "sort must be one of oldest, ready, "),
        ("order=up", "order must be one of desc, asc."),
        ("limit=101", "limit must be from 1 to 100"),
        ("limit=0", "limit must be"),
        ("kind=claims", "kind must be one of queues, topics."),
        ("kind=topics&sort=ready", "sort must be one of in, name."),
        ("marker=x", "marker must be the marker in the link to the next page of the same listing."),
        (f"marker={base64.b64encode(b'[1]').decode()}", "marker must be"),
    ):
        assert said in api.get(f"{QUEUES}?{query}", 400).json["description"]
    for path in ("/v2/figures", "/v2/queues/jobs/figures"):
        assert (
            "window must be one of 300, 600, 10800, 86400, 604800."
            in api.get(f"{path}?window=60", 400).json["description"]
        )


@pytest.mark.every_store
def test_rates_are_those_of_all_processes(compose: Callable[..., Api], clock: ManualClock) -> None:
    """Each process reports its rates of ten seconds, and any process adds them up, also for topics."""
    one, other = compose(), compose()
    for api in (one, other):
        api.get(QUEUES, 200)
    assert one.get(QUEUES, 200).json["queues"] == []
    clock.advance(10 - clock.now() % 10)
    for api in (one, other):
        api.get(QUEUES, 200)
    one.send("jobs", *range(10))
    other.send("jobs", *range(20))
    other.delete("/v2/queues/jobs/messages?pop=5", 200)
    one.claim("jobs", 4)
    one.post("/v2/topics/news/messages", 201, {"messages": [{"body": 1}]})
    clock.advance(10)
    for api in (one, other):
        api.get(QUEUES, 200)
    clock.advance(5)
    for api in (one, other):
        (row,) = api.get(QUEUES, 200).json["queues"]
        assert (row["in"], row["out"]) == (3, 0.5)
        rates = api.get("/v2/queues/jobs/figures", 200).json["rates"]
        assert [rates[name][-2] for name in ("posted", "claimed", "finished", "lapsed")] == [3, 0.4, 0.5, 0]
        assert rates["posted"][-1] is None
        (topic,) = api.get(f"{QUEUES}?kind=topics", 200).json["topics"]
        assert topic == {"name": "news", "in": 0.1}
    assert one.get("/v2/figures", 200).json["now"]["in"] == 3


@pytest.mark.every_store
def test_a_queue_has_its_past(api: Api, clock: ManualClock) -> None:
    """The history has points for times with a sample, and none for other times."""
    clock.advance(60 - clock.now() % 60)
    for depth in range(1, 4):
        api.send("jobs", depth)
        api.get(QUEUES, 200)
        clock.advance(10)
    told = api.get("/v2/queues/jobs/figures?window=600", 200).json
    assert (told["step"], len(told["depth"]["ready"])) == (10, 60)
    assert told["depth"]["ready"][-4:] == [1, 2, 3, 3]
    assert told["depth"]["oldest_ready"][-4:] == pytest.approx([0, 10, 20, 30], abs=0.1)
    assert set(told["depth"]["ready"][:-4]) == {None}
    assert told["now"]["ready"] == 3
    clock.advance(60)
    api.get(QUEUES, 200)
    long = api.get("/v2/queues/jobs/figures?window=10800", 200).json
    assert (long["step"], len(long["depth"]["ready"])) == (60, 180)
    assert long["depth"]["ready"][-3:] == [None, 3, 3]
    for window, step, points in ((86_400, 600, 144), (604_800, 3600, 168)):
        told = api.get(f"/v2/queues/jobs/figures?window={window}", 200).json
        assert (told["step"], len(told["depth"]["ready"])) == (step, points)
        assert told["depth"]["ready"][-1] == 3
    short = api.get("/v2/queues/jobs/figures?window=300", 200).json
    assert (short["step"], len(short["depth"]["ready"])) == (2, 150)
    assert short["depth"]["ready"][-1] == 3
    assert len(short["rates"]["posted"]) == 150


def test_a_missing_queue_has_no_past(api: Api) -> None:
    """The request does not create the queue."""
    told = api.get("/v2/queues/none/figures", 200).json
    assert told["now"]["ready"] == 0
    assert api.queues() == []
    api.get("/v2/queues/a b/figures", 400)


@pytest.mark.every_store
def test_the_overview_names_what_is_stuck(api: Api, clock: ManualClock) -> None:
    """The oldest queues come first. Dead-letter queues have a list of their own; sums include all queues."""
    for name in ("stuck", "mail"):
        api.put(f"/v2/queues/{name}", 201, {"_dead_letter_queue": "dead", "_max_claim_count": 3})
    api.send("dead", 1)
    clock.advance(100)
    api.send("stuck", 1)
    clock.advance(100)
    api.send("mail", 1, 2, 3)
    told = api.get("/v2/figures", 200).json
    assert [row["name"] for row in told["lists"]["oldest"]] == ["stuck", "mail"]
    assert [row["name"] for row in told["lists"]["deepest"]] == ["mail", "stuck"]
    assert [row["name"] for row in told["lists"]["dead_letters"]] == ["dead"]
    assert told["lists"]["quotas"] == []
    assert told["now"]["oldest_ready"] == pytest.approx(100, abs=0.1)
    assert (told["now"]["ready"], told["total"], told["step"]) == (5, 3, 10)
    assert told["depth"]["ready"][-1] == 5
    clock.advance(70)
    api.get("/v2/figures", 200)
    api.send("mail", *range(20))
    clock.advance(70)
    (growing,) = api.get("/v2/figures", 200).json["lists"]["growing"]
    assert growing["name"] == "mail"
    assert growing["growth"] > 0


def test_counts_are_bounded_and_say_so(compose: Callable[..., Api]) -> None:
    """The option is ``max_counted``."""
    api = compose(max_counted=3)
    api.send("jobs", *range(10))
    api.send("few", 1)
    few, jobs = api.get(f"{QUEUES}?sort=name", 200).json["queues"]
    assert (few["at_least"], jobs["at_least"]) == (False, True)
    assert jobs["ready"] >= 3


def test_tenants_see_what_is_theirs(scoped: Scoped) -> None:
    """A caller with scopes sees queues that the scopes name, and no history of the whole project."""
    scoped.api().send("jobs", 1, 2)
    scoped.api().send("mail", 1)
    seer = scoped.api("observe:jobs")
    assert names(seer) == ["jobs"]
    told = seer.get("/v2/figures", 200).json
    assert (told["now"]["ready"], told["total"], told["depth"], told["rates"]) == (2, 1, None, None)
    seer.get("/v2/queues/jobs/figures", 200)
    seer.get("/v2/queues/mail/figures", 403)
    assert names(scoped.api()) == ["jobs", "mail"]


def test_a_row_tells_nothing_of_a_queue_that_is_not_seen(scoped: Scoped) -> None:
    """Dead letters are counted only for callers that may see the dead-letter queue."""
    everybody = scoped.api()
    everybody.put("/v2/queues/jobs", 201, {"_dead_letter_queue": "mail"})
    everybody.send("mail", 1, 2)
    assert [row["dead"] for row in everybody.get(QUEUES, 200).json["queues"] if row["name"] == "jobs"] == [2]
    for caller, dead in ((scoped.api("observe:jobs"), None), (scoped.api("observe:**"), 2)):
        rows = {row["name"]: row for row in caller.get(QUEUES, 200).json["queues"]}
        assert (rows["jobs"]["dead_letter_queue"], rows["jobs"]["dead"]) == ("mail", dead)


def test_servers_are_for_administrators(compose: Callable[..., Api], clock: ManualClock) -> None:
    """Each process shows its start time, its rates and the error of its clock."""
    api = compose(app={"trusts_network": True})
    api.get("/v2/servers", 403)
    turn(api, clock)
    servers = api.get("/v2/servers", 200, ADMIN).json["servers"]
    assert servers
    assert all(one["version"] and one["process"] and one["waiters"] == 0 for one in servers)
    assert all(one["as_of"] >= one["since"] for one in servers)
    clock.advance(70)
    assert len(api.get("/v2/servers", 200, ADMIN).json["servers"]) <= len(servers)


def test_without_a_console_nothing_is_sampled(compose: Callable[..., Api]) -> None:
    """The routes exist and explain that metrics are off."""
    api = compose(app={"features": [FiguresFeature(None)], "trusts_network": True})
    for path in (QUEUES, "/v2/figures", "/v2/queues/jobs/figures"):
        assert "collects no figures" in api.get(path, 400).json["description"]
    api.get("/v2/servers", 400, ADMIN)


def test_names_that_are_counted_are_bounded() -> None:
    """A thousand names are counted, then the remainder of each project under one name."""
    counts: Any = Counts()
    for number in range(1500):
        counts.finished(("acme", f"q{number}"), None, 2)
    drained = counts.drain().queues
    assert len(drained) == 1001
    assert drained["acme", "*"][2] == 1000
    assert counts.drain().queues == {}
