# SPDX-License-Identifier: Apache-2.0
"""A WSGI application that drives zq's app as an engine does: short requests inline, pending responses by polling."""

import io
import threading
from collections.abc import Callable, Iterable
from typing import Any

import falcon

from zq.http.application import MAX_SHORT_BODY, App
from zq.http.pending import HANDOVER_KEY, Handover
from zq.storage.inline import Ticket


class Driven:
    """A WSGI application around ``app``, which counts inline requests, waits for a commit, and polls."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.inline = self.settled = self.attempts = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        length = environ.get("CONTENT_LENGTH") or "0"
        if not length.isdecimal() or int(length) > MAX_SHORT_BODY:
            return self.app(environ, start_response)
        try:
            body = environ["wsgi.input"].read(int(length)) if int(length) else b""
        except OSError:  # the app reads again and raises it
            return self.app(environ, start_response)
        environ["wsgi.input"] = io.BytesIO(body)
        environ[HANDOVER_KEY] = handover = Handover()
        begun: list[Any] = []
        if self.app.is_short(environ, body):
            self.inline += 1
            with Ticket() as ticket:
                parts = self.app(environ, lambda *given: begun.append(given))
            if ticket.wait is not None:
                self.settled += 1
                ticket.wait()
            ticket.release()
        else:
            parts = self.app(environ, lambda *given: begun.append(given))
        pending = handover.pending
        if pending is None:
            start_response(*begun[0])
            return parts
        while (later := self._go_on(handover)) is None:
            pass
        start_response(falcon.code_to_http_status(later.status), later.headers)
        return [later.body]

    def _go_on(self, handover: Handover) -> Any:
        pending = handover.pending
        assert pending is not None
        if not handover.needs_thread:
            notified = threading.Event()
            pending.begin(notified.set)
            notified.wait(pending.seconds_left())
            pending.end()
        self.attempts += 1
        handover.begin_poll()
        return self.app.poll_again(pending)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.app, name)
