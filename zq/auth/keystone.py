# SPDX-License-Identifier: Apache-2.0
"""The strategy ``keystone``: keystonemiddleware around the application, with ``[keystone_authtoken]`` as it stands.

The middleware says in headers who asks, and nothing else may: what a client says there is taken away before, and what
the middleware says is taken away behind, when it has become an identity.
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
from webob.exc import HTTPException

from zq.auth.credentials import MOST, FailureLimit
from zq.clock import Clock
from zq.errors import NotAuthenticated, StartRefused, TooManyRequests, Unavailable, ZqError
from zq.limits import PROJECT_ID
from zq.model.identity import MEMBER, Identity

LOG = logging.getLogger(__name__)
# The key of the environment under which the middleware's finding goes to the application.
FOUND: Final = "zq.keystone"
# The key of a request that was found out about once.
ASKED: Final = "zq.keystone.asked"
# Paths that need no token.
OPEN: Final = frozenset({"/", "/healthz", "/readyz"})
# Seconds for which the middleware may remember a token.
MAX_CACHED: Final = 300
CHALLENGE: Final = "Keystone"
# What begins the headers in which the middleware says who asks.
SAID: Final = (
    *("HTTP_X_PROJECT_", "HTTP_X_TENANT", "HTTP_X_USER", "HTTP_X_DOMAIN", "HTTP_X_SERVICE_", "HTTP_X_IS_ADMIN"),
    *("HTTP_X_ROLES", "HTTP_X_ROLE", "HTTP_X_IDENTITY_STATUS"),
)
Application = Callable[..., Iterable[bytes]]


class Keystone:
    """Both sides of the middleware: ``wrapped`` is before it, ``authenticate`` behind. Raises ``StartRefused``."""

    def __init__(self, path: str | None, clock: Clock) -> None:
        """``path``: the configuration file; the environment counts too."""
        self._clock = clock
        self._failures = FailureLimit()
        self._lock = threading.Lock()
        # Digests of tokens that the middleware found valid when it was asked last.
        self._valid: FIFOCache[bytes, None] = FIFOCache(MOST)
        self._app: Application = lambda _, __: ()
        self._refused: Callable[[Mapping[str, Any], str], None] = lambda _, __: None
        conf = {"oslo_config_project": "zq", "oslo_config_file": path, "delay_auth_decision": False}
        try:
            self._middleware = AuthProtocol(self._behind, conf)
            cached = self._middleware._conf.get("token_cache_time")
        except Exception as error:  # it loads a plugin that the file names, and that raises what it likes
            raise StartRefused(f"[keystone_authtoken] cannot be used: {error}.") from error
        if not 0 <= cached <= MAX_CACHED:
            raise StartRefused(f"[keystone_authtoken] token_cache_time must be from 0 to {MAX_CACHED}; it is {cached}.")

    def wrapped(
        self,
        app: Application,
        set_aside: Callable[[dict[str, Any]], None],
        peer_of: Callable[[Mapping[str, Any]], str],
        refused: Callable[[Mapping[str, Any], str], None],
        public: Sequence[str] = (),
    ) -> Application:
        """Return the application with the middleware before it.

        ``set_aside`` removes the headers by which clients identify themselves; ``peer_of`` returns the address of a
        client. ``refused`` is called with each request that the middleware has refused, and its client's address.
        ``public``: prefixes of paths that need no token.
        """
        self._app, self._refused = app, refused
        prefixes = tuple(public)

        def call(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            path = environ["PATH_INFO"]
            if path in OPEN or path.startswith(prefixes) or environ.get("HTTP_URL_SIGNATURE"):
                return app(environ, start_response)
            set_aside(environ)
            peer = peer_of(environ)
            try:
                if _digest(environ) not in self._valid:
                    self._failures.check(peer)
                return self._middleware(environ, self._beginning(environ, start_response, peer))  # type: ignore[no-any-return]
            except TooManyRequests as error:
                environ[FOUND] = error
            except ClientException as error:
                environ[FOUND] = Unavailable("Keystone cannot be asked now. Try again later.")
                environ[FOUND].__cause__ = error
            return app(environ, start_response)

        return call

    @property
    def middleware(self) -> AuthProtocol:
        """The middleware, with its session and its own credential."""
        return self._middleware

    def authenticate(self, env: Mapping[str, Any], peer: str) -> Identity:
        """Who asks, as the middleware has found. Raises ``NotAuthenticated``, ``TooManyRequests``, ``Unavailable``.

        Of a request that goes on for long the middleware is asked again each time.
        """
        found = env.get(FOUND)
        if isinstance(found, ZqError):
            raise found
        if not isinstance(found, Identity) or (found.expires is not None and found.expires <= self._clock.now()):
            raise NotAuthenticated(None, CHALLENGE)
        if ASKED in env:
            # As the middleware finds it.
            self._ask_again(env.get("HTTP_X_AUTH_TOKEN") or env.get("HTTP_X_STORAGE_TOKEN", ""))
        elif isinstance(env, MutableMapping):
            env[ASKED] = True
        return found

    def _ask_again(self, token: str) -> None:
        """Raise ``NotAuthenticated`` if a token is not valid any more, as soon as the middleware knows it.

        While Keystone cannot be asked, what was found stays.
        """
        try:
            self._middleware.fetch_token(token)
        except ksm_exceptions.InvalidToken as error:
            raise NotAuthenticated(None, CHALLENGE) from error
        except (ClientException, HTTPException) as error:
            LOG.debug("A token is taken for valid, since Keystone cannot be asked: %r", error)

    def known(self, _env: Mapping[str, Any], _peer: str) -> bool:
        """Yes: the middleware, which stands before all else, finds out more, and asks Keystone for it."""
        return True

    look_up = known

    def _behind(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """What the middleware calls for a request with a valid token."""
        environ[FOUND] = identity(environ)
        with self._lock:
            self._valid[_digest(environ)] = None
        for name in [name for name in environ if name.startswith(SAID)]:
            del environ[name]
        return self._app(environ, start_response)

    def _beginning(
        self, environ: Mapping[str, Any], start_response: Callable[..., Any], peer: str
    ) -> Callable[..., Any]:
        """Counts failures, and ends the connection where the middleware leaves a body unread."""

        def begin(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            if status.startswith(("401", "503")) and FOUND not in environ:
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
    """Return the digest of the request's token, so that no secret is kept."""
    token: str = environ.get("HTTP_X_AUTH_TOKEN") or environ.get("HTTP_X_STORAGE_TOKEN", "")
    return blake2b(token.encode()).digest()


def identity(environ: MutableMapping[str, Any]) -> Identity | None:
    """Who asks, by the middleware's headers; None for a token without a project that we can have."""
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
