# SPDX-License-Identifier: Apache-2.0
"""The order of checks if a request has several errors (contract 1.2), and the existing routes (1.1)."""

import re
from itertools import combinations

import pytest

from tests.http.api import Api
from tests.tables import every_row

pytestmark = pytest.mark.one_store

METHODS = {
    "/v2/ping": {"GET", "HEAD"},
    "/v2/queues": {"GET"},
    "/v2/queues/q": {"GET", "PUT", "PATCH", "DELETE"},
    "/v2/queues/q/stats": {"GET"},
    "/v2/queues/q/purge": {"POST"},
    "/v2/queues/q/messages": {"GET", "POST", "DELETE"},
    "/v2/queues/q/messages/m": {"GET", "DELETE"},
    "/v2/claims": {"GET"},
    "/v2/subscriptions": {"GET"},
    "/v2/queues/q/claims": {"GET", "POST"},
    "/v2/queues/q/claims/c": {"GET", "PATCH", "DELETE", "PUT"},
    "/v2/queues/q/claims/c/settle": {"POST"},
    "/v2/queues/q/redrive": {"POST"},
    "/v2/queues/q/history": {"GET"},
    "/v2/queues/q/history/replay": {"POST"},
    "/v2/fences": {"GET"},
    "/v2/fences/n": {"POST"},
    "/v2/stages": {"GET"},
    "/v2/stages/n": {"DELETE"},
    "/v2/commits": {"GET", "POST"},
    "/v2/commits/p": {"GET"},
    "/v2/limits": {"GET"},
    "/v2/topics": {"GET"},
    "/v2/topics/t": {"GET", "PUT", "PATCH", "DELETE"},
    "/v2/topics/t/stats": {"GET"},
    "/v2/topics/t/purge": {"POST"},
    "/v2/topics/t/messages": {"GET", "POST"},
    "/v2/topics/t/messages/m": {"GET"},
    "/v2/topics/t/stream": {"GET"},
    "/v2/stream": {"GET"},
}
"""The methods of each path: 1.1, 13, and extensions 3, 4, 5, 8, 9 (including PUT of a claim), 10."""
ALL = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}
LACKING = [(path, method) for path, methods in METHODS.items() for method in sorted(ALL - methods)]
NOTHING = {"Client-ID": None, "X-Project-ID": None}

FAULTS = [
    # in the order of 1.2: the kind of error, the request's headers, status, title
    ("route", {}, 404, "404 Not Found"),
    ("signature", {"URL-Signature": "feed"}, 404, "404 Not Found"),
    ("form", {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": "2"}, 400, "Invalid Content-Type"),
    ("accept", {"Accept": "text/plain"}, 406, None),
    ("client", {"Client-ID": "textid"}, 400, "Wrong UUID value"),
    ("project", {"X-Project-ID": None}, 400, "Project-Id Missing"),
    ("name", {}, 400, "Invalid queue identification"),
    ("extra", {"EXTRA-SPEC": "nosuch:1"}, 400, "Invalid header value"),
    ("method", {}, 405, "405 Method Not Allowed"),
    ("policy", {"X-Roles": "stranger"}, 403, "Not authorized"),
    ("query", {}, 400, "Invalid API request"),
    ("body", {}, 400, "Invalid request body"),
]
PAIRS = [(first, second) for first, second in combinations(FAULTS, 2) if (first[0], second[0]) != ("query", "body")]


@pytest.fixture
def guarded(gate) -> Api:
    """Return a server that denies the role stranger, on a store that must not be accessed."""
    return gate(policy=lambda _rule, identity: "stranger" not in identity.roles, trusts_network=True)


@every_row("pair", [*PAIRS, *((fault,) for fault in FAULTS)], ids=lambda pair: "-".join(f[0] for f in pair))
def test_the_outer_check_wins(
    guarded: Api, pair: tuple[tuple[str, dict[str, str | None], int, str | None], ...]
) -> None:
    """1.2: If a request has two errors, the server reports the one that precedes in the table."""
    kinds = {fault[0] for fault in pair}
    headers = {name: value for fault in pair for name, value in fault[1].items()}
    path = f"/v2/queues/{'Nice-Bo@t' if 'name' in kinds else 'q'}/claims{'/x/y' if 'route' in kinds else ''}"
    query = "?limit=0" if "query" in kinds else ""
    method = "PUT" if "method" in kinds else "POST"
    answer = guarded.call(method, path + query, pair[0][2], b"[}" if "body" in kinds else b"{}", headers)
    assert pair[0][3] is None or answer.json["title"] == pair[0][3]


@every_row(("path", "method"), LACKING)
def test_a_method_that_a_path_lacks_is_405_and_says_what_it_has(door: Api, path: str, method: str) -> None:
    """1.1: HEAD is not derived from GET; Allow names the methods of 1.1."""
    answer = door.call(method, path, 405)
    allowed = {name.strip() for name in answer.headers["Allow"].split(",")}
    assert allowed - {"OPTIONS"} == METHODS[path]
    assert method == "HEAD" or answer.json["title"] == "405 Method Not Allowed"


@every_row("path", METHODS)
def test_a_missing_header_is_reported_before_a_missing_method(door: Api, path: str) -> None:
    """1.1, 1.2: The server checks headers first."""
    assert "Allow" not in door.put(path, 400, headers={"Client-ID": None}).headers
    assert "Allow" not in door.put(path, 400, headers={"X-Project-ID": None}).headers


@every_row("path", METHODS)
def test_options_lists_the_methods(door: Api, path: str) -> None:
    """1.1 [C]: A known path answers 200 with Allow."""
    allowed = {name.strip() for name in door.call("OPTIONS", path, 200).headers["Allow"].split(",")}
    assert allowed - {"OPTIONS"} == METHODS[path]


@every_row(
    "path",
    [
        "/v2",
        "/v2/ping/",
        "/v2/queues/q/",
        "/v2/queues/q/stats/",
        "/v2/queues/q/claims/c/",
        "/v2/queues/q/metadata",
        "/v2/nowhere",
        "/v1/queues",
        "/v1.1/queues/q",
        "/v3/",
        "/v2//queues",
        "/V2/queues",
    ],
)
def test_an_unknown_path_is_404_and_says_where_the_paths_are(door: Api, path: str) -> None:
    """1.1 [C]: A trailing slash is an unknown path, and headers are not checked.

    The error names the document (0046).
    """
    answer = door.get(f"http://localhost{path}", 404, {**NOTHING, "Accept": "text/plain"}).json
    assert answer["title"] == "404 Not Found"
    assert "/v2/openapi.json" in answer["description"]


def test_a_refused_signature_is_404_and_nothing_more(door: Api) -> None:
    """10.3: A client that guesses signatures learns nothing."""
    assert door.get("/v2/queues/q", 404, {"URL-Signature": "feed"}).json == {"title": "404 Not Found"}


@pytest.mark.parametrize("missing", ["Client-ID", "X-Project-ID"])
@pytest.mark.parametrize("path", ["/v2/ping", "/v2/queues"])
def test_a_missing_header_is_refused_with_headers_that_work(api: Api, path: str, missing: str) -> None:
    """A newcomer's first request has neither header, so the error quotes both as curl arguments."""
    description = api.get(path, 400, {missing: None}).json["description"]
    assert description.startswith(f"The header {missing} is missing. ")
    sent = dict(re.findall(r"-H '([^:]+): ([^']+)'", description))
    assert set(sent) == {"Client-ID", "X-Project-ID"}
    assert api.call("GET", path, 204 if path == "/v2/ping" else 200, headers=sent)


@every_row("path", ["/v2/queues/", "/v2/queues//messages", "/v2/queues//claims/c", "/v2/queues//stats"])
@every_row("method", sorted(ALL - {"HEAD"}))
def test_an_empty_queue_name_is_no_name(door: Api, path: str, method: str) -> None:
    """1.1: The item route matches with an empty name, which is refused before the method is checked."""
    assert door.call(method, path, 400).json["title"] == "Invalid queue identification"


def test_an_empty_id_names_nothing(api: Api) -> None:
    """1.7: A malformed id is not found, never an error."""
    api.get("/v2/queues/q/messages/", 404)
    api.get("/v2/queues/q/claims/", 404)
    api.delete("/v2/queues/q/messages/", 204)
    api.delete("/v2/queues/q/claims/", 204)


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "BREW", "get", "LOCK"])
def test_an_unknown_method_is_refused(door: Api, method: str) -> None:
    """1.1: A method that HTTP or this service does not have is a client's error."""
    assert door.unchecked().call(method, "/v2/queues/q", None).status_int in (400, 405)


@every_row("name", ["Nice-Bo@t", "x" * 81, "a b", "caf%C3%A9", "a%0A", "%0A", "a%00", "%E6%B8%AC"])
def test_a_bad_queue_name_is_refused_on_every_route(door: Api, name: str) -> None:
    """1.7 [T]: Every sub-resource and method answers 400 before any other check."""
    routes = [(path, method) for path in METHODS if "queues/q" in path for method in METHODS[path]]
    assert len(routes) == 21
    for path, method in routes:
        refused = door.call(method, path.replace("queues/q", f"queues/{name}"), 400).json
        assert refused["title"] == "Invalid queue identification"
        assert "64" in refused["description"]


@pytest.mark.parametrize("name", ["x", "x" * 64, "1234567890", "a.b-c_D", "-", "_", ".x", "UPPER"])
def test_a_good_queue_name_is_taken_as_it_is(api: Api, name: str) -> None:
    """1.7: A name has 1 to 64 characters, which include dots and digits."""
    assert api.put(f"/v2/queues/{name}", 201).headers["Location"] == f"/v2/queues/{name}"
    assert api.queues() == [name]


def test_queue_names_are_case_sensitive(api: Api) -> None:
    """1.7: Names that differ in case denote different queues."""
    api.put("/v2/queues/jobs", 201)
    api.put("/v2/queues/Jobs", 201)
    assert api.queues() == ["Jobs", "jobs"]
