# SPDX-License-Identifier: Apache-2.0
"""Rates and quotas over HTTP: refusals, headers, project states, and administration (tenancy 5, 6)."""

from collections.abc import Callable
from contextlib import closing
from threading import Timer
from typing import Any

import http_sf
import pytest
from msgspec import structs

from tests.features import core_with_subscriptions
from tests.http.scoped import Caller, Scoped
from tests.http.test_streams import Reader
from tests.tables import every_row
from zq.auth.tokens import Grant, Tokens
from zq.clock import ManualClock
from zq.core import Broker, waiting
from zq.core.rates import Rates
from zq.errors import NotFound, Unavailable
from zq.http import streams
from zq.http.app import create_app
from zq.model.documents import DocumentRef
from zq.model.identity import Identity, SignedUrlOptions
from zq.model.quotas import UNBOUNDED, Project, Quota, State
from zq.serving.features import command_features
from zq.serving.metrics.counting import Metrics
from zq.sqs.keys import SqsKeys
from zq.storage.api import Storage
from zq.subscriptions.feature import SubscriptionsFeature
from zq.subscriptions.policy import SubscriptionPolicy
from zq.subscriptions.sealing import SecretSealer

pytestmark = pytest.mark.one_store

QUEUE = "/v2/queues/jobs"
POSTED = {"messages": [{"body": 1}]}
ADMIN = frozenset({"admin"})
# The usage of an empty project.
NOTHING = dict.fromkeys(
    ("queues", "topics", "tokens", "stages", "fences", "producers", "stored_messages", "stored_bytes"), 0
)

SHARE = SignedUrlOptions(secret_key="k" * 32)
Bounded = Callable[..., Scoped]


@pytest.fixture
def bounded(storage: Storage, clock: ManualClock, project_suffix: str) -> Bounded:
    """Return a function that builds callers of a server with the given quotas, on a clock that stands still."""

    def build(threads: int = 64, **quota: int) -> Scoped:
        unbounded = dict.fromkeys(Quota.__struct_fields__, 0) | {"share": 25}
        policy, rates = SubscriptionPolicy(sealer=SecretSealer(lambda: SHARE)), Rates(threads, clock.now)
        quotas = Quota(**unbounded | quota)
        broker, use_cases = core_with_subscriptions(storage, clock, policy, quota=quotas, rates=rates)
        own = {"share": lambda: SHARE, "features": [SubscriptionsFeature(use_cases), *command_features(broker)]}
        return Scoped(lambda options: create_app(broker, **own, **options), project_suffix)

    return build


def parsed(header: str) -> dict[str, dict[str, Any]]:
    """Return the members of a list of strings with parameters, parsed by RFC 9651."""
    return dict(http_sf.parse(header.encode(), tltype="list"))


def spend(caller: Caller, requests: int) -> Any:
    """Return the response to the first refused request."""
    for _ in range(requests):
        answer = caller.call("GET", "/v2/queues", None)
        if answer.status_int != 200:
            return answer
    raise AssertionError("nothing was refused")


def test_a_project_that_is_too_fast_is_told_so(bounded: Bounded) -> None:
    """The server answers 429 with the name of the limit and Retry-After; other projects are not affected."""
    scoped = bounded(requests=5)
    refused = spend(scoped.api(), 30)
    assert refused.status_int == 429
    assert refused.json == {
        "title": "Too many requests",
        "description": "The project may make at most 5 requests per second.",
        "limit": "requests",
    }
    assert refused.headers["Retry-After"] == "1"
    assert parsed(refused.headers["RateLimit"])["requests"]["r"] == 0
    assert refused.headers["RateLimit-Policy"] == '"requests";q=5;w=1'
    scoped.api(project="other").get("/v2/queues", 200)


@pytest.mark.parametrize("kind", ["queues", "topics"])
def test_large_metadata_of_queues_and_topics_have_a_bound(bounded: Bounded, clock: ManualClock, kind: str) -> None:
    """The limit is for the total, at creation and change.

    The first 4096 bytes of each are free, and removal makes room.
    """
    caller = bounded(metadata_bytes=100_000).api()

    def size(path: str, wanted: int, status: int = 201) -> Any:
        return caller.put(path, status, {"a": "x" * wanted})

    for number in range(40):
        size(f"/v2/{kind}/small{number}", 4000)
    size("/v2/queues/one", 54_000)
    size("/v2/topics/two", 54_000 - 20)
    assert (
        size(f"/v2/{kind}/three", 5_000, 403).json["description"]
        == "The project may have at most 100000 bytes of metadata."
    )
    size(f"/v2/{kind}/three", 4_000)
    grow = [{"op": "add", "path": "/metadata/a", "value": "y" * 60_000}]
    for path in ("/v2/queues/one", "/v2/topics/two", f"/v2/{kind}/three"):
        caller.patch(path, 403, grow)
    caller.patch("/v2/queues/one", 200, [{"op": "add", "path": "/metadata/a", "value": "z" * 53_000}])
    caller.delete("/v2/topics/two", 204)
    clock.advance(1.1)
    caller.patch(f"/v2/{kind}/three", 200, [{"op": "add", "path": "/metadata/a", "value": "y" * 54_000}])


def test_answers_say_what_is_left(bounded: Bounded) -> None:
    """The headers follow draft-ietf-httpapi-ratelimit-headers-10, as lists of RFC 9651."""
    caller = bounded(requests=1000, messages=10_000, bytes=1 << 20).api()
    answer = caller.get("/v2/queues", 200)
    assert answer.headers["RateLimit-Policy"] == (
        '"requests";q=1000;w=1, "messages";q=10000;w=1, "bytes";q=1048576;w=1;qu="content-bytes"'
    )
    assert parsed(answer.headers["RateLimit-Policy"]).keys() == {"requests", "messages", "bytes"}
    assert parsed(answer.headers["RateLimit"]).keys() <= {"requests", "messages", "bytes"}
    assert "RateLimit" not in caller.get("/healthz", 200).headers


def test_without_bounds_and_where_headers_are_off_nothing_is_said(bounded: Bounded) -> None:
    assert "RateLimit" not in bounded().api().get("/v2/queues", 200).headers
    scoped = bounded(requests=1000)
    silent = scoped.api(app=scoped.build(sends_rate_limits=lambda: False))
    assert "RateLimit" not in silent.get("/v2/queues", 200).headers


@pytest.mark.parametrize(
    ("method", "path", "body"), [("POST", f"{QUEUE}/messages", POSTED), ("POST", "/v2/topics/news/messages", POSTED)]
)
def test_messages_are_counted_where_they_come_in(bounded: Bounded, method: str, path: str, body: Any) -> None:
    caller = bounded(messages=3).api()
    for _ in range(9):
        answer = caller.call(method, path, None, body)
    assert (answer.status_int, answer.json["limit"]) == (429, "messages")


def test_messages_are_counted_where_they_are_handed_out(bounded: Bounded) -> None:
    """Claimed and popped messages count; listed messages do not."""
    owner = bounded().api()
    owner.send("jobs", *range(20))
    caller = bounded(messages=3).api()
    for _ in range(5):
        caller.seen("jobs")
    caller.claim("jobs", limit=10)
    assert caller.get("/v2/queues", 429).json["limit"] == "messages"


@pytest.mark.parametrize("verb", ["history/replay", "redrive"])
def test_messages_are_counted_where_they_come_in_once_more(bounded: Bounded, verb: str) -> None:
    """A request that makes the server post thousands of messages does not bypass the rate."""
    owner = bounded().api()
    owner.put(QUEUE, 201, {"_history_ttl": 600})
    owner.send("jobs", *range(20))
    if verb != "redrive":
        owner.delete(f"{QUEUE}/messages?pop=20", 200)
    caller = bounded(messages=3).api()
    caller.post(f"{QUEUE}/{verb}", 200, {"to": "other"} if verb == "redrive" else {"limit": 20})
    assert caller.get("/v2/queues", 429).json["limit"] == "messages"


def test_bytes_are_counted_both_ways(bounded: Bounded) -> None:
    caller = bounded(bytes=1000).api()
    caller.send("jobs", "x" * 3000)
    assert caller.get("/v2/queues", 429).json["limit"] == "bytes"


def test_zaqars_client_is_told_503(bounded: Bounded, storage: Storage, clock: ManualClock) -> None:
    """The client treats 429 as success, so a refused post would lose a message.

    The metrics count the refusal by its true cause.
    """
    metrics = Metrics(storage, clock, store="memory", engine="none", max_waiters=1, max_streams=1)
    scoped = bounded(requests=1)
    caller = scoped.api(app=scoped.build(events=metrics))
    for _ in range(5):
        answer = caller.call("GET", "/v2/queues", None, headers={"User-Agent": "python-requests/2.32.0"})
    assert (answer.status_int, answer.json["limit"], answer.headers["Retry-After"]) == (503, "requests", "1")
    page = metrics.page().decode()
    assert 'zq_requests_total{method="GET",route="/v2/queues",status="429"}' in page
    assert 'status="503"' not in page


def test_a_refusal_for_the_state_of_a_project_has_its_own_reason(
    bounded: Bounded, storage: Storage, clock: ManualClock
) -> None:
    """No credential has failed: an administrator suspended the project."""
    metrics = Metrics(storage, clock, store="memory", engine="none", max_waiters=1, max_streams=1)
    scoped = bounded(requests=50)
    app = scoped.build(events=metrics)
    caller = scoped.api(app=app)
    administrator = scoped.api(project="operators", roles=frozenset({"admin"}), app=app)
    administrator.put(f"/v2/admin/project?project={caller.project}", 200, {"state": "suspended"})
    refused = caller.get("/v2/queues", 403)
    assert refused.headers["X-Zq-Error"] == "ProjectInactive"
    assert (refused.json["title"], refused.json["description"]) == ("Not authorized", "The project is suspended.")
    page = metrics.page().decode()
    assert 'zq_auth_failures_total{reason="project_inactive"} 1.0' in page
    assert page.count("zq_auth_failures_total{") == 1


def test_refusals_are_counted_by_their_cause(bounded: Bounded, storage: Storage, clock: ManualClock) -> None:
    """The causes are a missing credential, a scope, a rate and a quota.

    The 403 for the deletion of a claimed message is not such a refusal.
    """
    metrics = Metrics(storage, clock, store="memory", engine="none", max_waiters=1, max_streams=1)
    scoped = bounded(requests=50, queues=1)
    app = scoped.build(events=metrics)
    caller = scoped.api(app=app)
    caller.get("/v2/queues", 401, headers={"X-Auth-Token": None})
    scoped.api("observe:other", app=app).post(f"{QUEUE}/messages", 403, POSTED)
    caller.put(QUEUE, 201)
    caller.put("/v2/queues/second", 403)
    caller.post(f"{QUEUE}/messages", 201, POSTED)
    claim = caller.post(f"{QUEUE}/claims", 201, {"ttl": 60, "grace": 60})
    identity = claim.json["messages"][0]["href"].split("/")[-1].split("?")[0]
    caller.delete(f"{QUEUE}/messages/{identity}", 403)
    while caller.call("GET", "/v2/queues", None).status_int != 429:
        pass
    page = metrics.page().decode()
    assert 'zq_auth_failures_total{reason="unauthenticated"} 1.0' in page
    assert 'zq_auth_failures_total{reason="forbidden"} 1.0' in page
    assert 'zq_quota_refusals_total{limit="queues"} 1.0' in page
    assert 'zq_quota_refusals_total{limit="requests"} 1.0' in page
    assert page.count("zq_auth_failures_total{") == page.count("zq_quota_refusals_total{") == 2


def test_a_body_that_is_refused_is_not_read(bounded: Bounded) -> None:
    """Every 429 that leaves a body unread closes the connection."""
    caller = bounded(requests=1).api()
    for _ in range(5):
        answer = caller.call("POST", f"{QUEUE}/messages", None, POSTED)
    assert answer.status_int == 429
    assert answer.headers["Connection"] == "close"


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_one_thing_more_than_the_quota_is_403(bounded: Bounded, kind: str) -> None:
    """The quota applies to every way of creation; existing queues and topics still work."""
    caller = bounded(**{f"{kind}s": 2}).api()
    for name in "ab":
        caller.put(f"/v2/{kind}s/{name}", 201)
    caller.put(f"/v2/{kind}s/a", 204)
    refused = caller.put(f"/v2/{kind}s/c", 403)
    assert refused.json == {"title": "Quota exceeded", "description": f"The project may have at most 2 {kind}s."}
    caller.post(f"/v2/{kind}s/c/messages", 403, POSTED)
    caller.post(f"/v2/{kind}s/a/messages", 201, POSTED)
    caller.delete(f"/v2/{kind}s/b", 204)
    caller.put(f"/v2/{kind}s/c", 201)


def test_queues_that_a_move_would_make_count_too(bounded: Bounded) -> None:
    """The server refuses moves, bury, redrives and staged posts before it changes anything."""
    caller = bounded(queues=2).api()
    caller.put(QUEUE, 201, {"_dead_letter_queue": "dead"})
    caller.put("/v2/queues/there", 201)
    first, second = caller.send("jobs", 1, 2)
    claim, _ = caller.claim("jobs")
    caller.post(f"{claim}/settle", 403, {"move": [{"id": first, "queue": "more"}]})
    caller.post(f"{claim}/settle", 403, {"bury": [{"id": first, "reason": "r"}]})
    moved = caller.post(f"{claim}/settle", 200, {"move": [{"id": first, "queue": "there"}]})
    assert moved.json["moved"] == 1
    caller.post("/v2/queues/there/redrive", 403, {"to": "more"})
    caller.post("/v2/queues/more/messages?stage=s", 403, POSTED)
    caller.post("/v2/queues/there/messages?stage=s", 202, POSTED)
    assert caller.post(f"{claim}/settle", 200, {"delete": [second]}).json["deleted"] == 1


@pytest.mark.parametrize(
    ("quota", "sentence"),
    [
        ({"stored_messages": 2}, "The project may have at most 2 stored messages."),
        ({"stored_bytes": 600}, "The project may have at most 600 stored bytes."),
    ],
)
def test_a_project_that_has_stored_its_quota_may_consume_and_read(
    bounded: Bounded, quota: dict[str, int], sentence: str
) -> None:
    caller = bounded(**quota).api()
    caller.put(QUEUE, 201)
    caller.send("jobs", 1)
    caller.post(f"{QUEUE}/messages", 403, {"messages": [{"body": 2}, {"body": 3}]})
    caller.send("jobs", 2)
    refused = caller.post(f"{QUEUE}/messages", 403, POSTED)
    assert refused.json == {"title": "Quota exceeded", "description": sentence}
    caller.post(f"{QUEUE}/messages?stage=s", 403, POSTED)
    assert len(caller.get(f"{QUEUE}/messages?echo=true", 200).json["messages"]) == 2
    claim, messages = caller.claim("jobs")
    caller.patch(claim, 204, {"ttl": 300, "grace": 60})
    caller.post(f"{claim}/settle", 200, {"move": [{"id": messages[0]["id"], "queue": "there"}]})
    caller.delete(claim, 204)
    caller.delete(f"{QUEUE}/messages?pop=1", 200)
    caller.post("/v2/queues/there/purge", 204, {"resource_types": ["messages"]})
    caller.get("/v2/quota", 200)


def test_what_was_removed_makes_room_within_a_second(bounded: Bounded, clock: ManualClock) -> None:
    caller = bounded(stored_messages=1).api()
    caller.send("jobs", 1)
    caller.post(f"{QUEUE}/messages", 403, POSTED)
    caller.delete(f"{QUEUE}/messages?pop=1", 200)
    clock.advance(1.1)
    caller.send("jobs", 1)
    caller.post(f"{QUEUE}/messages", 403, POSTED)


def test_a_repeat_of_a_post_is_not_one_too_much(bounded: Bounded) -> None:
    """The messages are already stored or staged."""
    caller = bounded(stored_messages=2).api()
    paths = {f"{QUEUE}/messages": 201, f"{QUEUE}/messages?stage=s": 202}
    firsts = [caller.post(path, status, POSTED, headers={"Idempotency-Key": path}) for path, status in paths.items()]
    for (path, status), first in zip(paths.items(), firsts, strict=True):
        assert caller.post(path, status, POSTED, headers={"Idempotency-Key": path}).body == first.body
        caller.post(path, 403, POSTED, headers={"Idempotency-Key": "another"})


def test_a_storage_quota_below_what_is_used_only_stops_more(bounded: Bounded) -> None:
    scoped = bounded(stored_messages=9)
    caller, administrator = scoped.api(), scoped.api(project="operators", roles=ADMIN)
    caller.send("jobs", 1, 2, 3)
    administrator.put(f"/v2/admin/project?project={caller.project}", 200, {"limits": {"stored_messages": 1}})
    caller.post(f"{QUEUE}/messages", 403, POSTED)
    claim, messages = caller.claim("jobs")
    caller.post(f"{claim}/settle", 200, {"delete": [message["id"] for message in messages]})


def test_a_stream_pays_for_what_it_sends(bounded: Bounded) -> None:
    owner = bounded().api()
    owner.post("/v2/topics/news/messages", 201, {"messages": [{"body": "x" * 3000}]})
    scoped = bounded(bytes=1000)
    assert scoped.streamed(["observe:**"], "match=news&marker=0", 1) == ["x" * 3000]
    assert scoped.api().get("/v2/queues", 429).json["limit"] == "bytes"


def test_a_share_of_the_threads(bounded: Bounded) -> None:
    """Only requests in progress count."""
    scoped = bounded(threads=8, share=25)
    caller = scoped.api()
    for _ in range(10):
        caller.get("/v2/queues", 200)
        caller.get("/v2/queues/nothing/messages/a", 404)


# Administration.


def unsaid(caller: Caller) -> dict[str, Any]:
    """Return the administrator's view of an empty project without settings."""
    said = {"project": caller.project, "state": "active", "limits": {}, "deleting": False}
    return said | {"used": NOTHING, "exact": dict.fromkeys(NOTHING, True), "age": 0}


def test_a_project_sees_what_it_may_use(bounded: Bounded) -> None:
    caller = bounded(queues=7).api()
    caller.put(QUEUE, 201)
    told = caller.get("/v2/quota", 200).json
    assert told["limits"]["queues"] == 7
    caller.send("jobs", 1)
    assert told["used"] == NOTHING | {"queues": 1}
    assert {name for name, exact in told["exact"].items() if not exact} <= {"stored_messages", "stored_bytes"}
    used = caller.get("/v2/quota", 200).json["used"]
    assert (used["stored_messages"], used["stored_bytes"]) == (1, 257)
    assert told["state"] == "active"
    assert told["age"] == 0


@pytest.mark.parametrize("store_name", ["memory", "mongodb"], indirect=True)
def test_figures_that_are_estimates_are_called_so_and_bind(bounded: Bounded, store_name: str) -> None:
    caller = bounded(stored_messages=2).api()
    caller.send("jobs", 1, 2)
    estimates = {name for name, exact in caller.get("/v2/quota", 200).json["exact"].items() if not exact}
    assert estimates == (set() if store_name == "memory" else {"stored_messages", "stored_bytes"})
    caller.post(f"{QUEUE}/messages", 403, POSTED)


def test_an_administrator_gives_a_project_values_of_its_own(bounded: Bounded) -> None:
    scoped = bounded(queues=1)
    caller, administrator = scoped.api(), scoped.api(project="operators", roles=ADMIN)
    path = f"/v2/admin/project?project={caller.project}"
    assert administrator.get(path, 200).json == unsaid(caller)
    caller.put("/v2/queues/a", 201)
    caller.put("/v2/queues/b", 403)
    administrator.put(path, 200, {"limits": {"queues": 2}})
    caller.put("/v2/queues/b", 201)
    assert caller.get("/v2/quota", 200).json["limits"]["queues"] == 2
    listed = administrator.get(f"/v2/admin/projects?limit=1&marker={caller.project[:-1]}", 200).json["projects"]
    assert listed == [unsaid(caller) | {"limits": {"queues": 2}, "used": NOTHING | {"queues": 2}}]
    administrator.put(path, 200, {"limits": {}})
    caller.put("/v2/queues/c", 403)


def test_a_quota_below_what_is_used_only_stops_more(bounded: Bounded) -> None:
    scoped = bounded()
    caller, administrator = scoped.api(), scoped.api(project="operators", roles=ADMIN)
    caller.put("/v2/queues/a", 201)
    caller.put("/v2/queues/b", 201)
    administrator.put(f"/v2/admin/project?project={caller.project}", 200, {"limits": {"queues": 1}})
    caller.put("/v2/queues/c", 403)
    caller.send("a", 1)
    caller.claim("a")
    caller.delete("/v2/queues/b", 204)


@pytest.mark.parametrize(
    ("state", "reads", "writes", "sentence"),
    [
        ("read_only", 200, 403, "The project is read-only."),
        ("suspended", 403, 403, "The project is suspended."),
        ("active", 200, 201, ""),
    ],
)
def test_states_of_a_project(bounded: Bounded, state: str, reads: int, writes: int, sentence: str) -> None:
    scoped = bounded()
    caller, administrator = scoped.api(), scoped.api(project="operators", roles=ADMIN)
    administrator.put(f"/v2/admin/project?project={caller.project}", 200, {"state": state})
    caller.get("/v2/queues", reads)
    refused = caller.post(f"{QUEUE}/messages", writes, POSTED)
    assert refused.json.get("description", "") == sentence
    assert caller.get("/v2/quota", 200).json["state"] == state
    scoped.api(project="other").put(QUEUE, 201)


def test_a_deleted_project_is_emptied_step_by_step(bounded: Bounded, storage: Storage, clock: ManualClock) -> None:
    """The server answers 202, and reads show the progress.

    In the end only objects of the deployment are left, and not even the quota.
    """
    scoped, tokens = bounded(), Tokens(storage.documents, clock)
    caller, administrator = scoped.api(), scoped.api(project="operators", roles=ADMIN)
    kept, lost = (tokens.create(Grant(project=caller.project, roles=[role])).token.id for role in ("admin", "member"))
    keys = SqsKeys(storage.documents, clock, {})
    key = keys.create(caller.project, plain=True).key.id
    path = f"/v2/admin/project?project={caller.project}"
    for name in "abc":
        caller.send(name, 1)
        caller.post(f"/v2/topics/{name}/messages", 201, POSTED)
    hook = {"subscriber": "http://hooks.example.com/", "ttl": 10**10}
    for kind in ("queues", "topics"):
        caller.post(f"/v2/{kind}/a/subscriptions", 201, hook)
    administrator.put(path, 200, {"limits": {"queues": 9}})
    assert administrator.delete(path, 202).json["deleting"] is True
    for _ in range(10):
        left = administrator.get(path, 200).json
        if not left["deleting"]:
            break
        administrator.delete(path, 202)
    assert left == unsaid(caller)
    now = clock.now()
    assert storage.documents.list(caller.project, "subscriptions", "", "", 10, now).items == []
    assert storage.documents.get(DocumentRef("", "subscribed", caller.project), now) is None
    assert storage.queues.list(caller.project, "", 10).items == []
    assert tokens.get(kept).stored.project == caller.project
    assert (keys.find_valid(key), keys.list(caller.project, "", 10).items) == (None, [])
    with pytest.raises(NotFound):
        tokens.get(lost)


@every_row(
    "body",
    [
        *({"state": "idle"}, {"limits": {"queue": 1}}, {"limits": {"queues": -1}}, {"limits": {"queues": "1"}}, []),
        *({"limits": {"share": 0}}, {"limits": {"share": 101}}, {"limits": {"queues": True}}, {}),
    ],
)
def test_nonsense_is_refused(bounded: Bounded, body: Any) -> None:
    bounded().api(roles=ADMIN).put("/v2/admin/project?project=acme", 400, body)


@pytest.mark.parametrize("query", ["", "?project=", "?project=a,b", "?project=%20a"])
def test_an_administrator_names_a_project(bounded: Bounded, query: str) -> None:
    bounded().api(roles=ADMIN).get(f"/v2/admin/project{query}", 400)


def test_projects_are_listed_page_by_page(bounded: Bounded) -> None:
    administrator = bounded().api(roles=ADMIN)
    for name in ("paged-a", "paged-b"):
        administrator.put(f"/v2/admin/project?project={name}", 200, {"limits": {"queues": 1}})
    first = administrator.get("/v2/admin/projects?limit=1&marker=paged", 200).json
    assert [each["project"] for each in first["projects"]] == ["paged-a"]
    following = administrator.get(first["links"][0]["href"], 200).json
    assert [each["project"] for each in following["projects"]] == ["paged-b"]
    for name in ("paged-a", "paged-b"):
        administrator.delete(f"/v2/admin/project?project={name}", 202)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *[(method, "/v2/admin/project?project=acme") for method in ("GET", "PUT", "DELETE")],
        ("GET", "/v2/admin/projects"),
    ],
)
def test_administration_needs_the_role_and_a_credential_for_everything(
    bounded: Bounded, method: str, path: str
) -> None:
    scoped = bounded()
    scoped.api().call(method, path, 403)
    scoped.api("*:**", roles=ADMIN).call(method, path, 403)


def test_an_administrator_of_a_suspended_project_can_still_administer(bounded: Bounded) -> None:
    scoped = bounded()
    administrator = scoped.api(roles=ADMIN)
    path = f"/v2/admin/project?project={administrator.project}"
    administrator.put(path, 200, {"state": "suspended"})
    administrator.get("/v2/queues", 403)
    administrator.put(path, 200, {"state": "active"})
    administrator.get("/v2/queues", 200)


def test_where_nobody_is_asked_who_it_is_there_is_nothing_to_administer(scoped: Scoped) -> None:
    """Without a strategy the routes answer 400, and no quota applies."""
    assert scoped.api(roles=ADMIN).get("/v2/admin/projects", 400).json["title"] == "Not implemented"
    assert Identity("x").roles == frozenset()


class Dozing:
    """Documents of a store that is available only at times."""

    def __init__(self, documents: Any) -> None:
        self._documents = documents
        self.awake = True
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        if not self.awake:
            self.refused += 1
            raise Unavailable
        return getattr(self._documents, name)


def test_a_request_of_a_project_with_an_unknown_state_is_refused(
    storage: Storage, clock: ManualClock, project_suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a project's state is known, the server answers 503 while the store is down.

    A known state stays in use, and the server queries the store once for several requests.
    """
    documents = Dozing(storage.documents)
    broker = Broker(storage, clock, quota=UNBOUNDED)
    assert broker.quotas is not None
    monkeypatch.setattr(broker.quotas, "_documents", documents)
    scoped = Scoped(lambda options: create_app(broker, features=command_features(broker), **options), project_suffix)
    known, stopped = scoped.api(project="known"), scoped.api(project="stopped")
    broker.quotas.write(f"stopped{project_suffix}", lambda _: Project(state=State.SUSPENDED))
    known.call("PUT", QUEUE, 201)
    documents.awake = False
    assert stopped.call("PUT", QUEUE, 503).headers["Retry-After"] == "1"
    monkeypatch.setattr(broker.quotas, "now", lambda: 1e9)
    monkeypatch.setattr(broker.quotas._allotments, "_monotonic", lambda: 1e9)
    before = documents.refused
    for _ in range(3):
        known.call("GET", QUEUE, 200)
    assert documents.refused == before + 1
    documents.awake = True
    stopped.call("PUT", QUEUE, 403)


def test_two_changes_of_a_project_at_once_are_both_kept(storage: Storage, clock: ManualClock) -> None:
    """If an administrator writes between another's read and write, both changes are kept."""
    quotas = Broker(storage, clock, quota=UNBOUNDED).quotas
    assert quotas is not None
    rivals = iter([lambda project: structs.replace(project, state=State.SUSPENDED)])

    def change(project: Project) -> Project:
        for rival in rivals:
            quotas.write("raced", rival)
        return structs.replace(project, limits={"queues": 7})

    quotas.write("raced", change)
    assert quotas.read("raced") == Project({"queues": 7}, State.SUSPENDED)


def test_a_suspended_project_waits_no_more(
    storage: Storage, clock: ManualClock, project_suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long poll that has begun is refused, and an open stream ends."""
    monkeypatch.setattr(waiting, "RECHECK_INTERVAL", 0.05)
    monkeypatch.setattr(streams, "HEARTBEAT", 0.1)
    broker = Broker(storage, clock, quota=UNBOUNDED)
    assert broker.quotas is not None
    scoped = Scoped(lambda options: create_app(broker, features=command_features(broker), **options), project_suffix)
    caller = scoped.api(project="late")
    timer = Timer(0.3, broker.quotas.write, [f"late{project_suffix}", lambda _: Project(state=State.SUSPENDED)])
    with closing(Reader(caller, "/v2/stream", x_auth_token=caller.token)) as reader:
        timer.start()
        refused = caller.call("GET", f"{QUEUE}/messages?wait=5", 403)
        assert refused.json["description"] == "The project is suspended."
        assert None in [next(reader.portions, None) for _ in range(5)]
