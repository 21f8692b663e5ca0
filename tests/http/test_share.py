# SPDX-License-Identifier: Apache-2.0
"""Pre-signed URLs over HTTP: the terms of a signature, and the requests that it allows and denies (contract 10)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.http.api import OTHER_CLIENT, Api
from tests.http.conftest import Compose
from tests.http.scoped import Scoped
from tests.tables import every_row
from zq.auth.signatures import derive_key, derive_signing_key, signature
from zq.clock import ManualClock
from zq.model import QueueRef
from zq.model.identity import Identity, SignedUrlOptions
from zq.storage.api import Storage

QUEUE = "/v2/queues/jobs"
SECRET, OTHER = "s" * 32, "t" * 32
DAY = 86400
OPTIONS = {"share": lambda: SignedUrlOptions(secret_key=SECRET)}


@pytest.fixture
def api(compose: Compose) -> Api:
    """Return a client of a server that signs URLs."""
    return compose(app=OPTIONS)


def share(api: Api, **terms: Any) -> dict[str, Any]:
    """Request a signature with these terms and return the response."""
    shared: dict[str, Any] = api.post(f"{QUEUE}/share", 200, terms).json
    return shared


def headers_of(shared: dict[str, Any], **changed: str | None) -> dict[str, str | None]:
    """Return the headers that a client sends with a signature."""
    return {
        "Client-ID": OTHER_CLIENT,
        "X-Project-ID": shared["project"],
        "URL-Signature": shared["signature"],
        "URL-Expires": shared["expires"],
        "URL-Methods": ",".join(shared["methods"]),
        "URL-Paths": ",".join(shared["paths"]),
    } | changed


def in_seconds(clock: ManualClock, seconds: float) -> str:
    """Return the time in ``seconds`` seconds in the format of a signature."""
    return (datetime.fromtimestamp(int(clock.now()), UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")


def test_what_is_shared_opens_the_queue_for_a_day(api: Api, clock: ManualClock) -> None:
    """10.1, 10.3: By default the signature allows GET of messages, in its project and on paths below."""
    location = api.post(f"{QUEUE}/messages", 201, {"messages": [{"body": 1}]}).json["resources"][0]
    shared = share(api)
    assert shared == {
        "paths": [f"{QUEUE}/messages"],
        "methods": ["GET"],
        "project": api.project,
        "expires": in_seconds(clock, DAY),
        "signature": shared["signature"],
    }
    key = derive_signing_key(SECRET, api.project, 0)
    assert shared["signature"] == signature(key, shared["paths"], ["GET"], api.project, shared["expires"])
    assert api.get(f"{QUEUE}/messages?echo=true", 200, headers=headers_of(shared)).json["messages"][0]["body"] == 1
    api.get(location, 200, headers=headers_of(shared))
    clock.advance(DAY + 1)
    api.get(location, 404, headers=headers_of(shared))


def test_paths_and_methods_are_sorted_and_named_once(api: Api) -> None:
    """10.1: Both lists are sorted; null and empty lists mean the default."""
    shared = share(api, paths=["messages", "claims", "messages"], methods=["POST", "GET"])
    assert (shared["paths"], shared["methods"]) == ([f"{QUEUE}/claims", f"{QUEUE}/messages"], ["GET", "POST"])
    assert share(api, paths=[], methods=None)["paths"] == [f"{QUEUE}/messages"]
    assert api.post(f"{QUEUE}/share", 200).json["methods"] == ["GET"]
    swapped = headers_of(shared, **{"URL-Methods": "POST,GET"})
    api.get(f"{QUEUE}/messages", 200, headers=swapped)
    api.post(f"{QUEUE}/claims", 204, {"ttl": 60, "grace": 60}, headers=swapped)


@every_row(
    ("terms", "named"),
    [
        ({"paths": ["purge"]}, "paths may contain messages, subscriptions, claims"),
        ({"paths": "messages"}, "paths"),
        ({"methods": "GET"}, "methods"),
        ({"methods": ["OPTIONS"]}, "methods may contain GET, HEAD, POST"),
        ({"methods": ["GET", "x\\ny"]}, "methods may contain"),
        ({"expires": 2000000000}, "expires"),
        ({"expires": "2000000000"}, "expires must be an ISO 8601 date"),
        ({"expires": "soon"}, "expires must be an ISO 8601 date"),
        ({"expires": "2001-01-01T00:00:00"}, "expires must be between now and"),
        ({"expires": "9999-12-31T23:59:59"}, "expires must be between now and"),
        ({"project_id": "victim"}, "project_id"),
        ([], "object"),
    ],
)
def test_bad_terms_are_refused_by_name(api: Api, terms: Any, named: str) -> None:
    """10.1: The error names the field and the limit."""
    refused = api.post(f"{QUEUE}/share", 400, terms).json
    assert named in refused["description"]


def test_an_expiry_has_its_bound(api: Api, clock: ManualClock) -> None:
    """D3: The default limit is seven days; times with a zone are converted."""
    week = 7 * DAY
    assert share(api, expires=in_seconds(clock, week - 1))["expires"] == in_seconds(clock, week - 1)
    api.post(f"{QUEUE}/share", 400, {"expires": in_seconds(clock, week + 1)})
    assert share(api, expires=in_seconds(clock, 7200 + 60) + ".5+02:00")["expires"] == in_seconds(clock, 60)


def test_without_a_key_nothing_is_signed_and_no_signature_is_valid(compose: Compose) -> None:
    shared = share(compose(app=OPTIONS))
    keyless = compose()
    assert "secret_key is not set" in keyless.post(f"{QUEUE}/share", 400, {}).json["description"]
    keyless.get(f"{QUEUE}/messages", 404, headers=headers_of(shared))
    keyless.get(f"{QUEUE}/messages", 404, headers={"URL-Signature": ""})


@every_row(
    "changed",
    [
        {"URL-Signature": ""},
        {"URL-Signature": "0" * 64},
        {"URL-Signature": "é"},
        {"URL-Expires": None},
        {"URL-Expires": "soon"},
        {"URL-Expires": "2029-01-01T00:00:00"},
        {"URL-Methods": None},
        {"URL-Methods": "GET,POST"},
        {"URL-Methods": "x"},
        {"URL-Paths": None},
        {"URL-Paths": "/v2/queues/jobs"},
        {"URL-Paths": f"{QUEUE}/messages,{QUEUE}/claims"},
        {"X-Project-ID": "victim"},
        {"X-Project-ID": None},
        {"X-Project-ID": "a,b"},
    ],
)
def test_a_changed_signature_is_404_without_a_detail(api: Api, changed: dict[str, str | None]) -> None:
    """10.3: The response is always the same."""
    refused = api.get(f"{QUEUE}/messages", 404, headers=headers_of(share(api), **changed))
    assert refused.json == {"title": "404 Not Found"}


@every_row(
    ("method", "path"),
    [
        ("GET", QUEUE),
        ("GET", f"{QUEUE}/stats"),
        ("GET", f"{QUEUE}/messagesx"),
        ("GET", f"{QUEUE}/claims/x"),
        ("GET", "/v2/queues/other/messages"),
        ("GET", "/v2/queues"),
        ("POST", f"{QUEUE}/messages"),
        ("DELETE", f"{QUEUE}/messages?pop=1"),
        ("POST", f"{QUEUE}/share"),
        ("POST", "/v2/share/revoke"),
        ("GET", "/v2/admin/projects"),
    ],
)
def test_a_signature_covers_its_paths_and_methods_alone(api: Api, method: str, path: str) -> None:
    """D4, 10.3: The request's path must equal a signed path or be below it; paths are not regular expressions."""
    api.call(method, path, 404, headers=headers_of(share(api)))


def test_a_signature_gives_no_way_out_of_its_queue(api: Api) -> None:
    """D4, B2: Other names in a covered request are checked too, and roles in its headers are ignored."""
    api.put(f"{QUEUE}", 201, {"_dead_letter_queue": "dead"})
    api.post(f"{QUEUE}/messages", 201, {"messages": [{"body": 1}]})
    signed = headers_of(share(api, paths=["messages", "claims"], methods=["POST", "DELETE", "GET"]))
    claim = api.post(f"{QUEUE}/claims", 201, {"ttl": 60, "grace": 60}, headers=signed).json
    settle = claim["messages"][0]["href"].replace("messages", "claims").partition("/claims/")[0]
    claim_id = claim["messages"][0]["href"].rpartition("claim_id=")[2]
    body = {"move": [{"id": claim["messages"][0]["id"], "queue": "elsewhere"}]}
    api.post(f"{settle}/claims/{claim_id}/settle", 403, body, headers=signed | {"X-Roles": "admin"})
    bury = {"bury": [{"id": claim["messages"][0]["id"], "reason": "x"}]}
    api.post(f"{settle}/claims/{claim_id}/settle", 403, bury, headers=signed)


def test_a_queue_that_only_sqs_can_name_is_shared(api: Api, storage: Storage) -> None:
    """The signature allows each verb of a queue whose name has 80 characters."""
    queue = "x" * 80
    storage.queues.create(QueueRef(api.project, queue), b"{}")
    shared: dict[str, Any] = api.post(f"/v2/queues/{queue}/share", 200, {"methods": ["GET", "POST"]}).json
    signed = headers_of(shared)
    api.post(f"/v2/queues/{queue}/messages", 201, {"messages": [{"body": 1}]}, headers=signed)
    assert len(api.get(f"/v2/queues/{queue}/messages?echo=true", 200, headers=signed).json["messages"]) == 1


def test_a_forgery_across_projects_is_refused(compose: Compose, clock: ManualClock) -> None:
    """D1: The text signed for a project must not read as the text of another project.

    Methods and projects that contain a separator are invalid.
    """
    api = compose(app=OPTIONS)
    expires = in_seconds(clock, 60)
    path = f"{QUEUE}/messages"
    key = SECRET.encode()
    lie = signature(key, [path], ["GET", "x"], "y\\nvictim", expires)
    assert lie == signature(key, [path], ["GET", "x\\ny"], "victim", expires), "the text can be read in two ways"
    forged = {"URL-Signature": lie, "URL-Expires": expires, "URL-Methods": "GET,x\\ny", "URL-Paths": path}
    api.get(path, 404, headers=forged | {"X-Project-ID": "victim"})
    api.post(f"{QUEUE}/share", 400, {"methods": ["GET", "x"]}, headers={"X-Project-ID": "y\\nvictim"})


def test_keys_are_rotated(compose: Compose) -> None:
    """D2: The first key signs, and all keys verify; signatures of a removed key are invalid."""
    old = share(compose(app=OPTIONS))
    both = compose(app={"share": lambda: SignedUrlOptions(secret_key=OTHER, old_secret_keys=(SECRET,))})
    new = share(both, expires=old["expires"])
    assert new["signature"] != old["signature"]
    for shared in (old, new):
        both.get(f"{QUEUE}/messages", 200, headers=headers_of(shared))
    alone = compose(app={"share": lambda: SignedUrlOptions(secret_key=OTHER)})
    alone.get(f"{QUEUE}/messages", 404, headers=headers_of(old))
    alone.get(f"{QUEUE}/messages", 200, headers=headers_of(new))


@pytest.mark.every_store
def test_a_revocation_ends_all_that_was_signed(compose: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: The revocation applies to the project on every server; the caches are off here.

    Later signatures are valid.
    """
    monkeypatch.setattr("zq.auth.signatures.CACHE_TTL", 0.0)
    here, elsewhere = compose(app=OPTIONS), compose(app=OPTIONS)
    neighbour = here.tenant("neighbour")
    before, others = share(here), share(neighbour)
    for server in (here, elsewhere):
        server.get(f"{QUEUE}/messages", 200, headers=headers_of(before))
    here.post("/v2/share/revoke", 204)
    after = share(elsewhere, expires=before["expires"])
    assert after["signature"] != before["signature"]
    for server in (here, elsewhere):
        server.get(f"{QUEUE}/messages", 404, headers=headers_of(before))
        server.get(f"{QUEUE}/messages", 200, headers=headers_of(after))
        server.get(f"{QUEUE}/messages", 200, headers=headers_of(others))
    here.post("/v2/share/revoke", 204)
    here.get(f"{QUEUE}/messages", 404, headers=headers_of(after))


def test_nobody_shares_more_than_his_own(scoped: Scoped) -> None:
    """D3: This holds for verbs and expiry; and only callers that may manage the queue can share it."""
    app = scoped.build(**OPTIONS)
    scoped.api("observe:**", app=app).post(f"{QUEUE}/share", 403)
    reader = scoped.api("manage+observe:queue/jobs", app=app)
    reader.post(f"{QUEUE}/share", 200, {"methods": ["GET"]})
    reader.post(f"{QUEUE}/share", 403, {"methods": ["POST"]})
    reader.post("/v2/queues/other/share", 403)
    reader.post("/v2/share/revoke", 403)
    scoped.api("manage:**", "manage:work/**", app=app).post("/v2/share/revoke", 204)


def test_a_share_ends_with_the_credential_that_made_it(scoped: Scoped, clock: ManualClock) -> None:
    """Tenancy 2: This is the default expiry, and the server refuses a later one."""
    app = scoped.build(**OPTIONS)
    caller = scoped.api(app=app)
    token = scoped.strategy.admit(Identity(caller.project, expires=clock.now() + 600, credential="short"))
    headers = {"X-Auth-Token": token}
    assert caller.post(f"{QUEUE}/share", 200, headers=headers).json["expires"] == in_seconds(clock, 600)
    caller.post(f"{QUEUE}/share", 400, {"expires": in_seconds(clock, 660)}, headers=headers)


def test_a_signature_needs_no_credential_besides(scoped: Scoped) -> None:
    """10.3: A signature replaces the credential under every strategy; a credential does not make a wrong one valid."""
    app = scoped.build(**OPTIONS)
    owner = scoped.api(app=app)
    shared = share(owner)
    owner.get(f"{QUEUE}/messages", 200, headers=headers_of(shared, **{"X-Auth-Token": None}))
    owner.get(f"{QUEUE}/messages", 404, headers=headers_of(shared, **{"URL-Signature": "0" * 64}))
    owner.get(f"{QUEUE}/messages", 401, headers={"X-Auth-Token": None})


def test_wrong_signatures_beyond_the_rate_of_an_address_are_429(compose: Compose) -> None:
    """Tenancy 1: An address may fail 50 times at once, then 10 times a second; beyond that the server answers 429."""
    moment = [1000.0]
    api = compose(app={**OPTIONS, "monotonic": lambda: moment[0]})
    wrong = headers_of(share(api), **{"URL-Signature": "0" * 64})

    def statuses(count: int) -> list[int]:
        return [api.call("GET", f"{QUEUE}/messages", None, headers=wrong).status_int for _ in range(count)]

    assert statuses(53) == [404] * 50 + [429] * 3
    moment[0] += 0.2
    assert statuses(4) == [404] * 2 + [429] * 2


def test_a_signature_that_was_right_is_verified_whatever_its_address_did(compose: Compose) -> None:
    """This holds beyond its cache entry and despite revocations of other projects; its own revocation ends it."""
    moment = [1000.0]
    api = compose(app={**OPTIONS, "monotonic": lambda: moment[0]})
    shared = share(api)
    right, wrong = headers_of(shared), headers_of(shared, **{"URL-Signature": "0" * 64})

    def exceed() -> None:
        for _ in range(60):
            api.call("GET", f"{QUEUE}/messages", None, headers=wrong)

    for _ in range(2):
        api.get(f"{QUEUE}/messages", 200, headers=right)
        api.tenant("other").post("/v2/share/revoke", 204)
        exceed()
        moment[0] += 5.1
        exceed()
        api.get(f"{QUEUE}/messages", 429, headers=wrong)
    api.get(f"{QUEUE}/messages", 200, headers=right)
    api.post("/v2/share/revoke", 204)
    exceed()
    api.get(f"{QUEUE}/messages", 404, headers=right)
    api.get(f"{QUEUE}/messages", 429, headers=right)


def test_no_log_or_store_holds_a_key(api: Api, storage: Storage, clock: ManualClock) -> None:
    """D2: A revocation stores only a number, and the derived keys differ by project."""
    api.post("/v2/share/revoke", 204)
    stored = [each.value for each in storage.documents.list("", "share-epoch", "", "", 100, clock.now()).items]
    assert b"1" in stored
    assert all(value.isdigit() for value in stored)
    assert derive_key(SECRET.encode(), f"share 1 {api.project}") == derive_signing_key(SECRET, api.project, 1)
