# SPDX-License-Identifier: Apache-2.0
"""Pools and flavors (contract 11, 12), on a server with two stores in memory."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.http.api import Api
from tests.tables import every_row
from zq.audit import Audit
from zq.clock import ManualClock
from zq.core import Broker
from zq.errors import Unavailable
from zq.events import Observers
from zq.http.app import create_app
from zq.model import QueueRef
from zq.model.limits import Limits
from zq.model.pools import Binding, Freeze
from zq.pools.catalogue import Pools
from zq.pools.feature import PoolsFeature, PoolsMoverFeature, pools_mover_feature
from zq.serving.application import open_stores
from zq.serving.features import create_features
from zq.serving.settings import Configuration
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.pooling import PooledStorage
from zq.storage.pooling.bindings import BINDING_RETENTION, CACHE_TTL, Bindings

pytestmark = pytest.mark.one_store

URI = "mongodb://localhost:27017/zq"
OTHER = "mongodb://localhost:27018/zq"
ADMIN = {"X-Roles": "admin"}


class Deployment:
    """Servers that share a catalogue, and the stores of its pools."""

    def __init__(self) -> None:
        self.catalogue = connect("memory:")
        self.stores: dict[str, Storage] = {}
        self.clock = ManualClock(self.catalogue.now())
        self.elapsed = 0.0
        self.silent: set[str] = set()
        self.storage: PooledStorage
        self.mover: PoolsMoverFeature

    def server(self, virtual: bool = True, **options: Any) -> Api:
        """Start another server and return its client."""
        bindings = Bindings(self.catalogue, virtual, lambda: self.elapsed)
        self.storage = PooledStorage(self.catalogue, lambda uri, _expiry: self.open(uri), bindings=bindings)
        pools = Pools(
            self.catalogue.documents,
            self.clock,
            Limits(),
            self.open,
            lambda: ["localhost", "memory:", "own:1"],
            "mongodb://own:1/zq",
        )
        broker = Broker(self.storage, self.clock, pools=self.storage.pools)
        self.mover = pools_mover_feature(self.storage.relocation, self.catalogue, broker, list)
        features = [PoolsFeature(pools, self.mover.moves)]
        given = {"admin_mode": True, "trusts_network": True, "features": features} | options
        return Api(create_app(broker, **given), "-1")

    def open(self, uri: str) -> Storage:
        if uri in self.silent or "nowhere" in uri:
            raise Unavailable
        return self.stores.setdefault(uri, connect("memory:"))


class Admin:
    """A client for an administrator's requests."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def __getattr__(self, method: str) -> Callable[..., Any]:
        call = getattr(self.api, method)
        return lambda *given, **named: call(*given, **{"headers": ADMIN} | named)

    def pool(self, name: str, uri: str = URI, weight: int = 1, **more: Any) -> None:
        made = self.put(f"/v2/pools/{name}", 201, {"uri": uri, "weight": weight, **more})
        assert made.headers["Location"] == f"/v2/pools/{name}"
        assert made.body == b""


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    made = Deployment()
    yield made
    for store in [made.catalogue, *made.stores.values()]:
        store.close()


@pytest.fixture
def admin(deployment: Deployment) -> Admin:
    return Admin(deployment.server())


# Routes and authorization -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["OS_DEFAULT__ADMIN_MODE", "OS_DEFAULT__POOLING"])
def test_the_routes_are_there_with_both_options_only(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """1.1: Otherwise the server answers 404, and the OpenAPI document omits these routes."""
    for name in {"OS_DEFAULT__ADMIN_MODE", "OS_DEFAULT__POOLING"} - {missing}:
        monkeypatch.setenv(name, "true")
    storage = connect("memory:")
    core = Broker(storage, ManualClock(1.0))
    features = create_features(Configuration(), core, Observers(), None, storage.documents, lambda _uri: None)
    api = Api(create_app(core, admin_mode=True, trusts_network=True, features=features))
    for path in ("/v2/pools", "/v2/pools/p", "/v2/flavors", "/v2/flavors/f"):
        api.get(path, 404, ADMIN)
        assert "/v2/pools" not in api.get("/v2/openapi.json", 200).json["paths"]
    storage.close()


@pytest.mark.parametrize("is_on", [False, True])
def test_a_server_moves_queues_only_with_the_option(monkeypatch: pytest.MonkeyPatch, is_on: bool) -> None:
    """Otherwise it has no routes and no thread for moves, and no record in the catalogue."""
    for name in ("OS_DEFAULT__ADMIN_MODE", "OS_DEFAULT__POOLING", "OS_POOLING:CATALOG__ENABLE_VIRTUAL_POOL"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("OS_STORAGE__URI", "memory:")
    monkeypatch.setenv("OS_POOLING:CATALOG__QUEUE_MOVES", str(is_on).lower())
    configuration = Configuration()
    storage = open_stores(configuration.current)
    assert isinstance(storage, PooledStorage)
    core = Broker(storage, ManualClock(1.0))
    features = create_features(configuration, core, Observers(), None, storage.documents, lambda _uri: None, storage)
    assert any(isinstance(feature, PoolsMoverFeature) for feature in features) == is_on
    api = Api(create_app(core, admin_mode=True, trusts_network=True, features=features))
    assert api.get("/v2/pools/p/moves", 200 if is_on else 404, ADMIN)
    answer = api.get("/v2/pools/p/moves/m", 404, ADMIN)
    assert (answer.headers.get("X-Zq-Error") == "MoveNotFound") == is_on
    described = api.get("/v2/openapi.json", 200).json
    assert ("/v2/pools/{pool}/moves" in described["paths"]) == is_on
    assert ("Move" in described["components"]["schemas"]) == is_on
    api.put("/v2/queues/jobs", 201)
    assert (storage._bindings.freezes._thread is not None) == is_on
    storage.close()


@every_row(
    ("method", "path", "status"),
    [
        ("GET", "/v2/pools", 403),
        ("GET", "/v2/pools/p", 403),
        ("PUT", "/v2/pools/p", 403),
        ("PATCH", "/v2/pools/p", 403),
        ("DELETE", "/v2/pools/p", 403),
        ("GET", "/v2/pools/p/moves", 403),
        ("POST", "/v2/pools/p/moves", 403),
        ("GET", "/v2/pools/p/moves/m", 403),
        ("DELETE", "/v2/pools/p/moves/m", 403),
        ("GET", "/v2/flavors", 200),
        ("GET", "/v2/flavors/f", 404),
        ("PUT", "/v2/flavors/f", 403),
        ("PATCH", "/v2/flavors/f", 403),
        ("DELETE", "/v2/flavors/f", 403),
    ],
)
def test_only_administrators_touch_pools_and_change_flavors(admin: Admin, method: str, path: str, status: int) -> None:
    """15: Any caller may read flavors."""
    admin.api.call(method, path, status, {"uri": 1})


def test_changes_of_pools_are_in_the_audit_log(deployment: Deployment) -> None:
    """Tenancy 7: An entry names the changed object, and never a URI."""
    lines: list[Any] = []

    class Told(Audit):
        is_enabled = True

        def log_change(self, entry: Any) -> None:
            lines.append(entry)

        log_refusal = log_change

    admin = Admin(deployment.server(audit=Told()))
    admin.pool("p", URI.replace("//", "//zoe:secret@"))
    admin.put("/v2/flavors/f", 201, {"pool_list": ["p"]})
    assert [(line.rule, line.object, line.outcome) for line in lines] == [
        ("pools:create", "pool p", "done"),
        ("flavors:create", "flavor f", "done"),
    ]
    assert "secret" not in str(lines)


# Pools ---------------------------------------------------------------------------------------------------------------


def test_a_pool_is_shown_as_it_was_made(admin: Admin) -> None:
    """11: Only a detailed response has the options; a second PUT replaces them all."""
    admin.pool("p", weight=7, options={"a": 1})
    plain = {"name": "p", "uri": URI, "weight": 7, "flavor": None, "href": "/v2/pools/p"}
    assert admin.get("/v2/pools/p", 200).json == plain
    assert admin.get("/v2/pools/p?detailed=true", 200).json == plain | {"options": {"a": 1}, "has_queues": False}
    admin.pool("p", weight=8)
    assert admin.get("/v2/pools/p?detailed=true", 200).json == plain | {"weight": 8, "options": {}, "has_queues": False}
    admin.get("/v2/pools/q", 404)


def test_credentials_of_a_uri_are_never_shown(admin: Admin) -> None:
    """H4: The query of the URI is hidden too, and the server refuses the shown URI."""
    admin.pool("p", "mongodb://zoe:secret@localhost:27017/zq?authSource=hidden")
    shown = admin.get("/v2/pools/p", 200)
    assert shown.json["uri"] == "mongodb://***@localhost:27017/zq?***"
    assert "secret" not in shown.text + admin.get("/v2/pools?detailed=true", 200).text
    admin.put("/v2/pools/p", 400, {"uri": shown.json["uri"], "weight": 1})


@pytest.mark.parametrize("uri", ["mongodb://169.254.169.254/zq", "rocksdb:/etc/zq", "mongodb://localhost,evil:1/zq"])
def test_hosts_and_schemes_of_pools_are_those_that_the_options_allow(admin: Admin, uri: str) -> None:
    refused = admin.put("/v2/pools/p", 400, {"uri": uri, "weight": 1})
    assert "allowed_hosts" in refused.json["description"]


@every_row(
    "uri",
    [
        *(
            f"mongodb://localhost/zq?{name}=/etc/hostname"
            for name in ("tlsCAFile", "tlscertificatekeyfile", "tlsCRLFile")
        ),
        *("mongodb://localhost/zq?w=1;tlsCAFile=/etc/hostname", "mongodb://localhost/zq#?tlsCAFile=/etc/hostname"),
        *("mongodb://localhost/zq?authMechanismProperties=ENVIRONMENT:k8s", "mongodb://localhost/zq?proxyHost=evil"),
        *(f"rediss://localhost/0?{name}=/etc/hostname" for name in ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile")),
        *("rediss://localhost/0?ssl_keyfile=/etc/hostname", "rediss://localhost/0?ssl%5Fca_certs=/etc/hostname"),
        *("s3://localhost/zq?endpoint=http://evil.example", "memory:?x=1", "other://localhost/zq?x=1"),
    ],
)
def test_options_of_a_pool_name_no_file_of_the_server_and_no_other_host(admin: Admin, uri: str) -> None:
    """H4: Only listed options are allowed; the error names the option and no value."""
    refused = admin.put("/v2/pools/p", 400, {"uri": uri, "weight": 1})
    assert refused.json["title"] == "Unable to create pool"
    assert "option" in refused.json["description"]
    assert "/etc/hostname" not in refused.text
    admin.pool("p", "mongodb://localhost/zq?replicaSet=rs0&authSource=admin&TLS=true&w=majority")
    admin.patch("/v2/pools/p", 400, {"uri": uri})
    admin.pool("q", "rediss://localhost,localhost:1/0?master=m&sentinel_password=a&ssl_cert_reqs=none")


@pytest.mark.parametrize("weight", [-1, 2**32 + 1, "big", None, 1.5])
def test_a_wrong_weight_is_refused(admin: Admin, weight: Any) -> None:
    admin.put("/v2/pools/p", 400, {"uri": URI, "weight": weight})
    admin.pool("p")
    admin.patch("/v2/pools/p", 400, {"weight": weight})


@every_row("uri", [-1, 2**32 + 1, [], "localhost:27017", None, "mongodb://localhost/nowhere", "x" * 256])
def test_a_wrong_uri_is_refused(admin: Admin, uri: Any) -> None:
    """11 [T]: This includes a URI to which the server cannot connect."""
    admin.put("/v2/pools/p", 400, {"uri": uri, "weight": 1})
    admin.pool("p")
    admin.patch("/v2/pools/p", 400, {"uri": uri})
    assert admin.get("/v2/pools/p", 200).json["uri"] == URI


@pytest.mark.parametrize("options", [-1, "wee", [], None])
def test_wrong_options_are_refused(admin: Admin, options: Any) -> None:
    admin.put("/v2/pools/p", 400, {"uri": URI, "weight": 1, "options": options})
    admin.pool("p")
    admin.patch("/v2/pools/p", 400, {"options": options})


@every_row("body", [None, {}, {"uri": URI}, {"weight": 1}, {"uri": URI, "weight": 1, "x": 1}, [1]])
def test_a_new_pool_needs_all_and_takes_no_more(admin: Admin, body: Any) -> None:
    """11: The schema requires all members and allows no others."""
    admin.put("/v2/pools/p", 400, body)


def test_an_unreachable_store_is_no_pool(admin: Admin, deployment: Deployment) -> None:
    """11: The server tries to connect to the store."""
    deployment.silent.add(URI)
    refused = admin.put("/v2/pools/p", 400, {"uri": URI, "weight": 1})
    assert refused.json["title"] == "Unable to create pool"


@pytest.mark.parametrize("uri", [URI, URI + "?appName=b", URI.replace("//", "//zoe@"), "mongodb://own:1/zq"])
def test_two_pools_never_share_a_store(admin: Admin, uri: str) -> None:
    """11 [T]: The server answers 409 for any spelling of the URI, and for the catalogue's store."""
    admin.pool("p")
    assert admin.put("/v2/pools/q", 409, {"uri": uri, "weight": 1}).json["title"] == "Resource conflict"


def test_a_pool_is_patched(admin: Admin) -> None:
    """11 [T]: PATCH sets known fields and ignores unknown keys; flavor "" removes the flavor.

    Without a known field, the server answers 400 before it looks up the pool.
    """
    admin.pool("p")
    body = {"weight": 60, "uri": OTHER, "flavor": "f", "options": {"a": 1}, "x": 1}
    patched = admin.patch("/v2/pools/p", 200, body).json
    assert patched == {"name": "p", "weight": 60, "uri": OTHER, "flavor": "f", "href": "/v2/pools/p"}
    assert admin.patch("/v2/pools/p", 200, {"flavor": ""}).json["flavor"] is None
    for name in ("p", "unknown"):
        admin.patch(f"/v2/pools/{name}", 400, {})
        admin.patch(f"/v2/pools/{name}", 400, {"x": 1})
    admin.patch("/v2/pools/unknown", 404, {"weight": 1})


def test_pools_are_listed_in_pages(admin: Admin) -> None:
    assert admin.get("/v2/pools", 200).json == {"pools": [], "links": []}
    for number in range(12):
        admin.pool(f"p{number:02}", f"mongodb://localhost:{number + 1}/zq")
    page = admin.get("/v2/pools?limit=3&detailed=true", 200)
    assert page.headers["Content-Location"] == "/v2/pools?limit=3&detailed=true"
    assert [pool["name"] for pool in page.json["pools"]] == ["p00", "p01", "p02"]
    assert all("options" in pool for pool in page.json["pools"])
    [link] = page.json["links"]
    following = admin.get(link["href"], 200).json["pools"]
    assert [pool["name"] for pool in following] == ["p03", "p04", "p05"]
    assert len(admin.get("/v2/pools", 200).json["pools"]) == 10
    for limit in (0, 21, -1):
        admin.get(f"/v2/pools?limit={limit}", 400)


def test_a_pool_is_deleted_but_not_the_only_one_of_its_flavor(admin: Admin) -> None:
    admin.delete("/v2/pools/unknown", 204)
    admin.pool("p", flavor="f")
    assert admin.delete("/v2/pools/p", 403).json["title"] == "Unable to delete"
    admin.pool("q", OTHER, flavor="f")
    admin.delete("/v2/pools/p", 204)
    admin.get("/v2/pools/p", 404)


def test_a_pool_with_queues_stays_where_it_is(admin: Admin) -> None:
    """The queues' messages would be lost. The user and the options of the store's URI may change."""
    admin.pool("p")
    admin.api.put("/v2/queues/jobs", 201)
    assert admin.delete("/v2/pools/p", 403).json["title"] == "Unable to delete"
    assert admin.get("/v2/pools?detailed=true", 200).json["pools"][0]["has_queues"]
    admin.patch("/v2/pools/p", 409, {"uri": OTHER})
    admin.patch("/v2/pools/p", 200, {"uri": URI.replace("//", "//zoe:new@")})


@pytest.mark.parametrize("method", ["put", "patch"])
def test_a_pool_that_gets_queues_while_its_uri_changes_keeps_its_uri(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    admin = Admin(deployment.server())
    admin.pool("p")
    opening = deployment.open

    def slow(uri: str) -> Storage:
        if uri == OTHER:
            admin.put("/v2/queues/jobs", 201)
        return opening(uri)

    monkeypatch.setattr(deployment, "open", slow)
    admin = Admin(deployment.server())
    answer = getattr(admin, method)("/v2/pools/p", 409, {"uri": OTHER, "weight": 1})
    assert answer.json["title"] == "Resource conflict"
    assert admin.get("/v2/pools/p", 200).json["uri"] == "mongodb://localhost:27017/zq"
    admin.post("/v2/queues/jobs/messages", 201, {"messages": [{"body": 1}]})


def test_pools_of_a_flavor_must_have_the_same_capabilities(admin: Admin) -> None:
    admin.pool("p", flavor="f")
    body = {"uri": "redis://localhost/0", "weight": 1, "flavor": "f"}
    assert admin.put("/v2/pools/q", 400, body).json["title"] == "Unable to create pool"


def test_the_only_pool_of_a_flavor_keeps_its_capabilities(admin: Admin) -> None:
    """11 [T]: While the pool is in the flavor, no verb can change its store to one with other capabilities."""
    admin.pool("p", flavor="f")
    other = {"uri": "redis://localhost/0", "weight": 1, "flavor": "f"}
    assert admin.put("/v2/pools/p", 400, other).json["title"] == "Unable to create pool"
    admin.patch("/v2/pools/p", 400, {"uri": other["uri"]})
    admin.pool("p", OTHER, flavor="f")
    admin.pool("p", other["uri"], flavor="g")


# Flavors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "word", "first"), [("put", "created", "m"), ("patch", "updated", "n")])
def test_a_flavor_accepts_only_pools_with_equal_capabilities(admin: Admin, method: str, word: str, first: str) -> None:
    """Contract 11: This holds for every request that adds a pool to a flavor; nothing changes."""
    for name, uri in (("m", URI), ("n", OTHER), ("r", "redis://localhost/1"), ("s", "redis://localhost/2")):
        admin.pool(name, uri)
    admin.put("/v2/flavors/f", 201, {"pool_list": ["m"]})
    call = getattr(admin, method)
    mixed = call("/v2/flavors/f", 400, {"pool_list": ["n", "r"]}).json["description"]
    assert mixed == f"Flavor f could not be {word}, error:Pools {first} and r have different capabilities"
    assert admin.get("/v2/flavors/f", 200).json["pool_list"] == ["m"]
    admin.patch("/v2/pools/r", 400, {"flavor": "f"})
    admin.patch("/v2/pools/m", 400, {"uri": "redis://localhost/3"})
    admin.patch("/v2/flavors/f", 200, {"pool_list": ["r", "s"]})
    assert admin.get("/v2/flavors/f", 200).json["pool_list"] == ["r", "s"]
    assert admin.get("/v2/pools/m", 200).json["flavor"] is None


def test_a_flavor_lives_from_its_creation_to_its_end(admin: Admin) -> None:
    admin.pool("p")
    admin.pool("q", OTHER)
    made = admin.put("/v2/flavors/f", 201, {"pool_list": ["p"]})
    assert (made.headers["Location"], made.body) == ("/v2/flavors/f", b"")
    shown = admin.api.get("/v2/flavors/f", 200).json
    names = ["FIFO", "CLAIMS", "DURABILITY", "AOD", "HIGH_THROUGHPUT"]
    assert shown == {"name": "f", "href": "/v2/flavors/f", "pool_list": ["p"], "capabilities": names}
    assert admin.get("/v2/pools/p", 200).json["flavor"] == "f"
    admin.put("/v2/flavors/f", 201, {"pool_list": ["p"]})
    patched = admin.patch("/v2/flavors/f", 200, {"pool_list": ["q"], "x": 1}).json
    assert patched["pool_list"] == ["q"]
    assert admin.get("/v2/pools/p", 200).json["flavor"] is None
    admin.delete("/v2/flavors/f", 204)
    assert admin.get("/v2/pools/q", 200).json["flavor"] is None
    admin.api.get("/v2/flavors/f", 404)
    admin.delete("/v2/flavors/f", 204)


def test_a_flavor_of_an_unknown_pool_is_refused_in_these_words(admin: Admin) -> None:
    refused = admin.put("/v2/flavors/f", 400, {"pool_list": ["p"]})
    assert json.loads(refused.body) == {
        "title": "Unable to create",
        "description": "Flavor f could not be created, error:Pool p does not exist",
    }
    admin.patch("/v2/flavors/f", 404, {"pool_list": ["p"]})
    admin.pool("q")
    admin.put("/v2/flavors/f", 201, {"pool_list": ["q"]})
    assert admin.patch("/v2/flavors/f", 400, {"pool_list": ["p"]}).json["title"] == "updatefail"


@every_row("body", [None, {}, {"pool_list": []}, {"pool_list": "p"}, {"pool_list": [1]}, {"x": 1}])
def test_a_flavor_needs_a_list_of_pools(admin: Admin, body: Any) -> None:
    admin.pool("p")
    admin.put("/v2/flavors/g", 201, {"pool_list": ["p"], "capabilities": {}})
    admin.put("/v2/flavors/f", 400, body)
    admin.put("/v2/flavors/f", 400, {"pool_list": ["p"], "x": 1})
    admin.patch("/v2/flavors/g", 400, body)


def test_flavors_are_listed_in_pages_and_are_a_projects_own(admin: Admin) -> None:
    admin.pool("p")
    for number in range(11):
        admin.put(f"/v2/flavors/f{number:02}", 201, {"pool_list": ["p"]})
    page = admin.api.get("/v2/flavors?limit=10", 200).json
    assert page["flavors"][0] == {"name": "f00", "href": "/v2/flavors/f00"}  # moved from the previous flavor
    assert "detailed" not in page["links"][0]["href"]
    last = admin.api.get(page["links"][0]["href"] + "&detailed=true", 200).json
    assert last["flavors"][0]["pool_list"] == ["p"]
    assert last["flavors"][0]["capabilities"][0] == "FIFO"
    assert "detailed=true" in last["links"][0]["href"]
    assert admin.api.tenant("other").get("/v2/flavors", 200).json == {"flavors": [], "links": []}
    for limit in (0, 21):
        admin.api.get(f"/v2/flavors?limit={limit}", 400)


# Queues in pools -----------------------------------------------------------------------------------------------------


def test_queues_go_to_pools_of_their_flavor(admin: Admin, deployment: Deployment) -> None:
    """12 [T]: A known flavor gets 201, an unknown flavor 400. Weights distribute queues; 0 excludes a pool."""
    admin.pool("fast", flavor="f")
    admin.pool("none", OTHER, weight=0)
    admin.put("/v2/flavors/f", 201, {"pool_list": ["fast"]})
    api = admin.api
    api.put("/v2/queues/jobs", 201, {"_flavor": "f"})
    assert "_flavor" in api.put("/v2/queues/x", 400, {"_flavor": "g"}).json["description"]
    api.put("/v2/queues/x", 400, {"_flavor": 7})
    api.put("/v2/queues/plain", 201)
    here = {
        uri: [queue.ref.name for queue in deployment.open(uri).queues.list(api.project, "", 9).items]
        for uri in (URI, OTHER)
    }
    assert here == {URI: ["jobs"], OTHER: []}
    assert deployment.catalogue.queues.get(QueueRef(api.project, "plain")) is not None
    assert api.queues() == ["jobs", "plain"]


def test_a_server_with_neither_pool_nor_own_store_answers_503(deployment: Deployment) -> None:
    admin = Admin(deployment.server(virtual=False))
    admin.api.put("/v2/queues/jobs", 503)
    admin.api.post("/v2/queues/jobs/messages", 503, {"messages": [{"body": 1}]})
    admin.pool("p")
    admin.api.put("/v2/queues/jobs", 201)


def test_messages_live_in_their_queues_pool(admin: Admin, deployment: Deployment) -> None:
    """The verbs are post, list, claim, settle, delete, statistics and purge, over HTTP."""
    admin.pool("p")
    api = admin.api
    api.send("jobs", 1, 2, 3)
    ref = QueueRef(api.project, "jobs")
    assert deployment.catalogue.queues.get(ref) is None
    assert api.seen("jobs") == [1, 2, 3]
    claim, [first] = api.claim("jobs", 1)
    api.post(f"{claim}/settle", 200, {"delete": [first["id"]]})
    assert api.get("/v2/queues/jobs/stats", 200).json["messages"]["total"] == 2
    api.post("/v2/queues/jobs/purge", 204)
    assert api.seen("jobs") == []
    api.delete("/v2/queues/jobs", 204)
    assert api.queues() == []


def test_queues_that_are_older_than_the_pools_stay(admin: Admin, deployment: Deployment) -> None:
    """Older queues stay in the configured store, are listed among the other queues, and accept messages."""
    ref = QueueRef(admin.api.project, "old")
    deployment.catalogue.queues.create(ref, b"{}")
    admin.pool("p")
    names = sorted(["old", *(f"q{number:02}" for number in range(15)), "a", "z"])
    for name in names:
        admin.api.send(name, name)
    assert deployment.catalogue.queues.stats(ref, deployment.clock.now()).free == 1
    pages = admin.api.pages("/v2/queues?limit=4", "queues")
    assert [queue["name"] for page in pages for queue in page] == names


def test_another_server_sees_a_new_pool_without_a_restart(admin: Admin, deployment: Deployment) -> None:
    """The server finds the pool within ``CACHE_TTL`` seconds after its last read of the catalogue."""
    other = deployment.server(virtual=True)
    admin.pool("p", OTHER, weight=1)
    other.put("/v2/queues/first", 201)
    admin.patch("/v2/pools/p", 200, {"weight": 0})
    admin.pool("q")
    deployment.elapsed += CACHE_TTL
    other.put("/v2/queues/second", 201)
    project = other.project
    assert deployment.open(OTHER).queues.get(QueueRef(project, "first"))
    assert deployment.open(URI).queues.get(QueueRef(project, "second"))


def test_a_dead_letter_queue_is_in_the_pool_of_its_queue(admin: Admin, deployment: Deployment) -> None:
    """A missing dead-letter queue is created in that pool. A queue of another pool is refused, and nothing changes."""
    admin.api.put("/v2/queues/elsewhere", 201)
    admin.pool("p")
    api = admin.api
    api.put("/v2/queues/jobs", 201, {"_dead_letter_queue": "dead", "_max_claim_count": 1})
    admin.patch("/v2/pools/p", 200, {"weight": 0})
    api.send("dead", 1)
    assert deployment.catalogue.queues.get(QueueRef(api.project, "dead")) is None
    operation = {"op": "replace", "path": "/metadata/_dead_letter_queue", "value": "elsewhere"}
    refusals = [
        api.patch("/v2/queues/jobs", 400, [operation]),
        api.post("/v2/queues/jobs/redrive", 400, {"to": "elsewhere"}) if api.send("jobs", 2) else None,
    ]
    for refused in filter(None, refusals):
        assert "jobs" in refused.json["description"]
        assert "elsewhere" in refused.json["description"]
    claim, [message] = api.claim("jobs")
    moved = {"move": [{"id": message["id"], "queue": "elsewhere"}]}
    assert "elsewhere" in api.post(f"{claim}/settle", 400, moved).json["description"]
    api.post(f"{claim}/settle", 200, {"bury": [{"id": message["id"], "reason": "odd"}]})
    assert api.seen("dead") == [1, 2]


def test_commits_and_fences_are_of_the_default_pool(admin: Admin) -> None:
    """Otherwise the server answers 400 to the request and names the queue."""
    api = admin.api
    api.put("/v2/queues/here", 201)
    admin.pool("p")
    api.send("jobs", 1)
    claim, _ = api.claim("jobs")
    body = {"producer": "p", "batch": 1, "settle": [{"queue": "jobs", "claim": claim.rsplit("/", 1)[1]}]}
    for refused in (
        api.post("/v2/commits", 400, body),
        api.post("/v2/queues/jobs/messages?stage=s", 400, {"messages": [{"body": 1}]}),
        api.post(f"{claim}/settle?fence=n:1", 400, {"delete": "*"}),
    ):
        assert "jobs" in refused.json["description"]
    api.post("/v2/queues/here/messages?stage=s", 202, {"messages": [{"body": 1}]})
    assert [stage["name"] for stage in api.get("/v2/stages", 200).json["stages"]] == ["s"]
    api.post("/v2/commits", 200, {"producer": "p", "batch": 1, "publish": ["s"]})
    assert [commit["producer"] for commit in api.get("/v2/commits", 200).json["commits"]] == ["p"]
    assert api.seen("here") == [1]


def test_a_queue_does_not_change_its_pool(admin: Admin) -> None:
    """Another flavor gets 409, also for a new queue of that name, until the binding is removed."""
    admin.pool("p")
    admin.pool("q", OTHER, flavor="f")
    admin.put("/v2/flavors/f", 201, {"pool_list": ["q"]})
    api = admin.api
    api.put("/v2/queues/jobs", 201)
    operation = {"op": "add", "path": "/metadata/_flavor", "value": "f"}
    assert "flavor f" in api.patch("/v2/queues/jobs", 409, [operation]).json["description"]
    api.delete("/v2/queues/jobs", 204)
    api.put("/v2/queues/jobs", 409, {"_flavor": "f"})


# Caches of servers -------------------------------------------------------------------------------------------------


def pool_of(deployment: Deployment, queue: QueueRef) -> str:
    return Bindings(deployment.catalogue, True).find(queue)


def test_the_binding_of_a_deleted_queue_goes_when_nobody_can_remember_it(
    admin: Admin, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards its pool can be deleted.

    A server that has cached the binding still posts to the pool; nothing is lost.
    """
    first, now = Admin(deployment.server()), deployment.catalogue.now()
    monkeypatch.setattr(deployment.catalogue, "now", lambda: now)
    admin.pool("p")
    first.api.send("jobs", 1)
    admin.api.send("jobs", 2)
    ref = QueueRef(admin.api.project, "jobs")
    admin.api.delete("/v2/queues/jobs", 204)
    assert pool_of(deployment, ref) == "p"
    first.api.send("jobs", 3)  # by its cached binding
    now += BINDING_RETENTION
    deployment.storage.maintain(now)
    assert pool_of(deployment, ref) == "p"
    deployment.elapsed += CACHE_TTL
    assert admin.api.seen("jobs") == [3]
    admin.api.delete("/v2/queues/jobs", 204)
    now += BINDING_RETENTION - 1
    deployment.storage.maintain(now)
    assert pool_of(deployment, ref) == "p"
    now += 1
    deployment.storage.maintain(now)
    assert pool_of(deployment, ref) == ""
    admin.delete("/v2/pools/p", 204)


def test_a_pool_that_does_not_answer_takes_only_its_queues_with_it(admin: Admin, deployment: Deployment) -> None:
    """These queues get 503; another server that starts then serves all other queues."""
    admin.api.send("here", 1)
    admin.pool("p")
    admin.api.send("there", 2)
    deployment.silent.add(URI)
    fresh = deployment.server()
    assert fresh.seen("here") == [1]
    fresh.get("/v2/queues/there/messages", 503)
    deployment.storage.maintain(deployment.catalogue.now())
    deployment.silent.clear()
    assert admin.api.seen("there") == [2]


def test_health_is_reported_for_each_pool(admin: Admin, deployment: Deployment) -> None:
    """Contract 5: The report has the availability of the catalogue and the health of each pool's store."""
    assert admin.get("/v2/health", 200).json == {"catalog_reachable": True}
    admin.pool("p")
    admin.pool("q", OTHER)
    admin.api.send("jobs", 1, 2)
    deployment.elapsed += CACHE_TTL
    fresh = Admin(deployment.server())
    report = fresh.get("/v2/health", 200).json
    assert report.keys() == {"catalog_reachable", "p", "q"}
    assert sum(report[pool]["message_volume"]["total"] for pool in "pq") == 2
    for pool in "pq":
        assert report[pool]["storage_reachable"]
        assert {each["succeeded"] for each in report[pool]["operation_status"].values()} == {True}
    deployment.silent.add(OTHER)
    report = Admin(deployment.server()).get("/v2/health", 200).json
    assert report["p"]["storage_reachable"]
    assert not report["q"]["storage_reachable"]
    assert len(report["q"]["operation_status"]) == 8
    assert all(not each["succeeded"] and each["ref"] for each in report["q"]["operation_status"].values())


# Moves ---------------------------------------------------------------------------------------------------------------


def test_a_move_is_requested_listed_and_cancelled(deployment: Deployment, admin: Admin) -> None:
    """The answers have the estimate; the queue's other requests work until the move begins."""
    admin.pool("p", weight=0)
    admin.put("/v2/queues/jobs", 201)
    admin.post("/v2/queues/jobs/messages", 201, {"messages": [{"body": 1}, {"body": 2}]})
    requested = admin.post("/v2/pools/p/moves", 202, {"queue": "jobs"})
    move = requested.json
    assert requested.headers["Location"] == move["href"] == f"/v2/pools/p/moves/{move['id']}"
    assert move["estimated_seconds"] >= 1
    terms = {"queue": "jobs", "queues": ["jobs"], "from": "", "to": "p", "phase": "waiting", "messages": 2, "copied": 0}
    assert {name: move[name] for name in terms} == terms
    assert (move["estimate"], "error" in move, "ended" in move) == ("assumed", False, False)
    assert admin.get(move["href"], 200).json == move
    admin.post("/v2/queues/jobs/messages", 201, {"messages": [{"body": 3}]})
    assert admin.get("/v2/pools/p/moves?limit=1", 200).json["moves"] == [move]
    again = admin.post("/v2/pools/p/moves", 409, {"queue": "jobs"})
    assert (again.json["title"], again.headers["X-Zq-Error"]) == ("Unable to move queue", "MoveRefused")
    admin.delete(move["href"], 204)
    deployment.mover._mover.run_round()
    assert admin.get(move["href"], 200).json["phase"] == "cancelled"
    admin.delete(move["href"], 204)


def test_a_moving_queue_answers_503_to_changes(deployment: Deployment, admin: Admin) -> None:
    """With ``Retry-After``, and without an entry in the log of unavailable stores. Reads are served."""
    admin.pool("p", weight=0)
    admin.put("/v2/queues/jobs", 201)
    admin.put("/v2/queues/other", 201)
    admin.post("/v2/queues/jobs/messages", 201, {"messages": [{"body": 1}]})
    deployment.storage.relocation.freeze("m", Freeze(admin.api.project, ["jobs"]))
    refused = admin.post("/v2/queues/jobs/messages", 503, {"messages": [{"body": 2}]})
    assert (refused.json["title"], refused.headers["X-Zq-Error"]) == ("Queue moving", "QueueMoving")
    assert refused.headers["Retry-After"] == "2"
    admin.post("/v2/queues/jobs/claims", 503, {"ttl": 60, "grace": 60})
    admin.delete("/v2/queues/jobs", 503)
    assert len(admin.get("/v2/queues/jobs/messages?echo=true", 200).json["messages"]) == 1
    admin.post("/v2/queues/other/messages", 201, {"messages": [{"body": 2}]})


def test_a_queue_moves_and_its_pool_then_cannot_be_deleted(deployment: Deployment, admin: Admin) -> None:
    """The former pool can."""
    admin.pool("p", weight=0)
    admin.pool("q", OTHER, weight=0)
    admin.put("/v2/queues/jobs", 201)
    admin.post("/v2/queues/jobs/messages", 201, {"messages": [{"body": 1}]})
    for pool in ("p", "q"):
        move = admin.post(f"/v2/pools/{pool}/moves", 202, {"queue": "jobs", "project": admin.api.project}).json
        deployment.mover._mover.run_round()
        done = admin.get(move["href"], 200).json
        assert (done["phase"], done["copied"], done["ended"] > 0) == ("done", 2, True)
        assert deployment.storage.relocation.binding(QueueRef(admin.api.project, "jobs")) == Binding(pool)
    assert admin.delete("/v2/pools/q", 403).json["title"] == "Unable to delete"
    admin.delete("/v2/pools/p", 204)
    assert len(admin.post("/v2/queues/jobs/claims", 201, {"ttl": 60, "grace": 60}).json["messages"]) == 1


@every_row(
    ("path", "body", "status"),
    [
        ("/v2/pools/p/moves", {}, 400),
        ("/v2/pools/p/moves", {"queue": 1}, 400),
        ("/v2/pools/p/moves", {"queue": "jobs", "to": "q"}, 400),
        ("/v2/pools/p/moves", {"queue": "~jobs"}, 400),
        ("/v2/pools/p/moves", {"queue": ""}, 400),
        ("/v2/pools/p/moves", {"queue": "missing"}, 404),
        ("/v2/pools/q/moves", {"queue": "jobs"}, 404),
    ],
)
def test_a_bad_request_for_a_move_is_refused(deployment: Deployment, path: str, body: object, status: int) -> None:
    admin = Admin(deployment.server())
    admin.pool("p", weight=0)
    admin.put("/v2/queues/jobs", None)
    admin.post(path, status, body)
    admin.get("/v2/pools/p/moves/none", 404)
    admin.delete("/v2/pools/p/moves/none", 404)
