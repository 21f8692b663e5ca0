# SPDX-License-Identifier: Apache-2.0
"""The space of successive backups of the embedded store (operations 6)."""

import re
from pathlib import Path

from tests.commands import run
from tests.faults.test_backup import target, uri, zq  # noqa: F401
from tests.servers import ZqServer, ask
from zq.storage.rocksdb import backups


def test_a_backup_takes_the_space_of_what_is_new_and_old_ones_go(zq: ZqServer, uri: str, target: Path) -> None:  # noqa: F811
    """Files of earlier backups are linked to, and outlive them; ``--keep`` counts whole backups."""
    for number in range(4):
        assert run("backup", target, "--store", uri, "--keep", 2).code == 0
        if number == 1:
            (target / "20200101T000000.000Z").mkdir()  # not whole: none of ours
    first, second = backups.whole(target)
    shared = [file for file in first.glob("*.sst") if (second / file.name).exists()]
    assert shared
    assert all(file.samefile(second / file.name) for file in shared)
    assert run("backup", "verify", second).code == 0
    figures = ask(zq.url, "GET", "/metrics").body.decode()
    assert float(re.search(r"^zq_backup_age_seconds (\S+)", figures, re.MULTILINE)[1]) < 60
    assert float(re.search(r"^zq_backup_pause_seconds (\S+)", figures, re.MULTILINE)[1]) > 0
