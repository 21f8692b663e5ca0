# SPDX-License-Identifier: Apache-2.0
"""The HTTP application of a broker, composed of middleware and routes."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from zq.audit import Audit
from zq.auth.policy import Policy as TablePolicy
from zq.auth.signatures import Signatures
from zq.auth.tokens import Tokens
from zq.core import Broker
from zq.events import NO_EVENTS, Events
from zq.http.admission import Admission
from zq.http.application import App
from zq.http.audit import AuditCollection
from zq.http.authentication import Authentication, ProxyCheck, Strategy
from zq.http.authorization import Authorization
from zq.http.claims import ClaimCollection, ClaimItem, ClaimSettle, ProjectClaims, QueueRedrive
from zq.http.features import Feature
from zq.http.history import HistoryReplay, QueueHistory
from zq.http.messages import MessageCollection, MessageItem, MessageLocation
from zq.http.openapi import OpenApiDocument
from zq.http.publishing import TopicMessage, TopicMessages
from zq.http.quota import QuotaDocument
from zq.http.request_log import LogOptions, RequestLog
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
from zq.http.streams import ProjectStream, TopicStream
from zq.http.tenant import Tenant
from zq.http.tokens import ROUTES as TOKEN_ROUTES
from zq.http.tokens import Me, QueueShare, ShareRevocation, WhoAmI
from zq.http.transactions import CommitCollection, CommitItem, FenceItem, StageItem, WorkCollection
from zq.model.allowance import Policy
from zq.model.identity import SignedUrlOptions
from zq.model.quotas import Work

# The default audit log, which records nothing.
NO_AUDIT: Final = Audit()


def create_app(
    broker: Broker,
    *,
    strict_client_id: bool = True,
    admin_mode: bool = False,
    policy: Policy | None = None,
    trusts_network: bool = False,
    allowed_hosts: Callable[[], Collection[str]] = tuple,
    log: Callable[[], LogOptions] = LogOptions,
    events: Events = NO_EVENTS,
    metrics_page: Callable[[], bytes] | None = bytes,
    audit: Audit = NO_AUDIT,
    sends_rate_limits: Callable[[], bool] = lambda: True,
    strategy: Strategy | None = None,
    proxy: ProxyCheck | None = None,
    behind_proxy: bool = False,
    tokens: Tokens | None = None,
    share: Callable[[], SignedUrlOptions] = SignedUrlOptions,
    auth: str = "",
    features: Sequence[Feature] = (),
    is_leaving: Callable[[], bool] = bool,
    monotonic: Callable[[], float] = time.monotonic,
) -> App:
    """Create the WSGI application for a broker.

    Args:
        strict_client_id: Require a UUID as ``Client-ID``.
        policy: Maps policy rules to the roles that they require. Default: the table in ``zq.auth.policy``.
        trusts_network: Accept ``X-Roles`` headers of unauthenticated callers, and HTTP/1.0 requests without ``Host``.
        metrics_page: Renders ``/metrics``; ``None`` = no such route.
        strategy: Authenticates callers. Without ``strategy`` and ``proxy``, the server trusts identity headers.
        proxy: Verifies that a request came through the authenticating proxy. Cannot be combined with ``strategy``.
        behind_proxy: Take the caller's address from the end of ``X-Forwarded-For``.
        is_leaving: Returns whether the server stops or drains. If so, ``/readyz`` answers 503.
    """
    guarded = strategy is not None or proxy is not None
    documents, clock = broker.storage.documents, broker.clock
    signatures = Signatures(share, documents, clock, monotonic)
    checks = [feature.credentials for feature in features if feature.credentials is not None]
    public = [prefix for feature in features for prefix in feature.public_prefixes]
    page = next((feature.page for feature in features if feature.page is not None), None)
    authentication = Authentication(strategy, proxy, behind_proxy, signatures, checks, public)
    authorization = Authorization(policy or TablePolicy(), broker.quotas, sends_rate_limits, broker.modes)
    middleware = (
        RequestLog(log, events, audit, broker.trail, behind_proxy),
        *(each for feature in features for each in feature.middleware),
        Admission(trusts_network, guarded, allowed_hosts),
        authentication,
        Tenant(broker.limits, strict_client_id, trusts_network, broker.storage.queues.get),
        authorization,
    )
    app = App(middleware, authentication, authorization, broker.storage)
    _add_routes(app, broker)
    app.add_route("/readyz", Readiness(broker.health, is_leaving))
    app.add_route("/", Versions(page))
    app.add_route("/v2/me", Me(auth, page))
    if metrics_page is not None:
        app.add_route("/metrics", (GuardedMetricsPage if guarded else MetricsPage)(metrics_page))
    app.add_route("/v2/openapi.json", OpenApiDocument(broker.limits, strict_client_id, features))
    for feature in features:
        feature.add_routes(app)
    _add_rights_routes(app, tokens or Tokens(documents, clock), signatures)
    if admin_mode:
        app.add_route("/v2/health", HealthReport(broker.health))
    return app


def _add_routes(app: App, broker: Broker) -> None:
    _add_service_routes(app, broker)
    _add_queue_routes(app, broker)
    _add_topic_routes(app, broker)
    _add_transaction_routes(app, broker)
    app.add_route("/v2/quota", QuotaDocument(broker.quotas))
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
    app.add_route("/v2/topics/{topic}/stream", TopicStream(broker.streams, broker.rates))
    app.add_route("/v2/stream", ProjectStream(broker.streams, broker.rates))
