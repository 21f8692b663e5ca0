# SPDX-License-Identifier: Apache-2.0
"""The WSGI application: Falcon with zq's middleware, error handlers and pending answers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import falcon

from zq import turns
from zq.http import faults
from zq.http.authentication import Authentication
from zq.http.authorization import Answer, Authorization
from zq.http.pending import HANDOVER, Handover, PendingAnswer
from zq.http.short import ShortRoutes
from zq.storage.api import Storage
from zq.storage.inline import LongScan


class Later(NamedTuple):
    """The completed answer of a pending request."""

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
        super().__init__(response_type=Answer, middleware=list(middleware))
        self.judge = authentication if authentication.authenticates else None
        """Decides which request bodies the edge reads; ``None`` = all bodies."""
        self.checks = authentication.checks
        self.check_of = authentication.check_of
        self.authorization = authorization
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
        """Return whether a request may run on the event loop's thread, with a ``zq.storage.inline.Ticket``.

        The request must be short and the store must answer promptly. The caller's credential must already be cached.
        """
        return self._short.includes(environ, body) and self.is_prompt()

    def is_prompt(self) -> bool:
        """Return whether a short request would currently wait for memory only.

        It would not if the store is busy, or if heavy work on another thread may hold a queue's lock.
        """
        return self._storage.prompt and not turns.are_taken()

    def has_company(self) -> bool:
        """Return whether several projects have sent requests to this process in the last second."""
        quotas = self.authorization.quotas
        return quotas is not None and quotas.visits.are_of_several(quotas.now())

    def go_on(self, pending: PendingAnswer) -> Later | None:
        """Let a pending request poll again. May block like any request.

        Return its answer, or ``None`` if the request is still pending.
        """
        req, resp = pending.req, pending.resp
        handover: Handover = req.env[HANDOVER]
        self.authorization.resume(req)
        answered = succeeded = True
        try:
            answered = pending.attempt()
        except LongScan:
            answered = False
            handover.call_for_thread()
        except Exception as error:  # noqa: BLE001 - Falcon does the same; every error has a handler
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
        if resp.status_code == 204:  # Falcon set both headers before the request was pending
            del headers["content-type"], headers["content-length"]
        return Later(resp.status_code, list(headers.items()), body)

    def _handler_of(self, error: Exception) -> Callable[..., Any]:
        return next(self._failures[kind] for kind in type(error).__mro__ if kind in self._failures)
