# SPDX-License-Identifier: Apache-2.0
"""Error handlers, which convert exceptions to HTTP responses. ``zq.wire.refusals`` maps exceptions to responses."""

import logging
from collections.abc import Callable
from typing import Any, Final

import falcon

from zq import errors, wire
from zq.http import query
from zq.http.context import Request
from zq.wire import answers, refusals

LOG = logging.getLogger(__name__)
# User-Agent prefix of python-zaqarclient. It treats 429 as success, so it receives 503 instead.
ZAQAR_CLIENT_AGENT: Final = "python-requests/"
NO_ROUTE: Final = "No route has this path. GET /v2/openapi.json lists all routes. Only / and /v2/ end with a slash."


def register(app: "falcon.App[Any, Any]") -> None:
    for kind, handle in HANDLERS.items():
        app.add_error_handler(kind, handle)


def _handle_zq_error(req: Request, resp: falcon.Response, error: errors.ZqError, _params: object) -> None:
    status, title = refusals.row(type(error))
    req.context.why = getattr(error, "why", "") or str(error)
    req.context.refusal = error
    if isinstance(error, errors.InvalidHeader):
        title = error.title
    if isinstance(error, errors.CommitRunning) or status == 503:
        resp.set_header("Retry-After", "1")
    if isinstance(error, errors.Restricted):
        resp.set_header("Retry-After", str(error.retry_after))
    limit = ""
    if isinstance(error, errors.TooManyRequests):
        resp.set_header("Retry-After", str(error.retry_after))
        if (limit := error.limit) and req.env.get("HTTP_USER_AGENT", "").startswith(ZAQAR_CLIENT_AGENT):
            req.context.counted_as, status = status, 503
    if isinstance(error, errors.SubscriptionExists):
        resp.set_header("Location", req.path)
    if isinstance(error, errors.NotAuthenticated):
        resp.set_header("WWW-Authenticate", error.challenge)
    log_unavailable(req, error)
    resp.set_header(refusals.HEADER, type(error).__name__)
    _answer(resp, falcon.code_to_http_status(status), title, str(error), limit)


def _handle_deep_nesting(_req: Request, resp: falcon.Response, _error: RecursionError, _params: object) -> None:
    _answer(resp, falcon.HTTP_400, "Invalid request body", "The body is nested too deeply.")


def _handle_falcon_error(_req: Request, resp: falcon.Response, error: falcon.HTTPError, _params: object) -> None:
    description = NO_ROUTE if isinstance(error, falcon.HTTPRouteNotFound) else error.description
    _answer(resp, falcon.code_to_http_status(error.status), error.title, description)
    for name, value in dict(error.headers or {}).items():
        resp.set_header(name, value)


def _handle_unexpected_error(req: Request, resp: falcon.Response, error: Exception, _params: object) -> None:
    log_failure(req, error)
    _answer(resp, falcon.HTTP_500, "Internal server error", "The request failed; see the server log for the cause.")


# Handlers by error type. The most specific one applies.
HANDLERS: Final[dict[type[Exception], Callable[..., None]]] = {
    Exception: _handle_unexpected_error,
    falcon.HTTPError: _handle_falcon_error,
    RecursionError: _handle_deep_nesting,
    errors.ZqError: _handle_zq_error,
}


def log_unavailable(req: Request, error: errors.ZqError) -> None:
    """Log the error's cause if the store is unavailable."""
    if isinstance(error, errors.Unavailable) and not isinstance(error, errors.Restricted):
        LOG.error("The store is unavailable: %r", error.__cause__ or error, extra=context(req))


def log_failure(req: Request, error: Exception) -> None:
    """Log an unexpected error with its traceback."""
    LOG.critical("Unexpected error while handling a request.", exc_info=error, extra=context(req))


def _answer(resp: falcon.Response, status: str, title: str | None, description: str | None, limit: str = "") -> None:
    resp.status = status
    resp.set_header("Vary", "Accept")
    resp.content_type = falcon.MEDIA_JSON
    resp.data = wire.encode(answers.Error(title or "", description or "", limit))


def context(req: Request) -> dict[str, Any]:
    """Return the log fields of a request. The fields never contain the request body."""
    queue, topic = getattr(req.context, "queue", None), getattr(req.context, "topic", None)
    return {
        "request_id": getattr(req.context, "request_id", ""),
        "trace_id": query.trace_id(req),
        "project": getattr(req.context, "project", ""),
        "queue": queue.name if queue is not None else "",
        "topic": topic.name if topic is not None else "",
        "method": req.method,
        "path": req.path,
    }
