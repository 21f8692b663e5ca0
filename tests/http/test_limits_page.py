# SPDX-License-Identifier: Apache-2.0
"""The limits page (extensions 10)."""

from typing import Any

import pytest
from msgspec.structs import asdict

from tests.http.api import Api
from zq.model.limits import Limits

pytestmark = pytest.mark.one_store


def test_every_option_that_bounds_a_request_is_shown(api: Api) -> None:
    """Each option has its name in the configuration; the page also has the fixed limits."""
    told = api.get("/v2/limits", 200).json
    assert told.items() >= asdict(Limits()).items()
    assert (
        told.items()
        >= {
            "min_message_ttl": 60,
            "default_page": 10,
            "max_batch": 10000,
            "max_reason": 1024,
            "max_committed": 1000,
        }.items()
    )
    assert all(isinstance(bound, int) for bound in told.values())


def test_the_limits_are_those_of_this_server(compose: Any) -> None:
    """The page shows the options with which the server was started."""
    told = compose(max_messages_per_page=50, idempotency_window=100).get("/v2/limits", 200).json
    assert (told["max_messages_per_page"], told["idempotency_window"]) == (50, 100)


def test_limits_want_the_headers_of_any_route(door: Api) -> None:
    """The route requires client and project, but no store."""
    door.get("/v2/limits", 200)
    door.get("/v2/limits", 400, {"Client-ID": None})
    door.get("/v2/limits", 400, {"X-Project-ID": None})
    door.post("/v2/limits", 405)
