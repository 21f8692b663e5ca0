# SPDX-License-Identifier: Apache-2.0
"""``zq-server migrate`` between all nine pairs of stores, killed up to twenty times and resumed."""

import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.test_migrate import PAIRS, Pair, assert_moved, scribble
from tests.rotation import SEED
from tests.servers import MODULE, wait_for
from tests.stores import Stores
from zq.conformance.builders import Scene
from zq.model import QueueRef
from zq.storage import connect

pytestmark = pytest.mark.one_store

KILLS = 20
MESSAGES = 60_000


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_a_migration_is_killed_at_twenty_places(stores: Stores, tmp_path: Path, kinds: tuple[str, str]) -> None:
    """The kills occur at random times of the copy or the comparison; no message is lost or duplicated."""
    chance = random.Random(SEED)
    for name in "ab":
        (tmp_path / name).mkdir()
    uris = [stores.empty(kind, tmp_path / name, name) for kind, name in zip(kinds, "ab", strict=True)]
    with closing(connect(uris[0])) as source:
        clock = scribble(source, SEED, 300)
        scene = Scene(source, clock, QueueRef("acme", "jobs"))
        for _ in range(MESSAGES // 1000):
            scene.post(1000)
    command = [sys.executable, "-m", MODULE, "migrate", *uris]
    kills = 0
    while kills < KILLS:
        with subprocess.Popen([*command, "--resume"], stdout=subprocess.PIPE) as process:
            try:
                process.wait(0.5 + 3 * chance.random())
                break
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
    wait_for(lambda: subprocess.run([*command, "--resume"], check=False).returncode == 0, 300, "it is complete")
    assert kills > 3
    with closing(connect(uris[0])) as source, closing(connect(uris[1])) as target:
        assert_moved(Pair(source, target))
        assert len(Scene(target, clock, scene.queue).page(limit=100_000)) >= MESSAGES
