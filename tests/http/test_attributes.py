# SPDX-License-Identifier: Apache-2.0
"""Attributes of messages over REST, and the trace context that zq keeps among them."""

import json
from typing import Any

import pytest

from tests.http.api import Api

JOBS = "/v2/queues/jobs"
URL = f"{JOBS}/messages"
NEWS = "/v2/topics/news"
NO_HEADERS: dict[str, str] = {}
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-00"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
ATTRIBUTES: dict[str, Any] = {
    "kind": "invoice",
    "pages": 12,
    "price": 1.5,
    "digest": {"type": "Binary", "value": "AAEC"},
    "order": {"type": "String.uuid", "value": "7f"},
    "exact": {"type": "Number", "value": "0.10"},
}


def post(api: Api, status: int, attributes: Any, headers: dict[str, str] = NO_HEADERS) -> Any:
    messages = [{"body": 1, **({} if attributes is None else {"attributes": attributes})}]
    return api.post(URL, status, {"messages": messages}, headers)


def shown(api: Api) -> Any:
    [message] = api.get(f"{URL}?echo=true&detailed=true", 200).json["messages"]
    return message.get("attributes")


def test_posted_attributes_are_shown_with_details_alone(api: Api) -> None:
    post(api, 201, ATTRIBUTES)
    assert shown(api) == ATTRIBUTES
    [plain] = api.get(f"{URL}?echo=true", 200).json["messages"]
    assert "attributes" not in plain
    claim = api.post(f"{JOBS}/claims?detailed=true", 201)
    assert claim.json["messages"][0]["attributes"] == ATTRIBUTES
    held = api.get(f"{claim.headers['Location']}?detailed=true", 200).json
    assert held["messages"][0]["attributes"] == ATTRIBUTES


def test_a_shown_attribute_can_be_posted_again_unchanged(api: Api) -> None:
    """This includes numbers that a JSON number cannot express."""
    given = {"a": {"type": "Number", "value": "+5"}, "b": {"type": "Number", "value": "12345678901234567890123"}}
    post(api, 201, given | {"c": {"type": "Number", "value": "7"}, "d": {"type": "String", "value": "x"}})
    found = shown(api)
    assert found == given | {"c": 7, "d": "x"}
    api.delete(f"{URL}?pop=1", 200)
    post(api, 201, found)
    assert shown(api) == found


@pytest.mark.parametrize("way", ["move", "bury", "redrive", "replay", "commit"])
def test_attributes_stay_with_a_message(api: Api, way: str) -> None:
    api.put(JOBS, 201, {"_dead_letter_queue": "dead", "_max_claim_count": 3, "_history_ttl": 3600})
    body = {"messages": [{"body": 1, "attributes": ATTRIBUTES}]}
    if way == "commit":
        api.post(f"{URL}?stage=s", 202, body)
        api.post("/v2/commits", 200, {"producer": "p", "batch": 1, "publish": ["s"]})
        assert shown(api) == ATTRIBUTES
        return
    api.post(URL, 201, body)
    claim = api.post(f"{JOBS}/claims", 201)
    [id] = [message["id"] for message in claim.json["messages"]]
    settle = f"{claim.headers['Location']}/settle"
    target = "jobs"
    if way == "move":
        api.post(settle, 200, {"move": [{"id": id, "queue": "away"}]})
        target = "away"
    elif way == "replay":
        api.post(settle, 200, {"delete": [id]})
        api.post(f"{JOBS}/history/replay", 200, {"ids": [id]})
        [entry] = api.get(f"{JOBS}/history?detailed=true", 200).json["messages"]
        assert entry["attributes"] == ATTRIBUTES
    else:
        api.post(settle, 200, {"bury": [{"id": id, "reason": "no use"}]})
        target = "dead"
        if way == "redrive":
            api.post("/v2/queues/dead/redrive", 200, {})
            target = "jobs"
    [message] = api.get(f"/v2/queues/{target}/messages?echo=true&detailed=true", 200).json["messages"]
    assert message["attributes"] == ATTRIBUTES


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({f"a{number}": "x" for number in range(11)}, "attributes must have at most 10 members, not 11."),
        ({"a": ""}, "attributes.a must not be empty."),
        ({"": "x"}, "attributes: a name must be 1 to 256 characters; one has 0."),
        ({"a" * 257: "x"}, "attributes: a name must be 1 to 256 characters; one has 257."),
        (
            {"a b": "x"},
            "attributes.a b: a name may contain only letters, digits, _, - and single dots, and no dot at either end.",
        ),
        ({"AWS.a": "x"}, "attributes.AWS.a: a name must not begin with AWS. or Amazon."),
        ({"a": "\x00"}, "attributes.a must not have control characters"),
        ({"a": 1e200}, "attributes.a must be a number from -10^128 to 10^126 with at most 38 digits, not 1e200."),
        ({"a": {"type": "Number", "value": "x"}}, "attributes.a must be a number"),
        ({"a": {"type": "Binary", "value": "?"}}, "attributes.a.value must be base64, because its type is Binary."),
        ({"a": {"type": "Date", "value": "x"}}, "attributes.a.type must be String, Number or Binary"),
        ({"a": {"type": "String." + "x" * 250, "value": "x"}}, "attributes.a.type must be at most 256 characters"),
        ({"a": True}, "`$.messages[0].attributes[...]`"),
        (
            {"a": "x" * 16384},
            "attributes must have at most 16384 characters in total, with names and types, not 16391.",
        ),
        ({"a": {"type": "Number", "value": "1" * 16000 + "x"}}, "attributes.a must be a number"),
        ({"a": {"type": "Binary"}}, "missing required field `value`"),
        ("x", "`$.messages[0].attributes`"),
    ],
)
def test_an_attribute_beyond_a_bound_refuses_the_post(api: Api, attributes: Any, sentence: str) -> None:
    assert sentence in post(api, 400, attributes).json["description"]


def test_attributes_count_towards_the_size_of_the_post(api: Api) -> None:
    api.put(JOBS, 201, {"_max_messages_post_size": 500})
    post(api, 201, {"a": "x" * 300})
    post(api, 400, {"a": "x" * 500})


def test_a_topic_shows_the_attributes_of_its_messages_with_details(api: Api) -> None:
    """The topic shows the attributes of the message and the trace context of the request."""
    body = {"messages": [{"body": 1, "attributes": ATTRIBUTES}, {"body": 2}]}
    hrefs = api.post(f"{NEWS}/messages", 201, body, {"traceparent": PARENT}).json["resources"]
    expected = [ATTRIBUTES | {"traceparent": PARENT}, {"traceparent": PARENT}]
    page = api.get(f"{NEWS}/messages?detailed=true", 200).json["messages"]
    assert [message["attributes"] for message in page] == expected
    assert [api.get(f"{href}?detailed=true", 200).json["attributes"] for href in hrefs] == expected
    assert "attributes" not in api.get(hrefs[0], 200).json
    api.post(f"{NEWS}/messages", 201, {"messages": [{"body": 3}]})
    assert "attributes" not in api.get(f"{NEWS}/messages?detailed=true", 200).json["messages"][2]


def test_an_attribute_beyond_a_bound_refuses_the_publish(api: Api) -> None:
    """The limits of queues apply, and attributes count towards the size of the post."""
    api.put(NEWS, 201, {"_max_messages_post_size": 300})
    body: dict[str, Any] = {"messages": [{"body": 1, "attributes": {"a b": "x"}}]}
    assert "attributes.a b: a name may contain only" in api.post(f"{NEWS}/messages", 400, body).json["description"]
    body = {"messages": [{"body": 1, "attributes": {"a": "x" * 200}}]}
    api.post(f"{NEWS}/messages", 201, body, {"traceparent": PARENT})
    [message] = api.get(f"{NEWS}/messages?detailed=true", 200).json["messages"]
    assert message["attributes"] == {"a": "x" * 200}
    api.post(f"{NEWS}/messages", 400, {"messages": [{"body": 1, "attributes": {"a": "x" * 300}}]})


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"traceparent": PARENT}, {"traceparent": PARENT}),
        ({"traceparent": PARENT, "tracestate": STATE}, {"traceparent": PARENT, "tracestate": STATE}),
        ({"traceparent": PARENT, "tracestate": "no state"}, {"traceparent": PARENT}),
        ({"traceparent": "01-" + PARENT[3:] + "-more"}, {"traceparent": "01-" + PARENT[3:] + "-more"}),
        ({"traceparent": PARENT + "-more"}, None),
        ({"traceparent": "ff-" + PARENT[3:]}, None),
        ({"traceparent": PARENT.upper()}, None),
        ({"traceparent": "00-" + "0" * 32 + PARENT[35:]}, None),
        ({"traceparent": PARENT[:36] + "0" * 16 + "-01"}, None),
        ({"tracestate": STATE}, None),
    ],
)
def test_a_post_keeps_the_trace_context_of_its_request(
    api: Api, headers: dict[str, str], expected: dict[str, str] | None
) -> None:
    """The server ignores a malformed header, as the W3C standard requires."""
    post(api, 201, None, headers)
    assert shown(api) == expected
    [message] = api.post(f"{JOBS}/claims?detailed=true", 201).json["messages"]
    assert message.get("attributes") == expected


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (2 * 127, ("traceparent", "tracestate")),
        (2 * 127 - 1, ("traceparent",)),
        (2 * 72, ("traceparent",)),
        (2 * 72 - 1, ()),
    ],
)
@pytest.mark.parametrize("stage", [False, True])
def test_a_trace_context_without_room_in_the_size_of_the_post_is_omitted(
    api: Api, room: int, expected: tuple[str, ...], stage: bool
) -> None:
    """The context counts for each message, with names and types; the post is still accepted."""
    body = json.dumps({"messages": [{"body": "x" * 200}, {"body": "x" * 200}]}).encode()
    api.put(JOBS, 201, {"_max_messages_post_size": len(body) + room})
    headers = {"traceparent": PARENT, "tracestate": STATE}
    if stage:
        api.post(f"{URL}?stage=s", 202, body, headers)
        api.post("/v2/commits", 200, {"producer": "p", "batch": 1, "publish": ["s"]})
    else:
        api.post(URL, 201, body, headers)
    for message in api.get(f"{URL}?echo=true&detailed=true", 200).json["messages"]:
        assert tuple(message.get("attributes", {})) == expected


def test_a_message_may_have_a_trace_context_of_its_own(api: Api) -> None:
    """The message's context replaces the request's as a whole, and does not count towards the number of attributes."""
    own = {"traceparent": OTHER} | {f"a{number}": "x" for number in range(10)}
    post(api, 201, own, {"traceparent": PARENT, "tracestate": STATE})
    assert shown(api) == own


def test_staged_messages_keep_the_trace_context(api: Api) -> None:
    api.post(f"{URL}?stage=s", 202, {"messages": [{"body": 1}]}, {"traceparent": PARENT})
    api.post("/v2/commits", 200, {"producer": "p", "batch": 1, "publish": ["s"]})
    assert shown(api) == {"traceparent": PARENT}
