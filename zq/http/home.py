# SPDX-License-Identifier: Apache-2.0
"""``/`` and ``/v2/``: what this service speaks and has (contract 2, 3)."""

from typing import Any, Final

import falcon

from zq import wire
from zq.http.tenant import Audience

VERSIONS: Final = {
    "versions": [
        {
            "id": "2",
            "status": "CURRENT",
            "updated": "2014-9-24T04:06:47Z",
            "media-types": [
                {"base": "application/json", "type": "application/vnd.openstack.messaging-v2+json"},
            ],
            "links": [{"href": "/v2/", "rel": "self"}],
        }
    ]
}

QUEUE: Final = "/v2/queues/{queue_name}"
RESOURCES: Final[tuple[tuple[str, str, str, bool, dict[str, str]], ...]] = (
    # rel, template, methods, whether a body can be posted, names of parameters that differ from the variable's
    ("rel/queues", "/v2/queues{?marker,limit,detailed}", "GET", False, {"limit": "queue_limit"}),
    ("rel/queue", QUEUE, "GET PUT DELETE PATCH", False, {}),
    ("rel/queue_stats", f"{QUEUE}/stats", "GET", False, {}),
    ("rel/queue_purge", f"{QUEUE}/purge", "POST", True, {}),
    (
        "rel/messages",
        QUEUE + "/messages{?marker,limit,echo,include_claimed}",
        "GET",
        False,
        {"limit": "messages_limit"},
    ),
    ("rel/post_messages", f"{QUEUE}/messages", "POST", True, {}),
    ("rel/messages_delete", QUEUE + "/messages{?ids,pop}", "DELETE", False, {}),
    ("rel/message_delete", QUEUE + "/messages/{message_id}{?claim}", "DELETE", False, {"claim": "claim_id"}),
    ("rel/message_get", QUEUE + "/messages/{message_id}", "GET", False, {}),
    ("rel/claim", QUEUE + "/claims/{claim_id}", "GET", False, {}),
    ("rel/post_claim", QUEUE + "/claims{?limit}", "POST", True, {"limit": "claim_limit"}),
    ("rel/patch_claim", QUEUE + "/claims/{claim_id}", "PATCH", True, {}),
    ("rel/delete_claim", QUEUE + "/claims/{claim_id}", "DELETE", False, {}),
    ("rel/ping", "/v2/ping", "GET", False, {}),
)


class Versions:
    """``/``"""

    audience = Audience.ANYONE

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        resp.status = falcon.HTTP_300
        resp.data = wire.encode(VERSIONS)


class Home:
    """``/v2/``"""

    def __init__(self) -> None:
        self._document = wire.encode({"resources": {row[0]: _entry(*row[1:]) for row in RESOURCES}})

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        resp.content_type = "application/json-home"
        resp.cache_control = ["max-age=86400"]
        resp.data = self._document


def _entry(template: str, methods: str, posts: bool, renamed: dict[str, str]) -> dict[str, Any]:
    hints: dict[str, Any] = {"allow": methods.split(), "formats": {"application/json": {}}}
    if posts:
        hints["accept-post"] = ["application/json"]
    entry: dict[str, Any] = {"href-template": template, "hints": hints}
    variables = [name for part in template.split("{")[1:] for name in part.split("}")[0].lstrip("?").split(",")]
    if variables:
        entry["href-vars"] = {name: f"param/{renamed.get(name, name)}" for name in variables}
    return entry
