# SPDX-License-Identifier: Apache-2.0
"""Where requests of SQS are told from others and answered: in whichever of the two protocols they come.

They have no headers of zq's and no routes of their own: path and method tell them, before anything else is looked at.
So middleware sends them all to one resource, past what is asked of other requests; and whatever is wrong with one is
answered as its client knows it.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final

import falcon

from zq import errors as zq_errors
from zq.core import Broker
from zq.core.claims import ClaimAnswer
from zq.core.quotas import check_state
from zq.core.waiting import Polled
from zq.http import faults, query
from zq.http.authorization import ACTIVE, Answer, Authorization
from zq.http.sqs import errors, json_protocol, names, query_protocol
from zq.http.sqs.call import Authenticate, Call, Who
from zq.http.sqs.messages import Receive
from zq.http.sqs.operations import OF_THE_SERVICE, OPERATIONS
from zq.http.sqs.permissions import entered
from zq.http.tenant import Audience
from zq.http.waiting import poll
from zq.limits import MAX_SQS_BODY
from zq.model.identity import Identity
from zq.model.quotas import State
from zq.model.sqs import SqsOptions

# The paths of queue URLs.
QUEUE_PATH: Final = re.compile(r"/(?:queue/[A-Za-z0-9-]{1,64}/)?[0-9]{12}/[^/]+", re.ASCII)
# A query that names an operation.
HAS_ACTION: Final = re.compile(r"(?:^|&)Action=")
# Where all of these requests are sent; a request that names this path itself finds nothing there.
ROUTE: Final = "/sqs"
# What metrics call requests that name no operation.
UNKNOWN: Final = "sqs"
# Operations that change nothing.
READING: Final = frozenset(
    {
        *("GetQueueUrl", "ListQueues", "GetQueueAttributes", "ListQueueTags", "ListDeadLetterSourceQueues"),
        "ListMessageMoveTasks",
    }
)
# Changes that the audit log has, by the rules under which it knows them.
RULES: Final = {
    "AddPermission": "queues:update",
    "RemovePermission": "queues:update",
    "SetQueueAttributes": "queues:update",
    "TagQueue": "queues:update",
    "UntagQueue": "queues:update",
    "DeleteQueue": "queues:delete",
    "PurgeQueue": "queues:purge",
    "StartMessageMoveTask": "messages:delete_all",
    "CancelMessageMoveTask": "messages:delete_all",
}


def is_sqs(env: Mapping[str, Any]) -> bool:
    """Whether a request of this head is one of SQS."""
    path: str = env["PATH_INFO"]
    if path == "/":
        method = env["REQUEST_METHOD"]
        return method == "POST" or (method == "GET" and HAS_ACTION.search(env.get("QUERY_STRING", "")) is not None)
    return QUEUE_PATH.fullmatch(path) is not None


class Recognition:
    """Falcon middleware, right behind the one that gives each request its id.

    ``req.context.sqs`` of a request of SQS is the module of its protocol.
    """

    def process_request(self, req: falcon.Request, resp: Answer) -> None:
        if not is_sqs(req.env):
            return
        req.context.sqs = json_protocol if json_protocol.is_spoken(req.env) else query_protocol
        req.context.operation = UNKNOWN
        resp.put_headers({"x-amzn-requestid": _request_id(req)})
        req.path = ROUTE

    def process_resource(
        self, req: falcon.Request, _resp: falcon.Response, _resource: object, _params: Mapping[str, str]
    ) -> None:
        """It has been routed: logs show the path that it came by."""
        if hasattr(req.context, "sqs"):
            req.path = req.env["PATH_INFO"]


class Endpoint:
    """The one resource of SQS."""

    audience = Audience.PROBE
    open = True

    def __init__(
        self, broker: Broker, options: SqsOptions, authenticate: Authenticate, authorization: Authorization
    ) -> None:
        self._broker = broker
        self._options = options
        self._authenticate = authenticate
        self._authorization = authorization

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        if not hasattr(req.context, "sqs"):
            raise falcon.HTTPRouteNotFound
        authenticated = self._authenticate(req)
        body = query.body(req, MAX_SQS_BODY, form=True)
        who = authenticated(body)
        state = self._identified(req, who)
        protocol = req.context.sqs
        name, given, params = protocol.read(req, body)
        self._permit(req, who, name, state)
        call = self._call(req, who)
        if req.path != "/":
            given.setdefault("QueueUrl", req.path)
        _note_queue(req, str(given.get("QueueUrl") or given.get("QueueName")))
        answered = OPERATIONS[name](entered(call, name, given), given, params)
        if isinstance(answered, Receive):
            self._receive(req, resp, answered, name)
        else:
            protocol.answer(req, resp, name, answered, _request_id(req))

    on_post = on_get

    def _receive(self, req: falcon.Request, resp: falcon.Response, receive: Receive, name: str) -> None:
        protocol: ModuleType = req.context.sqs

        def show(outcome: Polled[ClaimAnswer]) -> None:
            protocol.answer(req, resp, name, receive.answer(outcome), _request_id(req))

        waiters = self._broker.waiters
        poll(req, resp, waiters, receive.queue, receive.wait, receive.ask, show, takes=True, paused=True)

    def _identified(self, req: falcon.Request, who: Who) -> State:
        """Count the request as its project's; in which state that is."""
        req.context.identity = Identity(project=who.project, user=who.sender, credential=who.sender)
        req.context.project = who.project
        return self._authorization.enter(req, who.project)

    def _permit(self, req: falcon.Request, who: Who, name: str, state: State) -> None:
        """Raise ``SqsError`` or ``NotAuthorized`` unless there is such an operation, and the caller may do it."""
        of_queue = req.context.sqs is query_protocol and req.path != "/"
        if of_queue and not name and req.method == "GET":
            raise errors.no_operation()
        if name not in OPERATIONS or (of_queue and name in OF_THE_SERVICE):
            raise errors.unknown_operation(name)
        req.context.operation = f"{UNKNOWN}:{name}"
        if who.actions is not None and name not in who.actions:
            raise errors.access_denied(f"This access key does not allow {name}.")
        if self._options.auth == "none" and req.method == "GET" and name not in READING:
            raise errors.access_denied(f"{name} must be sent by POST, since this server looks at no signature.")
        if name in RULES:
            req.context.rule, req.context.audited = RULES[name], True
        if state is not ACTIVE:
            check_state(state, name not in READING)

    def _call(self, req: falcon.Request, who: Who) -> Call:
        options, env = self._options, req.env
        account = self._broker.accounts.of(who.project)
        host = env.get("HTTP_HOST") or f"{env['SERVER_NAME']}:{env['SERVER_PORT']}"
        return Call(
            broker=self._broker,
            request=req,
            options=options,
            project=who.project,
            account=account,
            region=who.region or options.region,
            base=options.public_url or f"{req.scheme}://{host}",
            sender=who.sender or account,
            trace=env.get("HTTP_X_AMZN_TRACE_ID", ""),
        )


def _note_queue(req: falcon.Request, url: str) -> None:
    """Have logs say which queue a request is about."""
    _, name, ref = names.named(req.context.project, url)
    if ref is not None:
        req.context.queue = ref
        req.context.params = {"queue": name}


def add_to(app: "falcon.App[Any, Any]", endpoint: Endpoint) -> None:
    """Serve SQS by an application that has ``Recognition`` among its middleware."""
    app.add_route(ROUTE, endpoint)
    app.add_error_handler(errors.SqsError, _refused)
    for kind, native in faults.HANDLERS.items():
        app.add_error_handler(kind, partial(_answered, native))


def _answered(
    native: Callable[..., None], req: falcon.Request, resp: falcon.Response, error: Exception, params: Any
) -> None:
    """Answer any error: as its client knows it, if that is one of SQS, and else as ``native`` does."""
    if hasattr(req.context, "sqs"):
        _refused(req, resp, _translated(req, error), params)
    else:
        native(req, resp, error, params)


def _refused(req: falcon.Request, resp: falcon.Response, error: errors.SqsError, _params: object) -> None:
    req.context.why = error.message
    resp.status = falcon.code_to_http_status(error.status)
    protocol: ModuleType = req.context.sqs
    protocol.refuse(req, resp, error, _request_id(req))


def _translated(req: falcon.Request, error: Exception) -> errors.SqsError:
    """What SQS calls an error of zq's."""
    if isinstance(error, zq_errors.ZqError):
        faults.log_absence(req, error)
        return next(told for kind, told in TRANSLATIONS.items() if isinstance(error, kind))(error)
    if isinstance(error, falcon.HTTPError):
        refusal = errors.malformed(error.description or error.title or "")
        refusal.status = error.status_code
        return refusal
    if isinstance(error, RecursionError):
        return errors.malformed("The body is nested too deeply.")
    faults.log_failure(req, error)
    return errors.internal_failure()


# What becomes of errors of zq's; the first that fits counts.
TRANSLATIONS: Final[Mapping[type[zq_errors.ZqError], Callable[[zq_errors.ZqError], errors.SqsError]]] = {
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


def _request_id(req: falcon.Request) -> str:
    """The id that this server's log has of the request, as the UUID in it."""
    identity: str = req.context.request_id
    return identity.removeprefix("req-")
