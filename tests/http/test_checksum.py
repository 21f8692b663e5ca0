# SPDX-License-Identifier: Apache-2.0
"""Checksums of bodies (contract 7.10)."""

import hashlib
import json
from typing import Any

import pytest

from tests.http.api import Api

URL = "/v2/queues/jobs/messages"
VECTORS = {'{"event": "x"}': "MD5:a8b8e614767ada136e158f48b517e2e6", '""': "MD5:9d4568c009d203ab10e33ea9953a0264"}
BODIES = [
    *VECTORS,
    "0",
    "-0",
    "1.0",
    "1e3",
    "1e300",
    "0.1",
    "true",
    "[]",
    "{}",
    "9223372036854775807",
    '{"b":1,"a":[1,2,{"c":null}]}',
    ' { "b" :1 ,\t"a": [ ] } ',
    '"\u6e2c\U0001f600\\u00e9\\/\\n\x7f"',
    '{"\u00e9": "\u2028"}',
    '{"a": 1, "b": 2, "a": 3}',
]


def summed(text: str) -> str:
    """Return the checksum of 7.10.

    It is the MD5 of the body printed with ", " and ": ", with non-ASCII escaped and keys in their order.
    """
    return "MD5:" + hashlib.md5(json.dumps(json.loads(text)).encode(), usedforsecurity=False).hexdigest()


def post(api: Api, *bodies: str) -> None:
    """Post bodies unchanged."""
    messages = ", ".join(f'{{"body": {body}}}' for body in bodies)
    api.post(URL, 201, f'{{"messages": [{messages}]}}'.encode())


@pytest.fixture
def summing(compose) -> Api:
    """Return a client of a server with ``enable_checksum = true``."""
    return compose(checksum=True)


def test_the_rule_matches_the_examples_of_the_contract() -> None:
    """7.10: ``summed`` returns the checksums of the contract's examples."""
    assert {text: summed(text) for text in VECTORS} == VECTORS


def test_a_checksum_is_that_of_the_body_printed_the_one_way(summing: Api) -> None:
    """7.10: Blanks, escapes and repeated keys of the posted text do not matter."""
    post(summing, *BODIES)
    messages = summing.get(f"{URL}?echo=true&limit=20", 200).json["messages"]
    assert [message.get("checksum") for message in messages] == [summed(text) for text in BODIES]


def test_every_view_shows_the_checksum(summing: Api) -> None:
    """7.10, 7.7: Listing, reads by id and by ids, claim, read of the claim, and pop include the checksum."""
    post(summing, '{"event": "x"}')
    views: list[Any] = [summing.get(f"{URL}?echo=true", 200).json["messages"][0]]
    message = views[0]["id"]
    views += [summing.get(f"{URL}/{message}", 200).json, summing.get(f"{URL}?ids={message}", 200).json["messages"][0]]
    claim, claimed = summing.claim("jobs")
    views += [*claimed, *summing.get(claim, 200).json["messages"]]
    summing.delete(claim, 204)
    views += summing.delete(f"{URL}?pop=1", 200).json["messages"]
    assert [view.get("checksum") for view in views] == [VECTORS['{"event": "x"}']] * 6
    assert views[0].keys() == {"id", "href", "ttl", "age", "body", "checksum"}


def test_a_null_body_has_none(summing: Api) -> None:
    post(summing, "null", "0")
    messages = summing.get(f"{URL}?echo=true", 200).json["messages"]
    assert ["checksum" in message for message in messages] == [False, True]


def test_no_checksum_unless_enabled(api: Api) -> None:
    """7.10: The option is false by default."""
    post(api, '{"event": "x"}')
    assert "checksum" not in api.get(f"{URL}?echo=true", 200).json["messages"][0]


def test_a_checksum_belongs_to_the_message_not_to_the_server(compose) -> None:
    """7.1: A response shows a stored checksum even after the option is off, and none if none was stored."""
    post(compose(checksum=False), "1")
    post(compose(checksum=True), "2")
    messages = compose(checksum=False).get(f"{URL}?echo=true", 200).json["messages"]
    assert [message.get("checksum") for message in messages] == [None, summed("2")]


def test_history_moved_messages_and_topics_have_theirs(summing: Api) -> None:
    """7.10: A moved message has its own checksum, or that of its new body."""
    summing.put("/v2/queues/jobs", 201, {"_history_ttl": 600})
    post(summing, *VECTORS)
    claim, claimed = summing.claim("jobs")
    ids = [message["id"] for message in claimed]
    moves = [{"id": ids[0], "queue": "done"}, {"id": ids[1], "queue": "done", "body": [1]}]
    summing.post(f"{claim}/settle", 200, {"move": moves})
    first, second = VECTORS.values()
    finished = summing.get("/v2/queues/jobs/history", 200).json["messages"]
    assert [entry["checksum"] for entry in finished] == [first, second]
    moved = summing.get("/v2/queues/done/messages?echo=true", 200).json["messages"]
    assert [message["checksum"] for message in moved] == [first, summed("[1]")]
    summing.post("/v2/topics/news/messages", 201, b'{"messages": [{"body": {"event": "x"}}]}')
    published = summing.get("/v2/topics/news/messages", 200).json["messages"]
    assert [message["checksum"] for message in published] == [first]
