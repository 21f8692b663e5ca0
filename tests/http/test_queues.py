# SPDX-License-Identifier: Apache-2.0
"""Creating, reading and deleting queues, and topics where both behave alike (contract 6.3, 6.4, 6.6, 13)."""

import pytest

from tests.http.api import OTHER_CLIENT, RESERVED, Api, Kind
from tests.tables import every_row

URL = "/v2/queues/jobs"


def padded(size: int) -> bytes:
    """Return a metadata document of exactly ``size`` bytes, half of it whitespace."""
    core = b'{"a": "' + b"x" * (size // 2 - 9) + b'"}'
    return core + b" " * (size - len(core))


def test_a_queue_is_created_once(api: Api, url: str) -> None:
    """6.3 [T]: The first PUT answers 201 with a Location and no body, the second 204 with the same Location."""
    created = api.put(url, 201)
    assert (created.headers["Location"], created.body) == (url, b"")
    assert api.put(url, 204).headers["Location"] == url


@pytest.mark.parametrize("body", [None, b"", b"{}", b" {} \n", {"a": 1}])
def test_a_queue_needs_no_metadata(api: Api, body: object, url: str) -> None:
    """6.3, 1.6: The body is optional."""
    api.put(url, 201, body)


def test_creating_again_leaves_the_metadata_alone(api: Api, url: str, kind: Kind) -> None:
    """6.3 [T]: The second body is validated and otherwise ignored."""
    api.put(url, 201, {"a": 1})
    api.put(url, 204, {"a": 2, "b": 3})
    api.put(url, 400, {"_default_message_ttl": 59})
    api.put(url, 400, b"[]")
    assert api.get(url, 200).json == {**kind.shown, "a": 1}


@every_row("body", [b"[]", b'"text"', b"1", b"null", b"true", b"{", b"}", b"[1", b'{"a"}', b"{'a': 1}", b"x"])
def test_metadata_must_be_an_object(api: Api, body: bytes, url: str, kind: Kind) -> None:
    """6.3, 1.6 [T]: Any other body gets 400 and creates nothing."""
    assert api.put(url, 400, body).json["title"] == "Invalid request body"
    assert api.names(kind) == []


@pytest.mark.parametrize(("size", "status"), [(63, 201), (64, 201), (65, 400), (66, 400)])
def test_metadata_may_be_as_large_as_the_limit(compose, size: int, status: int, url: str, kind: Kind) -> None:
    """6.3 [T]: The limit is max_queue_metadata bytes, including whitespace."""
    api = compose(max_queue_metadata=64)
    answer = api.put(url, status, padded(size))
    if status == 400:
        assert answer.json["title"] == "Invalid API request"
        assert "64" in answer.json["description"]
        assert api.names(kind) == []


def test_the_default_limit_of_metadata_is_64_kib(api: Api, url: str) -> None:
    """16: The default of max_queue_metadata is 65536."""
    api.put(url, 400, padded(65537))
    api.put(url, 201, padded(65536))


def test_an_unknown_queue_shows_the_defaults_and_is_not_created(api: Api, url: str, kind: Kind) -> None:
    """6.4 [T]: Queues are created lazily, so GET always answers 200."""
    assert api.get(url, 200).json == kind.shown
    assert api.names(kind) == []


def test_a_queue_shows_its_metadata_and_the_reserved_keys(api: Api, url: str, kind: Kind) -> None:
    """6.4 [T]: The whole object is compared; a stored value takes precedence over the default."""
    metadata = {
        "key": {"key2": "value", "key3": [1, 2, None, True, 1.5]},
        "": "",
        "\u6e2c\u8a66": "\u3042",
        "_other": 1,
    }
    api.put(url, 201, {**metadata, "_default_message_ttl": 60})
    assert api.get(url, 200).json == {**kind.shown, **metadata, "_default_message_ttl": 60}


@every_row("number", [0, -1, 2**63 - 1, -(2**63), 2**53 + 1, 0.1, 1e300])
def test_metadata_keeps_its_numbers(api: Api, number: float, url: str) -> None:
    """1.6: Integers within signed 64 bits are returned unchanged."""
    api = api.fresh()
    api.put(url, 201, {"n": number})
    assert api.get(url, 200).json["n"] == number


def test_duplicate_metadata_keys_keep_the_last(api: Api, url: str, kind: Kind) -> None:
    api.put(url, 201, b'{"a": 1, "a": 2}')
    assert api.get(url, 200).json == {**kind.shown, "a": 2}


def test_projects_do_not_see_each_other(api: Api, url: str, kind: Kind) -> None:
    """L8, 1.3: Queues of the same name in two projects are separate."""
    other = api.tenant(project="other")
    api.put(url, 201, {"a": 1})
    other.put(url, 201, {"a": 2})
    assert api.get(url, 200).json["a"] == 1
    other.delete(url, 204)
    assert api.get(url, 200).json["a"] == 1
    assert other.get(url, 200).json == kind.shown


def test_a_bad_project_never_creates_anything(api: Api, url: str, kind: Kind) -> None:
    """1.2 [T]: A PUT with a refused header creates nothing."""
    api.put(url, 400, headers={"X-Project-ID": ""})
    api.put(url, 400, headers={"X-Project-ID": "p" * 257})
    api.put(url, 406, headers={"Accept": "text/plain"})
    assert api.names(kind) == []


def test_deleting_is_always_204(api: Api, url: str, kind: Kind) -> None:
    """6.6 [T]: This holds for existing, deleted and missing queues."""
    api.delete(url, 204)
    api.put(url, 201)
    api.delete(url, 204)
    api.delete(url, 204)
    assert api.names(kind) == []


def test_deleting_takes_metadata_messages_and_claims(api: Api) -> None:
    """6.6 [T]: Afterwards the name is unused."""
    api.put(URL, 201, {"a": 1})
    ids = api.send("jobs", 1, 2, 3)
    claim, _ = api.claim("jobs", limit=2)
    api.delete(URL, 204)
    assert api.get(URL, 200).json == RESERVED
    assert api.get(f"{URL}/stats", 200).json == {"messages": {"claimed": 0, "free": 0, "total": 0}}
    assert api.get(f"{URL}/messages?echo=true&include_claimed=true", 200).json == {"messages": [], "links": []}
    api.get(f"{URL}/messages/{ids[2]}", 404)
    api.get(claim, 404)
    api.call("PATCH", claim, 404, {"ttl": 100})
    api.delete(claim, 204)


def test_a_client_finds_its_stats_after_posting_and_popping(api: Api) -> None:
    """17: After three posts three messages are free; two pops leave one in the listing; a deleted queue lists none."""
    api.send("jobs", 1, 2, 3)
    assert api.get(f"{URL}/stats", 200).json["messages"]["free"] == 3
    assert len(api.delete(f"{URL}/messages?pop=2", 200).json["messages"]) == 2
    assert api.tenant(client=OTHER_CLIENT).seen("jobs", "") == [3]
    api.delete(URL, 204)
    assert api.seen("jobs") == []
