# SPDX-License-Identifier: Apache-2.0
"""Who asks, found out before a request is routed, its body read or the store asked for anything else (tenancy 1).

What callers say of themselves is taken out of the environment first, whatever the strategy makes of it, so that nothing
behind this can believe it. Without a strategy nobody is asked for anything, and ``zq.http.tenant`` reads the headers.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, Protocol

import falcon

from zq.http.tenant import CONTROL, PRESENTED
from zq.model.identity import ADMIN, Identity

# Paths that need no credential, each with its methods.
OPEN: Final = {"/healthz": ("GET", "HEAD"), "/readyz": ("GET", "HEAD"), "/": ("GET",)}
# Headers by which clients, and proxies, usually say who asks: taken away without a search.
USUAL: Final = ("HTTP_X_PROJECT_ID", "HTTP_X_ROLES", "HTTP_X_USER_ID", "HTTP_X_ZQ_PROXY_SECRET")
# Others by which clients say who they are.
NAMES: Final = frozenset({"HTTP_X_ROLES", "HTTP_X_IDENTITY_STATUS", "HTTP_X_ZQ_PROXY_SECRET"})
PREFIXES: Final = ("HTTP_X_PROJECT_", "HTTP_X_TENANT", "HTTP_X_USER", "HTTP_X_DOMAIN", "HTTP_X_SERVICE_")
# Names of the environment that are remembered as harmless.
MOST: Final = 4096
# Whoever speaks through the control socket.
OPERATOR: Final = Identity(project="", user="operator", roles=frozenset({ADMIN}), credential="control")


class Strategy(Protocol):
    """Tells of a request who asks; see ``zq.auth``."""

    def authenticate(self, env: Mapping[str, Any], peer: str) -> Identity: ...


class ProxyCheck(Protocol):
    """Raises unless a request came through the proxy, which says who asks; see ``zq.auth.proxy``."""

    def check(self, env: Mapping[str, Any], peer: str) -> None: ...


class SignatureCheck(Protocol):
    """Tells whom a signed request is from, which names a project; None if it is not. See ``zq.auth.signatures``."""

    def authenticate(self, project: str, env: Mapping[str, Any], peer: str) -> Identity | None: ...


class Signed:
    """The strategy of a request with a signature, be it empty (contract 10.3)."""

    def __init__(self, signatures: SignatureCheck) -> None:
        self._signatures = signatures

    def authenticate(self, env: Mapping[str, Any], peer: str) -> Identity:
        project = env.get(PRESENTED, {}).get("HTTP_X_PROJECT_ID", "")
        identity = self._signatures.authenticate(project, env, peer)
        if identity is None:
            raise falcon.HTTPNotFound
        return identity


class Authentication:
    """Falcon middleware. Leaves ``identity`` in ``req.context``, or in the environment what a proxy says of it."""

    def __init__(
        self, strategy: Strategy | None, proxy: ProxyCheck | None, behind_proxy: bool, signatures: SignatureCheck
    ) -> None:
        """One of both; none for the empty strategy. ``behind_proxy``: the last ``X-Forwarded-For`` is the caller."""
        self._signed = Signed(signatures)
        self._strategy = strategy
        self._proxy = proxy
        self._behind_proxy = behind_proxy
        self._harmless: frozenset[str] = frozenset()

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        env = req.env
        if CONTROL in env:
            req.context.identity = OPERATOR
            return
        strategy = self._strategy
        signed = "HTTP_URL_SIGNATURE" in env
        if strategy is None and self._proxy is None and not signed:
            return
        if not self._harmless.issuperset(env):
            self._strip(env)
        if env["PATH_INFO"] in OPEN and env["REQUEST_METHOD"] in OPEN[env["PATH_INFO"]]:
            return
        peer = peer_of(env, True) if self._behind_proxy else env.get("REMOTE_ADDR", "")
        if signed:
            strategy = self._signed
        if strategy is not None:
            context = req.context
            context.identity = strategy.authenticate(env, peer)
            context.check_again = strategy.authenticate, peer
        elif self._proxy is not None:
            self._proxy.check(env.setdefault(PRESENTED, {}), peer)

    def _strip(self, env: dict[str, Any]) -> None:
        """Put aside what the client says of himself; remember the names of all else."""
        for name in USUAL:
            if name in env:
                env.setdefault(PRESENTED, {})[name] = env.pop(name)
        if self._harmless.issuperset(env):
            return
        set_aside(env, self._harmless)
        if len(self._harmless) + len(env) <= MOST:
            self._harmless |= env.keys()


def peer_of(env: Mapping[str, Any], behind_proxy: bool) -> str:
    """From which address a request comes; behind a proxy, what that says."""
    if behind_proxy and (forwarded := env.get("HTTP_X_FORWARDED_FOR")):
        return str(forwarded).rpartition(",")[2].strip()
    return str(env.get("REMOTE_ADDR", ""))


def set_aside(env: dict[str, Any], harmless: Collection[str] = ()) -> None:
    """Put aside what the client says of himself, unless its name is known as harmless."""
    said = [name for name in env if name not in harmless and (name in NAMES or name.startswith(PREFIXES))]
    if said:
        env.setdefault(PRESENTED, {}).update({name: env.pop(name) for name in said})


def check_again(req: falcon.Request) -> Callable[[], object] | None:
    """What raises ``NotAuthorized`` once the credential of a request is not valid any more, or its project may do
    nothing any more; None: both stay."""
    context = req.context
    authenticate, call = getattr(context, "check_again", None), getattr(context, "check_state", None)
    check_state = None if call is None else partial(*call)
    if authenticate is None:
        return check_state

    def check() -> None:
        verify, peer = authenticate
        verify(req.env, peer)
        if check_state is not None:
            check_state()

    return check
