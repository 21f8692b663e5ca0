# SPDX-License-Identifier: Apache-2.0
"""Error handlers that answer failed SQS requests with SQS error responses."""

from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final

import falcon

from zq import errors as zq_errors
from zq.http import faults
from zq.http.context import Request
from zq.sqs import errors
from zq.sqs.errors import ACCESS_DENIED
from zq.sqs.recognition import request_id
from zq.sqs.sigv4 import SignatureRejection


def add_handlers(app: "falcon.App[Any, Any]") -> None:
    """Register error handlers for SQS requests. Other requests keep the handlers that are already registered."""
    app.add_error_handler(errors.SqsError, _write_error)
    for kind, native in faults.HANDLERS.items():
        app.add_error_handler(kind, partial(_handle, native))


def _handle(native: Callable[..., None], req: Request, resp: falcon.Response, error: Exception, params: Any) -> None:
    if req.context.sqs is not None:
        _write_error(req, resp, _translate(req, error), params)
    else:
        native(req, resp, error, params)


def _write_error(req: Request, resp: falcon.Response, error: errors.SqsError, _params: object) -> None:
    req.context.why = error.message
    if req.context.refusal is None:
        if isinstance(error.__cause__, SignatureRejection):
            req.context.refusal = zq_errors.NotAuthenticated()
        elif error.shape == ACCESS_DENIED:
            req.context.refusal = zq_errors.NotAuthorized()
    resp.status = falcon.code_to_http_status(error.status)
    protocol: ModuleType = req.context.sqs
    protocol.write_error(req, resp, error, request_id(req))


def _translate(req: Request, error: Exception) -> errors.SqsError:
    if isinstance(error, zq_errors.ZqError):
        req.context.refusal = error
        faults.log_unavailable(req, error)
        return next(translate for kind, translate in TRANSLATIONS.items() if isinstance(error, kind))(error)
    if isinstance(error, falcon.HTTPError):
        refusal = errors.malformed(error.description or error.title or "")
        refusal.status = error.status_code
        return refusal
    if isinstance(error, RecursionError):
        return errors.malformed("The body is nested too deeply.")
    faults.log_failure(req, error)
    return errors.internal_failure()


# Functions that create the SQS error, by zq error class. The first class that matches applies, so order matters.
TRANSLATIONS: Final[Mapping[type[zq_errors.ZqError], Callable[[zq_errors.ZqError], errors.SqsError]]] = {
    zq_errors.Restricted: lambda error: errors.service_unavailable(str(error)),
    zq_errors.Unavailable: lambda _error: errors.service_unavailable(),
    zq_errors.Crowded: lambda _error: errors.service_unavailable(),
    zq_errors.TooManyRequests: lambda error: errors.request_throttled(str(error)),
    zq_errors.QuotaExceeded: lambda error: errors.over_limit(str(error)),
    zq_errors.NotAuthorized: lambda error: errors.access_denied(str(error)),
    zq_errors.QueueNotFound: lambda _error: errors.queue_does_not_exist(),
    zq_errors.NotBuilt: lambda error: errors.unsupported_operation(str(error)),
    zq_errors.Conflict: lambda error: errors.unsupported_operation(str(error)),
    zq_errors.ZqError: lambda error: errors.invalid_parameter(str(error)),
}
