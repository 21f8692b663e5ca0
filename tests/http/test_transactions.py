# SPDX-License-Identifier: Apache-2.0
"""Extensions 9 over HTTP: named claims, fences, stages and commits. Conformance tests cover their guarantees."""

from typing import Any

import pytest

from tests.http.api import Api
from tests.tables import every_row

QUEUE = "/v2/queues/jobs"
OUT = "/v2/queues/out"
COMMITS = "/v2/commits"
LONG = "x" * 128


def stage(api: Api, name: str, *bodies: Any, queue: str = "out") -> None:
    document = {"messages": [{"body": body} for body in bodies]}
    assert api.post(f"/v2/queues/{queue}/messages?stage={name}", 202, document).json == {"staged": len(bodies)}


def commit(api: Api, batch: int, status: int = 200, *, query: str = "", **parts: Any) -> Any:
    return api.post(f"{COMMITS}{query}", status, {"producer": "etl", "batch": batch, **parts}).json


@pytest.mark.every_store
def test_a_claim_by_name_is_made_once(api: Api) -> None:
    """The first request gets 201; repeats get 200 with the messages still held, and no others."""
    ids = api.send("jobs", 1, 2, 3)
    made = api.put(f"{QUEUE}/claims/etl.1.0?limit=2", 201, {"ttl": 300, "grace": 60})
    assert made.headers["Location"] == f"{QUEUE}/claims/etl.1.0"
    api.delete(f"{QUEUE}/messages/{ids[0]}?claim_id=etl.1.0", 204)
    again = api.put(f"{QUEUE}/claims/etl.1.0?limit=20", 200, {"ttl": 60, "grace": 60}).json["messages"]
    assert [message["body"] for message in again] == [2]
    assert api.get(f"{QUEUE}/claims/etl.1.0", 200).json["ttl"] == 300


@every_row("name", ["nodot", ".", "..", "a.b%20c", "a.%C3%A4", f"{LONG}.", "a.b:c"])
def test_a_name_has_its_rules(door: Api, name: str) -> None:
    """A name has a dot, so that it differs from ids of the server, and at most 128 characters."""
    assert "name" in door.put(f"{QUEUE}/claims/{name}", 400).json["description"]


@pytest.mark.every_store
def test_the_largest_name_is_fine(api: Api) -> None:
    api.send("jobs", 1)
    api.put(f"{QUEUE}/claims/.{'x' * 127}", 201)


@pytest.mark.every_store
def test_an_older_epoch_cannot_work_on(api: Api) -> None:
    """PUT, PATCH, settle and commit answer 409 and change nothing."""
    api.send("jobs", 1, 2)
    assert api.post("/v2/fences/etl", 200).json == {"epoch": 1}
    (message,) = api.put(f"{QUEUE}/claims/etl.1?limit=1&fence=etl:1", 201).json["messages"]
    assert api.post("/v2/fences/etl", 200).json == {"epoch": 2}
    identity = message["href"].split("/")[-1].split("?")[0]
    api.put(f"{QUEUE}/claims/etl.2?fence=etl:1", 409)
    api.patch(f"{QUEUE}/claims/etl.1?fence=etl:1", 409, {"ttl": 60}, {"Content-Type": "application/json"})
    api.post(f"{QUEUE}/claims/etl.1/settle?fence=etl:1", 409, {"delete": [identity]})
    stage(api, "s", "made")
    assert "fence" in commit(api, 1, 409, query="?fence=etl:1", publish=["s"])["description"].lower()
    assert api.get(f"{QUEUE}/claims/etl.1", 200).json["messages"][0]["body"] == 1
    api.post(f"{QUEUE}/claims/etl.1/settle?fence=etl:2", 200, {"delete": [identity]})
    assert commit(api, 1, query="?fence=etl:2", publish=["s"])["published"] == 1


@every_row("fence", ["etl", "etl:", "etl:x", ":1", "etl:0", "etl:-1", "etl:" + "9" * 20, "a b:1"])
def test_a_fence_has_its_form(door: Api, fence: str) -> None:
    """The server answers 400 before it accesses the store."""
    door.put(f"{QUEUE}/claims/a.b?fence={fence}", 400)


@pytest.mark.every_store
def test_staged_messages_are_nowhere_until_they_are_published(api: Api) -> None:
    """Staged messages are in no listing, statistics or queue; then all appear at once, in order."""
    stage(api, "etl.17", 1, 2)
    stage(api, "etl.17", 3)
    api.get(OUT, 200)
    assert api.queues() == []
    assert api.seen("out") == []
    assert commit(api, 17, publish=["etl.17"]) == {"published": 3, "deleted": 0, "replayed": False}
    assert api.seen("out") == [1, 2, 3]


def test_a_stage_is_dropped(api: Api) -> None:
    """The server answers 204, even for a missing stage; a commit no longer finds the stage."""
    stage(api, "etl.17", 1)
    api.delete("/v2/stages/etl.17", 204)
    api.delete("/v2/stages/etl.17", 204)
    commit(api, 17, 404, publish=["etl.17"])
    assert api.seen("out") == []


def test_a_post_beyond_the_limit_of_a_stage_is_refused(compose: Any) -> None:
    """The server answers 400, and the stage is unchanged."""
    api = compose(max_stage_bytes=100)
    stage(api, "s", "x" * 60)
    refused = api.post(f"{OUT}/messages?stage=s", 400, {"messages": [{"body": "x" * 60}]})
    assert "100 bytes" in refused.json["description"]
    assert commit(api, 1, publish=["s"])["published"] == 1


def test_a_staged_post_keeps_the_rules_of_its_queue(api: Api) -> None:
    """The limits of a post for sizes, ttls and delays apply."""
    api.put(OUT, 201, {"_max_messages_post_size": 100, "_default_message_delay": 60})
    api.post(f"{OUT}/messages?stage=s", 400, {"messages": [{"body": "x" * 100}]})
    api.post(f"{OUT}/messages?stage=s", 400, {"messages": [{"body": 1, "ttl": 1}]})
    api.post(f"{OUT}/messages?stage=s", 400, {"messages": []})
    stage(api, "s", 1)
    commit(api, 1, publish=["s"])
    assert api.seen("out") == []
    assert api.seen("out", "echo=true&include_delayed=true") == [1]


@pytest.mark.every_store
def test_a_commit_publishes_and_settles(api: Api) -> None:
    """The commit atomically deletes the claimed messages and publishes the staged ones. The batch is stored."""
    api.send("jobs", 1, 2, 3)
    api.put(f"{QUEUE}/claims/etl.17?limit=2", 201)
    stage(api, "etl.17.a", "one")
    stage(api, "etl.17.b", "two", queue="other")
    api.get(f"{COMMITS}/etl", 404)
    done = commit(api, 17, publish=["etl.17.a", "etl.17.b"], settle=[{"queue": "jobs", "claim": "etl.17"}])
    assert done == {"published": 2, "deleted": 2, "replayed": False}
    assert (api.seen("jobs"), api.seen("out"), api.seen("other")) == ([3], ["one"], ["two"])
    assert api.get(f"{COMMITS}/etl", 200).json == {"batch": 17, "published": 2, "deleted": 2}
    api.get(f"{QUEUE}/claims/etl.17", 404)


def test_a_batch_is_committed_once(api: Api) -> None:
    """A repeated or older batch gets the counts of the last batch; its stages are dropped."""
    stage(api, "first", 1)
    commit(api, 17, publish=["first"])
    stage(api, "second", 2)
    for batch in (17, 3):
        assert commit(api, batch, publish=["second"]) == {"published": 1, "deleted": 0, "replayed": True}
    assert api.seen("out") == [1]
    commit(api, 18, 404, publish=["second"])


def test_a_claim_that_is_over_stops_a_commit(api: Api) -> None:
    """The server answers 409, nothing changes, and the stages stay for the next attempt."""
    api.send("jobs", 1)
    stage(api, "s", "made")
    commit(api, 1, 409, publish=["s"], settle=[{"queue": "jobs", "claim": "etl.1"}])
    api.put(f"{QUEUE}/claims/etl.1", 201)
    done = commit(api, 1, publish=["s"], settle=[{"queue": "jobs", "claim": "etl.1"}])
    assert done == {"published": 1, "deleted": 1, "replayed": False}


def test_a_commit_of_nothing_is_remembered_too(api: Api) -> None:
    """An empty batch of a job is a batch."""
    assert commit(api, 0) == {"published": 0, "deleted": 0, "replayed": False}
    assert commit(api, 0)["replayed"] is True


def test_a_commit_may_say_what_its_stages_hold(api: Api) -> None:
    """A.9: A wrong number gets 409 and changes nothing; with the right number the commit succeeds."""
    stage(api, "s.1", 1, 2)
    stage(api, "s.2", 3)
    for expected in (1, 3):
        refused = commit(api, 1, 409, publish=[{"stage": "s.1", "messages": expected}, "s.2"])["description"]
        assert refused == f"The stage s.1 has 2 messages, but {expected} are expected; nothing has changed."
    api.get(f"{COMMITS}/etl", 404)
    assert commit(api, 1, publish=[{"stage": "s.1", "messages": 2}, "s.2"])["published"] == 3


def test_a_commit_beyond_its_limit_is_refused(compose: Any) -> None:
    """S4: The server answers 413 with both numbers before it changes anything; a stage has a limit too and gets 400."""
    api = compose(max_commit_messages=3, max_stage_messages=3)
    stage(api, "s.1", 1, 2)
    stage(api, "s.2", 3, 4)
    refused = commit(api, 1, 413, publish=["s.1", "s.2"])
    assert refused["title"] == "Commit too large"
    assert refused["description"] == "A commit may publish and delete at most 3 messages in total, not 4."
    full = api.post(f"{OUT}/messages?stage=s.1", 400, {"messages": [{"body": 1}] * 2}).json["description"]
    assert full == "A stage may hold at most 3 messages and 268435456 bytes of bodies."
    assert commit(api, 1, publish=["s.2"])["published"] == 2


@pytest.mark.every_store
def test_a_large_commit_is_answered_when_it_is_done(compose: Any) -> None:
    """A commit of any size is applied in slices: the server answers 200 with its counts, and everything is applied."""
    api = compose(commit_slice=2)
    stage(api, "s.1", *range(15))
    api.send("jobs", 1, 2, 3)
    api.put(f"{QUEUE}/claims/etl.1?limit=3", 201)
    done = commit(api, 1, publish=["s.1"], settle=[{"queue": "jobs", "claim": "etl.1"}])
    assert done == {"published": 15, "deleted": 3, "replayed": False}
    assert [one["body"] for one in api.get(f"{OUT}/messages?limit=20&echo=true", 200).json["messages"]] == [*range(15)]
    assert api.get(f"{QUEUE}/stats", 200).json["messages"]["total"] == 0


@pytest.mark.every_store
def test_a_commit_that_takes_long_is_under_way(compose: Any) -> None:
    """The server answers 202 with counts and Retry-After after storage_timeout.

    A repeat or GET shows when it is done.
    """
    api = compose(commit_slice=4, patience=-1.0)
    stage(api, "s.1", *range(19))
    answers = [api.call("POST", COMMITS, None, {"producer": "etl", "batch": 1, "publish": ["s.1"]})]
    while answers[-1].status_int == 202:
        answers.append(api.call("POST", COMMITS, None, {"producer": "etl", "batch": 1, "publish": ["s.1"]}))
        told = api.call("GET", f"{COMMITS}/etl", None)
        assert told.status_int in (200, 202)
        assert told.json == {"batch": 1, "published": 19, "deleted": 0}
    assert len(answers) > 2
    assert all(answer.headers["Retry-After"] == "1" for answer in answers[:-1])
    assert [answer.json["replayed"] for answer in answers] == [False] + [True] * (len(answers) - 1)
    assert {answer.json["published"] for answer in answers} == {19}
    assert answers[-1].status_int == 200
    assert "Retry-After" not in answers[-1].headers
    assert api.get(f"{OUT}/stats", 200).json["messages"]["total"] == 19


@pytest.mark.every_store
def test_an_earlier_batch_that_takes_long_is_in_the_way(compose: Any) -> None:
    """The server answers 409 with Retry-After to the next batch until the commit is done."""
    api = compose(commit_slice=1, patience=-1.0)
    stage(api, "s.1", *range(9))
    assert api.post(COMMITS, 202, {"producer": "etl", "batch": 1, "publish": ["s.1"]}).json["published"] == 9
    refused = api.post(COMMITS, 409, {"producer": "etl", "batch": 2})
    assert refused.headers["Retry-After"] == "1"
    answer = refused
    for _ in range(20):
        if answer.status_int == 409:
            answer = api.call("POST", COMMITS, None, {"producer": "etl", "batch": 2})
    assert answer.json == {"published": 0, "deleted": 0, "replayed": False}


@every_row(
    ("document", "field"),
    [
        ({"producer": "p", "batch": 1, "publish": [{"stage": "s"}]}, "messages"),
        ({"producer": "p", "batch": 1, "publish": [{"stage": "s", "messages": -1}]}, "messages"),
        ({"producer": "p", "batch": 1, "publish": ["s", {"stage": "s", "messages": 1}]}, "publish"),
        ({"batch": 1}, "producer"),
        ({"producer": "p"}, "batch"),
        ({"producer": "", "batch": 1}, "producer"),
        ({"producer": "a/b", "batch": 1}, "producer"),
        ({"producer": "p", "batch": -1}, "batch"),
        ({"producer": "p", "batch": 2**63}, "integer"),
        ({"producer": "p", "batch": "1"}, "batch"),
        ({"producer": "p", "batch": 1, "publish": "s"}, "publish"),
        ({"producer": "p", "batch": 1, "publish": ["a b"]}, "publish"),
        ({"producer": "p", "batch": 1, "publish": ["s", "s"]}, "publish"),
        ({"producer": "p", "batch": 1, "publish": [f"s{n}" for n in range(1001)]}, "publish"),
        ({"producer": "p", "batch": 1, "settle": [{"queue": "jobs"}]}, "claim"),
        ({"producer": "p", "batch": 1, "settle": [{"queue": "jobs", "claim": ""}]}, "settle"),
        ({"producer": "p", "batch": 1, "settle": [{"queue": "no queue", "claim": "c"}]}, "queue"),
        ({"producer": "p", "batch": 1, "settle": [{"queue": "q", "claim": "c"}] * 2}, "settle"),
    ],
)
def test_a_commit_that_makes_no_sense_is_refused(gate: Any, document: dict[str, Any], field: str) -> None:
    """The server answers 400 and names the field."""
    refused = gate().post(COMMITS, 400, document).json["description"]
    assert field in refused, refused


@pytest.mark.parametrize("path", ["/v2/fences/a%20b", "/v2/fences/.", f"/v2/fences/{LONG}x"])
def test_a_fence_with_an_invalid_name_is_refused(door: Api, path: str) -> None:
    """The server answers 400 with the rule for names."""
    assert "name" in door.post(path, 400).json["description"]


def test_a_stage_or_producer_with_an_invalid_name_is_refused(door: Api) -> None:
    """The server answers 400 with the rule for names."""
    door.delete("/v2/stages/a%20b", 400)
    door.post(f"{OUT}/messages?stage=a%20b", 400, {"messages": [{"body": 1}]})
    door.get(f"{COMMITS}/a%20b", 400)


def test_tenants_have_fences_stages_and_producers_of_their_own(api: Api) -> None:
    other = api.tenant("other")
    assert api.post("/v2/fences/etl", 200).json == other.post("/v2/fences/etl", 200).json == {"epoch": 1}
    stage(api, "s", 1)
    commit(other, 1, 404, publish=["s"])
    other.delete("/v2/stages/s", 204)
    assert commit(api, 1, publish=["s"])["published"] == 1
    other.get(f"{COMMITS}/etl", 404)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v2/fences/f"), ("DELETE", "/v2/stages/s"), ("POST", COMMITS), ("GET", f"{COMMITS}/p")],
)
def test_a_project_with_a_name_that_is_too_long_is_refused(door: Api, method: str, path: str) -> None:
    """1.7: The limit of 256 characters also applies to objects without a queue."""
    body = {"producer": "p", "batch": 1} if path == COMMITS else None
    assert "256" in door.tenant("x" * 257).call(method, path, 400, body).json["description"]


@pytest.mark.every_store
@pytest.mark.parametrize("batch", [2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1])
def test_a_batch_may_have_any_number_that_a_body_may_hold(api: Api, batch: int) -> None:
    """A restarted job that numbers its batches by the clock learns its last batch."""
    assert commit(api, batch) == {"published": 0, "deleted": 0, "replayed": False}
    assert api.get(f"{COMMITS}/etl", 200).json == {"batch": batch, "published": 0, "deleted": 0}
    assert commit(api, batch)["replayed"]
