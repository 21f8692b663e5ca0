# SPDX-License-Identifier: Apache-2.0
"""A request without a credential: no body is read, and the store is not queried (tenancy 10, attack A4).

``tests/campaign/faults/test_strangers_load.py`` tests the cost; ``python -m bench.neighbours`` measures the latency.
"""

import sys

import pytest

from tests.http.stores import BrokenStore, untouched
from tests.rotation import rotated
from zq.auth.credentials import BURST, BearerStrategy
from zq.auth.tokens import TokenVerifier, format_token
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app

BODY = 256 * 1024


class Untouchable:
    """A request body that must not be read."""

    def read(self, *_: object) -> bytes:
        raise AssertionError("the body was read")

    readline = readlines = __iter__ = read


@pytest.mark.parametrize("method", rotated(["POST", "PUT", "PATCH", "DELETE"], 1))
@pytest.mark.parametrize(
    "credential", ["", "Bearer nonsense", "Basic YTpi", f"Bearer {format_token('0' * 10, '0' * 43)[:-1]}!"]
)
def test_a_stranger_is_refused_before_body_and_store(method: str, credential: str) -> None:
    """The credential is malformed: the server answers 401, and 429 from the 51st request on, without the store."""
    store = BrokenStore(untouched)
    app = create_app(
        Broker(store, ManualClock(1_700_000_000.0)),  # type: ignore[arg-type]
        strategy=BearerStrategy(
            TokenVerifier(store, ManualClock(1_700_000_000.0)),  # type: ignore[arg-type]
            bare=True,
            monotonic=lambda: 0.0,  # no time passes, so failures still count
        ),
    )
    statuses = []
    for _ in range(BURST + 10):
        environ = {
            **{"REQUEST_METHOD": method, "PATH_INFO": "/v2/queues/jobs/messages", "QUERY_STRING": ""},
            **{"CONTENT_LENGTH": str(BODY), "CONTENT_TYPE": "application/json", "wsgi.input": Untouchable()},
            **{
                "SERVER_NAME": "localhost",
                "SERVER_PORT": "80",
                "SERVER_PROTOCOL": "HTTP/1.1",
                "HTTP_HOST": "localhost",
            },
            **{"REMOTE_ADDR": "192.0.2.1", "wsgi.url_scheme": "http", "wsgi.errors": sys.stderr},
            **({"HTTP_AUTHORIZATION": credential} if credential else {}),
        }

        def start(status: str, headers: list[tuple[str, str]], _: object = None) -> None:
            statuses.append(status[:3])
            assert ("connection", "close") in [(name.lower(), value.lower()) for name, value in headers]

        b"".join(app(environ, start))
    assert set(statuses) == {"401", "429"}
    assert statuses[:BURST] == ["401"] * BURST
    assert statuses[-5:] == ["429"] * 5
