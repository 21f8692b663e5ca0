# SPDX-License-Identifier: Apache-2.0
"""The WSGI application: Falcon with zq's middleware, error handlers and long polls."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import falcon

from zq import turns
from zq.http import faults
from zq.http.authentication import Authentication
from zq.http.authorization import Authorization, Response
from zq.http.context import Request
from zq.http.pending import HANDOVER_KEY, Handover, PendingRequest
from zq.storage.api import Storage
from zq.storage.inline import LongScan

# Maximum body size in bytes of a short request. All limits of short requests are below those of heavy requests
# (``zq.http.weight``).
MAX_SHORT_BODY: Final = 16 << 10
# Maximum number of JSON objects in the body.
MAX_SHORT_OBJECTS: Final = 24
# Maximum number of commas in the body. They separate ids.
MAX_SHORT_COMMAS: Final = 99
# Maximum query size in bytes, because a query may contain message ids.
MAX_SHORT_QUERY: Final = 1024
# A parameter that requests more than 20 messages. An encoded query also matches, because it may hide such a parameter.
LARGE_LIMIT: Final = re.compile(r"(?:limit|pop)=([0-9]{3,}|[3-9][0-9]|2[1-9])|%|\+")
# A path parameter of a Falcon template, escaped for a regular expression.
PARAMETER: Final = re.compile(r"\\\{\w+\\\}")


class ShortRoutes:
    """The routes whose requests may run on the event loop's thread if the store is embedded.

    The attribute ``short`` of a resource lists its quick HTTP methods. Requests with a large body, a large page or many
    ids are excluded, because they would block the event loop.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._pattern = re.compile(r"(?!)")

    def add(self, template: str, methods: Collection[str]) -> None:
        """Add a route, such as ``/v2/queues/{queue}/messages``, with its quick HTTP methods."""
        if methods:
            path = PARAMETER.sub("[^/]+", re.escape(template))
            self._lines.append(f"(?:{'|'.join(sorted(methods))}) {path}")
            self._pattern = re.compile("|".join(self._lines))

    def includes(self, environ: Mapping[str, Any], body: bytes) -> bool:
        """Return whether a request with this route, method and size may run on the event loop's thread."""
        query: str = environ["QUERY_STRING"]
        return (
            self._pattern.fullmatch(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}") is not None
            and (not query or (len(query) <= MAX_SHORT_QUERY and LARGE_LIMIT.search(query) is None))
            and len(body) <= MAX_SHORT_BODY
            and body.count(b"{") <= MAX_SHORT_OBJECTS
            and body.count(b",") <= MAX_SHORT_COMMAS
        )


class FinalResponse(NamedTuple):
    """The final response to a long poll that had to wait."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class App(falcon.App[Any, Any]):
    """The WSGI application of the server."""

    def __init__(
        self, middleware: Sequence[Any], authentication: Authentication, authorization: Authorization, storage: Storage
    ) -> None:
        self._failures: dict[type[BaseException], Callable[..., Any]] = {}
        self._short = ShortRoutes()
        super().__init__(request_type=Request, response_type=Response, middleware=list(middleware))
        self.head_authenticator = authentication if authentication.authenticates else None
        """Authenticates requests before the HTTP server reads their bodies; ``None`` without authentication."""
        self.checks = authentication.checks
        self.find_check = authentication.find_check
        self.authorization = authorization
        self._resuming = [each.resume for each in middleware if hasattr(each, "resume")]
        self._finishing = [each.process_response for each in reversed(middleware) if hasattr(each, "process_response")]
        self._storage = storage
        self.req_options.auto_parse_qs_csv = True
        self.req_options.keep_blank_qs_values = False
        faults.register(self)

    def add_route(self, uri_template: str, resource: object, **kwargs: Any) -> None:
        super().add_route(uri_template, resource, **kwargs)
        self._short.add(uri_template, getattr(resource, "short", ()))

    def add_error_handler(self, exception: Any, handler: Any = None) -> None:
        super().add_error_handler(exception, handler)
        self._failures[exception] = handler

    def is_short(self, environ: Mapping[str, Any], body: bytes) -> bool:
        """Return whether the request is quick enough to run on the event loop's thread.

        The HTTP server (edge) must ensure two more conditions:

        - The caller's credential is cached.
        - The request runs with a ``zq.storage.inline.Ticket``, which waits for the disk sync afterwards.
        """
        return self._short.includes(environ, body) and self.is_prompt()

    def is_prompt(self) -> bool:
        """Return whether a request on ``ShortRoutes`` can currently run without waiting for I/O or a lock."""
        # A thread that handles a large request may hold a queue's lock.
        return self._storage.is_prompt and not turns.has_large_work()

    def has_several_projects(self) -> bool:
        """Return whether several projects have sent requests to this process in the last second."""
        quotas = self.authorization.quotas
        return quotas is not None and quotas.recent_projects.has_several(quotas.now())

    def poll_again(self, pending: PendingRequest) -> FinalResponse | None:
        """Repeat the poll of a waiting request. Return its response, or ``None`` to wait again. Blocks."""
        req, resp = pending.req, pending.resp
        handover: Handover = req.env[HANDOVER_KEY]
        for resume in self._resuming:
            resume(req)
        answered = succeeded = True
        try:
            answered = pending.poll()
        except LongScan:
            answered = False
            handover.request_thread()
        except Exception as error:  # noqa: BLE001 - as in Falcon, every error has a handler
            succeeded = False
            self._handler_of(error)(req, resp, error, {})
        if answered:
            handover.end()
        for process_response in self._finishing:
            process_response(req, resp, None, succeeded)
        if not answered:
            return None
        body: bytes = resp.data or b""
        headers = resp.headers | {"content-length": str(len(body))}
        if resp.status_code == 204:  # Falcon set both headers when the request became pending
            del headers["content-type"], headers["content-length"]
        return FinalResponse(resp.status_code, list(headers.items()), body)

    def _handler_of(self, error: Exception) -> Callable[..., Any]:
        return next(self._failures[kind] for kind in type(error).__mro__ if kind in self._failures)
