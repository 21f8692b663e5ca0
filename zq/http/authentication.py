# SPDX-License-Identifier: Apache-2.0
"""Authentication middleware: identifies the caller before routing and before the body is read (tenancy 1).

With every strategy, the middleware first removes identity headers of the client from the environment, so that later
code cannot trust them. Without a strategy, ``zq.http.tenant`` reads these headers.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import falcon

from zq.http.heads import CredentialCheck
from zq.http.tenant import CONTROL, PRESENTED
from zq.model.identity import ADMIN, Identity

# Paths that need no credential, with their methods.
OPEN: Final = {"/healthz": ("GET", "HEAD"), "/readyz": ("GET", "HEAD"), "/": ("GET",)}
# The most frequent identity headers, which are removed without a search.
USUAL: Final = ("HTTP_X_PROJECT_ID", "HTTP_X_ROLES", "HTTP_X_USER_ID", "HTTP_X_ZQ_PROXY_SECRET")
# Header of a signed URL. If it is present, all other credentials are ignored.
SIGNATURE: Final = "HTTP_URL_SIGNATURE"
# Names of other identity headers.
NAMES: Final = frozenset({"HTTP_X_ROLES", "HTTP_X_IDENTITY_STATUS", "HTTP_X_ZQ_PROXY_SECRET"})
# Prefixes of other identity headers.
PREFIXES: Final = ("HTTP_X_PROJECT_", "HTTP_X_TENANT", "HTTP_X_USER", "HTTP_X_DOMAIN", "HTTP_X_SERVICE_")
# Maximum number of cached environment keys that are not identity headers.
MAX_HARMLESS: Final = 4096
# The identity of requests through the control socket.
OPERATOR: Final = Identity(project="", user="operator", roles=frozenset({ADMIN}), credential="control")


class Strategy(Protocol):
    """An authentication strategy; see ``zq.auth``."""

    def authenticate(self, env: Mapping[str, Any], peer: str) -> Identity: ...

    def known(self, env: Mapping[str, Any], peer: str) -> bool | None:
        """Return whether ``authenticate`` would succeed; ``None`` if that requires a read of the store.

        The call does not count as an authentication attempt.
        """
        ...

    def look_up(self, env: Mapping[str, Any], peer: str) -> bool | None:
        """Look up the credential in the store. Return ``None`` if the store is unavailable."""
        ...


class ProxyCheck(Protocol):
    """The check that a request passed the authenticating proxy; see ``zq.auth.proxy``."""

    def check(self, env: Mapping[str, Any], peer: str) -> None: ...

    def known(self, env: Mapping[str, Any]) -> bool: ...


class SignatureCheck(Protocol):
    """The authentication of signed requests, which state their project; see ``zq.auth.signatures``.

    ``authenticate`` returns ``None`` if the signature does not belong to the project.
    """

    def authenticate(self, project: str, env: Mapping[str, Any], peer: str) -> Identity | None: ...
    def known(self, project: str, env: Mapping[str, Any], peer: str) -> bool | None: ...
    def look_up(self, project: str, env: Mapping[str, Any], peer: str) -> bool | None: ...


class Signed:
    """Strategy for requests with a ``URL-Signature`` header, even if it is empty (contract 10.3)."""

    def __init__(self, signatures: SignatureCheck) -> None:
        self._signatures = signatures

    def authenticate(self, env: Mapping[str, Any], peer: str) -> Identity:
        identity = self._signatures.authenticate(_project_of(env), env, peer)
        if identity is None:
            raise falcon.HTTPNotFound
        return identity

    def known(self, env: Mapping[str, Any], peer: str) -> bool | None:
        return self._signatures.known(_project_of(env), env, peer)

    def look_up(self, env: Mapping[str, Any], peer: str) -> bool | None:
        return self._signatures.look_up(_project_of(env), env, peer)


def _project_of(env: Mapping[str, Any]) -> str:
    """Return the project stated in the request, even if its header was removed from the environment."""
    name = "HTTP_X_PROJECT_ID"
    return str(env.get(name) or env.get(PRESENTED, {}).get(name, ""))


class Authentication:
    """Falcon middleware that authenticates the caller.

    It sets ``req.context.identity``. With a proxy, it keeps the proxy's headers in the environment instead.
    """

    def __init__(
        self,
        strategy: Strategy | None,
        proxy: ProxyCheck | None,
        behind_proxy: bool,
        signatures: SignatureCheck,
        checks: Sequence[CredentialCheck] = (),
        public: Sequence[str] = (),
    ) -> None:
        """Initialize the middleware with ``strategy`` or ``proxy``, or with neither.

        Args:
            behind_proxy: Whether the last address in ``X-Forwarded-For`` is the caller's.
            checks: Credential checks of requests that do not use the server's strategy.
            public: Path prefixes that GET and HEAD may read without a credential.
        """
        self._signed = Signed(signatures)
        self._strategy = strategy
        self._proxy = proxy
        self._asks = strategy is not None or proxy is not None
        self.authenticates = self._asks or bool(checks)
        """Whether any requests must be authenticated."""
        self._behind_proxy = behind_proxy
        self.checks = checks
        self._public = tuple(public)
        self._harmless: frozenset[str] = frozenset()

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        env = req.env
        if CONTROL in env:
            req.context.identity = OPERATOR
            return
        strategy = self._signed if SIGNATURE in env else self._strategy
        if strategy is None and not self._asks:
            return
        if not self._harmless.issuperset(env):
            self._strip(env)
        path = env["PATH_INFO"]
        if path in OPEN and env["REQUEST_METHOD"] in OPEN[path]:
            return
        if path.startswith(self._public) and env["REQUEST_METHOD"] in ("GET", "HEAD"):
            return
        if self.check_of(env) is not None:
            return
        peer = peer_of(env, True) if self._behind_proxy else env.get("REMOTE_ADDR", "")
        if strategy is not None:
            context = req.context
            context.identity = strategy.authenticate(env, peer)
            context.authentication = self
        elif self._proxy is not None:
            self._proxy.check(env.setdefault(PRESENTED, {}), peer)

    def known(self, env: Mapping[str, Any]) -> bool | None:
        """Return whether the edge should read the body of a request; see ``zq.http.heads.Judge``."""
        if (check := self.check_of(env)) is not None:
            return check.known(env)
        if not self._asks or env["PATH_INFO"] in OPEN:
            return True
        strategy = self._signed if SIGNATURE in env else self._strategy
        if strategy is None:
            return self._proxy is None or self._proxy.known(env)
        return strategy.known(env, peer_of(env, self._behind_proxy))

    def look_up(self, env: Mapping[str, Any]) -> bool | None:
        """Look up the credential in the store. Return ``None`` if the store is unavailable."""
        if (check := self.check_of(env)) is not None:
            return check.look_up(env)
        strategy = self._signed if SIGNATURE in env else self._strategy
        return strategy is None or strategy.look_up(env, peer_of(env, self._behind_proxy))

    def check_of(self, env: Mapping[str, Any]) -> CredentialCheck | None:
        """Return the feature's credential check for a request; ``None`` if the server's strategy authenticates it."""
        for check in self.checks:
            if check.applies(env):
                return check
        return None

    def check_again(self, env: Mapping[str, Any]) -> None:
        """Authenticate a long-running request again.

        Raises ``NotAuthenticated`` if its credential is no longer valid.
        """
        strategy = self._signed if SIGNATURE in env else self._strategy
        assert strategy is not None
        strategy.authenticate(env, peer_of(env, self._behind_proxy))

    def _strip(self, env: dict[str, Any]) -> None:
        """Remove the client's identity headers from the environment, and cache the names of the other keys."""
        for name in USUAL:
            if name in env:
                env.setdefault(PRESENTED, {})[name] = env.pop(name)
        if self._harmless.issuperset(env):
            return
        set_aside(env, self._harmless)
        if len(self._harmless) + len(env) <= MAX_HARMLESS:
            self._harmless |= env.keys()


def peer_of(env: Mapping[str, Any], behind_proxy: bool) -> str:
    """Return the caller's address. Behind a proxy, it is the last address in ``X-Forwarded-For``."""
    if behind_proxy and (forwarded := env.get("HTTP_X_FORWARDED_FOR")):
        return str(forwarded).rpartition(",")[2].strip()
    return str(env.get("REMOTE_ADDR", ""))


def token_of(req: falcon.Request) -> str:
    """Return the caller's Keystone token, which is needed to create a trust; "" if it is absent."""
    return req.get_header("X-Auth-Token") or ""


def set_aside(env: dict[str, Any], harmless: Collection[str] = ()) -> None:
    """Move the client's identity headers to ``PRESENTED``. Keys in ``harmless`` are skipped."""
    names = [name for name in env if name not in harmless and (name in NAMES or name.startswith(PREFIXES))]
    if names:
        env.setdefault(PRESENTED, {}).update({name: env.pop(name) for name in names})


def check_again(req: falcon.Request) -> Callable[[], object] | None:
    """Return a check that raises ``NotAuthorized`` once the credential has expired or the project is suspended.

    Return ``None`` if neither can happen.
    """
    context = req.context
    authentication, bounds = getattr(context, "authentication", None), getattr(context, "bounds", None)
    check_state = None if bounds is None else partial(bounds.check_state, req)
    if authentication is None:
        return check_state

    def check() -> None:
        authentication.check_again(req.env)
        if check_state is not None:
            check_state()

    return check
