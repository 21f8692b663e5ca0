# SPDX-License-Identifier: Apache-2.0
"""``GET /v2/stages``, ``/v2/fences`` and ``/v2/commits``: the state of batch jobs."""

from typing import Any

import pytest

from tests.http.api import Api
from tests.http.scoped import Scoped
from zq.clock import ManualClock
from zq.model import Draft, QueueRef
from zq.model.hidden import copies_of
from zq.storage.api import Storage

LISTINGS = ["stages", "fences", "commits"]
each_listing = pytest.mark.parametrize("kind", LISTINGS)


def make(api: Api, kind: str, name: str, *bodies: Any) -> None:
    if kind == "stages":
        messages = [{"body": body} for body in bodies or [1]]
        api.post(f"/v2/queues/out/messages?stage={name}", 202, {"messages": messages})
    elif kind == "fences":
        api.post(f"/v2/fences/{name}", 200)
    else:
        api.post("/v2/commits", 200, {"producer": name, "batch": 7})


def names(api: Api, path: str) -> list[str]:
    items = api.get(path, 200).json[path.split("/")[2].split("?")[0]]
    return [one.get("name") or one["producer"] for one in items]


@pytest.mark.every_store
def test_a_stage_is_shown_with_what_it_holds_and_when_it_is_dropped(api: Api, clock: ManualClock) -> None:
    """The stage is listed until it is dropped."""
    make(api, "stages", "night", "one", "two")
    clock.advance(100)
    make(api, "stages", "night", "three")
    [stage] = api.get("/v2/stages", 200).json["stages"]
    assert stage.pop("expires").endswith("Z")
    assert stage == {
        "name": "night",
        "href": "/v2/stages/night",
        "messages": 3,
        "bytes": len('"one""two""three"'),
        "dropped_in": 3500,
    }
    api.delete(stage["href"], 204)
    assert api.get("/v2/stages", 200).json == {"stages": [], "links": []}


def test_what_subscribers_get_of_a_stage_is_not_shown(api: Api, storage: Storage, clock: ManualClock) -> None:
    """These copies are staged separately under an internal name."""
    make(api, "stages", "night", 1)
    queue, now = QueueRef(api.project, "out"), clock.now()
    storage.transactions.stage(api.project, copies_of("night"), queue, [Draft("a", b"1", 60, 0, "c")], now, 600, 100)
    assert names(api, "/v2/stages?limit=1") == ["night"]
    assert names(api, "/v2/stages?limit=1&marker=night") == []
    assert names(api, "/v2/stages") == ["night"]


def test_a_fence_is_shown_with_its_epoch_and_since_when(api: Api, clock: ManualClock) -> None:
    for _ in range(2):
        make(api, "fences", "etl")
        clock.advance(60)
    [fence] = api.get("/v2/fences", 200).json["fences"]
    assert fence.pop("advanced").endswith("Z")
    assert fence == {"name": "etl", "href": "/v2/fences/etl", "epoch": 2, "age": 60}


@pytest.mark.every_store
def test_a_producer_is_shown_with_its_last_batch(api: Api, clock: ManualClock) -> None:
    """The entry has the counts of the batch and the time of its decision."""
    make(api, "stages", "night", 1, 2)
    api.send("in", 1)
    claim, _ = api.claim("in")
    settle = [{"queue": "in", "claim": claim.rsplit("/", 1)[1]}]
    api.post("/v2/commits", 200, {"producer": "etl", "batch": 17, "publish": ["night"], "settle": settle})
    clock.advance(60)
    [commit] = api.get("/v2/commits", 200).json["commits"]
    assert commit.pop("decided").endswith("Z")
    figures = {"batch": 17, "published": 2, "deleted": 1, "open": False, "age": 60}
    assert commit == {"producer": "etl", "href": "/v2/commits/etl", **figures}
    assert api.get(commit["href"], 200).json == {"batch": 17, "published": 2, "deleted": 1}


@pytest.mark.every_store
@each_listing
def test_pages_follow_each_other(api: Api, kind: str) -> None:
    """Names are in order, ten per page by default, and only the project's own."""
    made = sorted(f"job-{number}" for number in range(25))
    for name in made:
        make(api, kind, name)
    make(api.tenant("rival"), kind, "job")
    path, found = f"/v2/{kind}?limit=10", list[list[str]]()
    while path:
        found.append(names(api, path))
        links = api.get(path, 200).json["links"]
        path = links[0]["href"] if links else ""
    assert found == [made[:10], made[10:20], made[20:]]
    assert names(api, f"/v2/{kind}") == made[:10]
    assert names(api, f"/v2/{kind}?limit=100") == made
    assert names(api, f"/v2/{kind}?marker=job-3&limit=2") == ["job-4", "job-5"]


@each_listing
def test_limits_have_their_bounds(api: Api, kind: str) -> None:
    for wrong in ("0", "101", "-1"):
        assert "limit must be from 1 to 100" in api.get(f"/v2/{kind}?limit={wrong}", 400).json["description"]
    assert "limit must be an integer" in api.get(f"/v2/{kind}?limit=x", 400).json["description"]
    assert "marker" in api.get(f"/v2/{kind}?marker=~x", 400).json["description"]


@each_listing
def test_a_caller_sees_what_its_scopes_let_it_observe(scoped: Scoped, kind: str) -> None:
    """Scopes for reading suffice; scopes of queues do not."""
    owner = scoped.api()
    for name in ("a.1", "a.2", "b.1"):
        make(owner, kind, name)
    assert names(scoped.api("observe:work/a.*"), f"/v2/{kind}") == ["a.1", "a.2"]
    assert names(scoped.api("observe:work/b.*"), f"/v2/{kind}?limit=1") == ["b.1"]
    assert names(scoped.api("observe:work/**"), f"/v2/{kind}") == ["a.1", "a.2", "b.1"]
    assert names(scoped.api("produce+consume:work/**"), f"/v2/{kind}") == []
    assert names(scoped.api("observe:queue/**"), f"/v2/{kind}") == []
