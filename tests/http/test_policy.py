# SPDX-License-Identifier: Apache-2.0
"""Authorization by policy (contract 15)."""

from typing import Any

import pytest

from tests.http.api import Api
from tests.tables import every_row
from zq.model.identity import Identity

pytestmark = pytest.mark.one_store

QUEUE, TOPIC = "/v2/queues/jobs", "/v2/topics/news"
RULES = [
    ("GET", "/v2/", "limits:get"),
    ("GET", "/v2/limits", "limits:get"),
    ("GET", "/v2/ping", "ping:get"),
    ("GET", "/v2/queues", "queues:get_all"),
    ("PUT", QUEUE, "queues:create"),
    ("GET", QUEUE, "queues:get"),
    ("PATCH", QUEUE, "queues:update"),
    ("DELETE", QUEUE, "queues:delete"),
    ("GET", f"{QUEUE}/stats", "queues:stats"),
    ("GET", f"{QUEUE}/depth", "queues:stats"),
    ("GET", "/v2/audit", "audit:get_all"),
    ("GET", f"{QUEUE}/figures", "queues:stats"),
    ("GET", "/v2/figures", "queues:get_all"),
    ("GET", "/v2/figures/queues", "queues:get_all"),
    ("POST", f"{QUEUE}/purge", "queues:purge"),
    ("GET", f"{QUEUE}/messages", "messages:get_all"),
    ("GET", f"{QUEUE}/messages?ids=a", "messages:get_all"),
    ("POST", f"{QUEUE}/messages", "messages:create"),
    ("DELETE", f"{QUEUE}/messages?ids=a", "messages:delete_all"),
    ("DELETE", f"{QUEUE}/messages?pop=1", "messages:delete_all"),
    ("GET", f"{QUEUE}/messages/a", "messages:get"),
    ("DELETE", f"{QUEUE}/messages/a", "messages:delete"),
    ("GET", f"{QUEUE}/claims", "claims:get_all"),
    ("GET", "/v2/claims", "claims:get_all"),
    ("GET", "/v2/subscriptions", "subscription:get_all"),
    ("POST", f"{QUEUE}/claims", "claims:create"),
    ("GET", f"{QUEUE}/claims/c", "claims:get"),
    ("PATCH", f"{QUEUE}/claims/c", "claims:update"),
    ("DELETE", f"{QUEUE}/claims/c", "claims:delete"),
    ("POST", f"{QUEUE}/claims/c/settle", "claims:update"),
    ("POST", f"{QUEUE}/redrive", "messages:delete_all"),
    ("GET", f"{QUEUE}/history", "messages:get_all"),
    ("POST", f"{QUEUE}/history/replay", "messages:create"),
    ("PUT", f"{QUEUE}/claims/a.b", "claims:create"),
    ("POST", "/v2/fences/n", "claims:update"),
    ("DELETE", "/v2/stages/n", "messages:delete_all"),
    ("POST", "/v2/commits", "messages:create"),
    ("GET", "/v2/commits/p", "messages:get"),
    *(("GET", f"/v2/{work}", "messages:get_all") for work in ("commits", "fences", "stages")),
    ("GET", "/v2/topics", "topics:get_all"),
    ("PUT", TOPIC, "topics:create"),
    ("GET", TOPIC, "topics:get"),
    ("PATCH", TOPIC, "topics:update"),
    ("DELETE", TOPIC, "topics:delete"),
    ("GET", f"{TOPIC}/stats", "topics:stats"),
    ("POST", f"{TOPIC}/purge", "topics:purge"),
    ("POST", f"{TOPIC}/messages", "topics:publish"),
    ("GET", f"{TOPIC}/messages", "topics:get_messages"),
    ("GET", f"{TOPIC}/messages/1", "topics:get_message"),
    ("GET", f"{TOPIC}/stream?marker=9", "topics:stream"),
    ("GET", "/v2/stream?match=***", "topics:stream"),
]
BESIDES = {"messages:delete_all": {"messages:create"}}
"""Further rules that a request of this rule requires: a redrive also posts."""
each_rule = pytest.mark.parametrize(("method", "path", "rule"), RULES)


class Guard:
    """A policy that records the checked rules and denies some of them."""

    def __init__(self, *denied: str) -> None:
        self.denied = denied
        self.asked: list[tuple[str, frozenset[str]]] = []

    def __call__(self, rule: str, identity: Identity) -> bool:
        self.asked.append((rule, identity.roles))
        return rule not in self.denied


@each_rule
def test_a_denial_is_403_and_touches_nothing(gate, method: str, path: str, rule: str) -> None:
    """15: Each route and method has its rule, which is checked before the body is read."""
    guard = Guard(rule)
    refused = gate(policy=guard).call(method, path, 403, None if method == "GET" else b"[}")
    assert refused.json["title"] == "Not authorized"
    assert [asked for asked, _ in guard.asked] == [rule]


@each_rule
def test_no_other_rule_stands_in_the_way(compose, method: str, path: str, rule: str) -> None:
    """15: The server accepts the request even if every other rule is denied."""
    guard = Guard(*{other for _, _, other in RULES} - {rule} - BESIDES.get(rule, set()))
    body = {"PUT": {}, "POST": {"messages": [{"body": 1}], "resource_types": []}}.get(method)
    assert compose(app={"policy": guard}).call(method, path, None, body).status_int in (200, 201, 204, 400, 404, 415)


def test_the_versions_and_the_probes_have_no_rule(gate, api: Api) -> None:
    """Tenancy 4: / and the probes are open to all roles. The home document has a rule, unlike contract 15."""
    guard = Guard()
    app = gate(policy=lambda rule, identity: guard(rule, identity) and False)
    app.get("/", 300)
    app.get("/healthz", 200)
    assert guard.asked == []


@every_row(
    ("header", "roles"),
    [
        (None, set()),
        ("", set()),
        (" , ,", set()),
        ("admin", {"admin"}),
        ("ADMIN", {"admin"}),
        (" Admin ,member,, Reader\t", {"admin", "member", "reader"}),
        ("a b,a,A", {"a b", "a"}),
    ],
)
def test_roles_are_stripped_and_lower_cased(gate, header: str | None, roles: set[str]) -> None:
    """1.3: Roles are separated by commas and compared case-insensitively."""
    guard = Guard("queues:get")
    gate(policy=guard, trusts_network=True).get(QUEUE, 403, {"X-Roles": header})
    assert guard.asked == [("queues:get", frozenset(roles))]


@pytest.mark.parametrize("method", ["HEAD", "POST"])
def test_a_missing_method_is_reported_before_the_policy(gate, method: str) -> None:
    """1.2: 405 comes first, and the policy is not called."""
    guard = Guard("queues:get", "queues:create")
    gate(policy=guard).call(method, QUEUE, 405)
    assert guard.asked == []


@pytest.mark.parametrize("headers", [{"Client-ID": None}, {"X-Project-ID": None}, {"Accept": "text/plain"}])
def test_a_bad_header_is_reported_before_the_policy(gate, headers: dict[str, Any]) -> None:
    """1.2 [T]: A wrong Accept gets 406 even without the role."""
    guard = Guard("queues:get")
    assert gate(policy=guard).get(QUEUE, None, headers).status_int in (400, 406)
    assert guard.asked == []


def test_everyone_may_do_everything_by_default(api: Api) -> None:
    """15: Queues, messages, claims and ping require no role."""
    api.put(QUEUE, 201)
    api.send("jobs", 1)
    claim, _ = api.claim("jobs")
    api.delete(claim, 204)
    api.delete(f"{QUEUE}/messages?pop=1", 200)
    api.post(f"{QUEUE}/purge", 204)
    api.delete(QUEUE, 204)
    api.get("/v2/ping", 204)
