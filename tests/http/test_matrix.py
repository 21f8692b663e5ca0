# SPDX-License-Identifier: Apache-2.0
"""Authorization on every route of the router: rules, scopes, projects, and all names in a request (tenancy 2, 4).

The contract's tables are repeated here, so that a changed rule fails a test.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from falcon.inspect import inspect_app

from tests.http.api import Api
from tests.http.scoped import Scoped
from tests.tables import every_row
from zq.auth.policy import RULES, Policy
from zq.model.identity import Identity

pytestmark = pytest.mark.one_store

QUEUE, TOPIC = "/v2/queues/jobs", "/v2/topics/jobs"
VERBS = ("produce", "consume", "observe", "manage")
POSTED = {"messages": [{"body": 1}]}
COMMIT: dict[str, Any] = {"producer": "jobs", "batch": 1, "publish": [], "settle": []}
ROUTES: list[tuple[str, str, Any, str]] = [
    # method, path, body, the only verb that allows it; "" = any credential of the project
    ("GET", "/v2/", None, ""),
    ("GET", "/v2/limits", None, ""),
    ("GET", "/v2/quota", None, ""),
    ("GET", "/v2/whoami", None, ""),
    ("GET", "/v2/me", None, ""),
    ("GET", "/v2/ping", None, ""),
    ("HEAD", "/v2/ping", None, ""),
    ("GET", "/v2/queues", None, ""),
    ("GET", "/v2/topics", None, ""),
    *(("GET", f"/v2/{work}", None, "") for work in ("commits", "fences", "stages")),
    ("GET", f"{QUEUE}/depth", None, "observe"),
    ("GET", f"{QUEUE}/figures", None, "observe"),
    ("GET", "/v2/figures", None, ""),
    ("GET", "/v2/figures/queues", None, ""),
    ("GET", "/v2/messages/a", None, ""),
    *[
        route
        for thing in (QUEUE, TOPIC)
        for route in [
            ("GET", thing, None, "observe"),
            ("PUT", thing, {}, "manage"),
            ("PATCH", thing, [], "manage"),
            ("DELETE", thing, None, "manage"),
            ("GET", f"{thing}/stats", None, "observe"),
            ("POST", f"{thing}/purge", {"resource_types": []}, "manage"),
            ("GET", f"{thing}/messages", None, "observe"),
            ("GET", f"{thing}/messages?ids=1", None, "observe"),
            ("GET", f"{thing}/messages/1", None, "observe"),
            ("POST", f"{thing}/messages", POSTED, "produce"),
            ("GET", f"{thing}/subscriptions", None, "manage"),
            ("POST", f"{thing}/subscriptions", {}, "manage"),
            ("GET", f"{thing}/subscriptions/s", None, "manage"),
            ("PATCH", f"{thing}/subscriptions/s", {}, "manage"),
            ("DELETE", f"{thing}/subscriptions/s", None, "manage"),
            ("PUT", f"{thing}/subscriptions/s/confirm", {}, "manage"),
            ("POST", f"{thing}/subscriptions/s/secret", None, "manage"),
            ("GET", f"{thing}/subscriptions/s/deliveries", None, "manage"),
            ("POST", f"{thing}/subscriptions/s/deliveries", None, "manage"),
            ("DELETE", f"{thing}/subscriptions/s/deliveries", None, "manage"),
            ("POST", f"{thing}/subscriptions/s/deliveries/redrive", {}, "manage"),
        ]
    ],
    ("DELETE", f"{QUEUE}/messages?ids=a", None, "manage"),
    ("DELETE", f"{QUEUE}/messages?pop=1", None, "consume"),
    ("DELETE", f"{QUEUE}/messages/a", None, "consume"),
    ("GET", "/v2/claims", None, "observe"),
    ("GET", "/v2/subscriptions", None, "manage"),
    ("GET", f"{QUEUE}/claims", None, "observe"),
    ("POST", f"{QUEUE}/claims", {}, "consume"),
    ("GET", f"{QUEUE}/claims/c", None, "consume"),
    ("PUT", f"{QUEUE}/claims/a.b", {}, "consume"),
    ("PATCH", f"{QUEUE}/claims/c", {}, "consume"),
    ("DELETE", f"{QUEUE}/claims/c", None, "consume"),
    ("POST", f"{QUEUE}/claims/c/settle", {"delete": ["a"]}, "consume"),
    ("POST", f"{QUEUE}/redrive", {}, "manage"),
    ("GET", f"{QUEUE}/history", None, "observe"),
    ("POST", f"{QUEUE}/history/replay", {"ids": ["a"]}, "produce"),
    ("GET", f"{TOPIC}/stream?marker=x", None, "observe"),
    ("GET", "/v2/stream?match=jobs&marker=x", None, "observe"),
    ("POST", "/v2/fences/jobs", None, "consume"),
    ("DELETE", "/v2/stages/jobs", None, "produce"),
    ("POST", "/v2/commits", COMMIT, "produce"),
    ("GET", "/v2/commits/jobs", None, "observe"),
]
SINGLE = every_row(("method", "path", "body", "verb"), ROUTES)


def built(app: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield method, path and resource of each route of the app."""

    def walk(nodes: Any) -> Iterator[Any]:
        for node in nodes:
            if node.resource is not None:
                yield node
            yield from walk(node.children)

    resources = {node.uri_template: node.resource for node in walk(app._router._roots)}
    for route in inspect_app(app).routes:
        for method in route.methods:
            if not method.internal:
                yield method.method, route.path, resources[route.path]


@pytest.mark.usefixtures("own_routers")
def test_every_route_has_a_rule_of_the_table_or_says_that_it_is_open(scoped: Scoped) -> None:
    """A5: A route without either, or with an unknown rule, fails this test."""
    routes = list(built(scoped.app))
    assert len(routes) > 50
    without = [
        (method, path)
        for method, path, resource in routes
        if not getattr(resource, "open", False) and getattr(resource, "policy", {}).get(method) not in RULES
    ]
    assert without == []
    opened = {path for _, path, resource in routes if getattr(resource, "open", False)}
    assert opened == {"/", "/healthz", "/readyz", "/v2/openapi.json"}


@pytest.mark.usefixtures("own_routers")
def test_the_table_above_names_every_route_of_the_router(scoped: Scoped) -> None:
    def template(path: str) -> str:
        return path.partition("?")[0]

    known = {(method, path) for method, path, _, _ in ROUTES}
    for method, path, resource in built(scoped.app):
        if not getattr(resource, "open", False) and not path.startswith(
            (
                "/metrics",
                "/v2/admin",
                "/v2/health",
                "/v2/servers",
                "/v2/tokens",
                "/v2/share",
                "/v2/audit",
                "/v2/queues/{queue}/share",
            )
        ):
            values = {"message": "a", "claim": "c", "subscription": "s"}
            filled = path.format(queue="jobs", topic="jobs", name="jobs", producer="jobs", **values)
            alike = {filled, filled.replace("/a", "/1"), filled.replace("/claims/c", "/claims/a.b")}
            assert any((method, template(each)) for each in alike), (method, path)
            assert {(method, template(path)) for method, path in known} & {(method, each) for each in alike}, path


@SINGLE
@every_row("given", VERBS)
def test_each_route_is_for_one_verb(scoped: Scoped, method: str, path: str, body: Any, verb: str, given: str) -> None:
    """The server accepts the request with a scope for this verb on all names, and answers 403 with any other verb."""
    answer = scoped.api(f"{given}:**", f"{given}:work/**").call(method, path, None, body)
    assert (answer.status_int == 403) is bool(verb and given != verb), answer.body
    if answer.status_int == 403 and method != "HEAD":
        assert answer.json["title"] == "Not authorized"
        assert answer.json["description"].startswith("This credential does not allow ")


@SINGLE
def test_a_scope_is_for_its_names_only(scoped: Scoped, method: str, path: str, body: Any, verb: str) -> None:
    """B2: A scope of every verb on other names has no effect."""
    answer = scoped.api("*:other.**", "*:work/other.**").call(method, path, None, body)
    assert (answer.status_int == 403) is bool(verb)


@SINGLE
def test_a_scope_is_for_its_kind_only(scoped: Scoped, method: str, path: str, body: Any, verb: str) -> None:
    kinds = {"queues": ["queue"], "claims": ["queue"], "topics": ["topic"], "stream?match=jobs&marker=x": ["topic"]}
    kinds["subscriptions"] = ["queue", "topic"]
    own = kinds.get(path.split("/")[2], ["work"])
    others = [f"*:{kind}/**" for kind in ("queue", "topic", "work") if kind not in own]
    assert (scoped.api(*others).call(method, path, None, body).status_int == 403) is bool(verb)
    assert scoped.api(*(f"*:{kind}/**" for kind in own)).call(method, path, None, body).status_int != 403


def test_a_refusal_of_a_thing_is_the_same_whether_it_exists(scoped: Scoped) -> None:
    """A caller cannot learn whether an object outside its scopes exists."""
    stranger, owner = scoped.api("*:other"), scoped.api()

    def answers() -> list[tuple[str, str, int, bytes]]:
        asked = [(method, path, stranger.call(method, path, None, body)) for method, path, body, verb in ROUTES if verb]
        return [(method, path, answer.status_int, answer.body) for method, path, answer in asked]

    before = answers()
    owner.put(QUEUE, 201)
    owner.put(TOPIC, 201)
    owner.send("jobs", 1)
    assert answers() == before


@SINGLE
def test_a_role_that_the_policy_refuses_is_403(scoped: Scoped, method: str, path: str, body: Any, verb: str) -> None:
    """For an unknown rule and for a denied rule the server answers 403 before it reads the body."""
    refused = scoped.api(app=scoped.build(policy=lambda _rule, _identity: False)).call(method, path, 403, body)
    assert method == "HEAD" or refused.json["title"] == "Not authorized"


def test_a_rule_that_is_not_in_the_table_is_denied() -> None:
    """H4: This holds even for an administrator."""
    assert not Policy()("queues:invent", Identity("acme", roles=frozenset({"admin"})))


@every_row("rule", [name for name, rule in RULES.items() if rule.check])
def test_administration_is_for_the_role_admin(rule: str) -> None:
    policy = Policy()
    assert policy(rule, Identity("acme", roles=frozenset({"admin", "member"})))
    assert not policy(rule, Identity("acme", roles=frozenset({"member"})))


@SINGLE
def test_requests_without_a_credential_or_for_another_project_are_refused(
    scoped: Scoped, method: str, path: str, body: Any, verb: str
) -> None:
    """A4, A1: The server answers 401 before any other check, and 403 for a project that is not the credential's."""
    stranger = Api(scoped.app)
    assert stranger.call(method, path, 401, body).headers["WWW-Authenticate"] == 'Bearer realm="zq"'
    scoped.api().call(method, path, 403, body, {"X-Project-ID": "victim"})


def test_another_project_sees_nothing(scoped: Scoped) -> None:
    """L8 and A5: The same scopes in another project find nothing of this project."""
    scoped.api().send("jobs", "mine")
    other = scoped.api("*:**", project="other")
    assert other.queues() == []
    assert other.seen("jobs") == []
    assert other.post(f"{QUEUE}/claims", 204).body == b""


# Other names in a request.


def test_the_target_of_a_move_is_judged(scoped: Scoped) -> None:
    """B2: Without the right to produce there, nothing changes."""
    owner = scoped.api()
    owner.send("jobs", 1)
    claim, messages = owner.claim("jobs")
    message = messages[0]["id"]
    moves = {"move": [{"id": message, "queue": "secrets"}]}
    refused = scoped.api("consume:jobs", "produce:next").post(f"{claim}/settle", 403, moves)
    assert refused.json["description"] == "This credential does not allow messages:create on queue secrets."
    assert owner.queues() == ["jobs"]
    assert scoped.api("consume:jobs", "produce:secrets").post(f"{claim}/settle", 200, moves).json["moved"] == 1


def test_a_dead_letter_queue_is_judged_where_it_is_set_and_where_it_is_buried_in(scoped: Scoped) -> None:
    """B2: This holds for PUT and PATCH that set ``_dead_letter_queue``, and for bury."""
    owner, keeper = scoped.api(), scoped.api("manage:**", "produce:queue/own-dead")
    keeper.put(QUEUE, 403, {"_dead_letter_queue": "secrets"})
    assert owner.queues() == []
    keeper.put(QUEUE, 201, {"_dead_letter_queue": "own-dead"})
    steal = [{"op": "replace", "path": "/metadata/_dead_letter_queue", "value": "secrets"}]
    keeper.patch(QUEUE, 403, steal)
    keeper.patch(QUEUE, 200, [{"op": "remove", "path": "/metadata/_dead_letter_queue"}])
    owner.patch(QUEUE, 200, [{**steal[0], "op": "add"}])
    owner.send("jobs", 1)
    claim, messages = owner.claim("jobs")
    bury = {"bury": [{"id": messages[0]["id"], "reason": "bad"}]}
    scoped.api("consume:jobs").post(f"{claim}/settle", 403, bury)
    assert scoped.api("consume:jobs", "produce:secrets").post(f"{claim}/settle", 200, bury).json["buried"] == 1


def test_a_redrive_is_judged_at_its_target_and_leaves_what_it_may_not_move(scoped: Scoped) -> None:
    """B2: ``to`` is checked first; without ``to`` each origin is checked, and messages of other origins stay."""
    owner = scoped.api()
    for queue in ("mine", "theirs"):
        owner.put(f"/v2/queues/{queue}", 201, {"_dead_letter_queue": "dead"})
        owner.send(queue, queue)
        claim, messages = owner.claim(queue)
        owner.post(f"{claim}/settle", 200, {"bury": [{"id": messages[0]["id"], "reason": "r"}]})
    keeper = scoped.api("manage:dead", "produce:mine")
    keeper.post("/v2/queues/dead/redrive", 403, {"to": "theirs"})
    assert keeper.post("/v2/queues/dead/redrive", 200).json == {"moved": 1, "remaining": 1}
    assert owner.seen("mine") == ["mine"]
    assert owner.seen("theirs") == []
    assert owner.seen("dead") == ["theirs"]
    scoped.api("manage:dead").post("/v2/queues/dead/redrive", 200)
    assert owner.seen("dead") == ["theirs"]


def test_a_commit_is_judged_at_every_stage_and_queue_and_its_producer(scoped: Scoped) -> None:
    """B2: If one name is not allowed, nothing changes."""
    owner = scoped.api()
    owner.post("/v2/queues/out/messages?stage=etl.1", 202, POSTED)
    owner.send("in", 1)
    claim, _ = owner.claim("in")
    settle = [{"queue": "in", "claim": claim.rsplit("/", 1)[1]}]
    commit = {"producer": "etl", "batch": 1, "publish": ["etl.1"], "settle": settle}
    for scopes in (
        ["produce:work/etl.1", "consume:in"],
        ["produce:work/etl", "consume:in"],
        ["produce:work/etl", "produce:work/etl.1"],
        ["produce:work/etl", "produce:work/etl.1", "consume:out"],
    ):
        scoped.api(*scopes).post("/v2/commits", 403, commit)
    assert owner.seen("out") == []
    scoped.api("produce:work/etl", "produce:work/etl.1", "consume:in").post("/v2/commits", 200, commit)
    assert owner.seen("out") == [1]


def test_a_commit_that_settles_needs_the_rule_of_settling(scoped: Scoped) -> None:
    """Tenancy 4: A composite request needs every rule that it uses."""
    app = scoped.build(policy=lambda rule, _identity: rule != "claims:update")
    commit = {**COMMIT, "settle": [{"queue": "in", "claim": "c"}]}
    scoped.api(app=app).post("/v2/commits", 403, commit)
    scoped.api(app=app).post("/v2/commits", 200, COMMIT)


@pytest.mark.parametrize("body", [{}, {"to": "b"}])
def test_a_redrive_needs_the_rule_of_posting(scoped: Scoped, body: Any) -> None:
    app = scoped.build(policy=lambda rule, _identity: rule != "messages:create")
    scoped.api(app=app).post("/v2/queues/a/redrive", 403, body)


def test_a_staged_post_is_judged_at_its_stage_too(scoped: Scoped) -> None:
    scoped.api("produce:queue/jobs").post(f"{QUEUE}/messages?stage=s", 403, POSTED)
    scoped.api("produce:work/s").post(f"{QUEUE}/messages?stage=s", 403, POSTED)
    scoped.api("produce:queue/jobs", "produce:work/s").post(f"{QUEUE}/messages?stage=s", 202, POSTED)


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_listings_show_and_count_what_may_be_observed(scoped: Scoped, kind: str) -> None:
    """B2: No page and no count includes other names."""
    owner = scoped.api()
    for name in ("a.1", "a.2", "b.1", "a.3", "c"):
        owner.put(f"/v2/{kind}s/{name}", 201)
    reader = scoped.api(f"observe:{kind}/a.*", f"produce:{kind}/b.*")
    pages = reader.pages(f"/v2/{kind}s?limit=1", f"{kind}s")
    assert [thing["name"] for page in pages for thing in page] == ["a.1", "a.2", "a.3"]
    assert scoped.api("produce:**").get(f"/v2/{kind}s", 200).json[f"{kind}s"] == []
    if kind == "queue":
        assert reader.get("/v2/queues?with_count=true", 200).json["count"] == 3
        assert owner.get("/v2/queues?with_count=true", 200).json["count"] == 5


def test_a_stream_is_narrowed_to_what_may_be_observed(scoped: Scoped) -> None:
    """B2: A pattern that no scope covers completely shows the covered part; one that no scope overlaps gets 403."""
    owner = scoped.api()
    for topic in ("orders.eu", "secrets", "orders.us"):
        owner.post(f"/v2/topics/{topic}/messages", 201, {"messages": [{"body": topic}]})
    reader = scoped.api("observe:topic/orders.*")
    reader.get("/v2/stream?match=secrets", 403)
    reader.get("/v2/stream?match=secrets.**", 403)
    assert scoped.streamed(["observe:topic/orders.*"], "match=**&marker=0", 2) == ["orders.eu", "orders.us"]
    assert scoped.streamed(["observe:topic/orders.*"], "match=orders.eu&marker=0", 1) == ["orders.eu"]
    assert scoped.streamed(["observe:**"], "match=**&marker=0", 3) == ["orders.eu", "secrets", "orders.us"]


def test_scopes_are_no_way_to_administer(scoped: Scoped) -> None:
    """Tenancy 5: Administration requires the role, and a credential for the whole of its project."""
    app = scoped.build(admin_mode=True)
    administrator = frozenset({"admin"})
    scoped.api(app=app, roles=administrator).get("/v2/health", 200)
    scoped.api("*:**", app=app, roles=administrator).get("/v2/health", 403)
    scoped.api(app=app).get("/v2/health", 403)


def test_a_fence_that_a_request_names_is_judged(scoped: Scoped) -> None:
    """B2: ``fence=`` requires consume on that name wherever it occurs, before the request changes anything."""
    owner = scoped.api()
    owner.post("/v2/fences/etl", 200)
    owner.post(f"{QUEUE}/messages", 201, POSTED)
    scopes = ("produce+consume:queue/**", "produce:work/**")
    without, able = scoped.api(*scopes), scoped.api(*scopes, "consume:work/etl")
    terms = {"ttl": 60, "grace": 60}
    asked: list[tuple[str, str, Any]] = [
        ("PUT", f"{QUEUE}/claims/a.b?fence=etl:1", terms),
        ("PATCH", f"{QUEUE}/claims/a.b?fence=etl:1", terms),
        ("POST", f"{QUEUE}/claims/a.b/settle?fence=etl:1", {"release": []}),
        ("POST", "/v2/commits?fence=etl:1", COMMIT),
    ]
    for method, path, body in asked:
        refused = without.call(method, path, 403, json.dumps(body).encode())
        assert refused.json["description"] == "This credential does not allow claims:update on work etl."
        assert able.call(method, path, None, json.dumps(body).encode()).status_int != 403, path


def test_whoami_returns_the_identity_of_the_caller(scoped: Scoped, compose: Any) -> None:
    """Tenancy 1: The credential determines the response; without a strategy, the headers do."""
    caller = scoped.api("produce:queue/jobs", roles=frozenset({"b", "a"}))
    assert caller.get("/v2/whoami", 200).json == {
        "project": caller.project,
        "user": "u",
        "roles": ["a", "b"],
        "scopes": ["produce:queue/jobs"],
        "credential": "test",
        "expires": None,
    }
    believed = compose()
    assert believed.get("/v2/whoami", 200).json["project"] == believed.project


def test_me_lists_what_the_caller_may_do(scoped: Scoped, compose: Any) -> None:
    """Extensions: A rule is listed if the caller may apply it to any name.

    Without authentication, the caller may name any project.
    """
    caller = scoped.api("produce:queue/jobs", roles=frozenset({"member"}))
    found = caller.get("/v2/me", 200).json
    assert (found["project"], found["projects"], found["roles"]) == (caller.project, [caller.project], ["member"])
    assert (found["admin"], found["auth"], found["console"]) == (False, "none", None)
    assert "messages:create" in found["rules"]
    assert not {"queues:get", "queues:purge", "topics:publish", "admin:server", "tokens:create"} & set(found["rules"])
    everything = scoped.api().get("/v2/me", 200).json["rules"]
    assert set(everything) == {name for name, rule in RULES.items() if not rule.check}
    administrator = scoped.api(roles=frozenset({"admin"})).get("/v2/me", 200).json
    assert (administrator["admin"], administrator["rules"]) == (True, list(RULES))
    believed = compose()
    assert believed.get("/v2/me", 200).json["projects"] is None


def test_each_rule_of_me_is_one_that_the_server_obeys(scoped: Scoped) -> None:
    """With a scope of one verb, requests whose rules are listed are accepted and all others are refused."""
    for verb in VERBS:
        caller = scoped.api(f"{verb}:**")
        rules = set(caller.get("/v2/me", 200).json["rules"])
        for rule, method, path in [
            ("queues:get", "GET", QUEUE),
            ("queues:purge", "POST", f"{QUEUE}/purge"),
            ("queues:delete", "DELETE", "/v2/queues/absent"),
            ("messages:get_all", "GET", f"{QUEUE}/messages"),
            ("claims:get_all", "GET", f"{QUEUE}/claims"),
            ("claims:create", "POST", f"{QUEUE}/claims"),
            ("messages:delete_all", "DELETE", f"{QUEUE}/messages?ids=1"),
            ("messages:delete_all", "POST", f"{QUEUE}/redrive"),
        ]:
            status = caller.call(method, path, None).status_int
            assert (status != 403) == (rule in rules), (verb, rule, status)
