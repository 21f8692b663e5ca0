# SPDX-License-Identifier: Apache-2.0
"""Middleware for request ids, request metrics, the audit log, and the optional request log."""

import logging
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from random import getrandbits
from typing import Annotated, Final

import falcon
from msgspec import UNSET, Struct

from zq.audit import Audit
from zq.core.trail import Trail
from zq.errors import (
    NotAuthenticated,
    NotAuthorized,
    PoolInUse,
    ProjectInactive,
    QuotaExceeded,
    TooManyRequests,
    ZqError,
)
from zq.events import Events
from zq.http.authentication import get_peer
from zq.http.authorization import Response, find_object
from zq.http.context import Request
from zq.http.faults import context
from zq.http.pending import HANDOVER_KEY, NO_HANDOVER
from zq.model.audit import Entry
from zq.model.options import Option, Text

LOG = logging.getLogger("zq.requests")
# Content Security Policy. A browser that displays a response must not load, run or frame anything.
CONTENT_SECURITY_POLICY: Final = "default-src 'none'; frame-ancestors 'none'"
# Methods without side effects.
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Statuses that are audited as refusals.
REFUSED_STATUSES: Final = frozenset({401, 403, 429})
# Rules of audited changes.
AUDITED_RULES: Final = frozenset(
    {f"{things}:{verb}" for things in ("queues", "topics") for verb in ("update", "delete", "purge")}
)
# Prefixes of further rules of audited changes.
AUDITED_RULE_PREFIXES: Final = ("tokens:", "admin:", "subscription:", "pools:", "flavors:")
# Route suffixes of changes that are audited regardless of their rule.
AUDITED_ROUTE_SUFFIXES: Final = ("/redrive", "/replay", "/share", "/share/revoke", "/stages/{name}")
# Maximum length of a name in the audit log.
MAX_SHOWN: Final = 256


class LogOptions(Struct, frozen=True, kw_only=True):
    """The options of section ``[log]``."""

    format: Annotated[str, Option(choices=("text", "json"))] = "text"
    """Log format: one line of text or one JSON object per record."""
    level: Annotated[str, Option(choices=("DEBUG", "INFO", "WARNING", "ERROR"), reload=True)] = "INFO"
    """Minimum level of logged records."""
    requests: Annotated[bool, Option(reload=True)] = False
    """Log each request. Failed requests are always logged."""
    slow: Annotated[float, Option(0.001, 86_400, reload=True)] = 1.0
    """Log a WARNING for each request that takes more seconds, not counting a long poll's wait for messages."""
    audit: Text = "off"
    """Destination of the audit log (one JSON object per line): stderr, a file path, or off."""
    audit_ttl: Annotated[int, Option(60, 315_360_000, reload=True)] = 2_592_000
    """Seconds for which audit entries are available at GET /v2/audit."""


class StoreSeconds(threading.local, Events):
    """The seconds that the current thread's request has spent in the store."""

    seconds = 0.0

    def store_called(self, verb: str, seconds: float) -> None:
        self.seconds += seconds


# The store seconds of each thread. They take a request 0.2 microseconds.
STORE: Final = StoreSeconds()


class RequestLog:
    """The outermost Falcon middleware, which assigns a request id and writes logs.

    Every response contains the request id, even if another middleware rejects the request.
    """

    def __init__(
        self, log: Callable[[], LogOptions], events: Events, audit: Audit, trail: Trail, behind_proxy: bool
    ) -> None:
        """Initialize the middleware. Each audited change is also written to the audit trail, ``trail``."""
        self._log = log
        self._events = events
        self._audit = audit
        self._trail = trail
        self._behind_proxy = behind_proxy

    def process_request(self, req: Request, resp: Response) -> None:
        req.context.began = time.monotonic()
        STORE.seconds = 0.0
        # A version 4 UUID from the process's own generator, which avoids a system call. The id need not be
        # unpredictable.
        digits = f"{getrandbits(128):032x}"
        identity = f"req-{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
        req.context.request_id = identity
        resp.put_headers(
            {
                "x-openstack-request-id": identity,
                "x-content-type-options": "nosniff",
                "content-security-policy": CONTENT_SECURITY_POLICY,
            }
        )

    def process_response(self, req: Request, resp: falcon.Response, resource: object, _req_succeeded: bool) -> None:
        if req.env.get(HANDOVER_KEY, NO_HANDOVER).pending is not None:
            req.context.store_seconds += STORE.seconds
            return  # a long poll without a response
        state = req.context
        took, route = time.monotonic() - state.began, req.uri_template or ""
        status = state.counted_as or resp.status_code
        self._events.answered(req.method, state.operation or route, status, took, state.waits)
        if status in REFUSED_STATUSES:
            if state.refusal is not None:
                _report_refusal(self._events, state.refusal)
            if self._audit.is_enabled:
                self._audit.log_refusal(_entry(req, resource, status, self._behind_proxy))
        elif state.audited or (
            req.method not in SAFE_METHODS and not state.dry_run and _is_audited_change(state.rule, route)
        ):
            entry = _entry(req, resource, status, self._behind_proxy)
            if entry.rule:  # without a rule, the request ended before authorization
                self._trail.put(entry)
            if self._audit.is_enabled:
                self._audit.log_change(entry)
        options = self._log()
        if options.requests:
            LOG.info("request", extra=context(req) | {"status": status, "seconds": round(took, 6)})
        if took > options.slow and took - state.waited > options.slow:
            _warn_of_slow_request(req, status, took)

    def resume(self, _req: Request) -> None:
        """Count the store seconds of the current thread from now on, because each poll may run on another thread."""
        STORE.seconds = 0.0


def _warn_of_slow_request(req: Request, status: int, took: float) -> None:
    # The seconds exclude the wait for a thread, as in the metrics. If a request to an embedded store runs on the event
    # loop's thread, the seconds also exclude its wait for the disk sync.
    state = req.context
    fields = {
        "route": state.operation or req.uri_template or "",
        "status": status,
        "seconds": round(took, 6),
        "store_seconds": round(state.store_seconds + STORE.seconds, 6),
        "waited_seconds": round(state.waited, 6),
    }
    LOG.warning("Slow request.", extra=context(req) | fields)


def _report_refusal(events: Events, error: ZqError) -> None:
    match error:
        case QuotaExceeded():
            events.quota_refused(error.limit or "other")
        case TooManyRequests(limit=""):
            events.auth_failed("throttled")
        case TooManyRequests():
            events.quota_refused(error.limit)
        case NotAuthenticated():
            events.auth_failed("unauthenticated")
        case ProjectInactive():
            events.auth_failed("project_inactive")
        case PoolInUse():
            pass
        case NotAuthorized():
            events.auth_failed("forbidden")


@lru_cache(maxsize=1024)
def _is_audited_change(rule: str, route: str) -> bool:
    return rule in AUDITED_RULES or rule.startswith(AUDITED_RULE_PREFIXES) or route.endswith(AUDITED_ROUTE_SUFFIXES)


def _entry(req: Request, resource: object, status: int, behind_proxy: bool) -> Entry:
    context = req.context
    identity = getattr(context, "identity", None)
    messages = context.messages if context.removed is None else context.removed
    return Entry(
        request_id=context.request_id,
        project=identity.project if identity else "",
        credential=identity.credential if identity else "",
        peer=get_peer(req.env, behind_proxy),
        method=req.method,
        route=req.uri_template or "",
        rule=context.rule,
        object=_object(req, resource),
        outcome="refused" if status in REFUSED_STATUSES else "done" if status < 400 else f"failed with {status}",
        why=context.why,
        messages=UNSET if messages is None else messages,
    )


def _object(req: Request, resource: object) -> str:
    params = req.context.params
    token = req.context.made or params.get("token") or req.params.get("jti")
    if token and "/tokens" in (req.uri_template or ""):
        return (
            f"token {str(token)[:MAX_SHOWN]}" if not str(token).startswith("zq_") else "token"
        )  # a secret must not be logged
    thing, parameter = getattr(resource, "audited_as", ("", ""))
    if thing and (id := req.context.made or params.get(parameter)):
        return f"{thing} {str(id)[:MAX_SHOWN]}"
    for thing in ("pool", "flavor"):
        if thing in params:
            return f"{thing} {params[thing][:MAX_SHOWN]}"
    kind, name = find_object(params)
    return f"{kind} {name}" if kind else str(req.params.get("project", ""))
