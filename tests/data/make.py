# SPDX-License-Identifier: Apache-2.0
"""Make ``layout-N.tar.xz``: a store of the embedded driver as the code on the import path writes it.

Run it in a worktree of the commit: ``PYTHONPATH=. python make.py layout-4.tar.xz``. It uses only what every commit has.
The stores are of these commits: 1 e41b332, 2 62f45ce, 3 9c2566b, 4 31fb2b5, 5 d8fe068 (0.1.0). Make one of each layout
before its number changes.
"""

import sys
import tarfile
import tempfile
from pathlib import Path

from zq.model import Draft, QueueRef
from zq.storage.rocksdb import connect

NOW = 1_764_000_000.0
# Time to live of messages in seconds: large, because tests open the store years later.
TTL = 1_000_000_000
CLIENT = "30387f00c63a4a30ac1f3e2cf1b0c3a1"
# RocksDB files that contain no data of the store.
LEFT_OUT = ("LOCK", "LOG", ".zq")


def main(target: str) -> None:
    """Write the archive ``target``: twenty messages in two queues, one of them with a body of 2,000 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        storage = connect(f"rocksdb://{folder}/store", sync="always", max_clock_jump=0)
        for place, queue in enumerate(("jobs", "other")):
            bodies = [b'"%d"' % number for number in range(9)] + [b'"' + b"x" * 2000 + b'"']
            drafts = [Draft(f"{place:012x}{number:012x}", body, TTL, 0, CLIENT) for number, body in enumerate(bodies)]
            storage.messages.post(QueueRef("acme", queue), drafts, NOW)
        with tarfile.open(target, "w:xz") as archive:  # while it is open: its log has writes, too
            for file in sorted(Path(folder, "store").iterdir()):
                if not file.name.startswith(LEFT_OUT):
                    archive.add(file, file.name)
        storage.close()


if __name__ == "__main__":
    main(sys.argv[1])
