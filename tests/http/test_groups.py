# SPDX-License-Identifier: Apache-2.0
"""Grouped queues over HTTP: their creation, the group of a message, and the order of delivery."""

from typing import Any

import pytest

from tests.http.api import Api
from zq.model.limits import MAX_GROUP

JOBS = "/v2/queues/jobs"


def send(api: Api, *groups: str | None) -> list[str]:
    """Post one message for each group and return the ids."""
    messages = [{"body": at, **({"group": group} if group else {})} for at, group in enumerate(groups)]
    answer = api.call("POST", f"{JOBS}/messages", 201, {"messages": messages})
    return [path.rpartition("/")[2] for path in answer.json["resources"]]


def claimed(api: Api, limit: int = 10) -> tuple[str, list[str]]:
    """Claim messages. Return the path of the claim and the ids of its messages."""
    claim, messages = api.claim("jobs", limit)
    return claim, [message["id"] for message in messages]


@pytest.mark.every_store
def test_groups_are_handed_out_in_order_and_one_at_a_time(api: Api) -> None:
    api.put(JOBS, 201, {"_grouped": "ordered"})
    a1, b1, a2 = send(api, "a", "b", "a")
    claim, ids = claimed(api, 1)
    assert ids == [a1]
    assert claimed(api)[1] == [b1]
    api.delete(f"{JOBS}/messages/{a1}?claim_id={claim.rpartition('/')[2]}", 204)
    assert claimed(api)[1] == [a2]


@pytest.mark.every_store
def test_groups_of_a_fair_queue_take_turns(api: Api) -> None:
    api.put(JOBS, 201, {"_grouped": "fair"})
    a1, a2, a3, b1 = send(api, "a", "a", "a", "b")
    assert [set(claimed(api, 2)[1]) for _ in range(2)] == [{a1, a2}, {a3, b1}]


def test_the_group_of_a_message_is_told_where_details_are(api: Api) -> None:
    """Zaqar's clients reject unknown members; a queue without groups shows the group too."""
    [id, other] = send(api, "a", None)
    for path in (f"{JOBS}/messages?echo=true", f"{JOBS}/messages/{id}"):
        assert "group" not in str(api.get(path, 200).json)
    shown = api.get(f"{JOBS}/messages?detailed=true&echo=true", 200).json["messages"]
    assert [(message["id"], message.get("group")) for message in shown] == [(id, "a"), (other, None)]


@pytest.mark.parametrize("value", ["orderly", 1, True, ["ordered"]])
def test_an_unknown_kind_of_queue_is_refused(api: Api, value: Any) -> None:
    assert api.put(JOBS, 400, {"_grouped": value}).json["description"] == "_grouped must be ordered, fair or null."


@pytest.mark.parametrize("group", ["", "x" * (MAX_GROUP + 1), 1, None])
def test_a_group_has_a_name_of_some_length(api: Api, group: Any) -> None:
    """Topics ignore groups, but refuse the same names as queues."""
    api.put(JOBS, 201, {"_grouped": "ordered"})
    for path in (JOBS, "/v2/topics/news"):
        refused = api.post(f"{path}/messages", 400, {"messages": [{"body": 1, "group": group}]})
        assert "group" in refused.json["description"]
        assert api.post(f"{path}/messages", 201, {"messages": [{"body": 1, "group": "x" * MAX_GROUP}]})


@pytest.mark.parametrize("made", ["ordered", "fair", None])
def test_what_a_queue_was_made_as_stays(api: Api, made: str | None) -> None:
    """Other metadata can change, and setting the same value is accepted."""
    api.put(JOBS, 201, {"_grouped": made} if made else {})
    for value in {"ordered", "fair"} - {made}:
        operation = {"op": "add", "path": "/metadata/_grouped", "value": value}
        refused = api.patch(JOBS, 409, [operation])
        assert refused.json["description"] == "_grouped can only be set when the queue is created."
    if made:
        api.patch(JOBS, 409, [{"op": "remove", "path": "/metadata/_grouped"}])
    api.patch(JOBS, 200, [{"op": "add", "path": "/metadata/_grouped", "value": made}])
    api.patch(JOBS, 200, [{"op": "add", "path": "/metadata/owner", "value": "shop"}])
    assert api.get(JOBS, 200).json.get("_grouped") == made


def test_topics_have_no_groups(api: Api) -> None:
    assert "only queues" in api.put("/v2/topics/news", 400, {"_grouped": "fair"}).json["description"]
