# SPDX-License-Identifier: Apache-2.0
"""``/metrics``: what the server has counted, for Prometheus (extensions 10)."""

from typing import Final, Protocol

import falcon

from zq.http.tenant import Audience

TEXT_FORMAT: Final = "text/plain; version=0.0.4; charset=utf-8"


class Meter(Protocol):
    """What counts requests; ``zq.metrics`` does."""

    def answered(self, method: str, route: str, status: int, seconds: float, waited: bool) -> None:
        """A request was answered; ``waited``: it was to wait for messages. Returns at once and raises nothing."""
        ...

    def page(self) -> bytes:
        """Everything counted, in Prometheus's text format."""
        ...


class Unmetered:
    """Counts nothing."""

    def answered(self, method: str, route: str, status: int, seconds: float, waited: bool) -> None: ...

    def page(self) -> bytes:
        return b""


UNMETERED: Final = Unmetered()


class MetricsPage:
    """``/metrics``"""

    audience = Audience.PROBE

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        resp.content_type = TEXT_FORMAT
        resp.data = self._meter.page()

    on_head = on_get
