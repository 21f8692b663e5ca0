# SPDX-License-Identifier: Apache-2.0
"""Request construction, authentication and retries, for the blocking and the asynchronous client.

Retries use exponential back-off with jitter.
"""

import logging
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from random import uniform
from typing import Any, Final, TypeVar
from urllib.request import getproxies
from uuid import uuid4

import httpx
from msgspec import Struct
from msgspec.structs import replace
from tenacity import RetryCallState, retry_if_exception_type, wait_random_exponential

from zq.client.calls import (
    Call,
    Repeat,
    Response,
    Retries,
    error_from,
    parse_retry_after,
    split_sleep,
)
from zq.client.credentials import Token
from zq.errors import CommitRunning, Invalid, StoreDamaged, TooManyRequests, Unavailable, ZqError

T = TypeVar("T")
LOG = logging.getLogger("zq.client")
if logging.getLogger("httpx").level == logging.NOTSET:
    # httpx logs each request at INFO. An application that wants these lines sets the logger's level itself.
    logging.getLogger("httpx").setLevel(logging.WARNING)
Auth = httpx.Auth | Callable[[httpx.Request], httpx.Request]
# HTTP statuses of temporary failures.
RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})
# Errors that httpx raises before it sends any part of a request.
NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
# Explanations of connection errors, most specific class first.
CAUSES: Final[Mapping[type[BaseException], str]] = {
    ConnectionRefusedError: "connection refused",
    socket.gaierror: "the host name cannot be resolved",
    ssl.SSLCertVerificationError: "its certificate is not trusted",
    ssl.SSLError: "the TLS handshake failed",
}
# Maximum port number.
LAST_PORT: Final = 65535
# Limits of the connection pool.
CONNECTIONS: Final = httpx.Limits(max_connections=100, max_keepalive_connections=100, keepalive_expiry=30)
# Timeout in seconds for undoing a failed call.
UNDO_TIMEOUT: Final = 2.0


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of a client. ``timeout`` is per attempt, in seconds."""

    url: str
    headers: Mapping[str, str]
    auth: Auth | None
    token: Token | None
    timeout: float
    retries: Retries

    def options(self) -> dict[str, Any]:
        """Return the arguments for an ``httpx.Client``."""
        return {
            "base_url": self.url,
            "headers": {name: value.encode() for name, value in self.headers.items()},
            "auth": self.auth,
            "limits": CONNECTIONS,
            "follow_redirects": False,
            # Loading the certificates takes longer than a post, so clients that use plain HTTP do not load them.
            "verify": httpx.URL(self.url).scheme == "https" or bool(getproxies()),
        }

    def safe_url(self) -> str:
        """Return the server's URL without user and password."""
        return str(httpx.URL(self.url).copy_with(userinfo=b""))

    def __repr__(self) -> str:
        return f"Settings({self.safe_url()})"

    def sign(self, request: httpx.Request) -> None:
        """Add the token to a request to the client's server. Do not change requests to other servers."""
        server = httpx.URL(self.url)
        if self.token is not None and (request.url.scheme, request.url.netloc) == (server.scheme, server.netloc):
            request.headers.update(self.token.headers())

    def single_attempt(self) -> "Settings":
        """Return a copy of the settings with a single attempt and a short timeout."""
        return replace(
            self, timeout=min(self.timeout, UNDO_TIMEOUT), retries=Retries(attempts=1, deadline=UNDO_TIMEOUT)
        )


def make_settings(
    url: str,
    project: str,
    client_id: str | None,
    auth: Auth | None,
    token: Token | None,
    timeout: float,
    retries: Retries,
) -> Settings:
    """Return the settings of a client. Raises ``Invalid`` if ``url``, ``project`` or ``client_id`` is not valid."""
    try:
        server = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Invalid(f"The server's URL is not valid: {error}.") from error
    if server.scheme not in ("http", "https") or not server.host or (server.port or 0) > LAST_PORT:
        raise Invalid("The server's URL must begin with http:// or https:// and have a host and a valid port.")
    headers: Mapping[str, str] = {
        "Client-ID": client_id or uuid4().hex,
        **({"X-Project-ID": project} if project else {}),
        "Content-Type": "application/json",
    }
    if not all(value.isprintable() and value == value.strip() for value in headers.values()):
        raise Invalid("A project and a client id must not have control characters or surrounding blanks.")
    return Settings(url=url.rstrip("/"), headers=headers, auth=auth, token=token, timeout=timeout, retries=retries)


class Retry(Exception):
    """An error for a failed attempt that the client may repeat after ``pause`` seconds.

    If no further attempt is permitted, the client raises ``error``.
    """

    def __init__(self, error: ZqError, pause: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause = pause


class Attempts:
    """The attempts of one call, with their deadline."""

    def __init__(self, call: Call[Any], settings: Settings) -> None:
        self.call = call
        self._settings = settings
        self._ends = time.monotonic() + settings.retries.deadline + call.wait
        self._jitter = wait_random_exponential(settings.retries.first_delay, settings.retries.max_delay)
        self._failed: Retry | None = None
        self._running_count = 0
        """Number of responses that report a running commit, which do not count as failures."""
        self._rate_limited_count = 0
        """Number of responses that report a rate limit, which do not count as failures."""
        self._rate_limit_failure: Retry | None = None
        """The failure of the last attempt, if a rate limit rejected it."""

    def options(self) -> dict[str, Any]:
        """Return the arguments for tenacity's ``Retrying``."""
        return {
            "retry": retry_if_exception_type(Retry),
            "wait": self._next_pause,
            "before_sleep": self._log,
            "stop": self._is_exhausted,
            "reraise": True,
        }

    def request(self, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """Build the request of the next attempt, with a timeout of at most the time left for the call."""
        if client.is_closed:
            raise ZqError("The client is closed.")
        self._rate_limit_failure = None
        call = self.call
        left = min(self._ends - time.monotonic() - call.wait, max(1.0, call.patience()))
        patience = max(0.1, min(self._settings.timeout, left))
        request = client.build_request(
            call.method,
            call.path,
            params={name: _format_param(value) for name, value in call.params.items() if value is not None} or None,
            headers=call.headers,
            content=call.body or None,
            timeout=httpx.Timeout(patience, read=patience + call.wait),
        )
        self._settings.sign(request)
        return request

    @contextmanager
    def attempt(self) -> Generator[None, None, None]:
        """Convert connection errors in the block to ``Retry`` if a retry is safe, else to ``Unavailable``."""
        try:
            yield
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise Invalid("The request is not valid HTTP: check its address and headers.") from error
        except httpx.RequestError as error:
            lost = Unavailable(connection_error_message(self._settings.url, error))
            if self.call.repeat is Repeat.SAFE or isinstance(error, NEVER_SENT):
                self._failed = Retry(lost)
                raise self._failed from error
            raise lost from error

    def read_response(self, response: httpx.Response) -> Response:
        """Return a successful response. Raises ``Retry`` if a retry is permitted, else the server's error."""
        pause = parse_retry_after(response.headers)
        if response.status_code == 202 and pause > 0:  # a commit is still running, for an unlimited time
            self._running_count += 1
            self._ends = max(self._ends, time.monotonic() + self._settings.retries.deadline)
            self._failed = Retry(CommitRunning("The commit is decided and still being applied."), pause)
            raise self._failed
        if response.is_success:
            return Response(response.status_code, response.headers, response.content)
        error = error_from(response)
        if response.status_code == 429 or isinstance(error, TooManyRequests):
            raise self._rate_limit_retry(error, pause) from (self._failed.error if self._failed else None)
        running = response.status_code == 409 and pause > 0
        passing = response.status_code in RETRIED_STATUSES and not isinstance(error, StoreDamaged)
        if self.call.repeat is Repeat.SAFE and (passing or running):
            self._failed = Retry(error, pause)
            raise self._failed
        if self._failed is not None:
            # ``may_be_applied`` uses the cause: an earlier attempt may have succeeded.
            raise error from self._failed.error
        raise error

    def split_pause(self, pause: float) -> Iterator[float]:
        """Yield short sleeps that add up to ``pause``. If the time for retries runs out, raise the last error."""
        yield from split_sleep(pause, self._is_out_of_patience)
        failure = self._rate_limit_failure or self._failed
        if failure is not None and self._is_out_of_patience():
            raise failure

    def _rate_limit_retry(self, error: ZqError, pause: float) -> Retry:
        if self._settings.retries.attempts > 1:
            self._rate_limited_count += 1
        self._rate_limit_failure = Retry(error, pause)
        return self._rate_limit_failure

    def _is_out_of_patience(self) -> bool:
        return self.call.patience() <= 0

    def _next_pause(self, state: RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome else None
        requested = failure.pause if isinstance(failure, Retry) else 0.0
        if requested and failure is self._rate_limit_failure:
            return requested + uniform(0, self._settings.retries.first_delay)
        return max(requested, self._jitter(state))

    def _log(self, state: RetryCallState) -> None:
        if self._rate_limit_failure is not None:
            if self._rate_limited_count == 1:
                LOG.info(
                    "%s Waiting %.0f s, as requested by the server.",
                    self._rate_limit_failure.error,
                    state.upcoming_sleep,
                )
        elif state.attempt_number == 1 and state.outcome:
            LOG.warning("%s Retrying for up to %.0f s.", state.outcome.exception(), self._settings.retries.deadline)

    def _is_exhausted(self, state: RetryCallState) -> bool:
        failed = state.attempt_number - self._running_count - self._rate_limited_count
        too_often = failed >= self._settings.retries.attempts
        left = min(self._ends - time.monotonic(), self.call.patience())
        return too_often or state.upcoming_sleep >= left


def connection_error_message(url: str, error: httpx.RequestError) -> str:
    """Return the error message for a failed connection to the server."""
    server = httpx.URL(url)
    if isinstance(error, httpx.TimeoutException):
        reason = "did not answer in time"
    elif isinstance(error, NEVER_SENT):
        reason = f"cannot be reached{_explain_cause(error)}"
    else:
        reason = "closed the connection"
    return f"The server at {server.host}:{server.port or server.scheme} {reason}."


def _explain_cause(error: BaseException) -> str:
    for cause in _causes(error):
        for kind, words in CAUSES.items():
            if isinstance(cause, kind):
                return f" ({words})"
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):  # one error per address of the host name
            yield from error.exceptions
        error = error.__cause__ or error.__context__


def _format_param(value: str | int | bool | list[str]) -> str | list[str]:
    if isinstance(value, list):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)
