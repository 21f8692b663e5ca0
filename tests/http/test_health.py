# SPDX-License-Identifier: Apache-2.0
"""The probes (extensions 10)."""

import pytest

from tests.http.api import Api
from tests.http.stores import bug, down

pytestmark = pytest.mark.one_store

NOBODY = {"Client-ID": None, "X-Project-ID": None}
ODD = [
    NOBODY,
    {**NOBODY, "Accept": "text/plain"},
    {**NOBODY, "Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"},
    {"Client-ID": "textid", "X-Project-ID": ""},
    {**NOBODY, "EXTRA-SPEC": "nosuch:1"},
]


@pytest.mark.parametrize("headers", ODD)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_needs_no_header(api: Api, path: str, method: str, headers: dict[str, str | None]) -> None:
    """Extensions 10: 200, whatever client, project and Accept say."""
    answer = api.call(method, path, 200, headers=headers)
    assert method == "GET" or answer.body == b""


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(("error", "status"), [(down, 503), (bug, 500)])
def test_readiness_is_that_of_the_store(gate, method: str, error, status: int) -> None:
    """Extensions 10: 503 with what is wrong, and nothing internal; the process is healthy all the same."""
    api = gate(error)
    answer = api.call(method, "/readyz", status, headers=NOBODY)
    assert not any(word in answer.text for word in ("secret", "10.0.0.7", "Traceback"))
    assert method == "HEAD" or answer.body
    api.call(method, "/healthz", 200, headers=NOBODY)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_can_only_be_read(door: Api, path: str, method: str) -> None:
    """1.1: 405 with Allow."""
    assert "GET" in door.call(method, path, 405, headers=NOBODY).headers["Allow"]


@pytest.mark.parametrize("path", ["/healthz/", "/v2/healthz", "/health", "/v2/readyz"])
def test_a_probe_has_one_path(door: Api, path: str) -> None:
    """1.1: 404 elsewhere."""
    door.get(path, 404, NOBODY)
