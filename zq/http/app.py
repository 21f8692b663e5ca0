# SPDX-License-Identifier: Apache-2.0
"""The composition of the HTTP interface: middleware and routes."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import falcon

from zq import turns
from zq.audit import Audit
from zq.auth.policy import Policy as TablePolicy
from zq.auth.signatures import Signatures
from zq.auth.sqs_keys import SqsKeyLookup, SqsKeys
from zq.auth.tokens import Tokens
from zq.core import Broker
from zq.events import NO_EVENTS, Events
from zq.http import faults
from zq.http.admission import Admission
from zq.http.authentication import Authentication, ProxyCheck, Strategy
from zq.http.authorization import Answer, Authorization
from zq.http.claims import ClaimCollection, ClaimItem, ProjectClaims
from zq.http.features import Feature
from zq.http.heads import Judge
from zq.http.history import HistoryReplay, QueueHistory
from zq.http.messages import MessageCollection, MessageItem, MessageLocation
from zq.http.openapi import OpenApiDocument
from zq.http.pending import HANDOVER, Handover, PendingAnswer
from zq.http.publishing import TopicMessage, TopicMessages
from zq.http.quota import QuotaDocument
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
from zq.http.sqs.authentication import SignedCallers, believed
from zq.http.sqs.endpoint import Endpoint, Recognition, add_to, is_sqs
from zq.http.sqs_keys import PATH as SQS_KEYS
from zq.http.sqs_keys import SqsKeyCollection, SqsKeyItem
from zq.http.streams import ProjectStream, TopicStream
from zq.http.tenant import Tenant
from zq.http.tokens import ROUTES as TOKEN_ROUTES
from zq.http.tokens import Me, WhoAmI
from zq.http.transactions import CommitCollection, CommitItem, FenceItem, StageItem, WorkCollection
from zq.model.allowance import Policy
from zq.model.identity import ShareOptions
from zq.model.quotas import Work
from zq.model.sqs import SqsOptions
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
        self, middleware: Sequence[Any], authorization: Authorization, judge: Judge | None, storage: Storage
    ) -> None:
        """Create the application; ``judge`` decides whose request bodies the edge reads (``None`` = all)."""
        self._failures: dict[type[BaseException], Callable[..., Any]] = {}
        self._short = ShortRoutes()
        super().__init__(response_type=Answer, middleware=list(middleware))
        self.judge = judge
        self._authorization = authorization
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
        """Return whether the event loop's thread may run this request, with a ``zq.storage.inline.Ticket``.

        The request must be short, and the store prompt. The caller's credential must be known already.
        """
        return self._short.has(environ, body) and self.is_prompt()

    def is_prompt(self) -> bool:
        """Return whether a short request waits only for memory now.

        That is not so if the store is busy, or if heavy work on another thread may hold the lock of a queue.
        """
        return self._storage.prompt and not turns.are_taken()

    def has_company(self) -> bool:
        """Return whether several projects have sent requests to this process within a second."""
        quotas = self._authorization.quotas
        return quotas is not None and quotas.visits.are_of_several(quotas.now())

    def go_on(self, pending: PendingAnswer) -> Later | None:
        """Let a pending request look again.

        Return its answer, or ``None`` if it is still pending. May block like any request.
        """
        req, resp = pending.req, pending.resp
        handover: Handover = req.env[HANDOVER]
        self._authorization.resume(req)
        answered = succeeded = True
        try:
            answered = pending.attempt()
        except LongWalk:
            answered = False
            handover.call_for_thread()
        except Exception as error:  # noqa: BLE001 - Falcon does the same; every error has a handler
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
        if resp.status_code == 204:  # Falcon set both headers before the request was pending
            del headers["content-type"], headers["content-length"]
        return Later(resp.status_code, list(headers.items()), body)

    def _handler_of(self, error: Exception) -> Callable[..., Any]:
        return next(self._failures[kind] for kind in type(error).__mro__ if kind in self._failures)


# The default, without an audit log.
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
    sqs_keys: SqsKeys | None = None,
    share: Callable[[], ShareOptions] = ShareOptions,
    auth: str = "",
    features: Sequence[Feature] = (),
    sqs: SqsOptions | None = None,
    is_stopping: Callable[[], bool] = bool,
    monotonic: Callable[[], float] = time.monotonic,
) -> App:
    """Create the WSGI application of a broker.

    Options without a description here are those of contract 16.

    Args:
        policy: The roles that each rule needs; default: the table in ``zq.auth.policy``.
        trusting: Whether the roles that unauthenticated callers state are accepted.
        allowed_hosts: Returns the accepted ``Host`` names; called for each request.
        log_requests: Returns whether to log a request; called for each request.
        metrics_page: Returns the page at ``/metrics``; ``None`` = no such route.
        tells_rates: Returns whether answers have rate-limit headers.
        strategy: Authenticates callers. Without ``strategy`` and ``proxy``, the headers of requests are trusted.
        proxy: Accepts the identity that an authenticating proxy passes; excludes ``strategy``.
        behind_proxy: Whether the last address in ``X-Forwarded-For`` is the caller's.
        tokens: The tokens of all projects; default: those in the broker's store.
        sqs_keys: The SQS access keys of all projects; default: those in the broker's store.
        share: Returns the current options of signed URLs.
        auth: Name of the authentication strategy.
        features: The features of the server.
        sqs: Options of the SQS protocol; ``None`` = not served.
        is_stopping: Returns whether ``/readyz`` answers 503, so that clients go to other servers.
        monotonic: The clock that limits invalid signatures per address.
    """
    guarded = strategy is not None or proxy is not None
    documents, clock = broker.storage.documents, broker.waiters.clock
    signatures = Signatures(share, documents, clock, monotonic)
    keys = sqs_keys or SqsKeys(documents, clock, {})
    signed = SignedCallers(SqsKeyLookup(keys, clock), clock.now, behind_proxy) if sqs and sqs.auth == "sigv4" else None
    apart: dict[str, Any] = {"apart": is_sqs, "judge": signed} if sqs else {}
    public = [prefix for feature in features for prefix in feature.public_prefixes]
    page = next((feature.page for feature in features if feature.page is not None), None)
    authentication = Authentication(strategy, proxy, behind_proxy, signatures, public=public, **apart)
    authorization = Authorization(policy or TablePolicy(), broker.quotas, tells_rates)
    middleware = (
        RequestLog(log_requests, events, audit, broker.trail, behind_proxy),
        *(() if sqs is None else (Recognition(),)),
        Admission(trusting, guarded, allowed_hosts),
        authentication,
        Tenant(broker.limits, strict_client_id, trusting, broker.storage.queues.get),
        authorization,
    )
    app = App(middleware, authorization, authentication if guarded or signed else None, broker.storage)
    _add_routes(app, broker)
    app.add_route("/readyz", Readiness(broker.health, is_stopping))
    if sqs is not None:
        add_to(app, Endpoint(broker, sqs, signed or believed(sqs), authorization))
    app.add_route("/", Versions(page))
    app.add_route("/v2/me", Me(auth, page))
    if metrics_page is not None:
        app.add_route("/metrics", (GuardedMetricsPage if guarded else MetricsPage)(metrics_page))
    app.add_route("/v2/openapi.json", OpenApiDocument(broker.limits, strict_client_id, features))
    for feature in features:
        feature.add_routes(app)
    _add_rights_routes(app, tokens or Tokens(documents, clock), signatures)
    _add_sqs_key_routes(app, keys)
    if admin_mode:
        app.add_route("/v2/health", HealthReport(broker.health))
    return app


def _add_routes(app: App, broker: Broker) -> None:
    _add_service_routes(app, broker)
    _add_queue_routes(app, broker)
    _add_topic_routes(app, broker)
    _add_transaction_routes(app, broker)
    app.add_route("/v2/quota", QuotaDocument(broker.quotas))


def _add_rights_routes(app: App, tokens: Tokens, signatures: Signatures) -> None:
    app.add_route("/v2/whoami", WhoAmI())
    for path, resource in TOKEN_ROUTES.items():
        app.add_route(path, resource(tokens))
    app.add_route("/v2/queues/{queue}/share", QueueShare(signatures))
    app.add_route("/v2/share/revoke", ShareRevocation(signatures))


def _add_sqs_key_routes(app: App, keys: SqsKeys) -> None:
    app.add_route(SQS_KEYS, SqsKeyCollection(keys))
    app.add_route(f"{SQS_KEYS}/{{key}}", SqsKeyItem(keys))


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
