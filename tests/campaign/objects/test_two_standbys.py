# SPDX-License-Identifier: Apache-2.0
"""Two standbys of a store whose owner is killed: one takes over, and the other keeps waiting."""

import time
from pathlib import Path

import pytest

from tests.object.test_servers import ENOUGH, LEASE, Machines, machines, whole
from tests.object.work import Producers, listed
from tests.servers import ZqServer, wait_for
from zq.serving.lifecycle import STORE_LOST_EXIT_CODE
from zq.storage.object.epochs import newest_opened
from zq.storage.object.objects import Objects

pytestmark = pytest.mark.slow
__all__ = ["machines"]

WITHIN = 120


def runs(server: ZqServer) -> bool:
    """Return whether the server's master process is running."""
    return server._process is not None and server._process.poll() is None


def test_a_takeover_costs_no_standby(machines: Machines, objects: Objects) -> None:
    """The owner is killed twice. Each time one standby becomes the owner, and none is deposed while it serves."""
    owner = machines.started("first")
    standbys = [machines.launched(name) for name in ("second", "third")]
    for standby in standbys:
        wait_for(lambda standby=standby: "follows the log" in standby.output, WITHIN, "the standby follows")
    acknowledged: list[str] = []
    for epoch in (2, 3):
        with Producers(owner.url, f"{epoch}") as producers:
            wait_for(lambda: len(producers.acknowledged) >= ENOUGH, WITHIN, f"{ENOUGH} messages")
            owner.kill()
        acknowledged += producers.acknowledged
        wait_for(lambda: any(each.ready() for each in standbys), WITHIN, "a standby serves")
        time.sleep(4 * LEASE)  # longer than a standby's patience
        (owner,) = (each for each in standbys if each.ready())
        standbys.remove(owner)
        assert all(map(runs, standbys)), standbys[0].output
        assert newest_opened(objects)[0] >= epoch
        whole(listed(owner.url), acknowledged)
    assert owner.terminate() == 0


@pytest.mark.parametrize("uri", ["s3"], indirect=True)
@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_server_that_must_not_wait_ends_with_its_own_code(
    machines: Machines, objects: Objects, uri: str, engine: str, tmp_path: Path
) -> None:
    """Another server wins the election and opens the store; a supervisor restarts the server after exit code 75."""
    machines.started("first").terminate()
    config = f"[storage:object]\ncache = {tmp_path}/second\ntakeover = refuse\nowner_timeout = {WITHIN}\n"
    # The other server is elected and does nothing until this one waits for it.
    number = 2
    objects.elect(number)
    late = ZqServer(uri, config=config, engine=engine)
    try:
        late.launch()
        wait_for(lambda: objects.has_election(number + 1), WITHIN, "the second one is elected")
        opening = objects.get("open/1")
        assert opening is not None
        objects.put(f"open/{number}", opening)
        assert late.wait(WITHIN) == STORE_LOST_EXIT_CODE, late.output
        assert "Another server took over the store" in late.output
    finally:
        late.close()
