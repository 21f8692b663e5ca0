# SPDX-License-Identifier: Apache-2.0
"""Make ``attributes.tar.xz``: a store of the embedded driver with SQS attributes, as earlier code wrote them.

Run it in a worktree of commit c909ad35: ``PYTHONPATH=. python make_attributes.py attributes.tar.xz``. The file of this
repository is of that commit.
"""

import sys
import tarfile
import tempfile
from pathlib import Path

from zq.model import ClaimRequest, Draft, Lease, Move, QueueRef
from zq.storage.rocksdb import connect

NOW = 1_764_000_000.0
# Time to live of messages and history entries in seconds.
TTL = 1_000_000_000
STORED = (
    b'{"MessageAttributes":{"a":{"DataType":"String","StringValue":"x"},'
    b'"b":{"DataType":"Binary","BinaryValue":"eQ=="}},"MessageDeduplicationId":"once","AWSTraceHeader":"Root=1"}'
)
IDS = [f"{number:032x}" for number in range(5)]
LEFT_OUT = ("LOCK", "LOG", ".zq")


def main(target: str) -> None:
    """Write the archive: messages that are ready, claimed, buried and deleted, and one without attributes."""
    jobs = QueueRef("acme", "jobs")
    with tempfile.TemporaryDirectory() as folder:
        storage = connect(f"rocksdb://{folder}/store", sync="always", max_clock_jump=0)
        large = b'"' + b"x" * 2000 + b'"'
        drafts = [Draft(id, large if id == IDS[3] else b'"text"', TTL, 0, "alice", "", STORED) for id in IDS[:4]]
        storage.messages.post(jobs, [*drafts, Draft(IDS[4], b'"plain"', TTL, 0, "alice")], NOW)
        storage.claims.create(jobs, ClaimRequest(Lease("0" * 32, TTL, 60), 1), NOW)
        storage.messages.move(jobs, [Move(IDS[1], "dead", reason="no use")], NOW)
        storage.messages.delete(jobs, [IDS[2]], NOW, (), TTL)
        with tarfile.open(target, "w:xz") as archive:  # while it is open: its log has writes, too
            for file in sorted(Path(folder, "store").iterdir()):
                if not file.name.startswith(LEFT_OUT):
                    archive.add(file, file.name)
        storage.close()


if __name__ == "__main__":
    main(sys.argv[1])
