# SPDX-License-Identifier: Apache-2.0
"""``_paused``: queues whose claims, posts or both are paused until an administrator resumes them."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.api import RESERVED, TOPIC_RESERVED, Api
from tests.tables import every_row
from zq.core import waiting as module

QUEUE = "/v2/queues/jobs"
MESSAGES = f"{QUEUE}/messages"
CLAIMS = f"{QUEUE}/claims"
ONE = {"messages": [{"body": 1}]}
SOON = 15
"""Seconds within which a waiting request responds unless it waits for its full 20 seconds."""
PAUSE = 0.3
"""Seconds after which a request that was sent is certainly waiting."""
Sent = Callable[..., "Future[Any]"]


def pause(api: Api, what: str, queue: str = "jobs") -> None:
    api.patch(f"/v2/queues/{queue}", 200, [{"op": "add", "path": "/metadata/_paused", "value": what}])


def resume(api: Api, queue: str = "jobs") -> None:
    api.patch(f"/v2/queues/{queue}", 200, [{"op": "remove", "path": "/metadata/_paused"}])


def nothing_popped(api: Api, query: str) -> bool:
    """Return whether a pop finds nothing; the server answers 200 as for an empty queue."""
    return api.delete(f"{MESSAGES}?{query}", 200).json == {"messages": []}


def refused(api: Api, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> str:
    """Return the description of a 409 because of a pause."""
    answer = api.call(method, path, 409, body, headers or {})
    assert answer.headers["X-Zq-Error"] == "QueuePaused"
    return str(answer.json["description"])


@pytest.fixture
def jobs(api: Api) -> Api:
    """Return a client whose queue has three messages and whose server has cached the queue's rules."""
    api.put(QUEUE, 201, {"_history_ttl": 600, "_dead_letter_queue": "dead"})
    api.send("jobs", 1, 2, 3)
    return api


@pytest.fixture
def pair(compose: Callable[..., Api]) -> tuple[Api, Api]:
    """Return two servers on a store, which both have cached the queue's rules. The queue has five messages."""
    one, other = compose(), compose()
    one.put(QUEUE, 201)
    for api in (one, other):
        api.send("jobs", 1, 2, 3)
        api.claim("jobs", 1)
        api.delete(f"{MESSAGES}?pop=1", 200)
    one.send("jobs", 4, 5, 6)
    return one, other


@pytest.fixture
def send() -> Iterator[Sent]:
    """Return a function that sends a request from another thread and returns once it waits."""
    with ThreadPoolExecutor(8) as pool:

        def begin(*call: Any) -> "Future[Any]":
            running = pool.submit(*call)
            time.sleep(PAUSE)
            assert not running.done(), running.result()
            return running

        yield begin


@pytest.fixture
def never_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the server's periodic rechecks of queues."""
    monkeypatch.setattr(module, "RECHECK_INTERVAL", 1000.0)


@pytest.mark.parametrize("value", ["claims", "posts", "all", None])
def test_a_value_is_taken_and_shown(api: Api, value: str | None) -> None:
    """PUT and PATCH accept the value. After removal, the queue shows the default metadata."""
    api.put(QUEUE, 201, {"_paused": value})
    assert api.get(QUEUE, 200).json == RESERVED | {"_paused": value}
    resume(api)
    assert api.get(QUEUE, 200).json == RESERVED
    add = [{"op": "add", "path": "/metadata/_paused", "value": value}]
    assert api.patch(QUEUE, 200, add).json == RESERVED | {"_paused": value}


@every_row("value", ["", "claim", "All", "pops", True, False, 0, 1, [], ["claims"], {}])
def test_a_wrong_value_is_refused_with_the_values(api: Api, value: Any) -> None:
    """The server answers 400, names the key, and changes nothing."""
    api = api.fresh()
    api.put("/v2/queues/other", 201)
    add = [{"op": "add", "path": "/metadata/_paused", "value": value}]
    for answer in (api.put(QUEUE, 400, {"_paused": value}), api.patch("/v2/queues/other", 400, add)):
        assert answer.json["description"] == "_paused must be claims, posts, all or null."
    assert api.queues() == ["other"]


def test_a_topic_cannot_be_paused(api: Api) -> None:
    """The server refuses the value instead of ignoring it."""
    assert "_paused: only queues" in api.put("/v2/topics/news", 400, {"_paused": "posts"}).json["description"]
    api.put("/v2/topics/news", 201, {"_paused": None})
    api.post("/v2/topics/news/messages", 201, ONE)
    assert api.get("/v2/topics/news", 200).json == TOPIC_RESERVED | {"_paused": None}


@pytest.mark.every_store
@pytest.mark.parametrize("what", ["claims", "all"])
def test_claims_and_pops_find_nothing(jobs: Api, what: str) -> None:
    """Claimed messages can be settled, deleted, read and listed. After the pause, claims and pops work as before."""
    claim, [message] = jobs.claim("jobs", 1)
    pause(jobs, what)
    jobs.post(CLAIMS, 204, {})
    jobs.put(f"{CLAIMS}/job.1", 204, {})
    assert nothing_popped(jobs, "pop=2")
    assert jobs.seen("jobs") == [2, 3]
    assert jobs.get(claim, 200).json["messages"]
    jobs.patch(claim, 204, {"ttl": 60})
    assert jobs.post(f"{claim}/settle", 200, {"delete": [message["href"].split("/")[-1].split("?")[0]]}).json["deleted"]
    jobs.delete(f"{MESSAGES}?ids={jobs.get(MESSAGES + '?echo=true', 200).json['messages'][0]['id']}", 204)
    assert jobs.seen("jobs") == [3]
    resume(jobs)
    assert [each["body"] for each in jobs.claim("jobs")[1]] == [3]


def test_a_pause_of_posts_lets_claims_and_pops_go_on(jobs: Api) -> None:
    """The queue can be drained."""
    pause(jobs, "posts")
    claim, _ = jobs.claim("jobs", 1)
    jobs.delete(claim, 204)
    assert jobs.delete(f"{MESSAGES}?pop=3", 200).json["messages"]


@pytest.mark.parametrize("what", ["posts", "all"])
def test_posts_are_refused(jobs: Api, what: str) -> None:
    """The server answers 409 and names the queue. Invalid posts get 400, and a pause of claims refuses no post."""
    pause(jobs, what)
    for _ in range(2):
        assert "queue jobs" in refused(jobs, "POST", MESSAGES, ONE)
    refused(jobs, "POST", MESSAGES, ONE, {"Idempotency-Key": "new"})
    jobs.post(MESSAGES, 400, {"messages": []})
    assert jobs.seen("jobs") == [1, 2, 3]
    pause(jobs, "claims")
    jobs.post(MESSAGES, 201, ONE)
    resume(jobs)
    jobs.post(MESSAGES, 201, ONE)


@pytest.mark.every_store
def test_a_repeated_post_has_its_first_answer(jobs: Api) -> None:
    """The message was stored before the pause, so its producer gets the success and not an error."""
    key = {"Idempotency-Key": "k"}
    first = jobs.post(MESSAGES, 201, ONE, key).json
    pause(jobs, "posts")
    again = jobs.post(MESSAGES, 201, ONE, key)
    assert again.json == first
    assert again.headers["Idempotency-Replayed"] == "true"


@pytest.mark.every_store
def test_staging_is_refused_and_a_commit_publishes_what_was_staged_before(jobs: Api) -> None:
    """The commit publishes messages accepted before the pause, together with its settlement."""
    jobs.put("/v2/queues/out", 201)
    stage = "/v2/queues/out/messages?stage=job.1"
    key = {"Idempotency-Key": "k"}
    jobs.post(stage, 202, ONE, key)
    claim, _ = jobs.claim("jobs", 1)
    pause(jobs, "all", "out")
    refused(jobs, "POST", stage, ONE)
    jobs.post(stage, 202, ONE, key)
    commit = {"producer": "etl", "batch": 1, "publish": ["job.1"], "settle": [{"queue": "jobs", "claim": claim[-32:]}]}
    assert jobs.post("/v2/commits", 200, commit).json["published"] == 1
    assert jobs.seen("out") == [1]
    resume(jobs, "out")
    jobs.post(stage, 202, ONE)


def test_a_claim_of_a_paused_queue_is_committed(jobs: Api) -> None:
    """Settlement continues during a pause."""
    claim, _ = jobs.claim("jobs", 1)
    pause(jobs, "all")
    commit = {"producer": "etl", "batch": 1, "publish": [], "settle": [{"queue": "jobs", "claim": claim[-32:]}]}
    assert jobs.post("/v2/commits", 200, commit).json["deleted"] == 1


@pytest.mark.every_store
def test_a_named_claim_that_lives_is_found(jobs: Api) -> None:
    """A repeated request gets the messages that the claim holds, and no others."""
    first = jobs.put(f"{CLAIMS}/job.1?limit=2", 201, {}).json
    pause(jobs, "claims")
    assert jobs.put(f"{CLAIMS}/job.1?limit=2", 200, {}).json["messages"] == first["messages"]


@pytest.mark.every_store
def test_an_old_fence_is_refused(jobs: Api) -> None:
    """A pause hides no other error of a request."""
    for _ in range(2):
        jobs.post("/v2/fences/etl", 200)
    pause(jobs, "claims")
    jobs.put(f"{CLAIMS}/job.1?fence=etl:1", 409, {})
    jobs.put(f"{CLAIMS}/job.1?fence=etl:2", 204, {})


def test_moves_and_dead_letters_go_into_a_paused_queue(jobs: Api) -> None:
    """A consumer loses no message because the target is paused."""
    for queue in ("next", "dead"):
        jobs.put(f"/v2/queues/{queue}", 201, {"_paused": "all"})
    claim, messages = jobs.claim("jobs", 2)
    one, two = (each["href"].split("/")[-1].split("?")[0] for each in messages)
    terms = {"move": [{"id": one, "queue": "next"}], "bury": [{"id": two, "reason": "broken"}]}
    settled = jobs.post(f"{claim}/settle", 200, terms).json
    assert (settled["moved"], settled["buried"]) == (1, 1)
    jobs.patch(QUEUE, 200, [{"op": "add", "path": "/metadata/_max_claim_count", "value": 1}])
    claim, _ = jobs.claim("jobs", 1)
    jobs.delete(claim, 204)
    jobs.post(CLAIMS, 204, {})
    assert (jobs.seen("next"), jobs.seen("dead")) == ([1], [2, 3])


def test_a_paused_queue_makes_no_dead_letters(jobs: Api) -> None:
    """The messages stay, however often they were claimed."""
    jobs.patch(QUEUE, 200, [{"op": "add", "path": "/metadata/_max_claim_count", "value": 1}])
    claim, _ = jobs.claim("jobs", 3)
    jobs.delete(claim, 204)
    pause(jobs, "claims")
    jobs.post(CLAIMS, 204, {})
    assert jobs.seen("jobs") == [1, 2, 3]
    resume(jobs)
    jobs.post(CLAIMS, 204, {})
    assert (jobs.seen("jobs"), jobs.seen("dead")) == ([], [1, 2, 3])


def test_redrives_into_a_paused_queue_are_refused(jobs: Api) -> None:
    """This holds for redrives by name and by origin.

    Messages of other origins return, and a pause of claims does not matter.
    """
    jobs.put("/v2/queues/more", 201, {"_dead_letter_queue": "dead"})
    jobs.send("more", 9)
    for queue in ("jobs", "more"):
        claim, messages = jobs.claim(queue, 1)
        id = messages[0]["href"].split("/")[-1].split("?")[0]
        jobs.post(f"{claim}/settle", 200, {"bury": [{"id": id, "reason": "broken"}]})
    pause(jobs, "posts")
    assert "queue jobs" in refused(jobs, "POST", "/v2/queues/dead/redrive", {"to": "jobs"})
    assert jobs.post("/v2/queues/dead/redrive", 200, {}).json == {"moved": 1, "remaining": 1}
    assert "queue jobs" in refused(jobs, "POST", "/v2/queues/dead/redrive", {})
    assert (jobs.seen("dead"), jobs.seen("more")) == ([1], [9])
    pause(jobs, "claims")
    pause(jobs, "all", "dead")
    assert jobs.post("/v2/queues/dead/redrive", 200, {}).json == {"moved": 1, "remaining": 0}


def test_a_replay_into_a_paused_queue_is_refused(jobs: Api) -> None:
    """A replay posts copies."""
    jobs.delete(f"{MESSAGES}?pop=1", 200)
    pause(jobs, "posts")
    refused(jobs, "POST", f"{QUEUE}/history/replay", {"limit": 10})
    pause(jobs, "claims")
    assert jobs.post(f"{QUEUE}/history/replay", 200, {"limit": 10}).json == {"replayed": 1}


@pytest.mark.every_store
@pytest.mark.parametrize("what", ["claims", "all"])
def test_the_other_server_takes_nothing_once_a_pause_was_acknowledged(pair: tuple[Api, Api], what: str) -> None:
    """The server's cached rules are a hint only: the store decides for pops, claims and waiting requests."""
    one, other = pair
    for path in (CLAIMS, f"{CLAIMS}?wait=1"):
        pause(one, what)
        other.post(path, 204, {})
        resume(one)
        other.post(path, 201, {})
        one.send("jobs", *range(10))
    pause(one, what)
    assert nothing_popped(other, "pop=2")
    other.put(f"{CLAIMS}/job.1", 204, {})
    resume(one)
    assert other.delete(f"{MESSAGES}?pop=2", 200).json["messages"]


@pytest.mark.every_store
def test_the_other_server_refuses_posts_once_a_pause_was_acknowledged(pair: tuple[Api, Api]) -> None:
    """The server accepts posts after the queue is resumed; the same holds for redrives and replays."""
    one, other = pair
    for _ in range(2):
        pause(one, "posts")
        refused(other, "POST", MESSAGES, ONE)
        resume(one)
        other.post(MESSAGES, 201, ONE)
    other.send("lost", 1)
    pause(one, "posts")
    refused(other, "POST", "/v2/queues/lost/redrive", {"to": "jobs"})
    refused(other, "POST", f"{QUEUE}/history/replay", {"limit": 1})


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", CLAIMS, 201), ("PUT", f"{CLAIMS}/job.1", 201), ("DELETE", f"{MESSAGES}?pop=1", 200)],
    ids=["claim", "named", "pop"],
)
def test_who_waits_is_woken_when_the_queue_is_resumed(
    jobs: Api, send: Sent, never_looking: None, method: str, path: str, status: int
) -> None:
    """The request is woken at once, not at the next recheck; new messages wake no request during the pause."""
    pause(jobs, "claims")
    query = "&wait=20" if "?" in path else "?wait=20"
    waiting = send(jobs.call, method, path + query, status)
    jobs.send("jobs", 4)
    time.sleep(PAUSE)
    assert not waiting.done()
    resume(jobs)
    assert waiting.result(SOON)


@pytest.mark.every_store
def test_all_who_wait_are_woken(jobs: Api, send: Sent, never_looking: None) -> None:
    """Each request wakes the next while messages are left."""
    pause(jobs, "claims")
    waiting = [send(jobs.post, f"{CLAIMS}?wait=20&limit=1", 201, {}) for _ in range(3)]
    resume(jobs)
    for each in waiting:
        assert each.result(SOON)


@pytest.mark.every_store
def test_who_waits_at_another_server_finds_out(
    pair: tuple[Api, Api], send: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request notices at its next recheck."""
    monkeypatch.setattr(module, "RECHECK_INTERVAL", 1.0)
    one, other = pair
    pause(one, "claims")
    waiting = send(other.post, f"{CLAIMS}?wait=20", 201, {})
    resume(one)
    assert waiting.result(SOON)


def test_a_wait_of_a_paused_queue_ends_in_time(jobs: Api) -> None:
    """The request returns no messages."""
    pause(jobs, "claims")
    begun = time.monotonic()
    jobs.post(f"{CLAIMS}?wait=1", 204, {})
    assert nothing_popped(jobs, "pop=1&wait=1")
    assert time.monotonic() - begun >= 2
