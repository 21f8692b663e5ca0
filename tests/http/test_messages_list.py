# SPDX-License-Identifier: Apache-2.0
"""Listing messages (contract 7.3, 1.9)."""

import pytest

from tests.http.api import OTHER_CLIENT, Api, query_of
from tests.tables import every_row
from zq.clock import ManualClock

QUEUE = "/v2/queues/jobs"
URL = f"{QUEUE}/messages"


def test_a_missing_or_empty_queue_lists_nothing(api: Api) -> None:
    """7.3 [T]: The server answers 200 with both lists empty, and does not create the queue."""
    assert api.get(URL, 200).json == {"messages": [], "links": []}
    assert api.queues() == []
    api.put(QUEUE, 201)
    assert api.get(URL, 200).json == {"messages": [], "links": []}


def test_own_messages_are_hidden_unless_echo(api: Api) -> None:
    """7.3 [T]: The caller's Client-ID determines which messages are its own."""
    other = api.tenant(client=OTHER_CLIENT)
    api.send("jobs", "mine")
    other.send("jobs", "theirs")
    assert api.seen("jobs", "") == api.seen("jobs", "echo=false") == ["theirs"]
    assert other.seen("jobs", "") == ["mine"]
    assert api.seen("jobs", "echo=true") == other.seen("jobs", "echo=1") == ["mine", "theirs"]


def test_claimed_messages_are_hidden_unless_asked_for(api: Api, clock: ManualClock) -> None:
    """7.3 [T]: The messages reappear after the claim is released or expires."""
    api.send("jobs", 1, 2, 3)
    claim, _ = api.claim("jobs", limit=2, ttl=60)
    assert api.seen("jobs") == [3]
    assert api.seen("jobs", "echo=true&include_claimed=false") == [3]
    assert api.seen("jobs", "echo=true&include_claimed=true") == [1, 2, 3]
    api.delete(claim, 204)
    assert api.seen("jobs") == [1, 2, 3]
    api.claim("jobs", limit=1, ttl=60)
    assert api.seen("jobs") == [2, 3]
    clock.advance(60)
    assert api.seen("jobs") == [1, 2, 3]


def test_the_href_of_a_claimed_message_carries_the_claim(api: Api, clock: ManualClock) -> None:
    """7.1 [T], extensions 1: The href names the claim only while the claim is live."""
    [message] = api.send("jobs", 1)
    claim, _ = api.claim("jobs", ttl=60)
    plain, held = f"{URL}/{message}", f"{URL}/{message}?claim_id={claim.rsplit('/', 1)[1]}"
    query = "echo=true&include_claimed=true"

    def hrefs() -> set[str]:
        listed, *more = api.get(f"{URL}?{query}", 200).json["messages"]
        assert not more
        return {
            listed["href"],
            api.get(plain, 200).json["href"],
            api.get(f"{URL}?ids={message}", 200).json["messages"][0]["href"],
        }

    assert hrefs() == {held}
    clock.advance(60)
    assert hrefs() == {plain}
    claim, _ = api.claim("jobs")
    api.delete(claim, 204)
    assert hrefs() == {plain}


def test_messages_come_oldest_first_in_the_order_of_their_posts(api: Api, clock: ManualClock) -> None:
    """7.3: A queue is FIFO, and messages of a post keep the order of the array."""
    for start in range(0, 20, 4):
        api.send("jobs", *range(start, start + 4))
        clock.advance(start % 3)
    assert api.seen("jobs") == list(range(20))


@pytest.mark.parametrize(
    ("limit", "sizes"), [("3", [3, 3, 3, 1, 0]), ("", [10, 0]), ("5", [5, 5, 0]), ("20", [10, 0]), ("9", [9, 1, 0])]
)
def test_following_the_links_ends_with_an_empty_page(api: Api, limit: str, sizes: list[int]) -> None:
    """1.9 [T]: Ten messages in pages of three take four pages and an empty page."""
    api.send("jobs", *range(10))
    pages = api.pages(f"{URL}?limit={limit}&echo=true", "messages")
    assert [len(page) for page in pages] == sizes
    assert [message["body"] for page in pages for message in page] == list(range(10))


def test_a_page_has_ten_messages_by_default(compose) -> None:
    """1.9: The default is fixed and the maximum is an option."""
    api = compose(max_messages_per_page=12)
    api.send("jobs", *range(15))
    assert len(api.seen("jobs", "echo=true")) == 10
    assert len(api.seen("jobs", "echo=true&limit=12")) == 12
    assert "12" in api.get(f"{URL}?limit=13", 400).json["description"]


@every_row("limit", ["0", "-1", "21", "1000000", "9" * 30])
def test_a_limit_out_of_range_is_refused(zaqars: Api, limit: str) -> None:
    """7.3 [T]: This holds even if the queue does not exist."""
    refused = zaqars.get(f"{URL}?limit={limit}", 400).json
    assert refused["title"] in ("Invalid API request", "Invalid parameter" if len(limit) > 20 else "")
    assert "limit" in refused["description"]


@every_row("word", ["None", "%20", "2", "TRUE", "null"])
@every_row("name", ["echo", "include_claimed", "include_delayed", "limit"])
def test_a_parameter_of_the_wrong_type_is_refused(door: Api, name: str, word: str) -> None:
    """1.5 [T]: tempest sends echo=None and include_claimed=None."""
    if (name, word) != ("limit", "2"):
        refused = door.get(f"{URL}?{name}={word}", 400).json
        assert refused["title"] == "Invalid parameter"
        assert name in refused["description"]


@pytest.mark.parametrize(
    "query", ["limit=&echo=true", "echo=false&echo=true", "echo=true&marker=", "echo=no,yes", "echo=true&unknown=x"]
)
def test_blanks_are_absent_and_the_last_value_wins(api: Api, query: str) -> None:
    api.send("jobs", 1)
    assert api.seen("jobs", query) == [1]


def test_the_link_repeats_what_was_asked(api: Api) -> None:
    """7.3, 1.9: Booleans are true and false; include_delayed is true on a queue without delay."""
    api.send("jobs", 1, 2, 3)
    [link] = api.get(f"{URL}?limit=2&echo=yes&include_claimed=off&unknown=1", 200).json["links"]
    assert link["rel"] == "next"
    assert link["href"].startswith(f"{URL}?")
    assert not set("{}") & set(link["href"])
    query = query_of(link["href"])
    assert query.pop("marker")
    assert query.pop("include_claimed", "false") == "false"
    assert query == {"limit": "2", "echo": "true", "include_delayed": "true"}


@every_row(
    "marker",
    ["xyz", "-1", "1.5", "1e3", "%00", "%FF", "9" * 30, "9" * 5000, "0x10", "%20", "{0}", "1_0", "%C2%B2", "%D9%A3"],
)
def test_a_marker_that_was_never_given_shows_nothing(api: Api, marker: str) -> None:
    """7.3 [T]: The server answers 200 and an empty page, never an error."""
    api.send("jobs", *range(12))
    assert api.get(f"{URL}?echo=true&marker={marker}", 200).json == {"messages": [], "links": []}


def test_an_age_is_whole_seconds_rounded_down(api: Api, clock: ManualClock) -> None:
    """1.7 [T]: The age counts from creation; the ttl stays as posted."""
    api.send("jobs", 1, ttl=100)
    for step, age in ((0, 0), (0.999, 0), (0.001, 1), (41.5, 42)):
        clock.advance(step)
        [message] = api.get(f"{URL}?echo=true", 200).json["messages"]
        assert (message["age"], message["ttl"]) == (age, 100)


@pytest.mark.parametrize("headers", [{"Client-ID": None}, {"Client-ID": "textid"}])
def test_a_listing_needs_a_client(door: Api, headers: dict[str, str | None]) -> None:
    door.get(URL, 400, headers)
