# SPDX-License-Identifier: Apache-2.0
"""A machine whose clock is days off the time in its store: the start is refused unless forced."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.refusal import sentence_of
from tests.rotation import CAMPAIGN, rotated
from tests.servers import Lost, ZqServer, ask, every_message, wait_for

DAY = 86400
HOUR = 3600
POST = {"messages": [{"body": "early", "ttl": 14 * DAY}]}


def leave_a_message(uri: str, env: dict[str, str] | None = None) -> None:
    """Create a store that recorded the time of a post by that clock."""
    with ZqServer(uri, env=env) as server:
        assert ask(server.url, "POST", "/v2/queues/jobs/messages", POST).status == 201


@pytest.mark.parametrize("days", rotated([3, -3], 1))
def test_a_clock_that_is_days_off_is_refused_unless_forced(tmp_path: Path, shifted, days: int) -> None:
    """The error names ``--force-clock``. With this option the server starts, keeps its messages and accepts posts."""
    uri = f"rocksdb://{tmp_path}/store"
    leave_a_message(uri)
    wrong = shifted(days * DAY)
    assert "--force-clock" in sentence_of(ZqServer(uri, env=wrong))
    with ZqServer(uri, "--force-clock", env=wrong) as forced:
        assert [message["body"] for message in every_message(forced.url, "jobs")] == ["early"]
        assert ask(forced.url, "POST", "/v2/queues/jobs/messages", POST).status == 201
        assert len(every_message(forced.url, "jobs")) == 2


def test_a_clock_set_right_after_a_forced_start_is_refused_again(tmp_path: Path, shifted) -> None:
    """A store that was used at a false future time detects the return to the present.

    Without a step the server starts.
    """
    uri = f"rocksdb://{tmp_path}/store"
    leave_a_message(uri, shifted(3 * DAY))
    assert "--force-clock" in sentence_of(ZqServer(uri))
    with ZqServer(uri, env=shifted(3 * DAY)) as server:
        assert len(every_message(server.url, "jobs")) == 1


def test_a_clock_that_is_seconds_off_is_no_reason_to_refuse(tmp_path: Path, shifted) -> None:
    """Time servers correct clocks by seconds, so neither direction stops a start. A daily run takes one of them."""
    uri = f"rocksdb://{tmp_path}/store"
    leave_a_message(uri)
    for seconds in rotated([2, -1], 1):
        with ZqServer(uri, env=shifted(seconds)) as server:
            assert len(every_message(server.url, "jobs")) == 1


MESSAGES = "/v2/queues/jobs/messages"
CLAIMS = "/v2/queues/jobs/claims?limit=20"
HALF_AN_HOUR = {"ttl": 1800, "grace": 60}
SWEEPING = "[expiry]\nsweep_interval = 1\n"
# Seconds, with a margin, after which a leap of a network store's clock is accepted; an embedded store ignores it.
BELIEVED = 12.0 if CAMPAIGN else 0.0


def offset(server: ZqServer) -> float:
    """Return the clock offset in the metrics."""
    page = ask(server.url, "GET", "/metrics").body.decode()
    [line] = [line for line in page.splitlines() if line.startswith("zq_clock_offset_seconds")]
    return float(line.split()[-1])


def sweeps(server: ZqServer) -> float:
    """Return the number of rounds of the sweeper."""
    page = ask(server.url, "GET", "/metrics").body.decode()
    [line] = [line for line in page.splitlines() if line.startswith("zq_sweep_seconds_count")]
    return float(line.split()[-1])


def put(server: ZqServer, body: str) -> None:
    answer = ask(server.url, "POST", MESSAGES, {"messages": [{"body": body, "ttl": 1800}]})
    assert answer.status == 201


def test_a_clock_that_leaps_ahead_for_seconds_destroys_nothing_and_stops_no_start(tmp_path: Path, leaping) -> None:
    """The clock is an hour ahead for some sweeps; messages with half an hour to live stay, and claims stay valid.

    The server reports that it is not ready and by how much. A worker killed in that time or later is replaced without
    a forced start, and messages posted at any time can be claimed.
    """
    with ZqServer(f"rocksdb://{tmp_path}/store", config=SWEEPING, env=leaping.env) as server:
        put(server, "claimed")
        assert ask(server.url, "POST", CLAIMS, HALF_AN_HOUR).status == 201
        put(server, "kept")

        leaping.set(HOUR)
        began = time.monotonic()
        wait_for(lambda: not server.ready(), 60, "the server is not ready")
        assert offset(server) == pytest.approx(-HOUR, abs=60)
        put(server, "meanwhile")
        os.kill(server.worker_pids[0], signal.SIGKILL)
        wait_for(lambda: healthy(server), 60, "the worker is replaced")
        assert not server.ready()
        swept = sweeps(server)
        wait_for(lambda: sweeps(server) >= swept + 2, 60, "two sweeps by the false clock")
        time.sleep(max(0.0, began + BELIEVED - time.monotonic()))
        assert bodies(server) == ["claimed", "kept", "meanwhile"]

        leaping.set(0)
        wait_for(server.ready, 60, "the server is ready again")
        wait_for(lambda: abs(offset(server)) < 60, 60, "the metrics have the true time, too")
        put(server, "afterwards")
        os.kill(server.worker_pids[0], signal.SIGKILL)
        wait_for(server.ready, 60, "the worker is replaced")
        assert server.terminate() == 0
        server.start()
        assert bodies(server) == ["claimed", "kept", "meanwhile", "afterwards"]
        claimed = ask(server.url, "POST", CLAIMS, HALF_AN_HOUR).document["messages"]
        assert [message["body"] for message in claimed] == ["kept", "meanwhile", "afterwards"]


def healthy(server: ZqServer) -> bool:
    with contextlib.suppress(Lost):
        return ask(server.url, "GET", "/healthz", timeout=5).status == 200
    return False


def bodies(server: ZqServer) -> list[str]:
    return [message["body"] for message in every_message(server.url, "jobs")]
