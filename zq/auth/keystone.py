# SPDX-License-Identifier: Apache-2.0
"""The strategy ``keystone``: keystonemiddleware in front of the application, configured in ``[keystone_authtoken]``.

Identity headers from the client are removed before the middleware runs. The middleware's own identity headers become an
``Identity`` and are removed before the application runs.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

from cachetools import FIFOCache
from keystoneauth1.exceptions import ClientException
from keystonemiddleware.auth_token import AuthProtocol, ksm_exceptions
from oslo_config import cfg
from webob.exc import HTTPException

from zq.auth.credentials import CACHE_SIZE, FailureLimit
from zq.clock import Clock
from zq.errors import NotAuthenticated, StartRefused, TooManyRequests, Unavailable, ZqError
from zq.model.identity import MEMBER, Identity
from zq.model.limits import PROJECT_ID

LOG = logging.getLogger(__name__)
# Environment key of the middleware's result: an identity or an error.
RESULT_KEY: Final = "zq.keystone"
# Environment key that is set after the application has read the result.
READ_KEY: Final = "zq.keystone.asked"
# Paths that need no token.
OPEN_PATHS: Final = frozenset({"/", "/healthz", "/readyz"})
# Maximum seconds for which the middleware may cache a token.
MAX_CACHED: Final = 300
CHALLENGE: Final = "Keystone"
# Prefixes of the middleware's identity headers.
IDENTITY_HEADERS: Final = (
    *("HTTP_X_PROJECT_", "HTTP_X_TENANT", "HTTP_X_USER", "HTTP_X_DOMAIN", "HTTP_X_SERVICE_", "HTTP_X_IS_ADMIN"),
    *("HTTP_X_ROLES", "HTTP_X_ROLE", "HTTP_X_IDENTITY_STATUS"),
)
Application = Callable[..., Iterable[bytes]]


def create_middleware(app: Application, path: str | None) -> tuple[AuthProtocol, cfg.ConfigOpts]:
    """Create the middleware in front of ``app`` from the configuration file ``path`` and the environment.

    Return the middleware and its options.

    Raises ``StartRefused`` if a setting is not valid.
    """
    options = cfg.ConfigOpts()
    try:
        options([], "zq", default_config_files=[path] if path else None, validate_default_values=True)
        middleware = AuthProtocol(app, {"oslo_config_config": options, "delay_auth_decision": False})
        cached = options.keystone_authtoken.token_cache_time
    except Exception as error:  # the configured authentication plugin may raise anything
        raise StartRefused(f"[keystone_authtoken] cannot be used: {error}.") from error
    if not 0 <= cached <= MAX_CACHED:
        raise StartRefused(
            f"[keystone_authtoken] token_cache_time must be from 0 to {MAX_CACHED} seconds; it is {cached}."
        )
    return middleware, options


class Keystone:
    """An authentication strategy that uses Keystone's middleware. ``wrap`` installs the middleware."""

    def __init__(self, path: str | None, clock: Clock) -> None:
        """Configure the middleware from the configuration file ``path`` and the environment.

        Raises ``StartRefused`` if a setting is not valid.
        """
        self._clock = clock
        self._failures = FailureLimit()
        self._lock = threading.Lock()
        # Digests of the tokens that the middleware accepted at its last check.
        self._valid: FIFOCache[bytes, None] = FIFOCache(CACHE_SIZE)
        self._app: Application = lambda _, __: ()
        self._refused: Callable[[Mapping[str, Any], str], None] = lambda _, __: None
        self._middleware, self._options = create_middleware(self._run_application, path)

    def wrap(
        self,
        app: Application,
        set_aside: Callable[[dict[str, Any]], None],
        get_peer: Callable[[Mapping[str, Any]], str],
        refused: Callable[[Mapping[str, Any], str], None],
        public: Sequence[str] = (),
    ) -> Application:
        """Wrap the application in the Keystone middleware, which authenticates requests before the application.

        Args:
            set_aside: Removes the client's identity headers from the WSGI environment.
            get_peer: Returns the client's address.
            refused: Called with the environment and the client's address if the middleware rejects a request.
            public: Path prefixes of requests that need no token.
        """
        self._app, self._refused = app, refused
        prefixes = tuple(public)

        def call(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            path = environ["PATH_INFO"]
            if path in OPEN_PATHS or path.startswith(prefixes) or environ.get("HTTP_URL_SIGNATURE"):
                return app(environ, start_response)
            set_aside(environ)
            peer = get_peer(environ)
            try:
                if _digest(environ) not in self._valid:
                    self._failures.check(peer)
                return self._middleware(environ, self._count_failures(environ, start_response, peer))  # type: ignore[no-any-return]
            except TooManyRequests as error:
                environ[RESULT_KEY] = error
            except ClientException as error:
                environ[RESULT_KEY] = Unavailable("Keystone is temporarily unavailable. Try again later.")
                environ[RESULT_KEY].__cause__ = error
            return app(environ, start_response)

        return call

    @property
    def middleware(self) -> AuthProtocol:
        """The ``AuthProtocol`` instance, which validates tokens."""
        return self._middleware

    @property
    def options(self) -> cfg.ConfigOpts:
        """The options of the middleware, which contain the server's own credential."""
        return self._options

    def authenticate(self, env: Mapping[str, Any], peer: str) -> Identity:
        """Return the identity that the middleware found.

        If this method is called again for the same request, it validates the token again, because a long-running
        request may outlive its token. Raises ``NotAuthenticated``, ``TooManyRequests`` after too many failures, or
        ``Unavailable``.
        """
        found = env.get(RESULT_KEY)
        if isinstance(found, ZqError):
            raise found
        if not isinstance(found, Identity) or (found.expires is not None and found.expires <= self._clock.now()):
            raise NotAuthenticated(None, CHALLENGE)
        if READ_KEY in env:
            # The middleware reads the token from the same headers.
            self._validate_again(env.get("HTTP_X_AUTH_TOKEN") or env.get("HTTP_X_STORAGE_TOKEN", ""))
        elif isinstance(env, MutableMapping):
            env[READ_KEY] = True
        return found

    def _validate_again(self, token: str) -> None:
        """Raise ``NotAuthenticated`` if the token is no longer valid. If Keystone is unavailable, do nothing."""
        try:
            self._middleware.fetch_token(token)
        except ksm_exceptions.InvalidToken as error:
            raise NotAuthenticated(None, CHALLENGE) from error
        except (ClientException, HTTPException) as error:
            LOG.debug("A token is treated as valid because Keystone is unavailable: %r", error)

    def cached_validity(self, _env: Mapping[str, Any], _peer: str) -> bool:
        """Return ``True``: the middleware has already rejected requests without a valid token."""
        return True

    look_up = cached_validity

    def _run_application(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        environ[RESULT_KEY] = identity(environ)
        with self._lock:
            self._valid[_digest(environ)] = None
        for name in [name for name in environ if name.startswith(IDENTITY_HEADERS)]:
            del environ[name]
        return self._app(environ, start_response)

    def _count_failures(
        self, environ: Mapping[str, Any], start_response: Callable[..., Any], peer: str
    ) -> Callable[..., Any]:
        """Wrap ``start_response`` to handle the requests that the middleware rejects.

        A 401 response counts as a failed attempt. If the rejected request has a body, the connection is closed, because
        the body was not read.
        """

        def begin(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            if status.startswith(("401", "503")) and RESULT_KEY not in environ:
                if status.startswith("401"):
                    with self._lock:
                        self._valid.pop(_digest(environ), None)
                    self._failures.count(peer)
                    self._refused(environ, peer)
                if environ.get("CONTENT_LENGTH") not in (None, "", "0") or "HTTP_TRANSFER_ENCODING" in environ:
                    headers = [*headers, ("Connection", "close")]
            return start_response(status, headers, *error)

        return begin


def _digest(environ: Mapping[str, Any]) -> bytes:
    token: str = environ.get("HTTP_X_AUTH_TOKEN") or environ.get("HTTP_X_STORAGE_TOKEN", "")
    return blake2b(token.encode()).digest()


def identity(environ: MutableMapping[str, Any]) -> Identity | None:
    """Return the identity from the headers that Keystone's middleware has set.

    Return ``None`` if the token is not confirmed or has no valid project id.
    """
    project = environ.get("HTTP_X_PROJECT_ID") or ""
    if environ.get("HTTP_X_IDENTITY_STATUS") != "Confirmed" or PROJECT_ID.fullmatch(project) is None:
        return None
    roles = frozenset(role.strip().lower() for role in environ.get("HTTP_X_ROLES", "").split(",") if role.strip())
    token: Mapping[str, Any] = (environ.get("keystone.token_info") or {}).get("token") or {}
    ids = token.get("audit_ids") or [""]
    ends = token.get("expires_at")
    return Identity(
        project=project,
        user=environ.get("HTTP_X_USER_ID") or "",
        roles=roles or frozenset({MEMBER}),
        credential=f"keystone:{ids[0]}",
        expires=datetime.fromisoformat(ends).timestamp() if isinstance(ends, str) else None,
    )
