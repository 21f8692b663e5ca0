# SPDX-License-Identifier: Apache-2.0
"""HTTP resource for all SQS requests, in the JSON and query protocols."""

from types import ModuleType
from typing import Final

import falcon

from zq.core.claims import ClaimReply
from zq.core.quotas import check_state
from zq.core.waiting import PollResult, Waiters
from zq.http import query
from zq.http.authorization import ACTIVE, Authorization
from zq.http.context import Request
from zq.http.tenant import Audience
from zq.http.waiting import poll
from zq.model.identity import Identity
from zq.model.quotas import State
from zq.sqs import errors, names, query_protocol
from zq.sqs.call import Authenticate, Call, Caller, UseCases
from zq.sqs.limits import MAX_BODY
from zq.sqs.message_attributes import MAX_TRACE
from zq.sqs.messages import ReceiveRequest
from zq.sqs.operations import OPERATIONS, SERVICE_OPERATIONS
from zq.sqs.permissions import switch_account
from zq.sqs.recognition import UNKNOWN_OPERATION, request_id
from zq.sqs.settings import SqsOptions

# Read-only operations.
READ_ONLY_OPERATIONS: Final = frozenset(
    {
        *("GetQueueUrl", "ListQueues", "GetQueueAttributes", "ListQueueTags", "ListDeadLetterSourceQueues"),
        "ListMessageMoveTasks",
    }
)
# Audited operations, and the policy rule that the audit log records.
AUDITED_RULES: Final = {
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


class Endpoint:
    """The HTTP resource for all SQS requests."""

    audience = Audience.PROBE
    open = True

    def __init__(
        self,
        use_cases: UseCases,
        waiters: Waiters,
        options: SqsOptions,
        authenticate: Authenticate,
        authorization: Authorization,
    ) -> None:
        self._use_cases = use_cases
        self._waiters = waiters
        self._options = options
        self._authenticate = authenticate
        self._authorization = authorization

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        if req.context.sqs is None:
            raise falcon.HTTPRouteNotFound
        authenticated = self._authenticate(req)
        body = query.body(req, MAX_BODY, form=True)
        caller = authenticated(body)
        state = self._enter(req, caller)
        protocol = req.context.sqs
        name, given, params = protocol.read(req, body)
        self._permit(req, caller, name, state)
        call = self._call(req, caller)
        if req.path != "/":
            given.setdefault("QueueUrl", req.path)
        _note_queue(req, str(given.get("QueueUrl") or given.get("QueueName")))
        answered = OPERATIONS[name](switch_account(call, name, given), given, params)
        if isinstance(answered, ReceiveRequest):
            self._receive(req, resp, answered, name)
        else:
            protocol.write_result(req, resp, name, answered, request_id(req))

    on_post = on_get

    def _receive(self, req: Request, resp: falcon.Response, receive: ReceiveRequest, name: str) -> None:
        protocol: ModuleType = req.context.sqs

        def show(outcome: PollResult[ClaimReply]) -> None:
            protocol.write_result(req, resp, name, receive.answer(outcome), request_id(req))

        poll(req, resp, self._waiters, receive.queue, receive.wait, receive.ask, show, takes=True, may_use_reserve=True)

    def _enter(self, req: Request, caller: Caller) -> State:
        req.context.identity = Identity(project=caller.project, user=caller.sender, credential=caller.sender)
        req.context.project = caller.project
        return self._authorization.charge(req, caller.project)

    def _permit(self, req: Request, caller: Caller, name: str, state: State) -> None:
        """Check that the operation exists and is permitted. Record the operation's name in the request's context."""
        of_queue = req.context.sqs is query_protocol and req.path != "/"
        if of_queue and not name and req.method == "GET":
            raise errors.no_operation()
        if name not in OPERATIONS or (of_queue and name in SERVICE_OPERATIONS):
            raise errors.unknown_operation(name)
        req.context.operation = f"{UNKNOWN_OPERATION}:{name}"
        if caller.actions is not None and name not in caller.actions:
            raise errors.access_denied(f"This access key does not allow {name}.")
        if self._options.auth == "none" and req.method == "GET" and name not in READ_ONLY_OPERATIONS:
            raise errors.access_denied(f"{name} must be sent with POST, because authentication is off.")
        if name in AUDITED_RULES:
            req.context.rule, req.context.audited = AUDITED_RULES[name], True
        changes = name not in READ_ONLY_OPERATIONS
        self._authorization.check_mode(changes)
        if state is not ACTIVE:
            check_state(state, changes)

    def _call(self, req: Request, caller: Caller) -> Call:
        options, env = self._options, req.env
        account = self._use_cases.accounts.get_or_assign(caller.project)
        trace = env.get("HTTP_X_AMZN_TRACE_ID", "")
        host = env.get("HTTP_HOST") or f"{env['SERVER_NAME']}:{env['SERVER_PORT']}"
        return Call(
            use_cases=self._use_cases,
            request=req,
            options=options,
            project=caller.project,
            account=account,
            region=caller.region or options.region,
            base=options.public_url or f"{req.scheme}://{host}",
            sender=caller.sender or account,
            trace=trace if len(trace) <= MAX_TRACE else "",
            trace_context=query.trace_attributes(req),
        )


def _note_queue(req: Request, url: str) -> None:
    _, name, ref = names.parse_url(req.context.project, url)
    if ref is not None:
        req.context.queue = ref
        req.context.params = {"queue": name}
