# SPDX-License-Identifier: Apache-2.0
"""The two documents that need no store (contract 2 and 3)."""

import json
from typing import Any

import pytest

from tests.http.api import Api
from tests.tables import every_row

pytestmark = pytest.mark.one_store

NOBODY = {"Client-ID": None, "X-Project-ID": None}
VERSIONS = {
    "versions": [
        {
            "id": "2",
            "status": "CURRENT",
            "updated": "2014-9-24T04:06:47Z",
            "media-types": [{"base": "application/json", "type": "application/vnd.openstack.messaging-v2+json"}],
            "links": [{"href": "/v2/", "rel": "self"}],
        }
    ]
}
QUEUE = "/v2/queues/{queue_name}"
NAME = {"queue_name": "param/queue_name"}
MESSAGE = {**NAME, "message_id": "param/message_id"}
CLAIM = {**NAME, "claim_id": "param/claim_id"}
PAGE = {"marker": "param/marker"}
RESOURCES = {
    "rel/queues": (
        "/v2/queues{?marker,limit,detailed}",
        {**PAGE, "limit": "param/queue_limit", "detailed": "param/detailed"},
        ["GET"],
        False,
    ),
    "rel/queue": (QUEUE, NAME, ["GET", "PUT", "DELETE", "PATCH"], False),
    "rel/queue_stats": (QUEUE + "/stats", NAME, ["GET"], False),
    "rel/queue_purge": (QUEUE + "/purge", NAME, ["POST"], True),
    "rel/messages": (
        QUEUE + "/messages{?marker,limit,echo,include_claimed}",
        {
            **NAME,
            **PAGE,
            "limit": "param/messages_limit",
            "echo": "param/echo",
            "include_claimed": "param/include_claimed",
        },
        ["GET"],
        False,
    ),
    "rel/post_messages": (QUEUE + "/messages", NAME, ["POST"], True),
    "rel/messages_delete": (
        QUEUE + "/messages{?ids,pop}",
        {**NAME, "ids": "param/ids", "pop": "param/pop"},
        ["DELETE"],
        False,
    ),
    "rel/message_delete": (
        QUEUE + "/messages/{message_id}{?claim}",
        {**MESSAGE, "claim": "param/claim_id"},
        ["DELETE"],
        False,
    ),
    "rel/message_get": (QUEUE + "/messages/{message_id}", MESSAGE, ["GET"], False),
    "rel/claim": (QUEUE + "/claims/{claim_id}", CLAIM, ["GET"], False),
    "rel/post_claim": (QUEUE + "/claims{?limit}", {**NAME, "limit": "param/claim_limit"}, ["POST"], True),
    "rel/patch_claim": (QUEUE + "/claims/{claim_id}", CLAIM, ["PATCH"], True),
    "rel/delete_claim": (QUEUE + "/claims/{claim_id}", CLAIM, ["DELETE"], False),
    "rel/ping": ("/v2/ping", None, ["GET"], False),
}
"""Template, variables, methods, and whether the relation accepts a posted document, by relation."""


def home(api: Api) -> dict[str, Any]:
    """Return the resources of the home document (webtest does not recognize application/json-home as JSON)."""
    resources: dict[str, Any] = json.loads(api.get("/v2/", 200).body)["resources"]
    return resources


def test_the_root_lists_the_versions_to_anybody(door: Api) -> None:
    """2: GET / answers 300 with exactly this document and requires no header."""
    answer = door.get("/", 300, NOBODY)
    assert answer.json == VERSIONS
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("accept", ["text/plain", "application/json;q=0"])
def test_the_root_refuses_another_format(door: Api, accept: str) -> None:
    """1.2: The check of Accept applies to / too."""
    door.get("/", 406, {**NOBODY, "Accept": accept})


def test_the_home_document_is_json_home_and_may_be_cached_for_a_day(door: Api) -> None:
    """3: The response has the media type and the cache header."""
    answer = door.get("/v2/", 200)
    assert answer.headers["Content-Type"] == "application/json-home"
    assert answer.headers["Cache-Control"] == "max-age=86400"
    assert json.loads(answer.body).keys() == {"resources"}


@pytest.mark.parametrize("headers", [{"Client-ID": None}, {"X-Project-ID": None}])
def test_the_home_document_needs_client_and_project(door: Api, headers: dict[str, None]) -> None:
    """1.3: Every route except / requires them, including /v2/."""
    door.get("/v2/", 400, headers)


@pytest.mark.parametrize("admin_mode", [False, True])
def test_the_home_document_names_what_is_built_and_nothing_else(gate, admin_mode: bool) -> None:
    """3, extensions 0: The document omits features that are not built, such as share, subscriptions and pools."""
    assert home(gate(admin_mode=admin_mode)).keys() == RESOURCES.keys()


@every_row("rel", RESOURCES)
def test_each_relation_has_its_template_variables_and_hints(door: Api, rel: str) -> None:
    """3: The contract's table of the home document applies."""
    template, variables, allow, accepts = RESOURCES[rel]
    entry = home(door)[rel]
    assert (entry.get("href-template") or entry.get("href")) == template
    assert entry.get("href-vars") == variables
    assert sorted(entry["hints"]["allow"]) == sorted(allow)
    assert entry["hints"]["formats"] == {"application/json": {}}
    assert entry["hints"].get("accept-post") == (["application/json"] if accepts else None)


def test_the_queue_template_can_be_filled_in_and_used(api: Api) -> None:
    """3 [T]: rel/queue is a template with queue_name."""
    template = home(api)["rel/queue"]["href-template"]
    api.put(template.format(queue_name="jobs"), 201)
    assert api.queues() == ["jobs"]


def test_hrefs_do_not_carry_a_mount_prefix(door: Api) -> None:
    """1.4 [T]: Under a script name, hrefs still begin with /v2."""
    resources = home(door.mounted("/messaging"))
    assert all((entry.get("href-template") or entry["href"]).startswith("/v2") for entry in resources.values())
    assert door.mounted("/messaging").get("/", 300).json == VERSIONS


@every_row("method", ["HEAD", "POST", "PUT", "PATCH", "DELETE"])
@every_row("path", ["/", "/v2/"])
def test_the_documents_can_only_be_read(door: Api, path: str, method: str) -> None:
    """1.1: Any other method gets 405 with the allowed methods."""
    assert "GET" in door.call(method, path, 405).headers["Allow"]
