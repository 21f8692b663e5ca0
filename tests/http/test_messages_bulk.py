# SPDX-License-Identifier: Apache-2.0
"""Deletion by ids and pops (contract 7.7)."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.http.api import Api
from tests.tables import every_row
from zq.clock import ManualClock
from zq.model import QueueRef
from zq.storage.api import Storage

QUEUE = "/v2/queues/jobs"
URL = f"{QUEUE}/messages"


@pytest.fixture
def careful(compose) -> Api:
    """Return a client of a server with ``message_delete_with_claim_id = true``."""
    return compose(delete_with_claim_id=True)


@every_row("query", ["", "?ids=", "?pop=", "?ids=&pop=", "?ids=a&pop=1", "?limit=1", "?claim_ids=a", "?ids=a&pop=0"])
def test_exactly_one_of_ids_and_pop_is_wanted(door: Api, query: str) -> None:
    """7.7 [T]: With both or neither, the server answers 400 and names the two."""
    description = door.delete(URL + query, 400).json["description"]
    assert "ids" in description
    assert "pop" in description


def test_ids_delete_what_they_name(api: Api) -> None:
    """7.7 [T]: The server answers 204 whether or not an id matches, and ignores malformed ids."""
    ids = api.send("jobs", *range(5))
    api.delete(f"{URL}?ids={ids[0]},{ids[2]},nothing,%20,,{ids[2]},", 204)
    assert api.seen("jobs") == [1, 3, 4]
    api.delete(f"{URL}?ids={ids[0]}&ids={ids[1]}", 204)
    api.delete(f"{URL}?ids=nothing", 204)
    api.delete(f"/v2/queues/missing/messages?ids={ids[3]}", 204)
    assert api.seen("jobs") == [3, 4]
    assert api.queues() == ["jobs"]


@pytest.mark.parametrize("count", [21, 22, 200])
def test_more_than_twenty_ids_are_refused(zaqars: Api, count: int) -> None:
    assert "20" in zaqars.delete(f"{URL}?ids={','.join(['x'] * count)}", 400).json["description"]


def test_twenty_ids_are_fine(api: Api) -> None:
    """7.7 [T]: Twenty is the maximum; all are deleted."""
    ids = api.send("jobs", *range(21))
    api.delete(f"{URL}?ids={','.join(ids[:20])}", 204)
    assert api.seen("jobs") == [20]


@pytest.mark.parametrize(("history", "steps"), [(0, [45]), (600, [20, 20, 5])])
def test_many_ids_go_in_steps_where_their_bodies_are_kept(
    api: Api, storage: Storage, monkeypatch: pytest.MonkeyPatch, history: int, steps: list[int]
) -> None:
    """A step of the store moves a limited number of bodies to the history; all messages are deleted."""
    told: list[int] = []
    delete = storage.messages.delete

    def counted(queue: QueueRef, ids: Sequence[str], *terms: Any) -> None:
        told.append(len(ids))
        delete(queue, ids, *terms)

    monkeypatch.setattr(storage.messages, "delete", counted)
    api.put("/v2/queues/jobs", 201, {"_history_ttl": history})
    ids = api.send("jobs", *range(45))
    api.delete(f"{URL}?ids={','.join(ids)}", 204)
    assert (told, api.seen("jobs")) == (steps, [])
    finished = api.get("/v2/queues/jobs/history?limit=1000", 200).json["messages"]
    assert sorted(message["body"] for message in finished) == (list(range(45)) if history else [])


def test_bulk_deletion_does_not_ask_for_claims(api: Api) -> None:
    """7.7 [C]: Claimed messages are deleted too; claim_ids is ignored if the option is off."""
    ids = api.send("jobs", 1, 2, 3)
    claim, _ = api.claim("jobs", limit=2)
    api.delete(f"{URL}?ids={ids[0]}&claim_ids=wrong", 204)
    assert [message["body"] for message in api.get(claim, 200).json["messages"]] == [2]
    api.delete(f"{URL}?ids={ids[1]}", 204)
    api.get(claim, 404)
    assert api.seen("jobs") == [3]


@pytest.mark.parametrize("pop", ["0", "-1", "21", "1000000", "abc", "%20", "1.0", "None", "9" * 5000, "1_0", "true"])
def test_pop_takes_one_to_twenty(zaqars: Api, pop: str) -> None:
    """7.7 [T]: Any other value gets 400."""
    assert "pop" in zaqars.delete(f"{URL}?pop={pop}", 400).json["description"]


def test_the_largest_pop_is_that_of_the_server(compose) -> None:
    """16: The option is max_messages_per_claim_or_pop."""
    api = compose(max_messages_per_claim_or_pop=3)
    api.delete(f"{URL}?pop=3", 200)
    assert "3" in api.delete(f"{URL}?pop=4", 400).json["description"]


def test_pop_removes_and_returns_the_oldest(api: Api) -> None:
    """7.7 [T]: A pop returns at most n messages, in order, and deletes them."""
    ids = api.send("jobs", *range(5))
    popped = api.delete(f"{URL}?pop=2", 200).json
    assert popped.keys() == {"messages"}
    assert [(message["id"], message["body"]) for message in popped["messages"]] == [(ids[0], 0), (ids[1], 1)]
    api.get(f"{URL}/{ids[0]}", 404)
    assert [message["body"] for message in api.delete(f"{URL}?pop=20", 200).json["messages"]] == [2, 3, 4]
    assert api.delete(f"{URL}?pop=1", 200).json == {"messages": []}


def test_a_popped_message_is_raw(api: Api, clock: ManualClock) -> None:
    """7.7: A message has exactly these members and no href. claim_count counts claims, not the pop."""
    [message] = api.send("jobs", {"a": None}, ttl=300)
    for _ in range(2):
        claim, _ = api.claim("jobs")
        api.delete(claim, 204)
    clock.advance(7)
    expected = {"id": message, "age": 7, "ttl": 300, "body": {"a": None}, "claim_id": None, "claim_count": 2}
    assert api.delete(f"{URL}?pop=1", 200).json["messages"] == [expected]


def test_a_missing_queue_pops_nothing(api: Api) -> None:
    """7.7 [T]: The server answers 200 and does not create the queue."""
    assert api.delete(f"{URL}?pop=5", 200).json == {"messages": []}
    assert api.queues() == []


def test_pop_needs_no_body_and_reads_none(api: Api) -> None:
    """7.7: The server ignores a body."""
    api.send("jobs", 1)
    assert len(api.call("DELETE", f"{URL}?pop=1", 200, b"[}").json["messages"]) == 1


@pytest.mark.parametrize("query", ["ids={0}", "ids={0}&claim_ids=", "pop=1&claim_ids={claim}"])
def test_a_careful_server_wants_claim_ids_beside_ids_only(careful: Api, query: str) -> None:
    """7.7 [T]: ids without claim_ids, and pop with claim_ids, get 400; nothing is deleted."""
    ids = careful.send("jobs", 1, 2)
    claim = careful.claim("jobs", limit=1)[0].rsplit("/", 1)[1]
    refused = careful.delete(f"{URL}?{query.format(ids[0], claim=claim)}", 400).json
    assert "claim_ids" in refused["description"]
    assert careful.seen("jobs", "echo=true&include_claimed=true") == [1, 2]


def test_a_careful_server_pops_without_claims(careful: Api) -> None:
    """7.7: A pop without claim_ids is valid."""
    careful.send("jobs", 1)
    assert len(careful.delete(f"{URL}?pop=1", 200).json["messages"]) == 1


@pytest.mark.parametrize("form", ["{0}", "{0},{0},", "{0},{1}"])
def test_a_careful_server_deletes_what_the_claims_hold(careful: Api, form: str) -> None:
    """7.7 [T]: The list may have duplicates and a trailing comma."""
    ids = careful.send("jobs", 1, 2, 3)
    claims = [careful.claim("jobs", limit=1)[0].rsplit("/", 1)[1] for _ in range(2)]
    held = ids[: 2 if "{1}" in form else 1]
    careful.delete(f"{URL}?ids={','.join(held)}&claim_ids={form.format(*claims)}", 204)
    assert careful.seen("jobs", "echo=true&include_claimed=true") == [1, 2, 3][len(held) :]


@pytest.mark.parametrize("claims", ["{other}", "nothing", "{lapsed}", "{other},nothing"])
def test_a_careful_server_deletes_nothing_when_a_claim_does_not_match(
    careful: Api, clock: ManualClock, claims: str
) -> None:
    """7.7 [Q]: The server answers 400 or 403 instead of 500, and keeps even the messages that matched."""
    ids = careful.send("jobs", 1, 2)
    careful.send("others", 3)
    lapsed = careful.claim("jobs", ttl=60)[0].rsplit("/", 1)[1]
    clock.advance(60)
    own = careful.claim("jobs", limit=1)[0].rsplit("/", 1)[1]
    other = careful.claim("others")[0].rsplit("/", 1)[1]
    wanted = f"{URL}?ids={','.join(ids)}&claim_ids={own},{claims.format(other=other, lapsed=lapsed)}"
    assert careful.delete(wanted, None).status_int in (400, 403)
    assert careful.seen("jobs", "echo=true&include_claimed=true") == [1, 2]


def test_a_careful_server_does_not_mind_unknown_ids(careful: Api) -> None:
    """7.7 [T]: The server answers 204 whether or not an id matches."""
    careful.send("jobs", 1)
    claim = careful.claim("jobs")[0].rsplit("/", 1)[1]
    careful.delete(f"{URL}?ids=nothing&claim_ids={claim}", 204)
    assert careful.seen("jobs", "echo=true&include_claimed=true") == [1]
