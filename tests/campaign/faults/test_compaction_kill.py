# SPDX-License-Identifier: Apache-2.0
"""SIGKILL during compactions of the embedded store: no live message is lost (S-B2, L3)."""

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.faults.integrity import whole
from tests.faults.test_expiry_kill import looked_at
from tests.servers import PROJECT, wait_for
from zq.model import QueueRef

KILLS = 3
WITHIN = 120.0


class Churner:
    """A process that runs ``tests.campaign.faults.churn``, and its reports."""

    def __init__(self, uri: str) -> None:
        command = [sys.executable, "-m", "tests.campaign.faults.churn", uri]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.living: dict[str, list[str]] = {"one": [], "two": []}
        self.dropped = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Churner":
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process, and return when all its output is read."""
        self._process.kill()
        self._process.wait(60)
        self._reader.join(60)

    def has_dropped(self, count: int) -> bool:
        """Return whether the compactions have dropped at least `count` messages."""
        if self._process.poll() is not None:
            assert self._process.stderr is not None
            raise AssertionError(f"It ended by itself:\n{self._process.stderr.read()}")
        return self.dropped >= count

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                told = json.loads(line)
                self.dropped = told["dropped"]
                for queue, ids in self.living.items():
                    ids += told[queue]


def test_kills_in_the_middle_of_compactions_leave_a_whole_store(tmp_path: Path) -> None:
    """All messages that live by their ttl or by a claim are kept, although the filter drops others without a batch."""
    uri = f"rocksdb://{tmp_path}/store"
    living: dict[str, list[str]] = {"one": [], "two": []}
    for _ in range(KILLS):
        with Churner(uri) as churner:
            wait_for(lambda: churner.has_dropped(500), WITHIN, "the filter at work")
            time.sleep(random.uniform(0.0, 0.2))
        whole(uri)
        for queue, ids in living.items():
            ids += churner.living[queue]
            with looked_at(uri, QueueRef(PROJECT, queue)) as scene:
                there = scene.walk()
            known = set(ids)
            assert [message.id for message in there if message.id in known] == ids, "something that lives is missing"
    assert all(len(ids) > 10 * KILLS for ids in living.values())
