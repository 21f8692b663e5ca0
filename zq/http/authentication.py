# SPDX-License-Identifier: Apache-2.0
"""Authentication middleware, which runs before routing and before the body is read (tenancy contract, section 1).

If a strategy is configured, the middleware removes the client's own identity headers, which are not trustworthy.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import falcon

from zq.http.context import Request
from zq.http.heads import CredentialCheck
from zq.http.tenant import CONTROL, IDENTITY_KEY
from zq.model.identity import ADMIN, Identity

# Methods by path that need no credential.
OPEN_PATHS: Final = {"/healthz": ("GET", "HEAD"), "/readyz": ("GET", "HEAD"), "/": ("GET",)}
# The most frequent identity headers, which are removed without a search.
FREQUENT_HEADERS: Final = ("HTTP_X_PROJECT_ID", "HTTP_X_ROLES", "HTTP_X_USER_ID", "HTTP_X_ZQ_PROXY_SECRET")
# Header of a signed URL. If it is present, all other credentials are ignored.
SIGNATURE: Final = "HTTP_URL_SIGNATURE"
# Names of other identity headers.
IDENTITY_HEADERS: Final = frozenset({"HTTP_X_ROLES", "HTTP_X_IDENTITY_STATUS", "HTTP_X_ZQ_PROXY_SECRET"})
# Prefixes of other identity headers.
IDENTITY_PREFIXES: Final = ("HTTP_X_PROJECT_", "HTTP_X_TENANT", "HTTP_X_USER", "HTTP_X_DOMAIN", "HTTP_X_SERVICE_")
# Maximum number of cached environment keys that are not identity headers.
MAX_HARMLESS: Final = 4096
# The identity of requests through the control socket.
OPERATOR: Final = Identity(project="", user="operator", roles=frozenset({ADMIN}), credential="control")


class Strategy(Protocol):
    """Interface of the authentication strategies in ``zq.auth``."""

    def authenticate(self, env: Mapping[str, Any], peer: str) -> Identity: ...

    def cached_validity(self, env: Mapping[str, Any], peer: str) -> bool | None:
        """Look up the credential in the cache. Return whether it is valid, or ``None`` if it is not cached.

        This method does not count an invalid credential as a failed login attempt.
        """
        ...

    def look_up(self, env: Mapping[str, Any], peer: str) -> bool | None:
        """Look up the credential in the store. Return whether it is valid, or ``None`` if the store is unavailable."""
        ...


class ProxyCheck(Protocol):
    """Interface for checking that a request came through the authenticating proxy; see ``zq.auth.proxy``."""

    def check(self, env: Mapping[str, Any], peer: str) -> None: ...

    def has_valid_secret(self, env: Mapping[str, Any]) -> bool: ...


class SignatureCheck(Protocol):
    """Interface for verifying signed URLs; see ``zq.auth.signatures``."""

    def authenticate(self, project: str, env: Mapping[str, Any], peer: str) -> Identity | None: ...
    def cached_validity(self, project: str, env: Mapping[str, Any], peer: str) -> bool | None: ...
    def look_up(self, project: str, env: Mapping[str, Any], peer: str) -> bool | None: ...


class SignedUrlStrategy:
    """The authentication strategy for requests with a ``URL-Signature`` header, even an empty one."""

    def __init__(self, signatures: SignatureCheck) -> None:
        self._signatures = signatures

    def authenticate(self, env: Mapping[str, Any], peer: str) -> Identity:
        identity = self._signatures.authenticate(_project_of(env), env, peer)
        if identity is None:
            raise falcon.HTTPNotFound
        return identity

    def cached_validity(self, env: Mapping[str, Any], peer: str) -> bool | None:
        return self._signatures.cached_validity(_project_of(env), env, peer)

    def look_up(self, env: Mapping[str, Any], peer: str) -> bool | None:
        return self._signatures.look_up(_project_of(env), env, peer)


def _project_of(env: Mapping[str, Any]) -> str:
    name = "HTTP_X_PROJECT_ID"
    return str(env.get(name) or env.get(IDENTITY_KEY, {}).get(name, ""))


class Authentication:
    """Falcon middleware that authenticates the caller and sets ``req.context.identity``."""

    def __init__(
        self,
        strategy: Strategy | None,
        proxy: ProxyCheck | None,
        behind_proxy: bool,
        signatures: SignatureCheck,
        checks: Sequence[CredentialCheck] = (),
        public: Sequence[str] = (),
    ) -> None:
        """Initialize the middleware. At most one of ``strategy`` and ``proxy`` may be set.

        Args:
            behind_proxy: Take the caller's address from the end of ``X-Forwarded-For``.
            public: Path prefixes for which GET and HEAD need no credential.
        """
        self._signed = SignedUrlStrategy(signatures)
        self._strategy = strategy
        self._proxy = proxy
        self._is_required = strategy is not None or proxy is not None
        self.authenticates = self._is_required or bool(checks)
        self._behind_proxy = behind_proxy
        self.checks = checks
        self._public = tuple(public)
        self._harmless: frozenset[str] = frozenset()

    def process_request(self, req: Request, _resp: falcon.Response) -> None:
        env = req.env
        if CONTROL in env:
            req.context.identity = OPERATOR
            return
        strategy = self._signed if SIGNATURE in env else self._strategy
        if strategy is None and not self._is_required:
            return
        if not self._harmless.issuperset(env):
            self._strip(env)
        path = env["PATH_INFO"]
        if path in OPEN_PATHS and env["REQUEST_METHOD"] in OPEN_PATHS[path]:
            return
        if path.startswith(self._public) and env["REQUEST_METHOD"] in ("GET", "HEAD"):
            return
        if self.find_check(env) is not None:
            return
        peer = get_peer(env, True) if self._behind_proxy else env.get("REMOTE_ADDR", "")
        if strategy is not None:
            context = req.context
            context.identity = strategy.authenticate(env, peer)
            context.authentication = self
        elif self._proxy is not None:
            self._proxy.check(env.setdefault(IDENTITY_KEY, {}), peer)

    def cached_validity(self, env: Mapping[str, Any]) -> bool | None:
        """Look up the credential in the cache. Return whether it is valid, or ``None`` if the store must be queried."""
        if (check := self.find_check(env)) is not None:
            return check.cached_validity(env)
        if not self._is_required or env["PATH_INFO"] in OPEN_PATHS:
            return True
        strategy = self._signed if SIGNATURE in env else self._strategy
        if strategy is None:
            return self._proxy is None or self._proxy.has_valid_secret(env)
        return strategy.cached_validity(env, get_peer(env, self._behind_proxy))

    def look_up(self, env: Mapping[str, Any]) -> bool | None:
        """Look up the credential in the store. Return whether it is valid, or ``None`` if the store is unavailable."""
        if (check := self.find_check(env)) is not None:
            return check.look_up(env)
        strategy = self._signed if SIGNATURE in env else self._strategy
        return strategy is None or strategy.look_up(env, get_peer(env, self._behind_proxy))

    def find_check(self, env: Mapping[str, Any]) -> CredentialCheck | None:
        """Return the credential check of the feature, such as SQS, that authenticates the request.

        Return ``None`` if the server's own strategy authenticates the request.
        """
        for check in self.checks:
            if check.applies(env):
                return check
        return None

    def check_again(self, env: Mapping[str, Any]) -> None:
        """Raise ``NotAuthenticated`` if the credential of a long-running request is no longer valid."""
        strategy = self._signed if SIGNATURE in env else self._strategy
        assert strategy is not None
        strategy.authenticate(env, get_peer(env, self._behind_proxy))

    def _strip(self, env: dict[str, Any]) -> None:
        for name in FREQUENT_HEADERS:
            if name in env:
                env.setdefault(IDENTITY_KEY, {})[name] = env.pop(name)
        if self._harmless.issuperset(env):
            return
        set_aside(env, self._harmless)
        if len(self._harmless) + len(env) <= MAX_HARMLESS:
            self._harmless |= env.keys()


def get_peer(env: Mapping[str, Any], behind_proxy: bool) -> str:
    """Return the caller's address. Behind a proxy, return the last address in ``X-Forwarded-For``."""
    if behind_proxy and (forwarded := env.get("HTTP_X_FORWARDED_FOR")):
        return str(forwarded).rpartition(",")[2].strip()
    return str(env.get("REMOTE_ADDR", ""))


def token_of(req: Request) -> str:
    """Return the caller's Keystone token, or "" if the request has none."""
    return req.get_header("X-Auth-Token") or ""


def set_aside(env: dict[str, Any], harmless: Collection[str] = ()) -> None:
    """Move the identity headers that the client sent, such as ``X-Roles``, to ``env[IDENTITY_KEY]``.

    ``harmless`` contains names in ``env`` that need no check, because they are known not to be identity headers.
    """
    unknown = [name for name in env if name not in harmless]
    names = [name for name in unknown if name in IDENTITY_HEADERS or name.startswith(IDENTITY_PREFIXES)]
    if names:
        env.setdefault(IDENTITY_KEY, {}).update({name: env.pop(name) for name in names})


def check_again(req: Request) -> Callable[[], object] | None:
    """Return a function that raises ``NotAuthorized`` if a long-running request is no longer permitted.

    Return ``None`` if the request needs no such check.
    """
    context = req.context
    authentication, bounds = context.authentication, context.bounds
    check_state = None if bounds is None else partial(bounds.check_state, req)
    if authentication is None:
        return check_state

    def check() -> None:
        authentication.check_again(req.env)
        if check_state is not None:
            check_state()

    return check
