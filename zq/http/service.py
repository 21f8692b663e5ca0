# SPDX-License-Identifier: Apache-2.0
"""HTTP resources for the server: versions, routes, limits, health and metrics."""

from collections.abc import Callable
from typing import Any, Final

import falcon
from falcon import mediatypes
from msgspec.structs import asdict

from zq import wire
from zq.core.health import Health as StoreHealth
from zq.core.rules import DefaultTtls
from zq.http.context import Request
from zq.http.features import Page
from zq.http.tenant import Audience
from zq.model import limits

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
    # rel, template, methods, whether POST has a body, names of href-vars that differ from the variable
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
    """``/``: the API versions. Browsers are redirected to the console."""

    audience = Audience.ANYONE
    open = True

    def __init__(self, page: Page | None = None) -> None:
        self._page = page

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        if self._page and _prefers_page(req.env.get("HTTP_ACCEPT", "")):
            resp.status = falcon.HTTP_303
            resp.location = self._page.path
            return
        resp.status = falcon.HTTP_300
        resp.data = wire.encode(VERSIONS)


def _prefers_page(accept: str) -> bool:
    try:
        return mediatypes.quality(falcon.MEDIA_HTML, accept) > mediatypes.quality(falcon.MEDIA_JSON, accept)
    except falcon.InvalidMediaType:
        return False


class Home:
    """``/v2/``: the JSON Home document."""

    policy = {"GET": "limits:get"}

    def __init__(self) -> None:
        self._document = wire.encode({"resources": {row[0]: _entry(*row[1:]) for row in RESOURCES}})

    def on_get(self, _req: Request, resp: falcon.Response) -> None:
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


# Limits that cannot be configured.
FIXED = {
    "min_message_ttl": limits.MIN_TTL,
    "min_claim_ttl": limits.MIN_TTL,
    "min_claim_grace": limits.MIN_TTL,
    "min_history_ttl": limits.MIN_TTL,
    "default_page": limits.DEFAULT_PAGE,
    "max_ids": limits.MAX_IDS,
    "max_queue_name": limits.MAX_NAME,
    "max_project_id": limits.MAX_PROJECT,
    "max_control_body": limits.MAX_CONTROL_BODY,
    "max_idempotency_key": limits.MAX_KEY,
    "max_reason": limits.MAX_REASON,
    "max_batch": limits.MAX_BATCH,
    "max_name": limits.MAX_FREE_NAME,
    "max_committed": limits.MAX_COMMITTED,
    "max_commit_body": limits.MAX_COMMIT_BODY,
}


class LimitsDocument:
    """``/v2/limits``: the limits of the server."""

    policy = {"GET": "limits:get"}

    def __init__(self, fixed: limits.Limits, default_ttls: DefaultTtls) -> None:
        self._fixed = asdict(fixed) | FIXED
        self._default_ttls = default_ttls

    def on_get(self, _req: Request, resp: falcon.Response) -> None:
        resp.data = wire.encode(self._fixed | {"default_message_ttl": self._default_ttls.default})


class Health:
    """``/healthz``: liveness."""

    audience = Audience.PROBE
    open = True

    def on_get(self, _req: Request, resp: falcon.Response) -> None:
        resp.data = wire.encode({"status": "ok"})

    on_head = on_get


class Readiness:
    """``/readyz``: readiness.

    The status is 503 if the store is unavailable, or if the server is draining or stopping.
    """

    audience = Audience.PROBE
    open = True

    def __init__(self, health: StoreHealth, is_leaving: Callable[[], bool]) -> None:
        self._health = health
        self._is_leaving = is_leaving

    def on_get(self, _req: Request, resp: falcon.Response) -> None:
        if self._is_leaving():
            sentence = "The server is draining: it is about to stop, or zq-server drain was run."
            raise falcon.HTTPServiceUnavailable(title="Stopping", description=sentence, retry_after=1)
        self._health.check_ready()
        resp.data = wire.encode({"status": "ok"})

    on_head = on_get


class HealthReport:
    """``/v2/health``: the health report of the store (contract section 5)."""

    policy = {"GET": "health:get"}

    def __init__(self, health: StoreHealth) -> None:
        self._health = health

    def on_get(self, _req: Request, resp: falcon.Response) -> None:
        resp.data = wire.encode(self._health.report())


class Ping:
    """``/v2/ping``: availability of the store (contract section 4)."""

    policy = {"GET": "ping:get", "HEAD": "ping:get"}

    def __init__(self, health: StoreHealth) -> None:
        self._health = health

    def on_get(self, _req: Request, resp: falcon.Response) -> None:
        resp.status = falcon.HTTP_204
        if not self._health.store_answers():
            resp.status = falcon.HTTP_503
            resp.set_header("Retry-After", "1")

    def on_head(self, _req: Request, resp: falcon.Response) -> None:
        resp.status = falcon.HTTP_204


TEXT_FORMAT: Final = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """``/metrics``: the metrics of the server in Prometheus format."""

    audience = Audience.PROBE
    open = True

    def __init__(self, page: Callable[[], bytes]) -> None:
        self._page = page

    def on_get(self, _req: Request, resp: falcon.Response) -> None:
        resp.content_type = TEXT_FORMAT
        resp.data = self._page()

    on_head = on_get


class GuardedMetricsPage(MetricsPage):
    """``/metrics`` for administrators only, because the metrics cover all projects."""

    audience = Audience.OPERATOR
    open = False
    media = falcon.MEDIA_TEXT
    policy = {"GET": "admin:server", "HEAD": "admin:server"}
