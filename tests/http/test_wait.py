# SPDX-License-Identifier: Apache-2.0
"""Extensions 2: requests that wait for messages."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.api import Api

QUEUE = "/v2/queues/jobs"
CLAIMS = f"{QUEUE}/claims?wait=20"
SOON = 60
"""Seconds within which a woken request responds."""
PAUSE = 0.3
"""Seconds after which a request that was sent is certainly waiting."""

Sent = Callable[..., Future]


@pytest.fixture
def send() -> Iterator[Sent]:
    """Return a function that sends a request from another thread and returns once it waits."""
    with ThreadPoolExecutor(8) as pool:

        def begin(*call: Any) -> Future:
            running = pool.submit(*call)
            time.sleep(PAUSE)
            assert not running.done(), running.result()
            return running

        yield begin


@pytest.mark.every_store
def test_a_claim_waits_for_a_post(api: Api, send: Sent) -> None:
    """The response is that of a claim after the post."""
    api.put(QUEUE, 201)
    waiting = send(api.post, CLAIMS, 201)
    api.send("jobs", "here")
    assert [message["body"] for message in waiting.result(SOON).json["messages"]] == ["here"]


def test_a_claim_waits_for_a_queue_that_is_not_there(api: Api, send: Sent) -> None:
    """The first message creates the queue."""
    waiting = send(api.post, CLAIMS, 201)
    api.send("jobs", "here")
    assert waiting.result(SOON).json["messages"]


def test_a_named_claim_waits(api: Api, send: Sent) -> None:
    """PUT waits like POST."""
    waiting = send(api.put, f"{QUEUE}/claims/job.1?wait=20", 201)
    api.send("jobs", "here")
    assert waiting.result(SOON).json["messages"]


def test_a_pop_waits(api: Api, send: Sent) -> None:
    """The pop removes the message that woke it."""
    waiting = send(api.delete, f"{QUEUE}/messages?pop=5&wait=20", 200)
    api.send("jobs", "here")
    assert [message["body"] for message in waiting.result(SOON).json["messages"]] == ["here"]
    assert api.seen("jobs") == []


@pytest.mark.every_store
def test_a_listing_waits_behind_its_marker(api: Api, send: Sent) -> None:
    """Messages before the marker do not end the wait, so a reader can follow a queue."""
    api.send("jobs", "old")
    page = api.get(f"{QUEUE}/messages?echo=true", 200).json["links"][0]["href"]
    waiting = send(api.get, f"{page}&wait=20", 200)
    api.send("jobs", "new")
    assert [message["body"] for message in waiting.result(SOON).json["messages"]] == ["new"]


def test_a_request_that_finds_messages_does_not_wait(api: Api) -> None:
    """A request that finds messages does not wait."""
    api.send("jobs", 1, 2, 3, 4)
    began = time.monotonic()
    api.post(f"{CLAIMS}&limit=1", 201)
    api.get(f"{QUEUE}/messages?wait=20&echo=true", 200)
    api.delete(f"{QUEUE}/messages?pop=1&wait=20", 200)
    assert time.monotonic() - began < 20


@pytest.mark.one_store
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", f"{QUEUE}/claims?wait=1", 204),
        ("PUT", f"{QUEUE}/claims/a.b?wait=1", 204),
        ("GET", f"{QUEUE}/messages?wait=1", 200),
        ("DELETE", f"{QUEUE}/messages?pop=1&wait=1", 200),
    ],
)
def test_a_wait_in_vain_ends_as_the_base_answers(api: Api, method: str, path: str, status: int) -> None:
    """The request waits for the given time."""
    began = time.monotonic()
    answer = api.call(method, path, status)
    assert 1 <= time.monotonic() - began < SOON
    assert status == 204 or answer.json["messages"] == []


@pytest.mark.every_store
def test_a_release_wakes(api: Api, send: Sent) -> None:
    """The released messages go to the waiting claim."""
    api.send("jobs", "here")
    claim, _ = api.claim("jobs")
    waiting = send(api.post, CLAIMS, 201)
    api.delete(claim, 204)
    assert waiting.result(SOON).json["messages"]


@pytest.mark.every_store
def test_a_move_wakes_who_waits_for_the_target(api: Api, send: Sent) -> None:
    """The next stage of a pipeline need not poll."""
    api.send("jobs", "here")
    claim, (message,) = api.claim("jobs")
    waiting = send(api.post, "/v2/queues/next/claims?wait=20", 201)
    identity = message["href"].split("/")[-1].split("?")[0]
    api.post(f"{claim}/settle", 200, {"move": [{"id": identity, "queue": "next"}]})
    assert waiting.result(SOON).json["messages"][0]["body"] == "here"


@pytest.mark.every_store
def test_each_waiter_gets_a_message_of_its_own(api: Api, send: Sent) -> None:
    """Three requests wait while three messages arrive together."""
    running = [send(api.post, f"{CLAIMS}&limit=1", 201) for _ in range(3)]
    api.send("jobs", 1, 2, 3)
    got = [message["body"] for future in running for message in future.result(SOON).json["messages"]]
    assert sorted(got) == [1, 2, 3]


def test_a_tenant_is_not_woken_by_another(api: Api, send: Sent) -> None:
    """L8: Queues of the same name in two projects are separate."""
    waiting = send(api.tenant("other").post, f"{QUEUE}/claims?wait=5", 204)
    api.send("jobs", "here")
    assert waiting.result(SOON)
    assert api.seen("jobs") == ["here"]


@pytest.mark.parametrize("wait", ["-1", "31", "99999999999999999999"])
def test_a_wait_out_of_bounds_is_refused(api: Api, wait: str) -> None:
    """The error names the limit, and no message is claimed."""
    api.send("jobs", "here")
    refused = api.post(f"{QUEUE}/claims?wait={wait}", 400).json["description"]
    assert "wait" in refused
    assert "30" in refused
    assert api.seen("jobs") == ["here"]


@pytest.mark.parametrize("wait", ["soon", "1.5", "1s"])
def test_a_wait_that_is_no_number_is_refused(door: Api, wait: str) -> None:
    """The server refuses it before it accesses the store."""
    assert "wait must be an integer" in door.post(f"{QUEUE}/claims?wait={wait}", 400).json["description"]


@pytest.mark.parametrize(("method", "path"), [("GET", "ids=a&wait=1"), ("DELETE", "ids=a&wait=1")])
def test_ids_do_not_wait(door: Api, method: str, path: str) -> None:
    """Reads by ids have nothing to wait for."""
    assert "wait" in door.call(method, f"{QUEUE}/messages?{path}", 400).json["description"]


def test_without_a_place_the_answer_comes_at_once(compose: Callable[..., Api]) -> None:
    """Extensions 2: The response has a Retry-After header, so that a client does not spin."""
    api = compose(max_waiters=0)
    began = time.monotonic()
    assert api.post(CLAIMS, 204).headers["Retry-After"] == "1"
    assert time.monotonic() - began < 20
    api.send("jobs", "here")
    assert "Retry-After" not in api.post(CLAIMS, 201).headers
