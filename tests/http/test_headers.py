# SPDX-License-Identifier: Apache-2.0
"""Rules for request headers (contract 1.3) and for headers of every response (1.4)."""

import pytest

from tests.http.api import CLIENT, OTHER_CLIENT, Api
from tests.tables import every_row

pytestmark = pytest.mark.one_store

PING = "/v2/ping"
UNDASHED = CLIENT.replace("-", "")
SAME_CLIENT = [UNDASHED, CLIENT.upper(), f"urn:uuid:{CLIENT}", f"{{{CLIENT}}}"]
NOT_A_UUID = [
    "0xdeadbeef",
    "textid",
    UNDASHED[:31],
    UNDASHED + "0",
    UNDASHED[:31] + "g",
    "0x" + UNDASHED[:30],
    "+" + UNDASHED[:31],
    UNDASHED[:15] + "_" + UNDASHED[:16],
    UNDASHED[:15] + " " + UNDASHED[:16],
    "\xb2" * 32,
    "x" * 5000,
]
PROJECT_ROUTES = [
    *("/v2/", PING, "/v2/limits", "/v2/queues", "/v2/topics", "/v2/stream", "/v2/commits/p", "/v2/fences/f"),
    *("/v2/queues/q", "/v2/queues/q/messages", "/v2/topics/t/messages", "/v2/topics/t/stream", "/v2/stages/s"),
]
EVERY_ROUTE = ["/v2/", PING, "/v2/queues", "/v2/queues/q", "/v2/queues/q/claims/c"]


@pytest.fixture
def lenient(compose) -> Api:
    """Return a client of a server with ``client_id_uuid_safe = off``."""
    return compose(app={"strict_client_id": False})


@pytest.mark.parametrize("path", EVERY_ROUTE)
def test_a_client_id_is_needed(door: Api, path: str) -> None:
    """1.3: Every route except / requires Client-ID, even for a method that does not exist."""
    for method in ("GET", "PATCH", "HEAD"):
        refused = door.call(method, path, 400, headers={"Client-ID": None})
        assert method == "HEAD" or refused.json["title"] == "Missing header value"


@every_row("value", NOT_A_UUID)
def test_a_strict_server_wants_a_uuid(door: Api, value: str) -> None:
    """1.3 [T]: The id must have exactly 32 hex digits after removal of urn:, uuid:, braces and hyphens."""
    refused = door.get(PING, 400, {"Client-ID": value}).json
    assert refused["title"] == "Wrong UUID value"
    assert "Client-ID" in refused["description"]


def test_an_empty_client_id_is_refused(door: Api) -> None:
    """1.3 [T]: The empty string is not a client id."""
    assert door.get(PING, 400, {"Client-ID": ""}).json["title"] in ("Wrong UUID value", "Missing header value")


@pytest.mark.parametrize("form", SAME_CLIENT)
def test_every_form_of_a_uuid_names_the_same_client(api: Api, form: str) -> None:
    """1.3: The messages posted under one form are hidden from a reader that uses another form."""
    same = api.tenant(client=form)
    api.send("jobs", "dashed")
    same.send("jobs", "other form")
    assert api.seen("jobs", "") == same.seen("jobs", "") == []
    assert api.tenant(client=OTHER_CLIENT).seen("jobs", "") == ["dashed", "other form"]


@pytest.mark.parametrize(("length", "status"), [(9, 400), (10, 200), (35, 200), (36, 200), (37, 400)])
def test_a_lenient_server_judges_a_client_id_by_its_length(lenient: Api, length: int, status: int) -> None:
    """1.3 [T]: With client_id_uuid_safe = off, an id may have 10 to 36 characters."""
    answer = lenient.get("/v2/queues/jobs", status, {"Client-ID": "x" * length})
    if status == 400:
        assert answer.json["title"] == "Wrong UUID value"
        assert "10" in answer.json["description"]
        assert "36" in answer.json["description"]


def test_a_lenient_server_compares_client_ids_as_text(lenient: Api) -> None:
    """1.3 [Q]: Posting and listing accept ids that are not UUIDs, and echo distinguishes them."""
    lenient.tenant(client="producer-1").send("jobs", "first")
    assert lenient.tenant(client="producer-1").seen("jobs", "") == []
    assert lenient.tenant(client="producer-2").seen("jobs", "") == ["first"]


@pytest.mark.parametrize("path", EVERY_ROUTE)
def test_a_project_is_needed(door: Api, path: str) -> None:
    """1.3 [T]: An absent and an empty header get different errors."""
    assert door.get(path, 400, {"X-Project-ID": None}).json["title"] == "Project-Id Missing"
    assert door.get(path, 400, {"X-Project-ID": ""}).json["title"] == "Empty project header not allowed"


def test_a_project_id_has_at_most_256_characters(api: Api) -> None:
    """1.3 [T]: The length is checked wherever the request names a queue."""
    api.put("/v2/queues/jobs", 201, headers={"X-Project-ID": "p" * 256})
    for path in ("", "/stats", "/messages", "/claims/c"):
        refused = api.get("/v2/queues/jobs" + path, 400, {"X-Project-ID": "p" * 257}).json
        assert refused["title"] == "Invalid queue identification"
        assert "256" in refused["description"]
    refused = api.get("/v2/topics/jobs", 400, {"X-Project-ID": "p" * 257}).json
    assert refused["title"] == "Invalid topic identification"


BAD_PROJECTS = ["p" * 257, "\xe9", "a\tb", "a\x7f", "a\\b", " ", "a ", " a", "a,b", "a, b"]


@every_row("project", BAD_PROJECTS)
@every_row("name", ["X-Project-ID", "X-Tenant-Id", "X-Tenant"])
def test_a_project_id_is_printable_without_commas_backslashes_and_outer_blanks(
    door: Api, project: str, name: str
) -> None:
    """Tenancy 1, S14: Every route with a project checks the id before it accesses the store."""
    for path in PROJECT_ROUTES:
        refused = door.unchecked().get(path, 400, {"X-Project-ID": None, name: project}).json
        assert "must be" in refused["description"]


def test_a_project_header_that_was_given_twice_arrives_with_a_comma(door: Api) -> None:
    """Tenancy 1: The error says so for every header that can name the project."""
    refused = door.get("/v2/queues", 400, {"X-Project-ID": "a,b"}).json
    assert refused == {"title": "Invalid header value", "description": "X-Project-ID must be given once."}


@pytest.mark.parametrize("tenant", ["X-Tenant-Id", "X-Tenant"])
def test_two_headers_of_the_project_must_agree(api: Api, tenant: str) -> None:
    """S1: A client cannot bypass a proxy that sets only the older header."""
    for value in ("other", ""):
        refused = api.get("/v2/queues", 400, {tenant: value}).json
        assert refused["title"] == "Invalid header value"
        assert "must not differ" in refused["description"]
    api.get("/v2/queues", 200, {tenant: api.project})


@every_row("project", ["a project", "../..", "a/b", "%00", "{x}", "a:b", "*", "'\"$"])
def test_a_project_id_may_hold_blanks_and_signs(api: Api, project: str) -> None:
    """1.3 [T], L8: No such id reaches another project."""
    api = api.fresh()
    api.put("/v2/queues/ours", 201)
    tenant = api.tenant(project=project)
    tenant.put("/v2/queues/jobs", 201)
    assert tenant.queues() == ["jobs"]
    assert api.queues() == ["ours"]


def test_older_names_of_the_project_header_are_read(api: Api, project_suffix: str) -> None:
    """1.3 [C]: The server reads them if X-Project-ID is absent."""
    names = {"a": "X-Project-ID", "b": "X-Tenant-Id", "c": "X-Tenant"}
    for queue, header in names.items():
        api.put(f"/v2/queues/{queue}", 201, headers={"X-Project-ID": None, header: f"of-{queue}{project_suffix}"})
    assert [api.tenant(project=f"of-{queue}").queues() for queue in names] == [["a"], ["b"], ["c"]]


@every_row(
    "accept",
    [
        None,
        "",
        "*/*",
        "application/*",
        "application/json",
        "APPLICATION/JSON",
        "application/json;q=0.001",
        "application/json; charset=utf-8",
        "text/html, application/json",
        "text/html;q=1.0, */*;q=0.1",
    ],
)
def test_an_accept_that_includes_json_is_fine(api: Api, accept: str | None) -> None:
    """1.3 [T]: An absent or empty header accepts any type."""
    api.get("/v2/queues", 200, {"Accept": accept})


@every_row(
    "accept",
    [
        "text/plain",
        "text/*",
        "application/xml",
        "application/json-home",
        "application/json;q=0",
        "application/json; q=0.000",
        "*/*;q=0",
        "application/json;q=0, */*",
        "foo",
        "application/json;q=2;;=, ",
        ";",
        "\xe9",
    ],
)
def test_any_other_accept_is_not_acceptable(door: Api, accept: str) -> None:
    """1.3 [T]: JSON with q = 0 and other types get 406; malformed values get 406 or 400."""
    answer = door.get("/v2/queues", None, {"Accept": accept})
    assert answer.status_int in ((406,) if "/" in accept and ";;" not in accept else (400, 406))


@every_row(
    ("content_type", "length", "status"),
    [
        ("application/x-www-form-urlencoded", "0", 400),
        ("Application/X-WWW-Form-URLencoded", "0", 400),
        ("application/x-www-form-urlencoded", None, 200),
        ("application/x-www-form-urlencoded; charset=utf-8", "0", 200),
        ("text/plain", "0", 200),
        ("nonsense", "0", 200),
        ("", "0", 200),
    ],
)
def test_a_form_is_refused_only_when_it_has_a_length(api: Api, content_type: str, length: str, status: int) -> None:
    """1.3 [T]: Only the exact form type with Content-Length, even 0, is refused; the server ignores other values."""
    answer = api.get("/v2/queues", status, {"Content-Type": content_type, "Content-Length": length})
    assert status == 200 or answer.json["title"] == "Invalid Content-Type"


def test_json_is_read_whatever_the_content_type_says(api: Api) -> None:
    """1.3: The server ignores Content-Type on routes that read a body."""
    for kind in (None, "text/plain", "application/x-www-form-urlencoded; x=y"):
        api.post("/v2/queues/jobs/messages", 201, {"messages": [{"body": 1}]}, {"Content-Type": kind})


@every_row("length", ["abc", "-1", "1.5", "0x10", "9" * 5000, "1_0"])
def test_a_content_length_is_a_number(door: Api, length: str) -> None:
    """1.3: Any other value gets 400."""
    refused = door.unchecked(CONTENT_LENGTH=length).post("/v2/queues/jobs/claims", 400)
    assert "description" in refused.json


@pytest.mark.parametrize("value", ["messagecode:123456", "messagecode:"])
def test_the_built_in_extra_spec_does_nothing(api: Api, value: str) -> None:
    """1.3: The server knows messagecode."""
    api.get("/v2/queues", 200, {"EXTRA-SPEC": value})


@pytest.mark.parametrize("value", ["nosuch:1", "nosuch", ":", "\xff:1", "messagecodes:1"])
def test_an_unknown_extra_spec_is_refused(door: Api, value: str) -> None:
    """1.3 [Q]: The server answers 400 instead of crashing."""
    refused = door.get("/v2/queues", 400, {"EXTRA-SPEC": value}).json
    assert refused["title"] == "Invalid header value"
    assert "EXTRA-SPEC" in refused["description"].upper()


def test_an_empty_url_signature_opens_nothing(door: Api) -> None:
    """1.3, 10.3: The server verifies any signature that is present; none is valid here."""
    door.get("/v2/queues", 404, {"URL-Signature": ""})
    door.get("/v2/queues", 404, {"URL-Signature": "", "Client-ID": None})


def test_every_answer_has_its_own_request_id(api: Api) -> None:
    """1.4: The server never returns the caller's id, and no id occurs twice."""
    mine = "req-11111111-1111-4111-8111-111111111111"
    paths = [("/", 300), ("/nowhere", 404), ("/v2/queues", 200), ("/v2/queues/q", 200), ("/v2/queues?limit=0", 400)]
    answers = [api.get(path, status, {"X-OpenStack-Request-ID": mine}) for path, status in paths]
    assert len({answer.headers["X-OpenStack-Request-ID"] for answer in answers} | {mine}) == len(paths) + 1


def test_a_location_is_a_path_without_the_mount_prefix(api: Api) -> None:
    """1.4 [T]: A Location begins with /v2/; it has no scheme, host or script name."""
    mounted = api.mounted("/messaging")
    assert mounted.put("/v2/queues/jobs", 201).headers["Location"] == "/v2/queues/jobs"
    posted = mounted.post("/v2/queues/jobs/messages", 201, {"messages": [{"body": 1}]})
    assert posted.headers["Location"].startswith("/v2/queues/jobs/messages?ids=")
    assert posted.json["resources"][0].startswith("/v2/queues/jobs/messages/")
    claimed = mounted.post("/v2/queues/jobs/claims", 201, {})
    assert claimed.headers["Location"].startswith("/v2/queues/jobs/claims/")
    assert claimed.json["messages"][0]["href"].startswith("/v2/queues/jobs/messages/")
    assert mounted.get("/v2/queues", 200).json["links"][0]["href"].startswith("/v2/queues?")
