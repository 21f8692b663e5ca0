# SPDX-License-Identifier: Apache-2.0
"""What later versions will have answers 400 and says so, never half-way (extensions 0).

Not 501: python-zaqarclient, and so Aodh, Heat and ``openstack messaging``, take that for success.
"""

import json
from typing import Any

import pytest

from tests.http.api import RESERVED, Api

pytestmark = pytest.mark.one_store

QUEUE, TOPIC = "/v2/queues/jobs", "/v2/topics/jobs"
ROUTES = [
    ("GET", f"{QUEUE}/subscriptions"),
    ("POST", f"{QUEUE}/subscriptions"),
    ("GET", f"{QUEUE}/subscriptions/s"),
    ("PATCH", f"{QUEUE}/subscriptions/s"),
    ("DELETE", f"{QUEUE}/subscriptions/s"),
    ("PUT", f"{QUEUE}/subscriptions/s/confirm"),
    ("GET", f"{TOPIC}/subscriptions"),
    ("POST", f"{TOPIC}/subscriptions"),
    ("GET", f"{TOPIC}/subscriptions/s"),
    ("PATCH", f"{TOPIC}/subscriptions/s"),
    ("DELETE", f"{TOPIC}/subscriptions/s"),
    ("PUT", f"{TOPIC}/subscriptions/s/confirm"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_route_of_a_later_version_is_refused(door: Api, method: str, path: str) -> None:
    """Extensions 0: with a title, a sentence and the error's class, whatever the body."""
    for body in (None, b"{}", b"[}"):
        refused = door.call(method, path, 400, None if method in ("GET", "DELETE") else body)
        assert refused.json["title"] == "Not implemented"
        assert "does not have" in refused.json["description"]
        assert refused.headers["X-Zq-Error"] == "NotBuilt"


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_route_of_a_later_version_checks_its_headers_first(door: Api, method: str, path: str) -> None:
    """1.2: client and project."""
    door.call(method, path, 400, headers={"Client-ID": None})
    door.call(method, path, 400, headers={"X-Project-ID": None})


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_route_of_a_later_version_checks_its_queue_name_first(door: Api, method: str, path: str) -> None:
    """1.2 [T]: a bad name is 400 on every sub-resource."""
    door.call(method, path.replace("jobs", "Nice-Bo@t"), 400)


@pytest.mark.parametrize("path", sorted({path for _, path in ROUTES}))
def test_a_later_route_lacks_every_other_method(door: Api, path: str) -> None:
    """1.1: those of the contract are allowed, any other is 405."""
    allowed = {name.strip() for name in door.call("OPTIONS", path, 200).headers["Allow"].split(",")}
    assert {method for method, other in ROUTES if other == path} <= allowed
    for method in {"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"} - allowed:
        door.call(method, path, 405)


def test_nothing_later_is_in_the_home_document(door: Api) -> None:
    """Extensions 0: no template leads there."""
    document = json.loads(door.get("/v2/", 200).body)
    words = (
        "share",
        "subscription",
        "topic",
        "pool",
        "flavor",
        "health",
        "settle",
        "redrive",
        "history",
        "fence",
        "stage",
    )
    assert not [rel for rel in document["resources"] for word in words if word in rel]


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", f"{QUEUE}/messages?detailed=false&wait=&stage=", 200, None),
        ("POST", f"{QUEUE}/claims?wait=0&detailed=", 204, {}),
        ("GET", "/v2/queues?detailed=true", 200, None),
    ],
)
def test_asking_for_nothing_new_is_fine(api: Api, method: str, path: str, status: int, body: Any) -> None:
    """1.5: blank values are absent, false and 0 ask for the base's behaviour."""
    api.call(method, path, status, body)


def test_metadata_of_a_later_version_are_refused(api: Api) -> None:
    """Extensions 0: by PUT and by PATCH, named; nothing is created or changed."""
    key, value = "_enable_encrypt_messages", True
    refused = api.put(QUEUE, 400, {key: value})
    assert refused.json["title"] == "Not implemented"
    assert refused.headers["X-Zq-Error"] == "NotBuilt"
    assert key in refused.json["description"]
    assert api.queues() == []
    api.put(QUEUE, 201)
    refused = api.patch(QUEUE, 400, [{"op": "add", "path": f"/metadata/{key}", "value": value}])
    assert refused.json["title"] == "Not implemented"
    assert api.get(QUEUE, 200).json == RESERVED


@pytest.mark.parametrize("path", ["/v2/pools", "/v2/pools/p", "/v2/flavors", "/v2/flavors/f"])
def test_pools_and_flavors_are_not_there(door: Api, path: str) -> None:
    """1.1: present only in admin mode with pooling."""
    door.get(path, 404, {"X-Roles": "admin"})
    door.put(path, 404, {}, {"X-Roles": "admin"})
