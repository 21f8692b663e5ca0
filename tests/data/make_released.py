# SPDX-License-Identifier: Apache-2.0
"""Make ``released.tar.xz``: a store of the embedded driver with all kinds of data, as the last release wrote it.

Run it in a worktree of the commit in ``tests/campaign/upgrade/released``: ``PYTHONPATH=. python make_released.py
released.tar.xz``. The script prints the contents. The file of this repository is of that commit.
"""

import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

from zq.clock import ManualClock
from zq.conformance.builders import Scene
from zq.conformance.test_parcels import contents, fill
from zq.model import QueueRef
from zq.model.expiry import Expiry
from zq.storage.rocksdb import connect

NOW = 1_764_000_000.0
JOBS = QueueRef("acme", "jobs")
LEFT_OUT = ("LOCK", "LOG", ".zq")


def main(target: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        expiry = Expiry(compaction_filter=False)
        storage = connect(f"rocksdb://{folder}/store", expiry, sync="always", max_clock_jump=0)
        scene = Scene(storage, ManualClock(NOW), JOBS)
        fill(scene)
        found = Counter(fact.kind for fact in contents(scene, storage.parcels))
        print(scene.now - NOW, dict(found))  # noqa: T201
        storage.close()
        with tarfile.open(target, "w:xz") as archive:
            for file in sorted(Path(folder, "store").iterdir()):
                if not file.name.startswith(LEFT_OUT):
                    archive.add(file, file.name)


if __name__ == "__main__":
    main(sys.argv[1])
