# SPDX-License-Identifier: Apache-2.0
"""The table of contents of the HTTP interface."""

from collections.abc import Callable, Collection
from typing import Any

import falcon

from zq.broker import Broker
from zq.http import faults
from zq.http.admission import Admission
from zq.http.bounds import LimitsDocument
from zq.http.claims import ClaimCollection, ClaimItem
from zq.http.history import HistoryReplay, QueueHistory
from zq.http.home import Home, Versions
from zq.http.journal import Journal
from zq.http.later import SUBSCRIPTIONS, Later
from zq.http.messages import MessageCollection, MessageItem
from zq.http.metrics import UNMETERED, Meter, MetricsPage
from zq.http.openapi import OpenApiDocument
from zq.http.probes import Health, Ping, Readiness
from zq.http.publishing import TopicMessage, TopicMessages
from zq.http.queues import QueueCollection, QueueItem, QueuePurge, QueueStats
from zq.http.settling import ClaimSettle, QueueRedrive
from zq.http.streams import ProjectStream, TopicStream
from zq.http.tenant import Policy, Tenant, default_policy
from zq.http.topics import TopicCollection, TopicItem, TopicPurge, TopicStats
from zq.http.transactions import CommitCollection, CommitItem, FenceItem, StageItem

App = falcon.App[Any, Any]


def create_app(
    broker: Broker,
    *,
    strict_client_id: bool = True,
    admin_mode: bool = False,
    policy: Policy = default_policy,
    trusting: bool = False,
    allowed_hosts: Callable[[], Collection[str]] = tuple,
    log_requests: Callable[[], bool] = bool,
    meter: Meter = UNMETERED,
    metrics_page: bool = True,
) -> App:
    """The WSGI application on a broker. Options: contract 16. ``trusting``: roles are believed, and any ``Host``.

    ``log_requests`` and ``allowed_hosts`` are asked at each request.
    """
    app: App = falcon.App(
        middleware=[
            Journal(log_requests, meter),
            Admission(trusting, allowed_hosts),
            Tenant(broker.limits, strict_client_id, policy, trusting),
        ]
    )
    app.req_options.auto_parse_qs_csv = True
    app.req_options.keep_blank_qs_values = False
    faults.register(app)

    app.add_route("/", Versions())
    app.add_route("/v2/", Home())
    app.add_route("/v2/ping", Ping(broker))
    app.add_route("/healthz", Health())
    app.add_route("/readyz", Readiness(broker))
    if metrics_page:
        app.add_route("/metrics", MetricsPage(meter))

    _add_queue_routes(app, broker)
    _add_topic_routes(app, broker)
    app.add_route("/v2/fences/{name}", FenceItem(broker))
    app.add_route("/v2/stages/{name}", StageItem(broker))
    app.add_route("/v2/commits", CommitCollection(broker))
    app.add_route("/v2/commits/{producer}", CommitItem(broker))
    app.add_route("/v2/limits", LimitsDocument(broker))
    app.add_route("/v2/openapi.json", OpenApiDocument(broker.limits, strict_client_id))

    _add_later_routes(app, admin_mode)
    return app


def _add_queue_routes(app: App, broker: Broker) -> None:
    app.add_route("/v2/queues", QueueCollection(broker))
    app.add_route("/v2/queues/{queue}", QueueItem(broker))
    app.add_route("/v2/queues/{queue}/stats", QueueStats(broker))
    app.add_route("/v2/queues/{queue}/purge", QueuePurge(broker))
    app.add_route("/v2/queues/{queue}/messages", MessageCollection(broker))
    app.add_route("/v2/queues/{queue}/messages/{message}", MessageItem(broker))
    app.add_route("/v2/queues/{queue}/claims", ClaimCollection(broker))
    app.add_route("/v2/queues/{queue}/claims/{claim}", ClaimItem(broker))
    app.add_route("/v2/queues/{queue}/claims/{claim}/settle", ClaimSettle(broker))
    app.add_route("/v2/queues/{queue}/redrive", QueueRedrive(broker))
    app.add_route("/v2/queues/{queue}/history", QueueHistory(broker))
    app.add_route("/v2/queues/{queue}/history/replay", HistoryReplay(broker))


def _add_topic_routes(app: App, broker: Broker) -> None:
    app.add_route("/v2/topics", TopicCollection(broker))
    app.add_route("/v2/topics/{topic}", TopicItem(broker))
    app.add_route("/v2/topics/{topic}/stats", TopicStats(broker))
    app.add_route("/v2/topics/{topic}/purge", TopicPurge(broker))
    app.add_route("/v2/topics/{topic}/messages", TopicMessages(broker))
    app.add_route("/v2/topics/{topic}/messages/{message}", TopicMessage(broker))
    app.add_route("/v2/topics/{topic}/stream", TopicStream(broker))
    app.add_route("/v2/stream", ProjectStream(broker))


def _add_later_routes(app: App, admin_mode: bool) -> None:
    queue, topic = "/v2/queues/{queue}", "/v2/topics/{topic}"
    app.add_route(f"{queue}/share", Later("pre-signed URLs", "POST"))
    for named in (queue, topic):
        app.add_route(f"{named}/subscriptions", Later(SUBSCRIPTIONS, "GET", "POST"))
        app.add_route(f"{named}/subscriptions/{{subscription}}", Later(SUBSCRIPTIONS, "GET", "PATCH", "DELETE"))
        app.add_route(f"{named}/subscriptions/{{subscription}}/confirm", Later(SUBSCRIPTIONS, "PUT"))
    if admin_mode:
        app.add_route("/v2/health", Later("a health report", "GET", rule="health:get"))
