# SPDX-License-Identifier: Apache-2.0
"""An application as Granian runs it on a prompt store: short requests on the thread that reads all connections."""

import io
from collections.abc import Callable, Iterable
from typing import Any

from zq import prompt
from zq.engines.process import SHORT_BODY, is_short
from zq.http import suspension


class Promptly:
    """Short requests of the application are served promptly, and again without that where they are given up."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self.app = app
        self.given_up = 0
        self.owed = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        length = environ.get("CONTENT_LENGTH") or "0"
        if not length.isdecimal() or int(length) > SHORT_BODY:
            return self.app(environ, start_response)
        try:
            body = environ["wsgi.input"].read(int(length)) if int(length) else b""
        except OSError:  # it will be raised again
            return self.app(environ, start_response)
        environ["wsgi.input"] = io.BytesIO(body)
        if not is_short(environ, body):
            return self.app(environ, start_response)
        told: list[Any] = []
        prompt.begin()
        try:
            parts = self.app(environ, lambda *said: told.append(said))
        finally:
            debt = prompt.end()
            if debt is not None:
                self.owed += 1
                debt.pay()
                if debt.release is not None:
                    debt.release()
        if environ.pop(suspension.GIVEN_UP, False):
            assert debt is None, "A request was given up that had changed something."
            self.given_up += 1
            environ[suspension.RESUMED] = environ.pop(suspension.SUSPENDED)
            environ["wsgi.input"] = io.BytesIO(body)
            return self.app(environ, start_response)
        start_response(*told[0])
        return parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self.app, name)
