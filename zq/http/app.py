# SPDX-License-Identifier: Apache-2.0
"""The table of contents of the HTTP interface."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import falcon

from zq import turns
from zq.audit import Audit
from zq.auth.policy import Policy as TablePolicy
from zq.auth.signatures import Signatures
from zq.auth.tokens import Tokens
from zq.core import Broker
from zq.core.pools import Pools
from zq.events import NO_EVENTS, Events
from zq.http import faults
from zq.http.administration import AuditCollection, ProjectCollection, ProjectItem, QuotaDocument, Rekeying
from zq.http.admission import Admission
from zq.http.authentication import Authentication, ProxyCheck, Strategy
from zq.http.authorization import Answer, Authorization
from zq.http.claims import ClaimCollection, ClaimItem, ProjectClaims
from zq.http.features import Feature
from zq.http.history import HistoryReplay, QueueHistory
from zq.http.messages import MessageCollection, MessageItem, MessageLocation
from zq.http.openapi import OpenApiDocument
from zq.http.pending import HANDOVER, Handover, PendingAnswer
from zq.http.pools import FLAVORS, POOLS, FlavorCollection, FlavorItem, PoolCollection, PoolItem
from zq.http.publishing import TopicMessage, TopicMessages
from zq.http.request_log import RequestLog
from zq.http.resources import (
    QueueCollection,
    QueueDepth,
    ResourceCollection,
    ResourceItem,
    ResourcePurge,
    ResourceStats,
)
from zq.http.service import (
    GuardedMetricsPage,
    Health,
    HealthReport,
    Home,
    LimitsDocument,
    MetricsPage,
    Ping,
    Readiness,
    Versions,
)
from zq.http.settling import ClaimSettle, QueueRedrive
from zq.http.share import QueueShare, ShareRevocation
from zq.http.short import ShortRoutes
from zq.http.streams import ProjectStream, TopicStream
from zq.http.tenant import Tenant
from zq.http.tokens import ROUTES as TOKEN_ROUTES
from zq.http.tokens import Me, WhoAmI
from zq.http.transactions import CommitCollection, CommitItem, FenceItem, StageItem, WorkCollection
from zq.model.allowance import Policy
from zq.model.identity import ShareOptions
from zq.model.quotas import Work
from zq.storage.api import Storage
from zq.storage.inline import LongWalk


class Later(NamedTuple):
    """The answer to a request that was pending."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class App(falcon.App[Any, Any]):
    """The WSGI application."""

    def __init__(
        self, middleware: Sequence[Any], authentication: Authentication, authorization: Authorization, storage: Storage
    ) -> None:
        self._failures: dict[type[BaseException], Callable[..., Any]] = {}
        self._short = ShortRoutes()
        super().__init__(response_type=Answer, middleware=list(middleware))
        self.judge = authentication if authentication.asks else None
        """Decides which bodies the server's edge reads; None: all of them."""
        self.checks = authentication.checks
        self.check_of = authentication.check_of
        self.authorization = authorization
        self._finishing = [each.process_response for each in reversed(middleware) if hasattr(each, "process_response")]
        self._storage = storage
        self.req_options.auto_parse_qs_csv = True
        self.req_options.keep_blank_qs_values = False
        faults.register(self)

    def add_route(self, uri_template: str, resource: object, **kwargs: Any) -> None:
        super().add_route(uri_template, resource, **kwargs)
        self._short.add(uri_template, getattr(resource, "short", ()))

    def add_error_handler(self, exception: Any, handler: Any = None) -> None:
        super().add_error_handler(exception, handler)
        self._failures[exception] = handler

    def is_short(self, environ: Mapping[str, Any], body: bytes) -> bool:
        """Return whether the event loop's thread may run a request, with a ``zq.storage.inline.Ticket``: the request is
        short, and works promptly. The caller's credential must be known."""
        return self._short.has(environ, body) and self.is_prompt()

    def is_prompt(self) -> bool:
        """Return whether a short request that begins or goes on now waits for memory only: not for a store that is
        busy, nor for heavy work on another thread, which may hold the lock of its queue."""
        return self._storage.prompt and not turns.are_taken()

    def go_on(self, pending: PendingAnswer) -> Later | None:
        """Let a pending request look again, and answer it; None if it is still pending. Blocks as a request does."""
        req, resp = pending.req, pending.resp
        handover: Handover = req.env[HANDOVER]
        self.authorization.resume(req)
        answered = succeeded = True
        try:
            answered = pending.attempt()
        except LongWalk:
            answered = False
            handover.call_for_thread()
        except Exception as error:  # noqa: BLE001 - as Falcon does; there is a handler for each error
            succeeded = False
            self._handler_of(error)(req, resp, error, {})
        if answered:
            handover.end()
        for process_response in self._finishing:
            process_response(req, resp, None, succeeded)
        if not answered:
            return None
        body: bytes = resp.data or b""
        headers = resp.headers | {"content-length": str(len(body))}
        if resp.status_code == 204:  # Falcon gave the response both headers when it had no answer yet
            del headers["content-type"], headers["content-length"]
        return Later(resp.status_code, list(headers.items()), body)

    def _handler_of(self, error: Exception) -> Callable[..., Any]:
        return next(self._failures[kind] for kind in type(error).__mro__ if kind in self._failures)


# For those who have configured no audit log.
NO_AUDIT: Final = Audit()


def create_app(
    broker: Broker,
    *,
    strict_client_id: bool = True,
    admin_mode: bool = False,
    policy: Policy | None = None,
    trusting: bool = False,
    allowed_hosts: Callable[[], Collection[str]] = tuple,
    log_requests: Callable[[], bool] = bool,
    events: Events = NO_EVENTS,
    metrics_page: Callable[[], bytes] | None = bytes,
    audit: Audit = NO_AUDIT,
    tells_rates: Callable[[], bool] = lambda: True,
    strategy: Strategy | None = None,
    proxy: ProxyCheck | None = None,
    behind_proxy: bool = False,
    tokens: Tokens | None = None,
    share: Callable[[], ShareOptions] = ShareOptions,
    pools: Pools | None = None,
    auth: str = "",
    features: Sequence[Feature] = (),
    is_stopping: Callable[[], bool] = bool,
    monotonic: Callable[[], float] = time.monotonic,
) -> App:
    """The WSGI application on a broker. Options: contract 16. ``trusting``: roles are believed.

    ``policy`` tells which roles a rule asks for; by default the table in ``zq.auth.policy``. ``tells_rates``: whether
    answers say what is left of a project's rates.
    ``strategy`` and ``proxy``: how callers prove who they are, one of both; without any they are believed.
    ``behind_proxy``: a caller's address is the last one of ``X-Forwarded-For``.
    ``tokens``: of all projects; by default those of the broker's store. ``share``: how URLs are signed now.
    ``pools``: of the deployment, if it has any; their routes need ``admin_mode`` too.
    ``auth``: the name of the strategy. ``features``: those of the server.
    ``is_stopping``: whether ``/readyz`` sends clients to other servers.
    ``monotonic``: the clock that limits how often an address may send wrong signatures.

    ``log_requests`` and ``allowed_hosts`` are asked at each request. ``metrics_page``: what ``/metrics`` says, if it is
    served.
    """
    guarded = strategy is not None or proxy is not None
    documents, clock = broker.storage.documents, broker.clock
    signatures = Signatures(share, documents, clock, monotonic)
    checks = [feature.credentials for feature in features if feature.credentials is not None]
    public = [prefix for feature in features for prefix in feature.public_prefixes]
    page = next((feature.page for feature in features if feature.page is not None), None)
    authentication = Authentication(strategy, proxy, behind_proxy, signatures, checks, public)
    authorization = Authorization(policy or TablePolicy(), broker.quotas, tells_rates)
    middleware = (
        RequestLog(log_requests, events, audit, broker.trail, behind_proxy),
        *(each for feature in features for each in feature.middleware),
        Admission(trusting, guarded, allowed_hosts),
        authentication,
        Tenant(broker.limits, strict_client_id, trusting, broker.storage.queues.get),
        authorization,
    )
    app = App(middleware, authentication, authorization, broker.storage)
    _add_routes(app, broker)
    app.add_route("/readyz", Readiness(broker.health, is_stopping))
    app.add_route("/", Versions(page))
    app.add_route("/v2/me", Me(auth, page))
    if metrics_page is not None:
        app.add_route("/metrics", (GuardedMetricsPage if guarded else MetricsPage)(metrics_page))
    app.add_route(
        "/v2/openapi.json", OpenApiDocument(broker.limits, strict_client_id, admin_mode and pools is not None, features)
    )
    for feature in features:
        feature.add_routes(app)
    _add_rights_routes(app, tokens or Tokens(documents, clock), signatures)
    if admin_mode:
        app.add_route("/v2/health", HealthReport(broker.health))
        if pools is not None:
            _add_pool_routes(app, pools)
    return app


def _add_routes(app: App, broker: Broker) -> None:
    _add_service_routes(app, broker)
    _add_queue_routes(app, broker)
    _add_topic_routes(app, broker)
    _add_transaction_routes(app, broker)
    _add_administration_routes(app, broker)


def _add_administration_routes(app: App, broker: Broker) -> None:
    app.add_route("/v2/quota", QuotaDocument(broker.quotas))
    app.add_route("/v2/admin/projects", ProjectCollection(broker.quotas))
    app.add_route("/v2/admin/project", ProjectItem(broker.quotas, broker.removal))
    app.add_route("/v2/admin/rekey", Rekeying(broker.sealing.keys))
    app.add_route("/v2/audit", AuditCollection(broker.trail))


def _add_rights_routes(app: App, tokens: Tokens, signatures: Signatures) -> None:
    app.add_route("/v2/whoami", WhoAmI())
    for path, resource in TOKEN_ROUTES.items():
        app.add_route(path, resource(tokens))
    app.add_route("/v2/queues/{queue}/share", QueueShare(signatures))
    app.add_route("/v2/share/revoke", ShareRevocation(signatures))


def _add_service_routes(app: App, broker: Broker) -> None:
    app.add_route("/v2/", Home())
    app.add_route("/v2/ping", Ping(broker.health))
    app.add_route("/healthz", Health())
    app.add_route("/v2/limits", LimitsDocument(broker.limits, broker.default_ttls))


def _add_transaction_routes(app: App, broker: Broker) -> None:
    app.add_route("/v2/fences", WorkCollection(broker.transactions, Work.FENCE, "fences"))
    app.add_route("/v2/fences/{name}", FenceItem(broker.transactions))
    app.add_route("/v2/stages", WorkCollection(broker.transactions, Work.STAGE, "stages"))
    app.add_route("/v2/stages/{name}", StageItem(broker.transactions))
    app.add_route("/v2/commits", CommitCollection(broker.transactions))
    app.add_route("/v2/commits/{producer}", CommitItem(broker.transactions))


def _add_queue_routes(app: App, broker: Broker) -> None:
    app.add_route("/v2/queues", QueueCollection(broker.queues))
    app.add_route("/v2/queues/{queue}", ResourceItem(broker.queues, "queue", broker.limits.max_queue_metadata))
    app.add_route("/v2/queues/{queue}/stats", ResourceStats(broker.queues, "queue"))
    app.add_route("/v2/queues/{queue}/depth", QueueDepth(broker.queues))
    app.add_route("/v2/queues/{queue}/purge", ResourcePurge(broker.queues, "queue"))
    app.add_route(
        "/v2/queues/{queue}/messages",
        MessageCollection(broker.messages, broker.browsing, broker.waiters, broker.limits),
    )
    app.add_route("/v2/queues/{queue}/messages/{message}", MessageItem(broker.messages))
    app.add_route("/v2/messages/{message}", MessageLocation(broker.browsing))
    app.add_route("/v2/queues/{queue}/claims", ClaimCollection(broker.claims, broker.waiters))
    app.add_route("/v2/claims", ProjectClaims(broker.claims))
    app.add_route("/v2/queues/{queue}/claims/{claim}", ClaimItem(broker.claims, broker.waiters))
    app.add_route("/v2/queues/{queue}/claims/{claim}/settle", ClaimSettle(broker.settling, broker.limits))
    app.add_route("/v2/queues/{queue}/redrive", QueueRedrive(broker.redriving))
    app.add_route("/v2/queues/{queue}/history", QueueHistory(broker.history))
    app.add_route("/v2/queues/{queue}/history/replay", HistoryReplay(broker.history))


def _add_topic_routes(app: App, broker: Broker) -> None:
    app.add_route("/v2/topics", ResourceCollection(broker.topics, "topic"))
    app.add_route("/v2/topics/{topic}", ResourceItem(broker.topics, "topic", broker.limits.max_queue_metadata))
    app.add_route("/v2/topics/{topic}/stats", ResourceStats(broker.topics, "topic"))
    app.add_route("/v2/topics/{topic}/purge", ResourcePurge(broker.topics, "topic"))
    app.add_route("/v2/topics/{topic}/messages", TopicMessages(broker.publishing, broker.limits))
    app.add_route("/v2/topics/{topic}/messages/{message}", TopicMessage(broker.publishing))
    app.add_route("/v2/topics/{topic}/stream", TopicStream(broker))
    app.add_route("/v2/stream", ProjectStream(broker))


def _add_pool_routes(app: App, pools: Pools) -> None:
    app.add_route(POOLS, PoolCollection(pools))
    app.add_route(f"{POOLS}/{{pool}}", PoolItem(pools))
    app.add_route(FLAVORS, FlavorCollection(pools))
    app.add_route(f"{FLAVORS}/{{flavor}}", FlavorItem(pools))
