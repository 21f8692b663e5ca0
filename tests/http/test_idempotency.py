# SPDX-License-Identifier: Apache-2.0
"""Posts and settlements that take effect once (extensions 6)."""

from typing import Any

import pytest

from tests.http.api import OTHER_CLIENT, Api
from tests.tables import every_row
from zq.clock import ManualClock

JOBS = "/v2/queues/jobs"
URL = f"{JOBS}/messages"
POST = {"messages": [{"body": 1}, {"body": 2}]}
KEY = {"Idempotency-Key": "order-17"}


def test_a_repeated_post_returns_the_first_answer(api: Api) -> None:
    """Ids and Location are the same, and a header marks the repeated response; nothing is stored again."""
    first = api.post(URL, 201, POST, KEY)
    again = api.post(URL, 201, POST, KEY)
    assert (again.body, again.headers["Location"]) == (first.body, first.headers["Location"])
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert api.seen("jobs") == [1, 2]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (URL, {"messages": [{"body": 1}, {"body": 3}]}),
        (URL, b'{"messages":[{"body":1},{"body":2}]}'),
        (f"{URL}?x=1", POST),
    ],
)
def test_the_key_belongs_to_one_request(api: Api, path: str, body: Any) -> None:
    """The server answers 422 if body or query differ by a byte, and stores nothing."""
    api.post(URL, 201, POST, KEY)
    refused = api.post(path, 422, body, KEY).json
    assert refused["title"] == "Idempotency-Key reused"
    assert refused["description"]
    assert api.seen("jobs") == [1, 2]


def test_a_key_is_the_queues_own(api: Api) -> None:
    """The key means nothing in other queues and projects; other clients of the project share it."""
    api.post(URL, 201, POST, KEY)
    for other in (api.tenant("other").post(URL, 201, POST, KEY), api.post("/v2/queues/mail/messages", 201, POST, KEY)):
        assert "Idempotency-Replayed" not in other.headers
    assert "Idempotency-Replayed" in api.tenant(client=OTHER_CLIENT).post(URL, 201, POST, KEY).headers


def test_keys_differ_by_case_and_posts_without_one_never_repeat(api: Api) -> None:
    """A key may have any visible ASCII characters, up to 255."""
    for key in ("a", "A", "~!\"#$%&'()*+,-./:;<=>?@[]^_`{|}", "x" * 255):
        assert "Idempotency-Replayed" not in api.post(URL, 201, POST, {"Idempotency-Key": key}).headers
    api.post(URL, 201, POST)
    api.post(URL, 201, POST)
    assert api.get(f"{JOBS}/stats", 200).json["messages"]["total"] == 12


def test_a_key_is_forgotten_after_its_window(compose: Any, clock: ManualClock) -> None:
    """The window is idempotency_window seconds from the first request."""
    api = compose(idempotency_window=100)
    first = api.post(URL, 201, POST, KEY)
    clock.advance(99)
    assert api.post(URL, 201, POST, KEY).json == first.json
    clock.advance(1)
    assert api.post(URL, 201, POST, KEY).json != first.json


def test_a_refused_post_leaves_the_key_free(api: Api) -> None:
    """A refused post has no effect, so the server does not store its key."""
    api.post(URL, 400, {"messages": [{"body": 1, "ttl": 1}]}, KEY)
    assert "Idempotency-Replayed" not in api.post(URL, 201, POST, KEY).headers


def test_a_repeated_settlement_returns_the_first_answer(api: Api) -> None:
    """The response is repeated even after the claim ended."""
    [a, b] = api.send("jobs", "a", "b")
    claim, _ = api.claim("jobs")
    terms = {"delete": [a], "move": [{"id": b, "queue": "next"}]}
    first = api.post(f"{claim}/settle", 200, terms, KEY)
    again = api.post(f"{claim}/settle", 200, terms, KEY)
    assert first.json == again.json == {"deleted": 1, "released": 0, "moved": 1, "buried": 0, "lost": []}
    assert (first.headers.get("Idempotency-Replayed"), again.headers["Idempotency-Replayed"]) == (None, "true")
    api.post(f"{claim}/settle", 404, terms)
    assert api.seen("next") == ["b"]


def test_a_settlements_key_belongs_to_its_claim_and_body(api: Api) -> None:
    """The server answers 422 for another body or claim; a post may use the same key."""
    [a, b] = api.send("jobs", "a", "b")
    first, _ = api.claim("jobs", limit=1)
    second, _ = api.claim("jobs", limit=1)
    api.post(f"{first}/settle", 200, {"release": [{"id": a}]}, KEY)
    api.post(f"{second}/settle", 422, {"release": [{"id": a}]}, KEY)
    api.post(f"{second}/settle", 422, {"delete": [b]}, KEY)
    assert len(api.get(second, 200).json["messages"]) == 1
    assert "Idempotency-Replayed" not in api.post(URL, 201, POST, KEY).headers


@every_row("key", ["", " ", "a b", "x" * 256, "caf\xe9", "a\tb", "\x7f"])
@every_row("path", [URL, f"{JOBS}/claims/c/settle"])
def test_a_wrong_key_is_refused(api: Api, path: str, key: str) -> None:
    """The server answers 400, names the header and its limit, and changes nothing."""
    body = {"messages": [{"body": 1}], "delete": ["a"]}
    refused = api.unchecked().post(path, 400, body, {"Idempotency-Key": key}).json
    assert refused["title"] == "Invalid header value"
    assert "Idempotency-Key must be 1 to 255" in refused["description"]
    assert api.seen("jobs") == []
