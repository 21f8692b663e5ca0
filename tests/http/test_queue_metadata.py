# SPDX-License-Identifier: Apache-2.0
"""The reserved metadata keys and their ranges (contract 6.1)."""

from typing import Any

import pytest

from tests.http.api import RESERVED, Api, Kind
from tests.tables import every_row

pytestmark = pytest.mark.one_store

URL = "/v2/queues/jobs"
SIZE, TTL, DELAY = "_max_messages_post_size", "_default_message_ttl", "_default_message_delay"
DEAD_TTL, COUNT, CRYPT = "_dead_letter_queue_messages_ttl", "_max_claim_count", "_enable_encrypt_messages"
RANGES = {SIZE: (1, 262144), TTL: (60, 1209600), DELAY: (0, 900), DEAD_TTL: (60, 1209600)}

FINE = [
    *((key, bound) for key, bounds in RANGES.items() for bound in bounds),
    *((key, None) for key in [*RANGES, COUNT, CRYPT, "_dead_letter_queue", "_retry_policy"]),
    (COUNT, 1),
    (COUNT, 2**31),
    (CRYPT, False),
    ("_dead_letter_queue", "dead"),
    ("_dead_letter_queue", "dead.letters"),
    ("_flavor", "gold"),
    ("_retry_policy", {}),
    ("_retry_policy", {"minimum_delay": 20}),
    ("_retry_policy", {"maximum_delay": 15}),
    ("_retry_policy", {"minimum_delay": 1, "maximum_delay": 11, "unknown": [1]}),
    *(
        ("_retry_policy", {"retry_backoff_function": name})
        for name in ("linear", "arithmetic", "geometric", "exponential")
    ),
    ("_retry_policy", {"ignore_subscription_override": True}),
    ("_retry_policy", {"retries_with_no_delay": 1, "minimum_delay_retries": 2, "maximum_delay_retries": 3}),
]
OUT_OF_RANGE = [
    (SIZE, 0),
    (SIZE, -1),
    (SIZE, 262145),
    (TTL, 0),
    (TTL, 59),
    (TTL, -1),
    (TTL, 1209601),
    (DELAY, -1),
    (DELAY, 901),
    (DEAD_TTL, 0),
    (DEAD_TTL, 59),
    (DEAD_TTL, 1209601),
    (TTL, 2**63 - 1),
    (DELAY, -(2**63)),
]
MISTYPED = [
    *((key, value) for key in RANGES for value in ("60", "", "x", 60.0, 60.5, [], {}, [60])),
    (SIZE, "1024"),
    (TTL, True),
    (COUNT, "1"),
    (COUNT, 1.0),
    (COUNT, ""),
    (COUNT, []),
    (CRYPT, "true"),
    (CRYPT, 1),
    (CRYPT, 0),
    (CRYPT, ""),
    (CRYPT, []),
    ("_retry_policy", "text"),
    ("_retry_policy", [1]),
    ("_retry_policy", 1),
    *(
        ("_retry_policy", {name: value})
        for name in (
            "retries_with_no_delay",
            "minimum_delay_retries",
            "minimum_delay",
            "maximum_delay",
            "maximum_delay_retries",
        )
        for value in ("20", 20.0, None, [])
    ),
    ("_retry_policy", {"retry_backoff_function": "random"}),
    ("_retry_policy", {"retry_backoff_function": 1}),
    ("_retry_policy", {"ignore_subscription_override": "yes"}),
    ("_retry_policy", {"ignore_subscription_override": 1}),
    ("_retry_policy", {"minimum_delay": 21}),
    ("_retry_policy", {"maximum_delay": 14}),
    ("_retry_policy", {"minimum_delay": 50, "maximum_delay": 30}),
]


def add(key: str, value: Any) -> list[dict[str, Any]]:
    """Return a patch that sets a key."""
    return [{"op": "add", "path": f"/metadata/{key}", "value": value}]


def test_every_value_in_range_is_taken(api: Api) -> None:
    """6.1 [T]: PUT and PATCH accept the limits themselves and null."""
    api.put(URL, 201)
    for number, (key, value) in enumerate(FINE):
        api.put(f"/v2/queues/q{number}", 201, {key: value})
        api.patch(URL, 200, add(key, value))
        shown = api.get(f"/v2/queues/q{number}", 200).json
        assert shown.get(key) == (value or RESERVED.get(key, value)), key


@every_row(("key", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_with_the_bound(api: Api, key: str, value: int) -> None:
    """6.1 [T], 1.8: The server answers 400, names the key and the violated limit, and changes nothing."""
    api = api.fresh()
    low, high = RANGES[key]
    api.put("/v2/queues/old", 201, {"a": 1})
    for refused in (api.put(URL, 400, {key: value}), api.patch("/v2/queues/old", 400, add(key, value))):
        assert key in refused.json["description"]
        assert str(low if value < low else high) in refused.json["description"]
    assert api.queues() == ["old"]
    assert api.get("/v2/queues/old", 200).json == {**RESERVED, "a": 1}


def test_a_value_of_the_wrong_type_is_refused(api: Api) -> None:
    """6.1 [T]: The server answers 400 and names the key; this includes the empty string, which crashes Zaqar."""
    api.put("/v2/queues/old", 201, {"a": 1})
    for key, value in MISTYPED:
        assert key in api.put(URL, 400, {"b": 1, key: value}).json["description"], (key, value)
        refused = api.patch("/v2/queues/old", 400, add(key, value)).json
        assert refused["title"] == "Invalid request body"
        assert key in refused["description"], (key, value)
    assert api.queues() == ["old"]
    assert api.get("/v2/queues/old", 200).json == {**RESERVED, "a": 1}


@pytest.mark.parametrize("key", [TTL, SIZE, DELAY, DEAD_TTL])
def test_a_server_may_have_tighter_bounds(compose, key: str) -> None:
    """6.1, 16: The configuration determines the ranges."""
    api = compose(max_messages_post_size=256, max_message_ttl=7200, max_message_delay=10)
    high = {TTL: 7200, SIZE: 256, DELAY: 10, DEAD_TTL: 7200}[key]
    api.put(URL, 201, {key: high})
    assert str(high) in api.put("/v2/queues/other", 400, {key: high + 1}).json["description"]


def test_a_server_shows_its_own_defaults(compose) -> None:
    """6.1, 16: Size, ttl and delay are shown as configured."""
    shown = compose(max_messages_post_size=256, default_message_ttl=7200, default_message_delay=5).get(URL, 200).json
    assert shown == {**RESERVED, SIZE: 256, TTL: 7200, DELAY: 5}


def test_null_means_unset(api: Api) -> None:
    """6.1 [C]: The default is shown and applies."""
    api.put(URL, 201, dict.fromkeys([*RANGES, COUNT, CRYPT, "_dead_letter_queue"]))
    assert api.get(URL, 200).json == RESERVED
    ids = api.send("jobs", 1)
    assert api.get(f"{URL}/messages/{ids[0]}", 200).json["ttl"] == 3600


def test_a_retry_policy_is_shown_as_it_was_set(api: Api) -> None:
    """6.1: Defaults are not added and unknown members are kept; without a value, the policy is not shown."""
    policy = {"minimum_delay": 1, "maximum_delay": 12, "unknown": {"x": 1}}
    api.put(URL, 201, {"_retry_policy": policy, "_flavor": "gold"})
    assert api.get(URL, 200).json == {**RESERVED, "_retry_policy": policy, "_flavor": "gold"}


def test_a_queue_cannot_be_its_own_dead_letter_queue(api: Api) -> None:
    """Extensions 4: PUT and PATCH answer 400 for the queue's own name; another project's queue does not matter."""
    assert "_dead_letter_queue" in api.put(URL, 400, {"_dead_letter_queue": "jobs"}).json["description"]
    api.put(URL, 201, {"_dead_letter_queue": "Jobs"})
    assert "_dead_letter_queue" in api.patch(URL, 400, add("_dead_letter_queue", "jobs")).json["description"]
    assert api.get(URL, 200).json["_dead_letter_queue"] == "Jobs"


def test_a_queue_of_sqs_that_is_its_own_dead_letter_queue_is_changed_by_rest(api: Api) -> None:
    """SQS accepts such queues, although no message is moved to them."""
    api.put(URL, 201, {"_sqs": {"visibility": 9}, "_dead_letter_queue": "jobs", "_max_claim_count": 0})
    api.put(URL, 204, {"_sqs": {"visibility": 5}, "_dead_letter_queue": "jobs", "_max_claim_count": 0})
    api.patch(URL, 200, add("colour", "blue"))
    api.send("jobs", "poison")
    claimed = api.post(f"{URL}/claims", 201).json["messages"]
    claim, message = claimed[0]["href"].rpartition("=")[2], claimed[0]["id"]
    refusal = api.post(f"{URL}/claims/{claim}/settle", 400, {"bury": [{"id": message, "reason": "x"}]}).json[
        "description"
    ]
    assert "_dead_letter_queue" in refusal


@every_row("name", ["bad name", "", "a" * 81, "caf\u00e9", "dead\n", "a/b", 1, True, [], {"a": "b"}])
def test_a_dead_letter_queue_has_a_possible_name(api: Api, kind: Kind, url: str, name: object) -> None:
    """A queue name that cannot exist would keep poison messages forever.

    PUT and PATCH answer 400 and change nothing.
    """
    api = api.fresh()
    said = api.put(url, 400, {"_dead_letter_queue": name}).json["description"]
    assert said.startswith("_dead_letter_queue must be a queue name")
    assert api.names(kind) == []
    api.put(url, 201)
    api.patch(url, 400, add("_dead_letter_queue", name))
    assert api.get(url, 200).json == kind.shown


@pytest.mark.parametrize("key", ["_redelivery_delays", "_", "__", "metadata", "_Default_message_ttl"])
def test_a_key_that_is_not_reserved_holds_anything(api: Api, key: str) -> None:
    """6.1: Metadata are free-form; a leading underscore does not reserve a key."""
    for value in (None, -1, "", [], {"a": None}):
        api.delete(URL, 204)
        api.put(URL, 201, {key: value})
        assert api.get(URL, 200).json == {**RESERVED, key: value}
