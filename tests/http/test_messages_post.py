# SPDX-License-Identifier: Apache-2.0
"""Posting messages (contract 7.1, 7.2)."""

import json
from typing import Any

import pytest

from tests.http.api import Api
from tests.tables import every_row

QUEUE = "/v2/queues/jobs"
URL = f"{QUEUE}/messages"
LIST = f"{URL}?echo=true&limit=20"
BODIES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    2**53 + 1,
    0.1,
    1.0,
    1e300,
    "",
    "text",
    "\u6e2c\u8a66 \U0001f600 \x00 \x7f \u2028 </script> \\ \" '",
    [],
    {},
    [[[]]],
    [1, "2", None, {"a": []}],
    {"event": "BackupStarted", "backup": {"id": "c378813c-3f0b-11e2-ad92-7823d2b0f3ce", "n": [1.5, -0.25]}},
    {"": {"": ""}, "$set": {"a.b": 1}, "_id": None, "ttl": 1, "body": {"body": 2}, "claim_id": "x", "__class__": "y"},
]
NO_POST: list[Any] = [
    None,
    *(b"", b"[", b"[]", b"{}", b".", b"123", b"{", b"null", b'"messages"', b"[{}]", b"true", b"{]"),
    ["messages"],
    [{"body": 1}],
    *({"messages": value} for value in ([], {}, None, "text", 1, {"body": 1}, True)),
    *({"messages": [value]} for value in (1, None, "body", [], ["body"], {}, True, {"ttl": 60}, {"Body": 1})),
    {"messages": [[{"body": 1}]]},
    {"message": [{"body": 1}]},
    {"Messages": [{"body": 1}]},
]
TTLS = (60, 61, 3600, 1209599, 1209600)


def document(size: int) -> bytes:
    """Return a post of exactly ``size`` bytes, including blanks."""
    core = b'{"messages": [{"body": "%s"}]}'
    return (core % (b"x" * (size - len(core) - 18)) + b" " * 20)[:size]


def test_posted_messages_are_named_in_their_order(api: Api) -> None:
    """7.2 [T]: The server answers 201 with resources in request order and a Location with literal commas."""
    api.put(QUEUE, 201)
    answer = api.post(URL, 201, {"messages": [{"body": number} for number in range(3)]})
    assert answer.json.keys() == {"resources"}
    ids = [href.removeprefix(f"{URL}/") for href in answer.json["resources"]]
    assert answer.headers["Location"] == f"{URL}?ids={','.join(ids)}"
    assert [api.get(href, 200).json["body"] for href in answer.json["resources"]] == [0, 1, 2]
    assert [message["id"] for message in api.get(answer.headers["Location"], 200).json["messages"]] == ids


def test_ids_can_stand_in_links_and_lists(api: Api) -> None:
    """1.7: Ids have no / ? = & or comma, and are unique."""
    ids = api.send("jobs", *range(50)) + api.send("other", *range(50))
    assert len(set(ids)) == 100
    assert not set("/?=&,") & set("".join(ids))


def test_a_missing_queue_is_created_without_metadata(api: Api) -> None:
    """7.2 [T]: The first post creates the queue."""
    api.send("lazy", 1)
    assert api.queues() == ["lazy"]
    api.put("/v2/queues/lazy", 204)


def test_even_a_rejected_post_creates_its_queue(api: Api) -> None:
    """7.2 [C]: The server checks the headers, creates the queue, and then parses the body."""
    api.post(URL, 400, {"messages": []}, {"X-Project-ID": ""})
    assert api.queues() == []
    api.post(URL, 400, {"messages": []})
    assert api.queues() == ["jobs"]


def test_a_message_has_these_five_keys_and_no_others(api: Api) -> None:
    """7.1: python-zaqarclient raises on any other member."""
    [message] = api.send("jobs", {"a": 1}, ttl=300)
    expected = {"id": message, "href": f"{URL}/{message}", "ttl": 300, "age": 0, "body": {"a": 1}}
    assert api.get(f"{URL}/{message}", 200).json == expected
    assert api.get(LIST, 200).json["messages"] == [expected]
    assert api.get(f"{URL}?ids={message}", 200).json == {"messages": [expected]}


def test_any_json_comes_back_as_it_went_in(api: Api) -> None:
    """7.2, 1.6: Listing, read by id, claim and pop keep types, numbers and characters."""
    ids = api.send("jobs", *BODIES)
    want = [json.dumps(body) for body in BODIES]
    assert [json.dumps(body) for body in api.seen("jobs")] == want
    assert [json.dumps(api.get(f"{URL}/{message}", 200).json["body"]) for message in ids] == want
    claim, messages = api.claim("jobs", limit=20)
    assert [json.dumps(message["body"]) for message in messages] == want
    api.delete(claim, 204)
    popped = api.delete(f"{URL}?pop=20", 200).json["messages"]
    assert [json.dumps(message["body"]) for message in popped] == want


def test_a_body_is_the_same_text_however_it_was_written(api: Api) -> None:
    """1.6, 7.2: Escapes and blanks do not matter; of repeated keys the last value applies."""
    api.post(URL, 201, b' { "messages" : [ { "body" : "\\u00e9\\ud83d\\ude00" , "body":\t{"a":1,"a":"\\/"} } ] }\r\n')
    api.post(URL, 201, '{"messages": [{"body": "é😀"}]}'.encode())
    assert api.seen("jobs") == [{"a": "/"}, "é😀"]


def test_a_post_of_anything_else_is_refused(api: Api) -> None:
    """7.2 [T]: Without messages, array, objects or body, the server answers 400 instead of crashing."""
    for body in NO_POST:
        refused = api.post(URL, 400, body).json
        assert refused["title"] in ("Invalid request body", "Invalid API request")
    assert api.seen("jobs") == []


@every_row("ttl", [*TTLS, None, 0, -1, 59, 1209601, 2**63 - 1, -(2**63), "60", "", 60.0, 60.5, [], {}, True])
def test_a_ttl_is_60_to_1209600_whole_seconds(api: Api, ttl: Any) -> None:
    """7.2 [T], 1.6: Otherwise the server answers 400 and names the field; for integers also the limits."""
    api = api.fresh()
    api.put(QUEUE, 201)
    body = {"messages": [{"body": "good"}, {"body": 1, "ttl": ttl}]}
    if type(ttl) is int and ttl in TTLS:
        api.post(URL, 201, body)
        assert api.get(LIST, 200).json["messages"][1]["ttl"] == ttl
        return
    refused = api.post(URL, 400, body).json
    assert refused["title"] == ("Invalid API request" if type(ttl) is int else "Invalid request body")
    assert "ttl" in refused["description"]
    assert type(ttl) is not int or {"60", "1209600"} & set(refused["description"].replace(".", "").split())
    assert api.seen("jobs") == []


def test_a_ttl_falls_back_to_the_queue_then_to_the_server(compose) -> None:
    """7.2: The order is own, _default_message_ttl, default_message_ttl. Changed metadata apply to later posts."""
    api = compose(default_message_ttl=7200)
    api.send("jobs", "server")
    api.patch(QUEUE, 200, [{"op": "add", "path": "/metadata/_default_message_ttl", "value": 100}])
    api.send("jobs", "queue")
    api.send("jobs", "own", ttl=61)
    assert [message["ttl"] for message in api.get(LIST, 200).json["messages"]] == [7200, 100, 61]


def test_the_bounds_of_a_ttl_are_those_of_the_server(compose) -> None:
    """16: The option is max_message_ttl."""
    api = compose(max_message_ttl=7200)
    api.send("jobs", 1, ttl=7200)
    assert "7200" in api.post(URL, 400, {"messages": [{"body": 1, "ttl": 7201}]}).json["description"]


def test_unknown_members_are_dropped(api: Api) -> None:
    """7.2, 1.6: This holds for members of the document and of a message with any values."""
    extra = {"id": "mine", "href": "x", "age": 5, "claim_id": "c", "unknown": {"a": [1]}, "priority": "high"}
    api.post(URL, 201, {"messages": [{"body": 1, **extra}], "unknown": [None]})
    [message] = api.get(LIST, 200).json["messages"]
    assert message.keys() == {"id", "href", "ttl", "age", "body"}
    assert (message["id"] == "mine", message["age"]) == (False, 0)


@every_row("bad", [{"ttl": 60}, {"body": 1, "ttl": 59}, {"body": 1, "ttl": "x"}, None, 5])
@every_row("place", [0, 1, 9])
def test_one_bad_message_refuses_the_whole_post(api: Api, bad: Any, place: int) -> None:
    """7.2, L7: Nothing is stored, wherever the message is in the array."""
    api = api.fresh()
    api.put(QUEUE, 201)
    messages: list[Any] = [{"body": number} for number in range(9)]
    messages.insert(place, bad)
    api.post(URL, 400, {"messages": messages})
    assert api.get(f"{QUEUE}/stats", 200).json["messages"]["total"] == 0


@pytest.mark.parametrize(("size", "status"), [(255, 201), (256, 201), (257, 400)])
def test_a_post_may_be_as_large_as_the_limit(compose, size: int, status: int) -> None:
    """7.2 [T]: The whole document counts, including blanks; the limit itself is allowed."""
    api = compose(max_messages_post_size=256)
    assert len(document(size)) == size
    answer = api.post(URL, status, document(size))
    if status == 400:
        assert answer.json["title"] == "Invalid API request"
        assert "256" in answer.json["description"]


@pytest.mark.parametrize(("own", "bound"), [(100, 100), (256, 256), (None, 256)])
def test_a_queue_may_have_a_smaller_limit(compose, own: int | None, bound: int) -> None:
    """7.2, 6.1: The limit is _max_messages_post_size, up to the server's limit."""
    api = compose(max_messages_post_size=256)
    api.put(QUEUE, 201, {"_max_messages_post_size": own})
    api.post(URL, 201, document(bound))
    assert str(bound) in api.post(URL, 400, document(bound + 1)).json["description"]


def test_a_limit_that_was_lowered_later_still_binds_the_queue(compose) -> None:
    """7.2: The smaller of the queue's and the server's limit applies."""
    compose().put(QUEUE, 201, {"_max_messages_post_size": 1000})
    lowered = compose(max_messages_post_size=256)
    lowered.post(URL, 201, document(256))
    lowered.post(URL, 400, document(257))


def test_a_post_has_no_limit_but_its_size(api: Api) -> None:
    """7.2: A post may have 21 or 1,000 messages."""
    assert len(api.send("jobs", *range(21))) == 21
    assert len(set(api.send("many", *range(1000)))) == 1000
    assert api.get("/v2/queues/many/stats", 200).json["messages"]["total"] == 1000
    assert api.seen("many") == list(range(20))


@pytest.mark.parametrize("query", ["", "?limit=0", "?unknown=1", "?echo=None", "?ids=1", "?pop=0"])
def test_query_parameters_do_not_matter_to_a_post(api: Api, query: str) -> None:
    """1.5 [T]: The server ignores unknown parameters."""
    api.post(URL + query, 201, {"messages": [{"body": 1}]})


def test_projects_do_not_share_messages(api: Api) -> None:
    """L8: A queue of the same name in another project is another queue with other ids."""
    other = api.tenant(project="other")
    [message] = api.send("jobs", "ours")
    other.send("jobs", "theirs")
    assert (api.seen("jobs"), other.seen("jobs")) == (["ours"], ["theirs"])
    other.get(f"{URL}/{message}", 404)
    other.get(f"{URL}?ids={message}", 404)
    other.delete(f"{URL}/{message}", 204)
    other.delete(f"{URL}?ids={message}", 204)
    assert api.seen("jobs") == ["ours"]


def test_a_post_names_a_bounded_number_of_messages(compose: Any) -> None:
    """S5: Beyond max_messages_per_post nothing is stored, staged or published. The error names the limit."""
    api = compose(max_messages_per_post=3)
    bodies = {"messages": [{"body": number} for number in range(4)]}
    for path in ("/v2/queues/jobs/messages", "/v2/queues/jobs/messages?stage=s.1", "/v2/topics/news/messages"):
        refused = api.post(path, 400, bodies).json
        assert refused["description"] == "messages must contain 1 to 3 values, not 4."
        stored = {"messages": bodies["messages"][:3]}
        api.post(path, 202 if "stage" in path else 201, stored)
    assert api.get("/v2/queues/jobs/stats", 200).json["messages"]["total"] == 3


def test_twenty_three_thousand_messages_are_no_post(api: Api) -> None:
    """S5: With default settings, a post of 253 kB with one-digit bodies is refused."""
    raw = b'{"messages":[' + b",".join([b'{"body":1}'] * 23_000) + b"]}"
    refused = api.post("/v2/queues/jobs/messages", 400, raw).json
    assert refused["description"] == "messages must contain 1 to 1000 values, not 23000."
    api.post("/v2/queues/jobs/messages", 201, {"messages": [{"body": 1}] * 1000})
