# SPDX-License-Identifier: Apache-2.0
"""``zq move-queue`` and the client's operations on moves."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.cli.test_cli_apply import ADMIN, CONFIG, Team
from tests.servers import ZqServer
from zq import errors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZqServer]:
    """A server with a pool in memory, for which no queue is chosen at random."""
    file = tmp_path_factory.mktemp("bootstrap") / "token"
    file.write_text(ADMIN)
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    with ZqServer("memory:", config=CONFIG.format(file)) as server:
        yield server


@pytest.fixture
def zq(served: ZqServer, tmp_path: Path, launcher: Launcher) -> Team:
    return Team(served.url, tmp_path, launcher, roles=["admin", "member"])


def test_a_queue_moves_with_an_estimate_and_progress(zq: Team) -> None:
    """A second move to the same pool has the exit code of a conflict, an unknown pool that of a missing object."""
    with zq.client() as client:
        client.put_pool("fast", "memory:", 0)
        client.queue("jobs").create()
        moved = zq.run("move-queue", "jobs", "--to", "fast", "--wait")
        assert moved.exit_code == 0, moved.output
        assert "messages. About" in moved.stderr
        assert "seconds without changes (assumed rate)." in moved.stderr
        assert "done: " in moved.stderr
        [move] = client.queue_moves("fast")
        assert (move["phase"], move["queues"], move["project"]) == ("done", ["jobs"], zq.project)
        assert client.queue_move("fast", move["id"]) == move
        with pytest.raises(errors.MoveRefused, match="its phase is done"):
            client.cancel_queue_move("fast", move["id"])
        with pytest.raises(errors.MoveNotFound):
            client.queue_move("fast", "none")
        with pytest.raises(errors.QueueNotFound):
            client.move_queue("none", "fast")
    assert "already in the pool fast" in zq.refused(6, "move-queue", "jobs", "--to", "fast")
    assert "no pool slow" in zq.refused(3, "move-queue", "jobs", "--to", "slow")
