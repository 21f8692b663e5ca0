# SPDX-License-Identifier: Apache-2.0
"""What the caller may do, and how fast: judged before a responder runs (tenancy 2, 4, 6).

A resource says with ``policy`` which rule each method falls under, and with ``verbs`` which scope verb, where that is
not the rule's own. Whatever else a request names, in its query or its body, its responder has judged by
``req.context.allowance``, before anything is done. With ``req.context.messages`` it tells about how many messages the
request was.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import falcon

from zq.auth.policy import RULES
from zq.auth.policy import Policy as TablePolicy
from zq.core.quotas import Quotas, check_state
from zq.core.rates import Account
from zq.errors import TooManyRequests
from zq.http import heads, weight
from zq.http.pending import is_pending
from zq.model.allowance import Allowance, Policy
from zq.model.identity import Identity
from zq.model.quotas import State
from zq.model.scopes import Kind, Scopes

# The parameters of paths that name what a request is about, and what kind of thing that is.
NAMED: Final = {"queue": Kind.QUEUE, "topic": Kind.TOPIC, "name": Kind.WORK, "producer": Kind.WORK}
# Callers whose rights one process remembers.
MOST_REMEMBERED: Final = 10_000
# Methods that change nothing.
READING: Final = frozenset({"GET", "HEAD"})
# Rules that hold whatever the state of the caller's own project is.
ALWAYS: Final = frozenset(
    {name for name in RULES if name.startswith("admin:")} | {"quota:get", "limits:get", "identity:get"}
)
# The policy of a resource that has none.
NONE: Final[Mapping[str, str]] = {}
# As a name of the module: reading it off its class takes longer than to compare it.
ACTIVE: Final = State.ACTIVE


class Answer(falcon.Response):
    """One that takes headers as they are, for several in each answer are always alike."""

    __slots__ = ()

    def put_headers(self, headers: Mapping[str, str]) -> None:
        """Set these, whose names are in lower case."""
        self._headers.update(headers)


class Authorization:
    """Falcon middleware, behind the one that leaves ``identity`` in ``req.context``.

    Leaves ``allowance`` there, the ``account`` that pays, and itself as ``bounds`` of requests that last.
    """

    def __init__(self, policy: Policy, quotas: Quotas | None, tells: Callable[[], bool]) -> None:
        """``quotas`` None: nobody is asked who it is, and so nobody is bounded. ``tells``: whether answers say what is
        left of rates."""
        self._policy = policy
        self.quotas = quotas
        self._tells = tells
        self._allowances: dict[int, Allowance] = {}
        if isinstance(policy, TablePolicy):
            policy.listen(self._allowances.clear)

    def process_resource(
        self, req: falcon.Request, _resp: falcon.Response, resource: Any, params: Mapping[str, str]
    ) -> None:
        rule = getattr(resource, "policy", NONE).get(req.method)
        if rule is None:
            return  # open to everybody, or no such method
        context = req.context
        context.rule, context.params = rule, params
        identity: Identity = context.identity
        if self.quotas is not None and identity.project:
            self._admit(self.quotas, req, identity.project, rule)
        allowance = self._allowances.get(id(identity))
        if allowance is None or allowance.identity is not identity:
            allowance = self._remember(identity)
        context.allowance = allowance
        if not (allowance.known.get(rule) or allowance.permits(rule)):
            raise allowance.refusal(rule, *about(params))
        if allowance.scopes is not None:
            _judge(allowance, allowance.scopes, rule, resource, req.method, params)

    def process_response(self, req: falcon.Request, resp: Answer, _resource: object, _req_succeeded: bool) -> None:
        context = req.context
        if getattr(context, "heavy", None) is not None:
            weight.end(req)
        if self.quotas is None:
            return
        account: Account | None = getattr(context, "account", None)
        now = self.quotas.now()
        if account is None:
            account = getattr(context, "refusing", None)
            if account is None:
                return
        elif is_pending(req):
            account.leave(now, 0, 0)
            return
        else:
            size = getattr(context, "received", 0) + len(resp.data or b"")
            account.leave(now, getattr(context, "messages", 0), size)
        if self._tells() and (headers := account.headers(now)):
            resp.put_headers(headers)

    def _remember(self, identity: Identity) -> Allowance:
        """By the object, which is the same for as long as the credential is known; the oldest goes."""
        if len(self._allowances) >= MOST_REMEMBERED:
            with suppress(StopIteration, KeyError, RuntimeError):  # another thread has made room
                del self._allowances[next(iter(self._allowances))]
        self._allowances[id(identity)] = allowance = Allowance(self._policy, identity)
        return allowance

    def _admit(self, quotas: Quotas, req: falcon.Request, project: str, rule: str) -> None:
        """Count the request. Raises ``TooManyRequests``, and ``NotAuthorized`` for a project in another state."""
        state = self._enter(quotas, req, project)
        if rule not in ALWAYS:
            req.context.bounds = self
            if state is not ACTIVE:
                check_state(state, req.method not in READING)

    def enter(self, req: falcon.Request, project: str) -> State:
        """Count a request of another protocol, which is to be judged by the project's state that is returned. Raises
        ``TooManyRequests``."""
        if self.quotas is None:
            return ACTIVE
        req.context.bounds = self
        return self._enter(self.quotas, req, project)

    def _enter(self, quotas: Quotas, req: falcon.Request, project: str) -> State:
        context, now = req.context, quotas.now()
        allotment = quotas.of(project, now)
        account = allotment.account
        try:
            account.enter(now)
        except TooManyRequests:
            context.refusing = account
            req.env[heads.SLOWED] = True
            raise
        context.account = account
        return allotment.state

    def resume(self, req: falcon.Request) -> None:
        """Count a request again that goes on after it has waited."""
        account: Account | None = getattr(req.context, "account", None)
        if account is not None:
            account.resume()

    def check_state(self, req: falcon.Request) -> None:
        """Raise ``NotAuthorized`` if the project may not go on any more with a request that was let in."""
        assert self.quotas is not None
        check_state(self.quotas.of(req.context.identity.project).state, req.method not in READING)


def _judge(
    allowance: Allowance, scopes: Scopes, rule: str, resource: Any, method: str, params: Mapping[str, str]
) -> None:
    """Whether the scopes allow it; of a request whose path names nothing, its responder finds out."""
    known = RULES.get(rule)
    verb = known.verb if known else None
    if known is not None and known.everywhere and verb is not None:
        allowance.judge_all(rule, verb)
        return
    if (own := getattr(resource, "verbs", None)) is not None:
        verb = own.get(method, verb)
    if verb is not None:
        for name, value in params.items():  # as in ``about``, which costs a call
            if (kind := NAMED.get(name)) is not None:
                if not scopes.allows(verb, kind, value):
                    raise allowance.refusal(rule, kind, value)
                return


def about(params: Mapping[str, str]) -> tuple[Kind | None, str]:
    """What the path names; nothing, where it names no more than the project."""
    for name, value in params.items():
        kind = NAMED.get(name)
        if kind is not None:
            return kind, value
    return None, ""
