# SPDX-License-Identifier: Apache-2.0
"""Extensions 8: publishing, listing, waiting for and reading messages of topics."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.api import Api
from tests.tables import every_row
from zq.storage.api import Storage

TOPIC = "/v2/topics/news"
URL = f"{TOPIC}/messages"
SOON = 60
"""Seconds within which a woken request responds."""


def publish(api: Api, *bodies: Any, topic: str = "news", **fields: Any) -> list[int]:
    """Publish a message per body; return their sequences."""
    messages = [{"body": body, **fields} for body in bodies]
    posted = api.post(f"/v2/topics/{topic}/messages", 201, {"messages": messages})
    return [int(href.rsplit("/", 1)[1]) for href in posted.json["resources"]]


def bodies(answer: Any) -> list[Any]:
    return [message["body"] for message in answer.json["messages"]]


def test_a_publish_answers_as_a_post_does(api: Api) -> None:
    """The server answers 201 with hrefs in the order of the array and a Location; the publish creates the topic."""
    answer = api.post(URL, 201, {"messages": [{"body": 1}, {"body": {"a": None}, "ttl": 60, "delay": "any"}]})
    first, second = answer.json["resources"]
    assert answer.headers["Location"] == f"{URL}?ids={first.rsplit('/')[-1]},{second.rsplit('/')[-1]}"
    assert bodies(api.get(answer.headers["Location"], 200)) == [1, {"a": None}]
    assert api.get("/v2/topics", 200).json["topics"] == [{"name": "news", "href": TOPIC}]
    found = api.get(second, 200).json
    assert found == {"id": second.rsplit("/")[-1], "href": second, "ttl": 60, "age": 0, "body": {"a": None}}


@pytest.mark.every_store
def test_everybody_reads_everything(api: Api) -> None:
    """Reading removes no message, readers see their own messages, and a page ends with a link to the next."""
    publish(api, *range(12))
    for reader in (api, api.tenant(client="79ed56f8-2519-11ef-9b1c-93f1d8f4a2c0")):
        first = reader.get(URL, 200)
        second = reader.get(first.json["links"][0]["href"], 200)
        assert bodies(first) + bodies(second) == list(range(12))
        end = reader.get(second.json["links"][0]["href"], 200).json
        assert end == {"messages": [], "links": []}


@pytest.mark.every_store
def test_a_listing_without_messages_says_how_far_it_searched(api: Api) -> None:
    """With ``detailed``, a reader of a quiet topic continues from there and skips messages of other topics."""
    [first] = publish(api, 1)
    [*_, last] = publish(api, *range(12), topic="other")
    assert api.get(f"{URL}?marker={first}&detailed=true", 200).json == {"messages": [], "links": [], "position": last}
    assert "position" not in api.get(f"{URL}?detailed=true", 200).json


def test_a_page_holds_only_its_own_topic(api: Api) -> None:
    """Topics of a project share sequences; other projects are not visible."""
    publish(api, "a", topic="news")
    publish(api, "b", topic="news.old")
    publish(api, "c", topic="news")
    publish(api.tenant("other"), "d", topic="news")
    assert bodies(api.get(URL, 200)) == ["a", "c"]
    assert bodies(api.tenant("other").get(URL, 200)) == ["d"]
    assert bodies(api.get("/v2/topics/nobody/messages", 200)) == []


@pytest.mark.every_store
def test_a_marker_is_the_sequence_of_a_message(api: Api) -> None:
    """Sequences of other topics are valid markers too, because the sequences belong to the project."""
    first, _ = publish(api, 1, 2)
    (other,) = publish(api, "x", topic="other")
    publish(api, 3)
    assert bodies(api.get(f"{URL}?marker={first}&limit=1", 200)) == [2]
    assert bodies(api.get(f"{URL}?marker={other}", 200)) == [3]
    assert bodies(api.get(f"{URL}?marker=0&limit=20", 200)) == [1, 2, 3]


@every_row("marker", ["-1", "x", "1.5", "0x1", "٣", "99999999999999999999"])
def test_an_invalid_marker_is_refused(api: Api, marker: str) -> None:
    """Unlike for queues: with a mistyped marker, a reader of a topic would wait forever."""
    publish(api, 1)
    assert "marker" in api.get(f"{URL}?marker={marker}", 400).json["description"]


@pytest.mark.every_store
def test_a_marker_from_the_future_is_refused(api: Api) -> None:
    """Otherwise the reader would miss messages until then; the error names the log's end.

    The marker is an hour ahead, more than a log can have lost at its end.
    """
    (last,) = publish(api, 1)
    refusal = api.get(f"{URL}?marker={last + 3600 * 512_000}", 400).json
    assert f"after the end of the log, {last}" in refusal["description"]
    assert api.get(f"{URL}?marker={last}", 200).json["messages"] == []


@pytest.mark.parametrize("limit", ["0", "1001", "x"])
def test_a_limit_out_of_bounds_is_refused(api: Api, limit: str) -> None:
    """The limits are those of queues."""
    assert "limit" in api.get(f"{URL}?limit={limit}", 400).json["description"]


@every_row(
    "body", [b"", b"{}", b"[]", b'{"messages": []}', b'{"messages": [{}]}', b'{"messages": [{"body": 1, "ttl": 59}]}']
)
def test_an_invalid_publish_stores_nothing(api: Api, body: bytes) -> None:
    """The rules are those of queues; one invalid message refuses all."""
    api.post(URL, 400, body)
    assert api.get(URL, 200).json["messages"] == []


def test_a_publish_is_not_staged(api: Api) -> None:
    """A client that requests staging must not find the messages published."""
    assert "stage" in api.post(f"{URL}?stage=s", 400, {"messages": [{"body": 1}]}).json["description"]
    assert api.get(URL, 200).json["messages"] == []


def test_a_publish_that_is_too_large_is_refused(api: Api) -> None:
    """The topic's own limit applies too, and the error names it."""
    api.put(TOPIC, 201, {"_max_messages_post_size": 100})
    assert "100 bytes" in api.post(URL, 400, {"messages": [{"body": "x" * 100}]}).json["description"]


@pytest.mark.parametrize("topic", ["a@b", "x" * 65, "%C3%A9"])
def test_a_publish_to_no_topic_is_refused(api: Api, topic: str) -> None:
    """Invalid names of topics have an error of their own."""
    answer = api.post(f"/v2/topics/{topic}/messages", 400, {"messages": [{"body": 1}]})
    assert answer.json["title"] == "Invalid topic identification"


@pytest.mark.every_store
@every_row("message", ["0", "x", "-1", "007", "99999999999999999999", "1e3", "9" * 5000])
def test_an_id_that_no_message_has_is_not_found(api: Api, message: str) -> None:
    """An id of another topic or project is not found either."""
    publish(api, 1)
    api.get(f"{URL}/{message}", 404)
    (other,) = publish(api, 2, topic="other")
    api.get(f"{URL}/{other}", 404)
    api.tenant("other").get(f"{URL}/{other}", 404)
    api.get(f"{URL}?ids={message}", 404)


def test_ids_are_answered_each_once(api: Api) -> None:
    """The messages are in the order of the ids; unknown ids are skipped."""
    first, second, third = publish(api, 1, 2, 3)
    assert bodies(api.get(f"{URL}?ids={third},{first},x,{third}", 200)) == [3, 1]
    assert bodies(api.get(f"{URL}?ids={second}", 200)) == [2]


def test_the_topic_decides_the_ttl_of_a_message_without_one(api: Api) -> None:
    """The topic's metadata take precedence over the server's default."""
    api.put(TOPIC, 201, {"_default_message_ttl": 90})
    (of_topic,), (of_server,) = publish(api, 1), publish(api, 1, topic="plain")
    assert api.get(f"{URL}/{of_topic}", 200).json["ttl"] == 90
    assert api.get(f"/v2/topics/plain/messages/{of_server}", 200).json["ttl"] == 3600


@pytest.mark.every_store
def test_a_key_publishes_once(api: Api) -> None:
    """A repeat gets the first response. The key is separate for another topic; another body is refused."""
    message, key = {"messages": [{"body": 1}, {"body": 2}]}, {"Idempotency-Key": "k"}
    first = api.post(URL, 201, message, key)
    again = api.post(URL, 201, message, key)
    assert (again.json, again.headers["Idempotency-Replayed"]) == (first.json, "true")
    assert "Idempotency-Replayed" not in api.post("/v2/topics/other/messages", 201, message, key).headers
    api.post(URL, 422, {"messages": [{"body": 3}]}, key)
    assert bodies(api.get(URL, 200)) == [1, 2]


def test_purging_and_deleting_set_a_floor(api: Api) -> None:
    """Earlier messages are not read again, later messages are, and markers stay valid."""
    (old,) = publish(api, "old")
    api.post(f"{TOPIC}/purge", 204)
    api.get(f"{URL}/{old}", 404)
    (new,) = publish(api, "new")
    assert new > old
    assert bodies(api.get(f"{URL}?marker={old}", 200)) == ["new"]
    api.delete(TOPIC, 204)
    assert bodies(api.get(f"{URL}?marker=0", 200)) == []
    publish(api, "again")
    assert bodies(api.get(URL, 200)) == ["again"]


@pytest.mark.every_store
def test_trimmed_messages_are_reported_as_a_gap(compose: Any) -> None:
    """A reader whose marker precedes the gap gets the report; a reader without a marker does not."""
    api = compose(retention=(1 << 20, 16))
    first, *_ = sequences = [publish(api, at)[0] for at in range(40)]
    answer = api.get(f"{URL}?marker={first}&limit=20", 200).json
    gap = answer["gap"]
    assert gap["after"] == first
    assert sequences[-19] <= gap["resumes"] <= sequences[-16]
    assert [message["id"] for message in answer["messages"]] == [str(s) for s in sequences if s >= gap["resumes"]]
    empty = api.get(f"/v2/topics/quiet/messages?marker={first}&wait=20", 200).json
    assert (empty["messages"], empty["gap"]) == ([], gap)
    assert "gap" not in api.get(empty["links"][0]["href"], 200).json, "the link leads on, though there was no message"
    assert "gap" not in api.get(f"{URL}?limit=20", 200).json
    assert "gap" not in api.get(f"{URL}?marker={gap['resumes'] - 1}", 200).json


def test_detailed_adds_what_it_adds_to_a_queues_message(api: Api) -> None:
    """A topic's message has all details of a queue's message that apply to topics."""
    (sequence,) = publish(api, 1, ttl=60)
    found = api.get(f"{URL}/{sequence}?detailed=true", 200).json
    assert found["sequence"] == sequence
    assert found["created"] < found["expires"]
    assert api.get(f"{URL}?detailed=true", 200).json["messages"] == [found]


@pytest.mark.every_store
def test_a_listing_waits_for_the_first_message_behind_its_marker(api: Api) -> None:
    """Messages of other topics neither end the wait nor change the reader's position."""
    (last,) = publish(api, "old")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.get, f"{URL}?marker={last}&wait=20", 200)
        time.sleep(0.3)
        publish(api, "other", topic="other")
        time.sleep(0.1)
        assert not waiting.done()
        publish(api, "new")
        assert bodies(waiting.result(SOON)) == ["new"]


def test_a_wait_in_vain_ends_as_a_listing_without_it(api: Api) -> None:
    """The request waits for the given time, also on a missing topic."""
    began = time.monotonic()
    assert api.get(f"{URL}?wait=1", 200).json == {"messages": [], "links": []}
    assert 1 <= time.monotonic() - began < SOON
    assert "wait" in api.get(f"{URL}?wait=31", 400).json["description"]
    api.get(f"{URL}?ids=1&wait=1", 400)


def test_without_a_place_to_wait_the_answer_comes_at_once(compose: Any) -> None:
    """The response has a Retry-After header."""
    api = compose(max_waiters=0)
    began = time.monotonic()
    assert api.get(f"{URL}?wait=20", 200).headers["Retry-After"] == "1"
    assert time.monotonic() - began < 20


@pytest.mark.every_store
def test_a_body_keeps_its_bytes(api: Api, storage: Storage) -> None:
    """The body is returned byte by byte, including JSON that a decoder would normalize."""
    raw = b'{"messages": [{"body": {"b": 1.10, "a": [1e2, "\\u00e9"], "b": 2}}]}'
    href = api.post(URL, 201, raw).json["resources"][0]
    assert b'{"b": 1.10, "a": [1e2, "\\u00e9"], "b": 2}' in api.get(href, 200).body
