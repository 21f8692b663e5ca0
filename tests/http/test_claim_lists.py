# SPDX-License-Identifier: Apache-2.0
"""Listings of the live claims of a queue and of a project, and the holder of a claim."""

from typing import Any

import pytest

from tests.http.api import CLIENT, OTHER_CLIENT, Api
from tests.http.scoped import Scoped
from tests.tables import every_row
from zq.clock import ManualClock
from zq.model import ClaimRequest, Draft, Lease
from zq.storage.api import Storage
from zq.subscriptions.model import Source
from zq.wire import encoding

PROJECT = "/v2/claims"
QUEUE = "/v2/queues/jobs"
URL = f"{QUEUE}/claims"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e"


def claim(api: Api, queue: str = "jobs", agent: str | None = "tool/1", limit: int = 10, **terms: Any) -> str:
    """Return the path of a new claim that a client with this User-Agent makes."""
    made = api.post(f"/v2/queues/{queue}/claims?limit={limit}", 201, terms, {"User-Agent": agent})
    return str(made.headers["Location"])


def walk(api: Api, path: str) -> list[Any]:
    """Return the claims of all pages; follow the links."""
    found = []
    while True:
        page = api.get(path, 200).json
        found += page["claims"]
        if not page["links"]:
            return found
        [link] = page["links"]
        assert link["rel"] == "next"
        path = link["href"]


@pytest.mark.every_store
def test_a_claim_is_listed_with_who_holds_it(api: Api, clock: ManualClock) -> None:
    """The listings of the queue and of the project have all members; the href leads to the claim."""
    api.send("jobs", 1, 2, 3)
    path = claim(api, limit=2, ttl=120)
    made = clock.now()
    clock.advance(5)
    [listed] = walk(api, URL)
    assert listed == {
        "id": path.rpartition("/")[2],
        "queue": "jobs",
        "href": path,
        "messages": 2,
        "age": 5,
        "ttl": 120,
        "client": CLIENT.replace("-", ""),
        "agent": "tool/1",
        "created": encoding.timestamp(made),
        "ends": encoding.timestamp(made + 120),
    }
    assert walk(api, PROJECT) == [listed]
    assert len(api.get(listed["href"], 200).json["messages"]) == 2


def test_a_claim_itself_tells_its_holder_if_it_is_asked_for_details(api: Api, clock: ManualClock) -> None:
    """Without ``detailed`` the claim has its usual members only."""
    api.send("jobs", 1)
    path = claim(api, ttl=60)
    assert set(api.get(path, 200).json) == {"age", "ttl", "href", "messages"}
    shown = api.get(f"{path}?detailed=true&bodies=start", 200).json
    [listed] = walk(api, URL)
    assert {name: shown[name] for name in ("client", "agent", "created", "ends")} == {
        name: listed[name] for name in ("client", "agent", "created", "ends")
    }


def test_a_holder_stays_who_made_the_claim(api: Api, clock: ManualClock) -> None:
    """A renewal does not change the holder. A named claim shows its creator, and after it expired its new holder."""
    other = api.tenant(client=OTHER_CLIENT)
    api.send("jobs", 1, 2)
    api.put(f"{URL}/job.1?limit=1", 201, {"ttl": 60}, {"User-Agent": "first"})
    other.put(f"{URL}/job.1?limit=1", 200, {"ttl": 60}, {"User-Agent": "second"})
    other.call("PATCH", f"{URL}/job.1", 204, {"ttl": 90})
    [listed] = walk(api, URL)
    assert (listed["agent"], listed["client"]) == ("first", CLIENT.replace("-", ""))
    assert listed["ends"] == encoding.timestamp(clock.now() + 90)
    clock.advance(91)
    assert walk(api, URL) == []
    other.put(f"{URL}/job.1?limit=2", 201, {"ttl": 60}, {"User-Agent": "second"})
    [listed] = walk(api, URL)
    assert (listed["agent"], listed["client"], listed["messages"]) == ("second", OTHER_CLIENT.replace("-", ""), 2)


@pytest.mark.every_store
def test_a_user_agent_is_text_of_64_characters(api: Api) -> None:
    """The name is UTF-8, as clients send it. The header may be absent or not valid UTF-8."""
    api.send("jobs", *range(6))
    agents = [HOSTILE, "é" * 100, None, "\xff\xfe", "x" * 64, "\N{GRINNING FACE}" * 100]
    sent = [None if agent is None else agent.encode().decode("latin-1") for agent in agents]
    sent[3] = "\xff\xfe"
    ids = [claim(api, agent=agent, limit=1).rpartition("/")[2] for agent in sent]
    told = {one["id"]: one["agent"] for one in walk(api, URL)}
    assert [told[id] for id in ids] == [HOSTILE[:64], "é" * 64, "", "\ufffd\ufffd", "x" * 64, "\N{GRINNING FACE}" * 64]


@pytest.mark.every_store
def test_pages_neither_skip_nor_repeat(api: Api) -> None:
    """This holds for a queue and for a project; each link repeats the limit."""
    for queue in ("a", "b", "c"):
        api.send(queue, *range(7))
        for _ in range(7):
            claim(api, queue, limit=1)
    for path, count in ((PROJECT, 21), ("/v2/queues/b/claims", 7)):
        for limit in (1, 2, 5, 100):
            found = walk(api, f"{path}?limit={limit}")
            assert len({one["href"] for one in found}) == len(found) == count
    assert len(api.get(PROJECT, 200).json["claims"]) == 10
    assert "limit=2&marker=" in api.get(f"{PROJECT}?limit=2", 200).json["links"][0]["href"]


@every_row("path", [URL, PROJECT])
@every_row(
    ("given", "sentence"),
    [
        ("limit=0", "limit must be from 1 to 100; it is 0."),
        ("limit=101", "limit must be from 1 to 100; it is 101."),
        ("limit=x", "limit must be an integer."),
        *(
            (f"marker={text}", "marker is not valid for a list of claims")
            for text in ("a", "%25%25", "caf%C3%A9", "a b c")
        ),
    ],
)
def test_invalid_parameters_are_refused(api: Api, path: str, given: str, sentence: str) -> None:
    """The error names the parameter and its limits."""
    assert sentence in api.get(f"{path}?{given}", 400).json["description"]


@pytest.mark.every_store
def test_any_marker_of_the_right_form_is_a_place(api: Api) -> None:
    """A marker may point to any position, whether or not claims follow it."""
    api.send("jobs", 1)
    claim(api)
    for marker in ("am9icy8", "_____w", "AAAA", "fn5-"):
        for path in (URL, PROJECT):
            api.get(f"{path}?marker={marker}", 200)


@pytest.mark.every_store
def test_claims_of_internal_queues_are_not_listed(api: Api, storage: Storage, clock: ManualClock) -> None:
    """Deliveries to subscribers are claimed in hidden queues of the project."""
    api.send("jobs", 1)
    claim(api)
    own, now = Source(api.project, "queue", "jobs").worker_queue("s"), clock.now()
    storage.messages.post(own, [Draft("m", b"1", 600, 0, "c")], now)
    storage.claims.create(own, ClaimRequest(Lease("worker", 60, 60), 1), now)
    assert [one["queue"] for one in walk(api, PROJECT)] == ["jobs"]


def test_who_may_observe_a_queue_sees_its_claims(scoped: Scoped) -> None:
    """A caller that may observe only some queues cannot list the claims of all queues."""
    owner = scoped.api()
    owner.send("jobs", 1)
    claim(owner)
    reader, one = scoped.api("observe:**"), scoped.api("observe:jobs")
    assert len(walk(reader, PROJECT)) == len(walk(reader, URL)) == len(walk(one, URL)) == 1
    assert "claims:get_all" in one.get(PROJECT, 403).json["description"]
    assert "claims:get_all" in scoped.api("observe:other").get(URL, 403).json["description"]
    scoped.api("consume:**").get(URL, 403)
    assert "claims:get_all" in reader.get("/v2/me", 200).json["rules"]
