# SPDX-License-Identifier: Apache-2.0
"""Redelivery delays of messages, and the metadata that set them (extensions 4)."""

from typing import Any

import pytest

from tests.http.api import RESERVED, Api
from tests.tables import every_row
from zq.clock import ManualClock

JOBS = "/v2/queues/jobs"
DELAY, BACKOFF, CAP, HISTORY = "_redelivery_delay", "_redelivery_backoff", "_redelivery_max_delay", "_history_ttl"
FINE: list[tuple[str, Any]] = [
    *((DELAY, value) for value in (0, 1, 900, None)),
    *((BACKOFF, value) for value in ("constant", "exponential", None)),
    *((CAP, value) for value in (0, 901, 1209600, None)),
    *((HISTORY, value) for value in (0, 60, 1209600, None)),
]
WRONG: list[tuple[str, Any, str]] = [
    (DELAY, -1, "from 0 to 900"),
    (DELAY, 901, "from 0 to 900"),
    (CAP, -1, "from 0 to 1209600"),
    (CAP, 1209601, "from 0 to 1209600"),
    (HISTORY, -1, "from 60 to 1209600"),
    (HISTORY, 1, "from 60 to 1209600"),
    (HISTORY, 59, "from 60 to 1209600"),
    (HISTORY, 1209601, "from 60 to 1209600"),
    (BACKOFF, "linear", "constant, exponential"),
    (BACKOFF, "", "constant, exponential"),
    (BACKOFF, 2, "constant, exponential"),
    *((key, value, "integer") for key in (DELAY, CAP, HISTORY) for value in ("60", 60.5, True, [], {}, "", 2**63 - 1)),
]


def add(key: str, value: Any) -> list[dict[str, Any]]:
    return [{"op": "add", "path": f"/metadata/{key}", "value": value}]


@every_row(("key", "value"), FINE)
def test_a_value_in_range_is_taken_and_shown_only_when_set(api: Api, key: str, value: Any) -> None:
    """PUT and PATCH accept the value. Without a value a queue shows only the base metadata, which clients compare."""
    api = api.fresh()
    api.put(JOBS, 201, {key: value})
    assert api.get(JOBS, 200).json == {**RESERVED, key: value}
    api.put("/v2/queues/other", 201)
    assert api.get("/v2/queues/other", 200).json == RESERVED
    assert api.patch("/v2/queues/other", 200, add(key, value)).json == {**RESERVED, key: value}
    removal = [{"op": "remove", "path": f"/metadata/{key}"}]
    assert api.patch("/v2/queues/other", 200, removal).json == RESERVED
    api.patch("/v2/queues/other", 409, removal)


@every_row(("key", "value", "words"), WRONG)
def test_a_wrong_value_is_refused_with_the_bound(api: Api, key: str, value: Any, words: str) -> None:
    """The server answers 400, names the key, and changes nothing."""
    api = api.fresh()
    api.put("/v2/queues/other", 201)
    for refused in (api.put(JOBS, 400, {key: value}), api.patch("/v2/queues/other", 400, add(key, value))):
        assert key in refused.json["description"]
        assert words in refused.json["description"]
    assert api.queues() == ["other"]
    assert api.get("/v2/queues/other", 200).json == RESERVED


def test_the_bounds_are_those_of_the_server(compose: Any) -> None:
    """The limits are max_message_delay and max_message_ttl."""
    api = compose(max_message_delay=5, max_message_ttl=7200, default_message_delay=0)
    assert "from 0 to 5" in api.put(JOBS, 400, {DELAY: 6}).json["description"]
    assert "7200" in api.put(JOBS, 400, {HISTORY: 7201}).json["description"]
    api.put(JOBS, 201, {DELAY: 5, CAP: 7200, HISTORY: 7200})


def waits(api: Api, clock: ManualClock, expected: int) -> None:
    """Assert that the queue's message can be claimed ``expected`` seconds from now and not earlier."""
    if expected:
        api.post(f"{JOBS}/claims", 204)
        clock.advance(expected - 0.1)
        api.post(f"{JOBS}/claims", 204)
        assert api.get(f"{JOBS}/stats", 200).json["messages"]["free"] == 1
        clock.advance(0.1)


@pytest.mark.parametrize(
    ("by", "metadata", "expected"),
    [
        ("release", {}, [0, 0]),
        ("release", {DELAY: 30}, [30, 30, 30]),
        ("release", {DELAY: 30, BACKOFF: "constant"}, [30, 30]),
        ("release", {DELAY: 500, BACKOFF: "exponential"}, [500, 900, 900]),
        ("release", {DELAY: 30, CAP: 0}, [0, 0]),
        ("release", {BACKOFF: "exponential", CAP: 60}, [0, 0]),
        *((by, {DELAY: 30, BACKOFF: "exponential", CAP: 100}, [30, 60, 100, 100]) for by in ("lapse", "settle")),
    ],
)
def test_a_message_that_came_back_waits(
    api: Api, clock: ManualClock, by: str, metadata: dict[str, Any], expected: list[int]
) -> None:
    """This holds after a claim that expired or released it without a delay; the default cap is max_message_delay."""
    api.put(JOBS, 201, metadata)
    [message] = api.send("jobs", "again", ttl=100000)
    for wait in expected:
        claim, _ = api.claim("jobs", ttl=60)
        if by == "lapse":
            clock.advance(60)
        elif by == "release":
            api.delete(claim, 204)
        else:
            api.post(f"{claim}/settle", 200, {"release": [{"id": message}]})
        waits(api, clock, wait)
    api.claim("jobs")


@pytest.mark.parametrize("delay", [0, 5])
def test_a_delay_of_the_release_counts_instead(api: Api, clock: ManualClock, delay: int) -> None:
    """The delay may be in a DELETE or in a settlement."""
    api.put(JOBS, 201, {DELAY: 300})
    [message] = api.send("jobs", "again")
    claim, _ = api.claim("jobs")
    api.delete(f"{claim}?delay={delay}", 204)
    waits(api, clock, delay)
    claim, _ = api.claim("jobs")
    api.post(f"{claim}/settle", 200, {"release": [{"id": message, "delay": delay}]})
    waits(api, clock, delay)
    api.claim("jobs")
