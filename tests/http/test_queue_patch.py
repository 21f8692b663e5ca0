# SPDX-License-Identifier: Apache-2.0
"""JSON patches of the metadata of queues and topics (contract 6.5, 13)."""

from typing import Any

import pytest

from tests.http.api import KINDS, PATCH_TYPE, RESERVED, Api, Kind
from tests.tables import every_row

pytestmark = pytest.mark.one_store

QUEUE = "/v2/queues/jobs"
TTL = "_default_message_ttl"
ADD = {"op": "add", "path": "/metadata/a", "value": 1}


def op(kind: str, key: str, *value: Any) -> dict[str, Any]:
    """Return an operation on a metadata key."""
    return {"op": kind, "path": f"/metadata/{key}", **({"value": value[0]} if value else {})}


@pytest.fixture
def patched(api: Api, url: str) -> Api:
    """Return a client whose queue or topic ``jobs`` has the metadata {"a": 1, "b": {"c": 2}}."""
    api.put(url, 201, {"a": 1, "b": {"c": 2}})
    return api


@pytest.fixture
def queue(api: Api) -> Api:
    """Return a client whose queue ``jobs`` has the metadata {"a": 1, "b": {"c": 2}}."""
    api.put(QUEUE, 201, {"a": 1, "b": {"c": 2}})
    return api


def stored(api: Api, url: str, kind: Kind) -> dict[str, Any]:
    """Return the metadata without reserved keys that have their defaults."""
    shown: dict[str, Any] = api.get(url, 200).json
    assert shown.keys() >= kind.shown.keys()
    return {key: value for key, value in shown.items() if key not in kind.shown or value != kind.shown[key]}


@every_row(
    "content_type",
    [
        None,
        "",
        "application/json",
        "application/json-patch+json",
        PATCH_TYPE + "; charset=utf-8",
        PATCH_TYPE + ";",
        PATCH_TYPE + "x",
        "text/plain",
    ],
)
def test_a_patch_has_its_own_media_type(patched: Api, content_type: str | None, url: str) -> None:
    """6.5: The server answers 415 to any other media type and names the expected one."""
    refused = patched.patch(url, 415, [ADD], {"Content-Type": content_type}).json
    assert refused["title"] == "415 Unsupported Media Type"
    assert PATCH_TYPE in refused["description"]


@pytest.mark.parametrize(
    ("operations", "left"),
    [
        ([], {"a": 1, "b": {"c": 2}}),
        ([op("add", "a", 2)], {"a": 2, "b": {"c": 2}}),
        ([op("add", "n", None)], {"a": 1, "b": {"c": 2}, "n": None}),
        ([op("replace", "a", [3])], {"a": [3], "b": {"c": 2}}),
        ([op("remove", "a")], {"b": {"c": 2}}),
        ([op("remove", "a", "ignored")], {"b": {"c": 2}}),
        ([op("add", TTL, 60)], {"a": 1, "b": {"c": 2}, TTL: 60}),
        ([op("replace", TTL, 60)], {"a": 1, "b": {"c": 2}, TTL: 60}),
        ([op("remove", TTL)], {"a": 1, "b": {"c": 2}}),
        ([op("add", "n", 1), op("replace", "n", 2), op("remove", "b"), op("add", "b", 0)], {"a": 1, "n": 2, "b": 0}),
        ([op("add", "n", 1), op("remove", "n")], {"a": 1, "b": {"c": 2}}),
        ([op("remove", "a"), op("add", "a", 9)], {"a": 9, "b": {"c": 2}}),
        ([op("add", "x~1y~0z", 1)], {"a": 1, "b": {"c": 2}, "x/y~z": 1}),
        ([op("add", "~01", 1)], {"a": 1, "b": {"c": 2}, "~1": 1}),
        ([{"op": "add", "path": "/Metadata/n", "value": 1}], {"a": 1, "b": {"c": 2}, "n": 1}),
        ([{**ADD, "unknown": 1}], {"a": 1, "b": {"c": 2}}),
    ],
)
def test_operations_are_applied_in_their_order(
    patched: Api, operations: list[Any], left: dict[str, Any], url: str, kind: Kind
) -> None:
    """6.5: The contract's table applies. The response has the whole resulting metadata, as GET does."""
    answer = patched.patch(url, 200, operations).json
    assert answer == patched.get(url, 200).json == {**kind.shown, **left}


@every_row(
    "body",
    [
        None,
        b"",
        b"{}",
        b"[",
        b"null",
        b'"text"',
        b"1",
        [1],
        [None],
        [[]],
        [{}],
        ["op"],
        {**ADD},
        {"operations": [ADD]},
        [{"path": "/metadata/a", "value": 1}],
        [{"op": "add", "value": 1}],
        [{"op": "add", "path": "/metadata/a"}],
        [{"op": "replace", "path": "/metadata/a"}],
        *([{**ADD, "op": kind}] for kind in ("test", "move", "copy", "ADD", "", None, 1, [], {})),
        *(
            [{**ADD, "path": path}]
            for path in (
                "/a",
                "a",
                "",
                "/",
                "//",
                "metadata/a",
                "/metadata",
                "/metadata/",
                "/metadata/ ",
                "/metadata/a/",
                "/metadata/a/b",
                "//metadata/a",
                "/metadata//a",
                "/data/a",
                "/metadata/~",
                "/metadata/~2",
                "/metadata/a~",
                None,
                1,
                [],
                ["metadata", "a"],
                {},
                True,
            )
        ),
        [{"op": "remove", "path": "/a"}],
        [{"op": "remove"}],
        [{"op": "remove", "path": 1}],
    ],
    ids=lambda body: str(body)[:60],
)
def test_a_malformed_patch_is_refused(door: Api, body: Any) -> None:
    """6.5 [T]: The server checks shape, op, path and value, and answers 400 before it looks up the queue."""
    assert door.patch(QUEUE, 400, body).json["title"] == "Invalid request body"


@every_row("verb", ["replace", "remove"])
@every_row("key", ["n", "_flavor", "_retry_policy"])
def test_what_is_not_there_cannot_be_replaced_or_removed(
    patched: Api, verb: str, key: str, url: str, kind: Kind
) -> None:
    """6.5 [T]: Ordinary keys, including _flavor and _retry_policy, get 409, and nothing changes."""
    conflict = patched.patch(url, 409, [op("add", "a", 2), op(verb, key, 3)]).json
    assert conflict["title"] == "Resource conflict"
    assert key in conflict["description"]
    assert stored(patched, url, kind) == {"a": 1, "b": {"c": 2}}


@pytest.mark.parametrize("key", RESERVED)
def test_a_reserved_key_can_be_removed_though_never_set(queue: Api, key: str) -> None:
    """6.5 [T]: The removal has no effect."""
    queue.patch(QUEUE, 200, [op("remove", key)])
    assert stored(queue, QUEUE, KINDS[0]) == {"a": 1, "b": {"c": 2}}


def test_removing_a_reserved_key_restores_its_default(queue: Api) -> None:
    """6.5 [T]: The default is shown and applies."""
    assert queue.patch(QUEUE, 200, [op("add", TTL, 60)]).json[TTL] == 60
    assert queue.patch(QUEUE, 200, [op("remove", TTL)]).json[TTL] == 3600
    [message] = queue.send("jobs", 1)
    assert queue.get(f"{QUEUE}/messages/{message}", 200).json["ttl"] == 3600


def test_no_part_of_a_failing_patch_is_kept(patched: Api, url: str, kind: Kind) -> None:
    """6.5: An invalid value at the end leaves the queue unchanged."""
    refused = patched.patch(url, 400, [op("add", "a", 2), op("add", "n", 3), op("add", TTL, 59)]).json
    assert refused["title"] == "Invalid request body"
    assert stored(patched, url, kind) == {"a": 1, "b": {"c": 2}}


def test_a_bad_value_that_a_later_operation_mends_is_fine(patched: Api, url: str, kind: Kind) -> None:
    """6.5: Only the resulting metadata are validated."""
    patched.patch(url, 200, [op("add", TTL, 59), op("replace", TTL, 61)])
    assert stored(patched, url, kind)[TTL] == 61


BAD_TYPE = {"Content-Type": "application/json"}
FAILURES = {
    # in the order of 6.5: path, body, headers
    "size": (400, "Invalid API request"),
    "type": (415, "415 Unsupported Media Type"),
    "shape": (400, "Invalid request body"),
    "queue": (404, "Not found"),
    "conflict": (409, "Resource conflict"),
    "value": (400, "Invalid request body"),
}


@every_row("first", FAILURES)
def test_failures_are_reported_in_their_order(compose, first: str, url: str, kind: Kind) -> None:
    """6.5: The order is size, media type, shape, missing queue, conflict, values. The first failure is reported."""
    api = compose(max_queue_metadata=256).fresh()
    api.put(url, 201)
    later = list(FAILURES)[list(FAILURES).index(first) :]
    operations = [op("add", TTL, 59)]
    if "conflict" in later:
        operations.insert(0, op("remove", "n"))
    if "shape" in later:
        operations.append({"op": "test"})
    if "size" in later:
        operations.append(op("add", "x", "x" * 256))
    where = f"{kind.path}/nowhere" if "queue" in later else url
    status, title = FAILURES[first]
    answer = api.patch(where, status, operations, BAD_TYPE if "type" in later else {})
    assert answer.json["title"] == title


@pytest.mark.parametrize("body", [[], [ADD]])
def test_a_missing_queue_is_not_created(api: Api, body: list[Any], kind: Kind) -> None:
    """6.5 [T]: The server answers 404, even to an empty patch."""
    assert api.patch(f"{kind.path}/nowhere", 404, body).json["title"] == "Not found"
    assert api.names(kind) == []


def test_an_object_in_place_of_the_array_is_refused_not_a_failure(patched: Api, url: str) -> None:
    """6.5 [Q]: Zaqar answers 503."""
    patched.patch(url, 400, {"a": 1})


def test_a_client_can_replace_the_metadata_as_a_whole(queue: Api) -> None:
    """6.5, 17: python-zaqarclient sends such patches to replace a set of keys by another."""
    shown, wanted = queue.get(QUEUE, 200).json, {"a": 5, "z": "new", "_max_claim_count": 3}
    operations = [op("replace" if shown.get(key) is not None else "add", key, wanted[key]) for key in wanted]
    operations += [op("remove", key) for key in shown if key not in wanted]
    assert queue.patch(QUEUE, 200, operations).json == {**RESERVED, **wanted}


def test_reserved_metadata_set_with_add_are_visible(queue: Api) -> None:
    """17 (tempest): One patch sets all of them."""
    values = {
        "_max_messages_post_size": 900,
        "_default_message_ttl": 1000,
        "_default_message_delay": 10,
        "_dead_letter_queue": "dead",
        "_dead_letter_queue_messages_ttl": 7799,
        "_max_claim_count": 10,
    }
    queue.patch(QUEUE, 200, [op("add", key, value) for key, value in values.items()])
    assert stored(queue, QUEUE, KINDS[0]) == {"a": 1, "b": {"c": 2}, **values}


def test_a_patch_does_not_touch_messages_or_neighbours(queue: Api) -> None:
    """6.5: Only this queue's metadata change."""
    queue.put("/v2/queues/jobs2", 201, {"a": 1})
    queue.send("jobs", "kept")
    queue.patch(QUEUE, 200, [op("replace", "a", 2)])
    assert queue.seen("jobs") == ["kept"]
    assert queue.get("/v2/queues/jobs2", 200).json["a"] == 1
