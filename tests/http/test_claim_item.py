# SPDX-License-Identifier: Apache-2.0
"""Reading, renewing and releasing a claim (contract 8.2 to 8.4)."""

from typing import Any

import pytest

from tests.http.api import OTHER_CLIENT, Api
from tests.tables import every_row
from zq.clock import ManualClock

QUEUE = "/v2/queues/jobs"
URL = f"{QUEUE}/claims"
STRANGE = ["nothing", "-1", "%00", "%20", "x" * 2000, "00" * 16, "50b68a50d6f5b8c8a7c62b01", "%E6%B8%AC", "{0}", "*"]


def renew(api: Api, claim: str, status: int, body: Any) -> Any:
    """Send a PATCH of a claim with an ordinary JSON body, not a queue's patch."""
    return api.call("PATCH", claim, status, body)


def test_a_claim_shows_its_age_ttl_and_messages(api: Api, clock: ManualClock) -> None:
    """8.2 [T]: The response has exactly these members. The hrefs name the claim; grace and id are absent."""
    api.send("jobs", 1, 2)
    claim, messages = api.claim("jobs", ttl=100, grace=60)
    clock.advance(7.5)
    shown = api.get(claim, 200).json
    assert shown == {"age": 7, "ttl": 100, "href": claim, "messages": [{**message, "age": 7} for message in messages]}


def test_an_unknown_claim_is_not_found(api: Api) -> None:
    """8.2, 8.3, 8.4 [T], 1.7: Reading and renewing answer 404 and releasing 204, also for malformed ids."""
    api.send("jobs", 1)
    api.claim("jobs")
    for queue in ("jobs", "missing"):
        for value in STRANGE:
            claim = f"/v2/queues/{queue}/claims/{value}"
            assert api.get(claim, 404).json["title"] == "Not found"
            assert renew(api, claim, 404, {"ttl": 100}).json["title"] == "Not found"
            api.delete(claim, 204)
    assert api.queues() == ["jobs"]


@pytest.mark.parametrize(("project", "queue"), [("acme", "other"), ("other", "jobs"), ("acme", "missing")])
def test_a_claim_is_found_in_its_own_queue_only(api: Api, project: str, queue: str) -> None:
    """8.2 [T], L8: Another queue or project can neither read, renew nor release the claim."""
    api.send("jobs", 1)
    claim, _ = api.claim("jobs", ttl=60)
    other = api.tenant(project=project)
    other.send("other", 2)
    elsewhere = claim.replace("jobs", queue)
    other.get(elsewhere, 404)
    renew(other, elsewhere, 404, {"ttl": 100})
    other.delete(elsewhere, 204)
    assert api.get(claim, 200).json["ttl"] == 60


def test_anyone_in_the_project_may_use_a_claim(api: Api) -> None:
    """8: The id of the claim suffices; the client id does not matter."""
    api.send("jobs", 1)
    claim, _ = api.claim("jobs")
    other = api.tenant(client=OTHER_CLIENT)
    other.get(claim, 200)
    renew(other, claim, 204, {"ttl": 100})
    other.delete(claim, 204)
    api.get(claim, 404)


def test_renewing_starts_the_claim_anew(api: Api, clock: ManualClock) -> None:
    """8.3 [T]: The server answers 204 without body or Location. The age is 0, and the claim ends at now + ttl."""
    api.send("jobs", 1)
    claim, _ = api.claim("jobs", ttl=60)
    clock.advance(59)
    answer = renew(api, claim, 204, {"ttl": 100, "grace": 60})
    assert "Location" not in answer.headers
    shown = api.get(claim, 200).json
    assert (shown["age"], shown["ttl"]) == (0, 100)
    clock.advance(99.999)
    api.get(claim, 200)
    api.post(URL, 204, {})
    clock.advance(0.001)
    api.get(claim, 404)
    api.post(URL, 201, {})


def test_what_a_renewal_leaves_out_takes_the_servers_default(compose) -> None:
    """8.3 [C]: The claim's present values do not apply; {} is valid."""
    api = compose(default_claim_ttl=200, default_claim_grace=70)
    api.send("jobs", 1, ttl=100)
    claim, _ = api.claim("jobs", ttl=60, grace=60)
    renew(api, claim, 204, {})
    shown = api.get(claim, 200).json
    assert (shown["ttl"], shown["messages"][0]["ttl"]) == (200, 270)
    renew(api, claim, 204, {"grace": 60, "unknown": [1]})
    assert api.get(claim, 200).json["ttl"] == 200


@every_row("ttl", [0, -1, 59, 43201, 2**63 - 1, None, "60", 60.0, [], True])
def test_the_ttl_of_a_renewal_has_the_bounds_of_a_claims(door: Api, ttl: Any) -> None:
    """8.3 [T]: The server answers 400 before it looks up the claim."""
    assert "ttl" in renew(door, f"{URL}/nothing", 400, {"ttl": ttl}).json["description"]


@every_row("grace", ["60", "", 60.0, None, [], {}])
def test_the_grace_of_a_renewal_is_an_integer(door: Api, grace: Any) -> None:
    """8.3 [C]: The server checks the type of the grace period."""
    assert "grace" in renew(door, f"{URL}/nothing", 400, {"ttl": 60, "grace": grace}).json["description"]


@pytest.mark.parametrize("grace", [0, 59, 43200])
def test_the_grace_of_a_renewal_may_be_short(api: Api, grace: int) -> None:
    """8.3 [C]: The range of the grace period for new claims does not apply."""
    api.send("jobs", 1, ttl=60)
    claim, _ = api.claim("jobs", ttl=60)
    renew(api, claim, 204, {"ttl": 100, "grace": grace})
    assert api.get(claim, 200).json["messages"][0]["ttl"] == 100 + grace


@pytest.mark.parametrize("grace", [-1, -(2**63), 43201, 2**63 - 1])
def test_an_absurd_grace_neither_fails_nor_ends_a_message_early(api: Api, grace: int) -> None:
    """8.3 [C]: Zaqar does not check the range. If refused or accepted, the message stays with its holder."""
    api.send("jobs", 1, ttl=60)
    claim, _ = api.claim("jobs", ttl=60)
    assert renew(api, claim, None, {"ttl": 100, "grace": grace}).status_int in (204, 400)
    assert len(api.get(claim, 200).json["messages"]) == 1


@every_row("body", [None, b"", b"[]", b"1", b"null", b'"x"', b"{", b".", [{"op": "add"}]])
def test_a_renewal_needs_an_object(door: Api, body: Any) -> None:
    """8.3, 1.6: The server refuses an empty body too."""
    assert renew(door, f"{URL}/nothing", 400, body).json["title"] == "Invalid request body"


def test_releasing_gives_the_messages_back_at_once(api: Api) -> None:
    """8.4 [T]: Each release, also a repeated one, answers 204; each message returns to its former position."""
    api.send("jobs", *range(4))
    first, _ = api.claim("jobs", limit=2)
    second, _ = api.claim("jobs", limit=2)
    api.delete(second, 204)
    api.delete(first, 204)
    api.delete(first, 204)
    api.get(first, 404)
    renew(api, first, 404, {"ttl": 100})
    assert api.seen("jobs") == [0, 1, 2, 3]
    assert [message["body"] for message in api.claim("jobs")[1]] == [0, 1, 2, 3]


def test_the_life_of_a_claim(api: Api, clock: ManualClock) -> None:
    """17, 8 [T]: Zaqar's own test claims, reads, renews, deletes a message, releases, and deletes without the claim."""
    api.tenant(client=OTHER_CLIENT).send("jobs", *range(10), ttl=300)
    claim, messages = api.claim("jobs", ttl=100, grace=60)
    message = messages[0]["href"]
    assert len(messages) == 10
    api.post(URL, 204, {"ttl": 100, "grace": 60})
    assert api.get(f"{QUEUE}/messages", 200).json["messages"] == []
    assert len(api.get(f"{QUEUE}/messages?include_claimed=true", 200).json["messages"]) == 10
    api.delete(message.split("?")[0], 403)
    api.delete(message, 204)
    api.get(message, 404)
    clock.advance(10)
    renew(api, claim, 204, {"ttl": 60, "grace": 60})
    assert len(api.get(claim, 200).json["messages"]) == 9
    api.delete(claim, 204)
    api.get(claim, 404)
    renew(api, claim, 404, {"ttl": 60})
    api.delete(messages[1]["href"].split("?")[0], 204)
    assert len(api.get(f"{QUEUE}/messages", 200).json["messages"]) == 8


@pytest.mark.parametrize("delay", [0, 30, 900])
def test_a_claim_may_be_released_after_a_delay(api: Api, clock: ManualClock, delay: int) -> None:
    """Extensions 3: The release delays all messages that the claim still holds, on any queue; 0 is a valid delay."""
    [first, _] = api.send("jobs", "a", "b")
    claim, _ = api.claim("jobs", ttl=2000)
    clock.advance(1)
    api.send("jobs", "c", delay=0)
    api.delete(f"/v2/queues/jobs/messages/{first}?claim_id={claim.rsplit('/', 1)[1]}", 204)
    api.delete(f"{claim}?delay={delay}", 204)
    api.get(claim, 404)
    if delay:
        clock.advance(delay - 0.1)
        assert [message["body"] for message in api.claim("jobs")[1]] == ["c"]
        clock.advance(0.1)
        assert [message["body"] for message in api.claim("jobs")[1]] == ["b"]
    else:
        assert [message["body"] for message in api.claim("jobs")[1]] == ["b", "c"]


@pytest.mark.parametrize("delay", ["-1", "901", "x", "1.5", "9" * 30])
def test_a_wrong_delay_of_a_release_is_refused(api: Api, delay: str) -> None:
    """Extensions 3: The server answers 400 and names the delay; the claim remains."""
    api.send("jobs", "a")
    claim, _ = api.claim("jobs")
    assert "delay" in api.delete(f"{claim}?delay={delay}", 400).json["description"]
    api.get(claim, 200)
