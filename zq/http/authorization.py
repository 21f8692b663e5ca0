# SPDX-License-Identifier: Apache-2.0
"""Authorization middleware: checks permissions and rate limits before a responder runs (tenancy, sections 2, 4 and 6).

A Falcon resource declares the permission that each HTTP method requires:

- The class attribute ``policy`` maps HTTP methods to policy rules, such as ``"messages:create"``.
- The class attribute ``verbs`` maps HTTP methods to scope verbs, such as "produce". Default: the verb of the rule.

The middleware checks the queue or topic in the path. If the query or body names other queues or topics, the responder
checks those names with ``req.context.allowance``. The responder also sets ``req.context.messages`` to the number of
messages for the rate limit.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import falcon

from zq.auth.policy import RULES
from zq.auth.policy import Policy as TablePolicy
from zq.core.modes import Modes
from zq.core.quotas import Quotas, check_state
from zq.errors import TooManyRequests
from zq.http import heads, weight
from zq.http.context import Request
from zq.http.pending import HANDOVER_KEY, NO_HANDOVER
from zq.model.allowance import Allowance, Policy
from zq.model.identity import Identity
from zq.model.quotas import State
from zq.model.scopes import Kind, Scopes

# Object kinds by path parameter.
KINDS_BY_PARAMETER: Final = {"queue": Kind.QUEUE, "topic": Kind.TOPIC, "name": Kind.WORK, "producer": Kind.WORK}
# Maximum number of callers whose permissions are cached in one process.
MAX_CACHED: Final = 10_000
# Methods without side effects.
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
# Rules that stay usable while the caller's project is suspended or read-only.
ALWAYS_ALLOWED: Final = frozenset(
    {name for name in RULES if name.startswith("admin:")} | {"quota:get", "limits:get", "identity:get"}
)
# Default policy of a resource.
NO_RULES: Final[Mapping[str, str]] = {}
# A module variable is faster than an attribute of the class.
ACTIVE: Final = State.ACTIVE


class Response(falcon.Response):
    """A Falcon response with a fast method for setting several headers."""

    __slots__ = ()

    def put_headers(self, headers: Mapping[str, str]) -> None:
        """Set headers without Falcon's checks. The header names must be in lower case."""
        self._headers.update(headers)


class Authorization:
    """Falcon middleware that authorizes requests after authentication.

    The middleware sets in ``req.context``:

    - ``allowance``: the caller's permissions;
    - ``account``: the rate limiter of the caller's project;
    - ``bounds``: this middleware, so that a long poll or stream can check again that the project is active.
    """

    def __init__(
        self, policy: Policy, quotas: Quotas | None, sends_rate_limits: Callable[[], bool], modes: Modes
    ) -> None:
        """Initialize the middleware. Without ``quotas``, there are no limits."""
        self._policy = policy
        self._modes = modes
        self.quotas = quotas
        self._sends_rate_limits = sends_rate_limits
        self._allowances: dict[int, Allowance] = {}
        if isinstance(policy, TablePolicy):
            policy.listen(self._allowances.clear)

    def process_resource(self, req: Request, _resp: falcon.Response, resource: Any, params: Mapping[str, str]) -> None:
        rule = getattr(resource, "policy", NO_RULES).get(req.method)
        if rule is None:
            return  # public, or method not allowed
        context = req.context
        context.rule, context.params = rule, params
        identity: Identity = context.identity
        if self.quotas is not None and identity.project:
            self._admit(self.quotas, req, identity.project, rule)
        self.check_mode(req.method not in SAFE_METHODS)
        if rule not in ALWAYS_ALLOWED:
            context.bounds = self
        allowance = self._allowances.get(id(identity))
        if allowance is None or allowance.identity is not identity:
            allowance = self._remember(identity)
        context.allowance = allowance
        if not (allowance.known.get(rule) or allowance.permits(rule)):
            raise allowance.refusal(rule, *find_object(params))
        if allowance.scopes is not None:
            _check_scopes(allowance, allowance.scopes, rule, resource, req.method, params)

    def process_response(self, req: Request, resp: Response, _resource: object, _req_succeeded: bool) -> None:
        context = req.context
        if context.heavy is not None:
            weight.end(req)
        if self.quotas is None:
            return
        account = context.account
        now = self.quotas.now()
        if account is None:
            account = context.refusing
            if account is None:
                return
        elif req.env.get(HANDOVER_KEY, NO_HANDOVER).pending is not None:
            account.leave(now, 0, 0)
            return
        else:
            size = context.received + len(resp.data or b"")
            account.leave(now, context.messages or 0, size)
        if self._sends_rate_limits() and (headers := account.headers(now)):
            resp.put_headers(headers)

    def _remember(self, identity: Identity) -> Allowance:
        """Create and cache the caller's permissions."""
        if len(self._allowances) >= MAX_CACHED:
            with suppress(StopIteration, KeyError, RuntimeError):  # another thread has evicted entries
                del self._allowances[next(iter(self._allowances))]
        self._allowances[id(identity)] = allowance = Allowance(self._policy, identity)
        return allowance

    def _admit(self, quotas: Quotas, req: Request, project: str, rule: str) -> None:
        state = self._enter(quotas, req, project)
        if state is not ACTIVE and rule not in ALWAYS_ALLOWED:
            check_state(state, req.method not in SAFE_METHODS)

    def charge(self, req: Request, project: str) -> State:
        """Charge a request of another protocol, such as SQS, to the rate limit. Return the project's state.

        The caller must check whether this state permits the request. Raises ``TooManyRequests`` if the rate limit is
        exceeded.
        """
        req.context.bounds = self
        return ACTIVE if self.quotas is None else self._enter(self.quotas, req, project)

    def _enter(self, quotas: Quotas, req: Request, project: str) -> State:
        context, now = req.context, quotas.now()
        allotment = quotas.allotment(project, now)
        account = allotment.account
        try:
            account.enter(now)
        except TooManyRequests:
            context.refusing = account
            req.env[heads.RATE_LIMITED_KEY] = True
            raise
        context.account = account
        return allotment.state

    def resume(self, req: Request) -> None:
        """Count a request as in progress again after the wait of its long poll."""
        account = req.context.account
        if account is not None:
            account.resume()

    def check_mode(self, changes: bool) -> None:
        """Raise ``ReadOnly`` if ``changes`` is true and the service is in a mode that forbids changes."""
        if changes:
            self._modes.check_change()

    def check_state(self, req: Request) -> None:
        """Check a long-running request again. Raises ``ProjectInactive`` or ``ReadOnly`` if it may not continue."""
        changes = req.method not in SAFE_METHODS
        self.check_mode(changes)
        if self.quotas is not None:
            check_state(self.quotas.allotment(req.context.identity.project).state, changes)


def _check_scopes(
    allowance: Allowance, scopes: Scopes, rule: str, resource: Any, method: str, params: Mapping[str, str]
) -> None:
    known = RULES.get(rule)
    verb = known.verb if known else None
    if known is not None and known.everywhere and verb is not None:
        allowance.authorize_all(rule, verb)
        return
    if (own := getattr(resource, "verbs", None)) is not None:
        verb = own.get(method, verb)
    if verb is not None:
        for name, value in params.items():  # inlined from ``find_object`` to save a call
            if (kind := KINDS_BY_PARAMETER.get(name)) is not None:
                if not scopes.allows(verb, kind, value):
                    raise allowance.refusal(rule, kind, value)
                return


def find_object(params: Mapping[str, str]) -> tuple[Kind | None, str]:
    """Return the kind and name of the object in the path, or ``(None, "")`` if there is none."""
    for name, value in params.items():
        kind = KINDS_BY_PARAMETER.get(name)
        if kind is not None:
            return kind, value
    return None, ""
