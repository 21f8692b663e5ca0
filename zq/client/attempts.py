# SPDX-License-Identifier: Apache-2.0
"""Attempts at a call, judged once for both kinds of transport: an answer, an error for the caller, or ``Again``."""

import logging
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.request import getproxies
from uuid import uuid4

import httpx
from msgspec import Struct
from msgspec.structs import replace
from tenacity import RetryCallState, retry_if_exception_type, wait_random_exponential

from zq.client.answers import retry_after, told
from zq.client.calls import Answer, Call, Repeat
from zq.client.retries import Retries, pieces
from zq.errors import CommitRunning, Invalid, StoreDamaged, Unavailable, ZqError

LOG = logging.getLogger("zq.client")
if logging.getLogger("httpx").level == logging.NOTSET:
    # It tells of each request. Whoever wants that says so before, or afterwards.
    logging.getLogger("httpx").setLevel(logging.WARNING)
Auth = httpx.Auth | Callable[[httpx.Request], httpx.Request]
PASSING: Final = frozenset({429, 502, 503, 504})
"""Statuses of trouble that passes."""
NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
CAUSES: Final[Mapping[type[BaseException], str]] = {
    ConnectionRefusedError: "connection refused",
    socket.gaierror: "the name is not known",
    ssl.SSLCertVerificationError: "its certificate is not trusted",
    ssl.SSLError: "it does not speak TLS as asked",
}
"""Told of a server that was not reached; the first that fits."""
LAST_PORT: Final = 65535
CONNECTIONS: Final = httpx.Limits(max_connections=100, max_keepalive_connections=100, keepalive_expiry=30)
BRIEFLY: Final = 2.0
"""Seconds for taking back a call that ended without an answer."""


class Settings(Struct, frozen=True, kw_only=True):
    """What a client is made of; ``timeout``: seconds for one attempt to connect, or to be answered."""

    url: str
    headers: Mapping[str, str]
    auth: Auth | None
    timeout: float
    retries: Retries

    def options(self) -> dict[str, Any]:
        """Those of an HTTP client."""
        return {
            "base_url": self.url,
            "headers": {name: value.encode() for name, value in self.headers.items()},
            "auth": self.auth,
            "limits": CONNECTIONS,
            "follow_redirects": False,
            # Reading certificates takes longer than a post: only where one may have to be checked.
            "verify": httpx.URL(self.url).scheme == "https" or bool(getproxies()),
        }

    def shown(self) -> str:
        """The server's address, without a user and a password."""
        return str(httpx.URL(self.url).copy_with(userinfo=b""))

    def brief(self) -> "Settings":
        """The same for a single, short attempt."""
        return replace(self, timeout=min(self.timeout, BRIEFLY), retries=Retries(attempts=1, deadline=BRIEFLY))


def settings(
    url: str, project: str, client_id: str | None, auth: Auth | None, timeout: float, retries: Retries
) -> Settings:
    """What a client is made of. Raises ``Invalid`` for what no request could have."""
    try:
        server = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Invalid(f"The server's URL is none: {error}.") from error
    if server.scheme not in ("http", "https") or not server.host or (server.port or 0) > LAST_PORT:
        raise Invalid("The server's URL must begin with http:// or https://, and name a host, and a port that exists.")
    headers: Mapping[str, str] = {
        "Client-ID": client_id or uuid4().hex,
        "X-Project-ID": project,
        "Content-Type": "application/json",
    }
    if not all(value.isprintable() and value == value.strip() for value in headers.values()):
        raise Invalid("A project and a client id must have no control characters, and no blanks around them.")
    return Settings(url=url.rstrip("/"), headers=headers, auth=auth, timeout=timeout, retries=retries)


class Again(Exception):
    """An attempt failed, and may be repeated after ``pause`` seconds. ``error`` is for the caller if it is not."""

    def __init__(self, error: ZqError, pause: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause = pause


class Progress:
    """One call on its way: how much time it has, and when to try again."""

    def __init__(self, call: Call[Any], settings: Settings) -> None:
        self.call = call
        self._settings = settings
        self._ends = time.monotonic() + settings.retries.deadline + call.wait
        self._jitter = wait_random_exponential(settings.retries.first, settings.retries.most)
        self._failed: Again | None = None
        self._under_way = 0
        """Answers that say that it goes on: they are no failures."""

    def options(self) -> dict[str, Any]:
        """Those of a repeating."""
        return {
            "retry": retry_if_exception_type(Again),
            "wait": self._pause,
            "before_sleep": self._tell,
            "stop": self._over,
            "reraise": True,
        }

    def request(self, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """The next attempt, with as much time as is left."""
        if client.is_closed:
            raise ZqError("The client is closed.")
        call = self.call
        left = min(self._ends - time.monotonic() - call.wait, max(1.0, call.patience()))
        patience = max(0.1, min(self._settings.timeout, left))
        return client.build_request(
            call.method,
            call.path,
            params={name: _text(value) for name, value in call.params.items() if value is not None} or None,
            headers=call.headers,
            content=call.body or None,
            timeout=httpx.Timeout(patience, read=patience + call.wait),
        )

    @contextmanager
    def attempt(self) -> Generator[None, None, None]:
        """Turns failures of the connection into ``Again``, or into ``Unavailable`` if the call must not be repeated."""
        try:
            yield
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise Invalid("The request breaks the rules of HTTP: its address, or one of its headers.") from error
        except httpx.RequestError as error:
            lost = Unavailable(sentence(self._settings.url, error))
            if self.call.repeat is Repeat.SAFE or isinstance(error, NEVER_SENT):
                self._failed = Again(lost)
                raise self._failed from error
            raise lost from error

    def answer(self, response: httpx.Response) -> Answer:
        """What the response says. Raises the error that it tells, as ``Again`` if the call may be repeated."""
        pause = retry_after(response.headers)
        if response.status_code == 202 and pause > 0:  # a commit is under way, for as long as it takes
            self._under_way += 1
            self._ends = max(self._ends, time.monotonic() + self._settings.retries.deadline)
            self._failed = Again(CommitRunning("The commit is decided and still being carried out."), pause)
            raise self._failed
        if response.is_success:
            return Answer(response.status_code, response.headers, response.content)
        error = told(response)
        running = response.status_code == 409 and pause > 0
        passing = response.status_code in PASSING and not isinstance(error, StoreDamaged)
        if self.call.repeat is Repeat.SAFE and (passing or running):
            self._failed = Again(error, pause)
            raise self._failed
        if self._failed is not None:
            raise error from self._failed.error  # which tells that an earlier attempt may have been carried out
        raise error

    def rests(self, pause: float) -> Iterator[float]:
        """A pause in pieces. Raises the failure before it once the caller has no patience left."""
        yield from pieces(pause, self._hurried)
        if self._failed is not None and self._hurried():
            raise self._failed

    def _hurried(self) -> bool:
        return self.call.patience() <= 0

    def _pause(self, state: RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome else None
        asked = failure.pause if isinstance(failure, Again) else 0.0
        return max(asked, self._jitter(state))

    def _tell(self, state: RetryCallState) -> None:
        """Once, since a call may be at it for a minute."""
        if state.attempt_number == 1 and state.outcome:
            LOG.warning("%s Trying again for up to %.0f s.", state.outcome.exception(), self._settings.retries.deadline)

    def _over(self, state: RetryCallState) -> bool:
        too_often = state.attempt_number - self._under_way >= self._settings.retries.attempts
        left = min(self._ends - time.monotonic(), self.call.patience())
        return too_often or state.upcoming_sleep >= left


def sentence(url: str, error: httpx.RequestError) -> str:
    """Why the server could not be asked."""
    server = httpx.URL(url)
    if isinstance(error, httpx.TimeoutException):
        reason = "did not answer in time"
    elif isinstance(error, NEVER_SENT):
        reason = f"cannot be reached{_cause(error)}"
    else:
        reason = "broke the connection off"
    return f"The server at {server.host}:{server.port or server.scheme} {reason}."


def _cause(error: BaseException) -> str:
    """What the system said, in brackets; "" if it said nothing that helps."""
    for cause in _causes(error):
        for kind, words in CAUSES.items():
            if isinstance(cause, kind):
                return f" ({words})"
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):  # of several addresses of one name
            yield from error.exceptions
        error = error.__cause__ or error.__context__


def _text(value: str | int | bool | list[str]) -> str | list[str]:
    if isinstance(value, list):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)
