# SPDX-License-Identifier: Apache-2.0
"""The probes (extensions 10)."""

import pytest

from tests.http.api import Api
from tests.http.stores import bug, down
from tests.tables import every_row
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.model.limits import MAX_DRIFT, MAX_UNCERTAINTY
from zq.serving.metrics.counting import Metrics
from zq.storage.api import Storage

pytestmark = pytest.mark.one_store

NOBODY = {"Client-ID": None, "X-Project-ID": None}
ODD = [
    NOBODY,
    {**NOBODY, "Accept": "text/plain"},
    {**NOBODY, "Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"},
    {"Client-ID": "textid", "X-Project-ID": ""},
    {**NOBODY, "EXTRA-SPEC": "nosuch:1"},
]


@every_row("headers", ODD)
@every_row("method", ["GET", "HEAD"])
@every_row("path", ["/healthz", "/readyz"])
def test_a_probe_needs_no_header(api: Api, path: str, method: str, headers: dict[str, str | None]) -> None:
    """Extensions 10: The server answers 200 whatever client, project and Accept header the request has."""
    answer = api.call(method, path, 200, headers=headers)
    assert method == "GET" or answer.body == b""


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(("error", "status"), [(down, 503), (bug, 500)])
def test_readiness_is_that_of_the_store(gate, method: str, error, status: int) -> None:
    """Extensions 10: The server answers 503 and the reason, without internals. The process stays healthy."""
    api = gate(error)
    answer = api.call(method, "/readyz", status, headers=NOBODY)
    assert not any(word in answer.text for word in ("secret", "10.0.0.7", "Traceback"))
    assert method == "HEAD" or answer.body
    api.call(method, "/healthz", 200, headers=NOBODY)


@every_row("method", ["POST", "PUT", "DELETE", "PATCH"])
@every_row("path", ["/healthz", "/readyz"])
def test_a_probe_can_only_be_read(door: Api, path: str, method: str) -> None:
    """1.1: Other methods get 405 with Allow."""
    assert "GET" in door.call(method, path, 405, headers=NOBODY).headers["Allow"]


@pytest.mark.parametrize("path", ["/healthz/", "/v2/healthz", "/health", "/v2/readyz"])
def test_a_probe_has_one_path(door: Api, path: str) -> None:
    """1.1: Other paths get 404."""
    door.get(path, 404, NOBODY)


class Unsure(ManualClock):
    """A clock with a given offset from the store's clock and a given uncertainty."""

    off = 0.0
    unsure = 0.0

    def drift(self) -> float:
        return self.off

    def uncertainty(self) -> float:
        return self.unsure


@pytest.mark.parametrize(
    ("off", "unsure", "status", "sentence"),
    [
        (0, 0, 200, ""),
        (MAX_DRIFT, MAX_UNCERTAINTY, 200, ""),
        (-3600, 0, 503, "This server's clock and the store's are 3600 seconds apart; at most 60 seconds are allowed."),
        (
            MAX_DRIFT + 1,
            0,
            503,
            "This server's clock and the store's are 61 seconds apart; at most 60 seconds are allowed.",
        ),
        (0, 0.5, 503, "The store's time is known only to within 500 ms"),
        (0, MAX_UNCERTAINTY + 0.001, 503, "50 ms are allowed"),
    ],
)
def test_a_server_that_does_not_know_the_time_is_not_ready(
    storage: Storage, off: float, unsure: float, status: int, sentence: str
) -> None:
    """``/readyz`` and the metrics show the possible error of the clock; the server still answers requests."""
    clock = Unsure(storage.now())
    clock.off, clock.unsure = off, unsure
    metrics = Metrics(storage, clock, store="some", engine="none")
    api = Api(create_app(Broker(storage, clock, events=metrics), events=metrics, metrics_page=metrics.page), "acme")
    assert sentence in api.get("/readyz", status, NOBODY).text
    page = api.get("/metrics", 200, NOBODY).text
    assert f"zq_clock_offset_seconds {float(off)}" in page
    assert f"zq_clock_uncertainty_seconds {float(unsure)}" in page
    api.get("/v2/queues", 200)
    api.get("/v2/ping", 204)
