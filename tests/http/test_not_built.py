# SPDX-License-Identifier: Apache-2.0
"""Features of later versions: the server answers 400 and names them, and has no partial effect (extensions 0).

The status is not 501, because python-zaqarclient, and so Aodh, Heat and ``openstack messaging``, treat 501 as success.
"""

import json
from typing import Any

import pytest

from tests.http.api import RESERVED, Api

pytestmark = pytest.mark.one_store

QUEUE = "/v2/queues/jobs"


def test_nothing_later_is_in_the_home_document(door: Api) -> None:
    """Extensions 0: No template of the document leads to such a feature."""
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
    """1.5: Blank values count as absent; false and 0 request the behaviour of the base API."""
    api.call(method, path, status, body)


def test_metadata_of_a_later_version_are_refused(api: Api) -> None:
    """Extensions 0: PUT and PATCH name the key and change nothing."""
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
