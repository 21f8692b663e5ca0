# SPDX-License-Identifier: Apache-2.0
"""Servers that move a queue are killed at any moment, under load: another server completes the move."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.faults.test_queue_moves import QUEUE, Deployment, Load
from tests.servers import wait_for

# Messages that make the copy last for seconds.
FILLED = 6000
# Seconds between the request of a move and the death of the server, or the phase in which it dies.
DEATHS: list[float | str] = ["freezing", "copying", "switching", "cleaning", 0.2, 0.9, 1.6]


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with ExitStack() as opened:
        yield Deployment(opened)


def test_a_move_is_completed_after_its_server_was_killed_at_any_moment(deployment: Deployment) -> None:
    """No message is lost or delivered twice; after each move, the queue accepts changes again."""
    for number in range(FILLED // 20):
        document = {"messages": [{"body": f"old-{number}-{one}", "ttl": 36_000} for one in range(20)]}
        assert deployment.ask("POST", f"{QUEUE}/messages", document).status == 201
    with Load(deployment) as load:
        for turn, death in enumerate(DEATHS):
            mover = turn % 2
            move = deployment.request(("safe", "quick")[turn % 2], mover)
            if isinstance(death, str):
                deployment.wait(move, {death, "done"}, 1 - mover)
            else:
                time.sleep(death)
            deployment.servers[mover].kill()
            deployment.servers[mover].start()
            done = deployment.wait(move, {"done", "failed"}, 1 - mover, within=120)
            assert done["phase"] == "done", (turn, death, done.get("error"))
            count = len(load.posted)
            wait_for(lambda at=count: len(load.posted) > at + 20, 60, "posts after the move")
        load.stop()
        load.check()
