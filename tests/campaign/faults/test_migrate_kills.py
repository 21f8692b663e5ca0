# SPDX-License-Identifier: Apache-2.0
"""``zq-server migrate`` between all nine pairs of stores, killed twenty times and resumed."""

import random
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.test_migrate import PAIRS, Pair, assert_moved, scribble
from tests.rotation import SEED
from tests.stores import Stores
from zq.conformance.builders import Scene
from zq.model import QueueRef
from zq.serving.migration.record import Records, TargetRecord
from zq.storage import connect

pytestmark = pytest.mark.one_store

MESSAGES = 20_000
# The program, which prints a line for each page and notes each position.
TALKATIVE = """
import sys
from zq.serving import server
from zq.serving.migration import command, comparison, procedure
command.WATCH_SECONDS = 0.2
procedure.RECORD_INTERVAL = procedure.PROGRESS_INTERVAL = comparison.PROGRESS_INTERVAL = 0
sys.exit(server.main(sys.argv[1:]))
"""
COPIED, READ, EQUAL = "items copied so far.", "read so far.", "SHA-256 digest of both: "
# The lines at which the command is killed: a part of the line, the number of kills, and the maximum line number.
KILLS = [(COPIED, 14, 4), (READ, 5, 50), (EQUAL, 1, 1)]


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_a_migration_is_killed_at_twenty_places(stores: Stores, tmp_path: Path, kinds: tuple[str, str]) -> None:
    """The kills occur during the copy, the comparison and the last writes; no message is lost or duplicated."""
    chance = random.Random(SEED)
    for name in "ab":
        (tmp_path / name).mkdir()
    uris = [stores.empty(kind, tmp_path / name, name) for kind, name in zip(kinds, "ab", strict=True)]
    with closing(connect(uris[0])) as source:
        clock = scribble(source, SEED, 300)
        scene = Scene(source, clock, QueueRef("acme", "jobs"))
        for _ in range(MESSAGES // 1000):
            scene.post(1000)
    command = [sys.executable, "-c", TALKATIVE, "migrate", *uris, "--resume"]
    places = set[tuple[str, str]]()
    for part, kills, most in KILLS:
        for _ in range(kills):
            kill_at_line(command, part, chance.randint(1, most))
            record = target_record(uris[1])
            assert record is not None
            places.add((record.project, record.after))
    assert len(places) > 10
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    with closing(connect(uris[0])) as source, closing(connect(uris[1])) as target:
        assert_moved(Pair(source, target))
        assert len(Scene(target, clock, scene.queue).page(limit=100_000)) >= MESSAGES


def kill_at_line(command: list[str], part: str, number: int) -> None:
    """Kill the command at the line with this number among those that contain ``part``. Fail if it ends earlier."""
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            lines.append(line)
            number -= part in line
            if number == 0:
                process.kill()
                return
    pytest.fail(f"The command has ended: {lines}")


def target_record(uri: str) -> TargetRecord | None:
    with closing(connect(uri)) as storage:
        return Records(storage.documents, storage.now).read_target()
