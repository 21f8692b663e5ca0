# SPDX-License-Identifier: Apache-2.0
"""Listings of queues, and of topics where both behave alike: pages, filters, counts (contract 1.5, 1.9, 6.2, 13)."""

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.http.api import Api, Kind, query_of
from tests.tables import every_row
from zq.core import resources

URL = "/v2/queues"


def names(api: Api, query: str = "limit=20", word: str = "queue") -> list[str]:
    """Return the names on a page."""
    return [thing["name"] for thing in api.get(f"/v2/{word}s?{query}", 200).json[f"{word}s"]]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent the time limit from ending a page early on a slow machine."""
    monkeypatch.setattr(resources, "MAX_WALK_SECONDS", 60.0)


@pytest.fixture
def ten(api: Api) -> Api:
    """Return a client of a project with queues q0 to q9."""
    for number in range(10):
        api.put(f"{URL}/q{number}", 201, {"node": f"n{number % 2}", "number": number})
    return api


@pytest.fixture
def several(api: Api, kind: Kind) -> Api:
    """Return a client of a project with q0 to q4 of the kind."""
    for number in range(5):
        api.put(f"{kind.path}/q{number}", 201, {"node": f"n{number % 2}", "number": number})
    return api


def test_a_project_without_queues_has_an_empty_listing(api: Api, kind: Kind) -> None:
    """6.2 [T]: The server answers 200 with both lists empty, not 204, and omits a count of zero."""
    empty = {f"{kind.word}s": [], "links": []}
    assert api.get(kind.path, 200).json == empty
    assert api.get(f"{kind.path}?with_count=true&detailed=true", 200).json == empty


def test_an_entry_has_a_name_and_an_href_only(several: Api, kind: Kind) -> None:
    """6.2: Only a detailed listing has metadata."""
    entry = {"name": "q0", "href": f"{kind.path}/q0"}
    for query in ("limit=1", "limit=1&detailed=false"):
        assert several.get(f"{kind.path}?{query}", 200).json[f"{kind.word}s"] == [entry]


def test_a_detailed_entry_shows_what_the_queue_shows(several: Api, kind: Kind) -> None:
    """6.2 [T]: The metadata equal those of GET on the queue, including reserved keys."""
    several.put(f"{kind.path}/bare", 201)
    entries = several.get(f"{kind.path}?detailed=true&limit=20", 200).json[f"{kind.word}s"]
    for entry in entries:
        assert entry.keys() == {"name", "href", "metadata"}
        assert entry["metadata"] == several.get(entry["href"], 200).json
    assert entries[0]["metadata"] == kind.shown


def test_names_come_in_byte_order(api: Api, kind: Kind) -> None:
    """1.9: Names are in ascending order of bytes, not in alphabetical order."""
    shuffled = ["b", "B", "a", "aa", "_", "-", ".", "0", "9", "10", "Z", "z", "a.b", "a-b", "a_b"]
    for name in shuffled:
        api.put(f"{kind.path}/{name}", 201)
    assert api.names(kind) == sorted(shuffled, key=str.encode)


@pytest.mark.parametrize(("limit", "sizes"), [("2", [2, 2, 1, 0]), ("5", [5, 0])])
def test_links_of_either_kind_lead_on(several: Api, kind: Kind, limit: str, sizes: list[int]) -> None:
    """1.9 [T]: Even the last full page has a next link; every queue or topic occurs once."""
    pages = several.pages(f"{kind.path}?limit={limit}", f"{kind.word}s")
    assert [len(page) for page in pages] == sizes
    assert [thing["name"] for page in pages for thing in page] == [f"q{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [("3", [3, 3, 3, 1, 0]), ("5", [5, 5, 0]), ("20", [10, 0]), ("", [10, 0]), ("1", [1] * 10 + [0])],
)
def test_following_the_links_ends_with_an_empty_page(ten: Api, limit: str, sizes: list[int]) -> None:
    """1.9 [T]: Even the last full page has a next link; every queue occurs once."""
    pages = ten.pages(f"{URL}?limit={limit}", "queues")
    assert [len(page) for page in pages] == sizes
    assert [queue["name"] for page in pages for queue in page] == [f"q{number}" for number in range(10)]


def test_a_page_has_ten_queues_by_default(compose) -> None:
    """1.9: The default is fixed and the maximum is an option."""
    api = compose(max_queues_per_page=12)
    for number in range(13):
        api.put(f"{URL}/q{number:02}", 201)
    assert len(names(api, "")) == 10
    assert len(names(api, "limit=12")) == 12
    assert "12" in api.get(f"{URL}?limit=13", 400).json["description"]


@every_row("limit", ["0", "-1", "21", "-9223372036854775808", "1000000", "9" * 30, "9" * 5000])
def test_a_limit_out_of_range_is_refused(door: Api, limit: str, kind: Kind) -> None:
    """1.9 [T]: The limits are 1 to 20."""
    refused = door.get(f"{kind.path}?limit={limit}", 400).json
    assert "limit" in refused["description"]
    assert "20" in refused["description"] or refused["title"] == "Invalid parameter"


@every_row("limit", ["abc", "%20", "1.0", "1e1", "0x1", "1_0", "--1", "+", "1%202", "null", "%00", "%FF", "1%0A2"])
def test_a_limit_that_is_no_integer_is_refused(door: Api, limit: str, kind: Kind) -> None:
    """1.5 [T]: The server answers 400 with title Invalid parameter."""
    refused = door.get(f"{kind.path}?limit={limit}", 400).json
    assert refused["title"] == "Invalid parameter"
    assert "limit" in refused["description"]


@every_row(
    "query",
    ["limit=%2B2", "limit=%202%20", "limit=02", "limit=5&limit=2", "limit=7,2", "limit=9,7&limit=2", "limit=2,"],
)
def test_an_integer_may_have_a_sign_and_blanks_and_the_last_one_wins(ten: Api, query: str) -> None:
    """1.5: This holds for scalar parameters."""
    assert names(ten, query) == ["q0", "q1"]


@every_row(
    "query", ["limit=", "limit=,", "detailed=,,", "name=,", "marker=,&limit=", "with_count=,", "with_count=&name="]
)
def test_a_blank_value_counts_as_absent(ten: Api, query: str) -> None:
    """1.5: Lists of only commas count as absent too."""
    assert ten.get(f"{URL}?{query}", 200).json["queues"] == ten.get(URL, 200).json["queues"]


@every_row("truth", ["true", "True", "t", "yes", "y", "1", "on"])
def test_every_spelling_of_true_is_understood(ten: Api, truth: str) -> None:
    """1.5: The contract lists the words; the link says true."""
    page = ten.get(f"{URL}?limit=1&detailed={truth}", 200).json
    assert "metadata" in page["queues"][0]
    assert query_of(page["links"][0]["href"])["detailed"] == "true"


@every_row("falsehood", ["false", "False", "f", "no", "n", "0", "off", ""])
def test_every_spelling_of_false_is_understood(ten: Api, falsehood: str) -> None:
    """1.5: The contract lists the words; a blank value counts as absent."""
    page = ten.get(f"{URL}?limit=1&detailed={falsehood}", 200).json
    assert "metadata" not in page["queues"][0]
    assert query_of(page["links"][0]["href"]).get("detailed", "false") == "false"


@every_row("word", ["None", "TRUE", "FALSE", "Yes", "2", "-1", "%20", "null", "truefalse"])
@every_row("name", ["detailed", "with_count"])
def test_any_other_word_is_no_boolean(door: Api, name: str, word: str) -> None:
    """1.5 [T]: The server answers 400 with title Invalid parameter."""
    refused = door.get(f"{URL}?{name}={word}", 400).json
    assert refused["title"] == "Invalid parameter"
    assert name in refused["description"]


def test_the_link_repeats_what_was_asked(ten: Api) -> None:
    """6.2, 1.9: The link has limit, detailed, name, with_count and the new marker; it omits metadata filters."""
    asked = f"{URL}?limit=2&detailed=true&name=q&with_count=yes&number=1&marker=q0"
    [link] = ten.get(asked, 200).json["links"]
    assert link["rel"] == "next"
    assert link["href"].startswith(f"{URL}?")
    expected = {"limit": "2", "detailed": "true", "name": "q", "with_count": "true", "marker": "q1"}
    assert query_of(link["href"]) == expected


def test_a_link_is_url_encoded(api: Api) -> None:
    """1.9: The client calls str.format on the link, so it contains no brace; the parameters stay intact."""
    api.put(f"{URL}/a", 201)
    nasty = "{}&=?#% é"
    assert names(api, f"name={quote(nasty)}") == []
    href = api.get(f"{URL}?limit=1&name=a&x%7By%7D=", 200).json["links"][0]["href"]
    assert not set("{} \"'<>") & set(href)


@pytest.mark.parametrize(
    ("marker", "first"),
    [("q0", "q1"), ("q", "q0"), ("q00", "q1"), ("Q", "q0"), ("%00", "q0"), ("", "q0"), ("%C3%A9", None), ("z", None)],
)
def test_a_marker_is_any_text_before_the_next_name(ten: Api, marker: str, first: str | None) -> None:
    """6.2: The page has names greater than the marker; after the last name it is empty."""
    assert names(ten, f"marker={marker}")[:1] == ([first] if first else [])


def test_only_the_callers_project_is_listed_of_either_kind(several: Api, kind: Kind) -> None:
    other = several.tenant(project="acme2")
    other.put(f"{kind.path}/theirs", 201)
    assert other.names(kind) == ["theirs"]
    assert "theirs" not in several.names(kind)


def test_only_the_callers_project_is_listed_and_counted(ten: Api) -> None:
    other = ten.tenant(project="acme2")
    other.put(f"{URL}/theirs", 201)
    assert other.get(f"{URL}?with_count=true", 200).json["count"] == 1
    assert names(other) == ["theirs"]
    assert "theirs" not in names(ten)


@pytest.mark.parametrize("query", ["", "&limit=1", "&name=nothing", "&marker=q8", "&number=3"])
def test_the_count_ignores_filters_and_pages(ten: Api, query: str) -> None:
    """6.2: The count is the number of queues in the project, and absent without with_count."""
    assert ten.get(f"{URL}?with_count=true{query}", 200).json["count"] == 10
    assert "count" not in ten.get(f"{URL}?with_count=false{query}", 200).json
    assert "count" not in ten.get(f"{URL}?{query}", 200).json


@every_row(
    ("text", "found"),
    [
        ("q1", ["q1"]),
        ("1", ["a1", "q1"]),
        ("Q", []),
        (".", ["x.y"]),
        (".*", []),
        ("(", []),
        ("[", []),
        ("q1,x", ["x.y"]),
        ("", ["a1", "q1", "q2", "x.y"]),
    ],
)
def test_a_name_filter_is_plain_text(api: Api, text: str, found: list[str], kind: Kind) -> None:
    """6.2 [Q]: The text may occur anywhere, case-sensitive, and is not a regular expression.

    The last filter applies.
    """
    api = api.fresh()
    for name in ("a1", "q1", "q2", "x.y"):
        api.put(f"{kind.path}/{name}", 201)
    assert names(api, f"name={quote(text, safe=',')}", kind.word) == found


@every_row(
    ("query", "found"),
    [("node=n1", ["q1", "q3"]), ("node=n0&number=2", ["q2"]), ("number=%2B1", ["q1"]), ("name=4&node=n0", ["q4"])],
)
def test_metadata_filter_either_kind(several: Api, kind: Kind, query: str, found: list[str]) -> None:
    """6.2 [T]: Integers are compared as integers and other values as strings; filters combine with AND."""
    assert names(several, query, kind.word) == found


def test_filters_apply_before_the_page_is_cut(api: Api) -> None:
    """6.2: A page is full once enough queues match, however many others are in between."""
    for number in range(45):
        api.put(
            f"{URL}/{'x' if number % 15 == 14 else 'q'}{number:02}", 201, {"match": number % 15 == 13, "n": number % 15}
        )
    assert names(api, "name=x&limit=3") == ["x14", "x29", "x44"]
    assert names(api, "n=13&limit=3") == ["q13", "q28", "q43"]
    assert [len(page) for page in api.pages(f"{URL}?name=x&limit=1", "queues")] == [1, 1, 1, 0]


def test_a_filtered_listing_walks_a_bounded_way(compose: Any, kind: Kind) -> None:
    """S7: A page ends after max_metadata_walk names, short or empty; its link keeps the filters."""
    api = compose(max_metadata_walk=4)
    for number in range(11):
        api.put(f"{kind.path}/q{number:02}", 201, {"last": "yes" if number in (1, 10) else "no"})
    path, pages = f"{kind.path}?last=yes&limit=5&detailed=true", []
    while path:
        page = api.get(path, 200).json
        pages.append([thing["name"] for thing in page[f"{kind.word}s"]])
        path = page["links"][0]["href"] if page["links"] else ""
    assert pages == [["q01"], [], ["q10"]] or pages == [["q01"], [], ["q10"], []]
    by_name = f"{kind.path}?name=0&limit=20"
    assert len(api.get(by_name, 200).json[f"{kind.word}s"]) == 4


def test_a_filtered_listing_decodes_a_bounded_number_of_bytes(api: Api) -> None:
    """S7: Large metadata end a page early too."""
    for number in range(30):
        api.put(f"{URL}/q{number:02}", 201, {"x": "y" * 50_000})
    page = api.get(f"{URL}?nothere=1", 200).json
    assert page["queues"] == []
    assert "marker=q2" in page["links"][0]["href"]


FILTERED: dict[str, dict[str, Any]] = {
    "a": {"node": "n1", "n": 1, "s": "1", "b": True, "x": None},
    "b": {"node": "n1", "n": 2, "s": "2", "b": 1, "x": "None"},
    "c": {"node": "n2", "n": -3, "s": "text", "l": ["n1"], "o": {"n": 1}},
    "d": {"é ü": "ß", "t": "true", "_default_message_ttl": 3600},
}


@every_row(
    ("query", "found"),
    [
        ("node=n1", "ab"),
        ("node=n1&n=2", "b"),
        ("node=n1&node2=", "ab"),
        ("node=n2&n=1", ""),
        ("n=1", "a"),
        ("n=%2B1", "a"),
        ("n=-3", "c"),
        ("s=1", ""),
        ("s=text", "c"),
        ("b=1", "b"),
        ("b=True", ""),
        ("b=true", ""),
        ("x=None", "b"),
        ("x=null", ""),
        ("l=n1", ""),
        ("o=1", ""),
        ("t=true", "d"),
        ("missing=1", ""),
        ("_default_message_ttl=3600", "d"),
        ("_enable_encrypt_messages=false", ""),
        ("%C3%A9%20%C3%BC=%C3%9F", "d"),
        ("name=a&node=n1", "a"),
        ("n=99999999999999999999999999", ""),
    ],
)
def test_any_other_parameter_filters_by_stored_metadata(api: Api, query: str, found: str) -> None:
    """6.2 [T]: Integers are compared as integers and other values as strings; filters combine with AND."""
    api = api.fresh()
    for name, metadata in FILTERED.items():
        api.put(f"{URL}/{name}", 201, json.dumps(metadata).encode())
    assert names(api, query) == list(found)


@every_row("query", ["node=n1,n2", "node=n1&node=n2", "node=n1,n1", "n=1&n=1"])
def test_a_metadata_filter_has_one_value(door: Api, query: str, kind: Kind) -> None:
    """6.2 [Q]: Repeated or comma-separated values get 400 instead of a crash."""
    refused = door.get(f"{kind.path}?{query}", 400).json
    assert query.split("=")[0] in refused["description"]
