# SPDX-License-Identifier: Apache-2.0
"""The log line of a slow request: its route, and the seconds that it spent in the store and waited for messages."""

from typing import Any

import pytest

from zq.http.request_log import STORE, LogOptions


def test_a_slow_request_logs_its_route_and_where_its_time_went(compose: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The long poll waits for a second, which is not spent in the store (operations contract, section 3)."""
    api = compose(store_observers=[STORE], app={"log": lambda: LogOptions(slow=0.0)})
    api.send("jobs", 1)
    api.get("/v2/queues/empty/messages?wait=1", 200)
    posted, polled = (record for record in caplog.records if record.getMessage() == "Slow request.")
    for record, method in ((posted, "POST"), (polled, "GET")):
        assert (record.levelname, record.method, record.route) == ("WARNING", method, "/v2/queues/{queue}/messages")
        assert 0 < record.store_seconds < record.seconds - record.waited_seconds
    assert posted.waited_seconds == 0
    assert polled.waited_seconds > 0.9
