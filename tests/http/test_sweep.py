# SPDX-License-Identifier: Apache-2.0
"""Every route with every hostile value: a client's error or a success of the contract, and no partial effect."""

import json
from typing import Any, NamedTuple

import pytest

from tests.http.api import PATCH_TYPE, Api
from tests.rotation import SEED, rotated

pytestmark = [pytest.mark.one_store, pytest.mark.slow]

ROUTES = {
    # name: method, path, statuses of success, parameters
    "queues.list": ("GET", "/v2/queues", {200}, ("limit", "marker", "detailed", "name", "with_count", "n")),
    "queue.put": ("PUT", "/v2/queues/{queue}", {201, 204}, ()),
    "queue.get": ("GET", "/v2/queues/{queue}", {200}, ()),
    "queue.patch": ("PATCH", "/v2/queues/{queue}", {200}, ()),
    "queue.delete": ("DELETE", "/v2/queues/{queue}", {204}, ()),
    "queue.stats": ("GET", "/v2/queues/{queue}/stats", {200}, ("detailed",)),
    "queue.purge": ("POST", "/v2/queues/{queue}/purge", {204}, ()),
    "messages.list": (
        "GET",
        "/v2/queues/{queue}/messages",
        {200},
        ("limit", "marker", "echo", "include_claimed", "include_delayed", "ids", "detailed", "wait"),
    ),
    "messages.post": ("POST", "/v2/queues/{queue}/messages", {201, 202}, ("stage",)),
    "messages.delete": ("DELETE", "/v2/queues/{queue}/messages", {200, 204}, ("ids", "pop")),
    "message.get": ("GET", "/v2/queues/{queue}/messages/{message}", {200}, ("detailed",)),
    "message.delete": ("DELETE", "/v2/queues/{queue}/messages/{message}", {204}, ("claim_id",)),
    "claims.post": ("POST", "/v2/queues/{queue}/claims", {201, 204}, ("limit", "wait", "detailed")),
    "claim.get": ("GET", "/v2/queues/{queue}/claims/{claim}", {200}, ("detailed",)),
    "claim.patch": ("PATCH", "/v2/queues/{queue}/claims/{claim}", {204}, ("fence",)),
    "claim.delete": ("DELETE", "/v2/queues/{queue}/claims/{claim}", {204}, ("delay",)),
    "claim.settle": ("POST", "/v2/queues/{queue}/claims/{claim}/settle", {200}, ("fence",)),
    "queue.redrive": ("POST", "/v2/queues/{queue}/redrive", {200}, ()),
    "history.list": (
        "GET",
        "/v2/queues/{queue}/history",
        {200},
        ("limit", "marker", "since", "until", "state", "detailed"),
    ),
    "history.replay": ("POST", "/v2/queues/{queue}/history/replay", {200}, ()),
    "claim.put": ("PUT", "/v2/queues/{queue}/claims/a.b", {200, 201, 204}, ("limit", "wait", "fence", "detailed")),
    "fence.post": ("POST", "/v2/fences/n", {200}, ()),
    "stage.delete": ("DELETE", "/v2/stages/n", {204}, ()),
    "commits.post": ("POST", "/v2/commits", {200}, ("fence",)),
    "commit.get": ("GET", "/v2/commits/p", {200}, ()),
    "limits": ("GET", "/v2/limits", {200}, ()),
    "ping": ("GET", "/v2/ping", {204}, ()),
    "home": ("GET", "/v2/", {200}, ()),
}
SOME = (
    "queue.get",
    "queue.delete",
    "queue.stats",
    "message.get",
    "message.delete",
    "claim.get",
    "claim.delete",
    "history.list",
    "fence.post",
    "stage.delete",
    "commit.get",
    "limits",
    "ping",
    "home",
)
"""Routes that read no body."""
VALUES: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1.5,
    2**63,
    -(2**63) - 1,
    "",
    "60",
    "x" * 1000,
    [],
    {},
    [[]],
    {"": None},
    "\x00",
]
FIELDS = [
    *(
        "ttl",
        "grace",
        "messages",
        "body",
        "delay",
        "resource_types",
        "metadata",
        "_default_message_ttl",
        "_max_claim_count",
    ),
    *("_dead_letter_queue", "_retry_policy", "_default_message_delay", "_enable_encrypt_messages", "_flavor"),
    *("_redelivery_delay", "_redelivery_backoff", "_redelivery_max_delay", "_history_ttl"),
    *("delete", "release", "move", "bury", "to", "limit", "ids", "since", "until"),
    *("producer", "batch", "publish", "settle"),
]
BODIES: list[bytes] = [
    *(
        b"",
        b"[]",
        b"{}",
        b"null",
        b"0",
        b'""',
        b"{",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"[NaN]",
        b"[" * 100000,
        b'{"a":' * 20000,
    ),
    *(json.dumps(value).encode() for value in VALUES),
    *(json.dumps({field: value}).encode() for field in FIELDS for value in VALUES),
    *(json.dumps({"messages": [{"body": 1}, value]}).encode() for value in VALUES),
    *(json.dumps({"messages": [{"body": 1, field: value}]}).encode() for field in ("ttl", "delay") for value in VALUES),
    *(
        json.dumps({verb: [{"id": "a", "queue": "b", "reason": "c", field: value}]}).encode()
        for verb, field in (
            ("release", "delay"),
            ("move", "queue"),
            ("move", "ttl"),
            ("bury", "reason"),
            ("bury", "id"),
        )
        for value in VALUES
    ),
    *(
        json.dumps({"producer": "p", "batch": 1, field: value}).encode()
        for field in ("producer", "batch", "publish", "settle")
        for value in VALUES
    ),
    *(json.dumps([value]).encode() for value in VALUES),
    *(
        json.dumps([{"op": "add", "path": "/metadata/_flavor", key: value}]).encode()
        for key in ("op", "path", "value")
        for value in VALUES
    ),
]
WORDS = [
    *(
        "",
        "0",
        "-1",
        "21",
        "1e3",
        "None",
        "true",
        "x",
        "%00",
        "%FF",
        "%20",
        "%",
        "%zz",
        "1,2",
        ",",
        ",,",
        "%7B0%7D",
        "%0A",
    ),
    *("%C3%A9", "a" * 9000, "9" * 5000),
]
QUERIES = [
    *("&", "=", "&&&=&", "limit", "?", "?limit=0", "limit=1;limit=2", "=1", "limit[]=1", "%00=1", "%FF=%FF", "x%20y=1"),
    "&".join(f"p{number}=1" for number in range(2000)),
    f"ids={','.join(['x'] * 20000)}",
    "limit=1&" * 5000,
]

Request = tuple[str, bytes | None]
"""Query and body."""
TOGETHER = 16
"""Number of requests after which the project is compared."""


def a_third(rows: list[Any]) -> list[Any]:
    """Return a third of the values, selected by the seed of the day; in a campaign, all of them."""
    return rotated(rows, -(-len(rows) // 3))


@pytest.fixture
def api(compose: Any) -> Api:
    """Return a client of a server on which no request waits long."""
    return compose(max_wait=1)


class World(NamedTuple):
    """A queue with metadata, three messages, and a claim on the first."""

    queue: str
    message: str
    claim: str


class Sweeper:
    """A sender of requests that checks whether the project's contents are as expected."""

    def __init__(self, api: Api, route: str) -> None:
        self._api = api
        self._method, self._path, self._successes, self._parameters = ROUTES[route]
        self._made = 0
        self.faults: list[str] = []
        self._begin()

    def _begin(self) -> None:
        """Create a fresh world in an empty project."""
        for name in self._api.queues():
            self._api.delete(f"/v2/queues/{name}", 204)
        self._made += 1
        queue = f"jobs{self._made}"
        self._api.put(f"/v2/queues/{queue}", 201, {"a": 1, "_default_message_ttl": 600})
        ids = self._api.send(queue, "held", "second", "third")
        claim, _ = self._api.claim(queue, limit=1)
        self._world = World(queue, ids[1], claim.rsplit("/", 1)[1])
        self._before = self._contents()

    def _contents(self) -> list[bytes]:
        """Return all responses that show the project's contents to its owner."""
        queue = f"/v2/queues/{self._world.queue}"
        looks = ("/v2/queues?detailed=true", f"{queue}/stats", f"{queue}/messages?echo=true&include_claimed=true")
        return [self._api.get(path, 200).body for path in looks]

    def sweep(self, requests: list[Request]) -> None:
        """Send the requests and compare the project's contents after up to ``TOGETHER`` requests.

        If the contents changed, the requests are repeated one by one to find the cause.
        """
        size = TOGETHER
        while requests:
            some, requests = requests[:size], requests[size:]
            asked, refused = [self._send(*each) for each in some][-1]
            if self._contents() == self._before:
                size = min(2 * size, TOGETHER)
                continue
            if len(some) == 1 and (refused or self._method == "GET"):
                self.faults.append(f"{asked}, and the store changed")
            elif len(some) > 1:
                requests = some + requests
            size = 1
            self._begin()

    def _send(self, query: str = "", body: bytes | None = None) -> tuple[str, bool]:
        """Send a request. Return a description of it and whether it was refused.

        A failed check is recorded instead of raised, so that a run shows all of them.
        """
        path = self._path.format(**self._world._asdict()) + (f"?{query}" if query else "")
        headers = {"Content-Type": PATCH_TYPE} if self._path.endswith("{queue}") else {}
        try:
            answer = self._api.unchecked().call(self._method, path, None, body, headers)
        except AssertionError as fault:
            self.faults.append(str(fault))
            return str(fault), True
        asked = f"{self._method} {path[:120]} {(body or b'')[:120]!r} -> {answer.status}"
        if not (answer.status_int in self._successes or 400 <= answer.status_int < 500):
            self.faults.append(asked)
        name = query.split("=")[0]
        if answer.status_int == 400 and name in self._parameters and name not in answer.text:
            self.faults.append(f"{asked}, which does not name the parameter")
        return asked, answer.status_int >= 400


@pytest.mark.parametrize("route", ROUTES)
def test_nasty_bodies_are_refused_without_a_trace(api: Api, route: str, store_name: str) -> None:
    """1.6: The server never answers 5xx, a refusal never changes the store, and errors have title and description.

    The checks are above the stores, so all bodies go to one store and every fifth to the others.
    """
    sweeper = Sweeper(api, route)
    every = 1 if store_name == "memory" else 5
    sweeper.sweep([("", body) for body in a_third(BODIES[: 40 if route in SOME else None : every])])
    assert not sweeper.faults, "\n".join([f"ZQ_SEED={SEED}", *sweeper.faults])


@pytest.mark.parametrize("route", ROUTES)
def test_nasty_queries_are_refused_without_a_trace(api: Api, route: str) -> None:
    """1.5: The rule for bodies holds for known and unknown parameters."""
    body = {
        "POST": b'{"messages": [{"body": 1}], "resource_types": [], "delete": "*", "limit": 5, '
        b'"producer": "p", "batch": 1}',
        "PUT": b"{}",
        "PATCH": b"{}",
    }.get(ROUTES[route][0])
    sweeper = Sweeper(api, route)
    queries = [*QUERIES, *(f"{name}={word}" for name in ROUTES[route][3] for word in WORDS)]
    sweeper.sweep([(query, body) for query in a_third(queries)])
    assert not sweeper.faults, "\n".join([f"ZQ_SEED={SEED}", *sweeper.faults])


@pytest.mark.parametrize(
    "route", [route for route, (_, path, *_) in ROUTES.items() if "{message}" in path or "{claim}" in path]
)
def test_nasty_ids_are_not_found(api: Api, route: str) -> None:
    """1.7 [T]: A malformed id never gets 400 or 5xx."""
    method, path, *_ = ROUTES[route]
    body = {"PATCH": b'{"ttl": 60}', "POST": b'{"delete": "*"}'}.get(method)
    api.send("jobs", "kept")
    for word in (
        "0",
        "-1",
        "x",
        "%00",
        "%FF",
        "%20",
        "9" * 5000,
        "a,b",
        "{0}",
        "%0A",
        "..",
        "*",
        "%E6%B8%AC",
        "a%3Fb=c",
        "%C3%A9",
    ):
        answer = api.unchecked().call(method, path.format(queue="jobs", message=word, claim=word), None, body)
        assert answer.status_int == (204 if method == "DELETE" else 404), word
    assert api.seen("jobs") == ["kept"]


class Careless:
    """A project that is changed by the refusal of the body ``b"bad"``."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def unchecked(self) -> "Careless":
        return self

    def call(self, method: str, path: str, status: int | None, body: Any, headers: Any) -> Any:
        if body == b"bad":
            self._api.call("PUT", "/v2/queues/trace", None)
        return self._api.unchecked().call(method, path, status, body, headers)


def test_a_refusal_that_leaves_a_trace_is_found_among_many(api: Api) -> None:
    """The position of the refusal in its batch and successes in the batch do not matter."""
    sweeper = Sweeper(Careless(api), "messages.post")  # type: ignore[arg-type]
    good = b'{"messages": [{"body": 1}]}'
    bodies = [b"{", b"bad", *[b"{"] * 20, b"bad", good, *[b"{"] * 3, good, b"bad"]
    sweeper.sweep([("", body) for body in bodies])
    assert [fault.partition(" b'")[2] for fault in sweeper.faults] == [
        "bad' -> 400 Bad Request, and the store changed"
    ] * 3
