# SPDX-License-Identifier: Apache-2.0
"""Statistics and purges of queues (contract 6.7, 6.8)."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.http.api import RESERVED, Api, Kind
from tests.tables import every_row
from zq.clock import ManualClock

URL = "/v2/queues/jobs"
ZEROS = {"messages": {"claimed": 0, "free": 0, "total": 0}}


def counts(api: Api) -> tuple[int, int, int]:
    """Return (claimed, free, total) of queue ``jobs``."""
    stats = api.get(f"{URL}/stats", 200).json
    assert stats.keys() == {"messages"}
    return stats["messages"]["claimed"], stats["messages"]["free"], stats["messages"]["total"]


def test_an_unknown_or_empty_queue_has_zeros(api: Api, url: str, kind: Kind) -> None:
    """6.7 [T]: The server answers 200 without oldest and newest and creates nothing. This holds for topics too (13)."""
    assert api.get(f"{url}/stats", 200).json == ZEROS
    assert api.names(kind) == []
    api.put(url, 201)
    assert api.get(f"{url}/stats", 200).json == ZEROS


def test_stats_name_the_oldest_and_the_newest_message(api: Api, clock: ManualClock) -> None:
    """6.7 [T]: Both have href, age and creation time, and no id."""
    begin = datetime.fromtimestamp(int(clock.now()), UTC)
    first, _ = api.send("jobs", 1, 2)
    clock.advance(10)
    [last] = api.send("jobs", 3)
    end = datetime.fromtimestamp(int(clock.now()), UTC)
    clock.advance(5)
    messages = api.get(f"{URL}/stats", 200).json["messages"]
    assert messages.keys() == {"claimed", "free", "total", "oldest", "newest"}
    form = "%Y-%m-%dT%H:%M:%SZ"
    assert messages["oldest"] == {"href": f"{URL}/messages/{first}", "age": 15, "created": begin.strftime(form)}
    assert messages["newest"] == {"href": f"{URL}/messages/{last}", "age": 5, "created": end.strftime(form)}
    assert api.get(messages["oldest"]["href"], 200).json["body"] == 1


def test_one_message_is_both_the_oldest_and_the_newest(api: Api) -> None:
    api.send("jobs", 1)
    messages = api.get(f"{URL}/stats", 200).json["messages"]
    assert messages["oldest"] == messages["newest"]


def test_claimed_messages_count_as_claimed_while_the_claim_lives(api: Api, clock: ManualClock) -> None:
    """6.7, extensions 1: claimed counts messages of live claims, and free every other unexpired message."""
    api.send("jobs", *range(5))
    claim, _ = api.claim("jobs", limit=2, ttl=60)
    other, _ = api.claim("jobs", limit=1, ttl=100)
    assert counts(api) == (3, 2, 5)
    clock.advance(60)
    assert counts(api) == (1, 4, 5)
    api.delete(other, 204)
    assert counts(api) == (0, 5, 5)
    api.delete(claim, 204)
    assert counts(api) == (0, 5, 5)


@every_row("parameter", ["detailed=false", "unknown=1", "limit=0", "x"])
def test_unknown_parameters_of_stats_are_ignored(api: Api, parameter: str, url: str) -> None:
    assert api.get(f"{url}/stats?{parameter}", 200).json == ZEROS


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (None, []),
        (b"", []),
        ({"resource_types": ["messages"]}, []),
        ({"resource_types": ["messages", "subscriptions"]}, []),
        ({"resource_types": ["messages", "messages"], "extra": 1}, []),
        ({"resource_types": []}, [1, 2, 3]),
        ({"resource_types": ["subscriptions"]}, [1, 2, 3]),
    ],
)
def test_purge_empties_a_queue_and_keeps_it(api: Api, body: Any, left: list[int]) -> None:
    """6.8: The server answers 204. The default is both resource types, any subset is valid, and metadata stay."""
    api.put(URL, 201, {"a": 1})
    api.send("jobs", 1, 2, 3)
    api.post(f"{URL}/purge", 204, body)
    assert api.seen("jobs") == left
    assert counts(api) == (0, len(left), len(left))
    assert api.get(URL, 200).json == {**RESERVED, "a": 1}


@every_row(
    "body",
    [
        {},
        {"resource": ["messages"]},
        {"resource_types": ["queues"]},
        {"resource_types": ["messages", "queues"]},
        {"resource_types": None},
        {"resource_types": "messages"},
        {"resource_types": {"messages": 1}},
        {"resource_types": [1]},
        {"resource_types": [None]},
        {"resource_types": [["messages"]]},
        {"resource_types": ["Messages"]},
        {"resource_types": True},
        [],
        ["messages"],
        b"null",
        b"1",
        b'"messages"',
        b"{",
        b"[",
    ],
    ids=str,
)
def test_a_purge_of_anything_else_is_refused(api: Api, body: Any) -> None:
    """6.8 [T]: A missing key, an unknown element, null and arrays get 400, and nothing is removed."""
    api = api.fresh()
    api.send("jobs", 1)
    assert api.post(f"{URL}/purge", 400, body).json["title"] in ("Invalid request body", "Invalid API request")
    assert api.seen("jobs") == [1]


def test_a_missing_queue_can_be_purged(api: Api, url: str, kind: Kind) -> None:
    """6.8: The server answers 204 and creates nothing. This holds for topics too (13)."""
    api.post(f"{url}/purge", 204)
    assert api.names(kind) == []
