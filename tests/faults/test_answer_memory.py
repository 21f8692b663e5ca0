# SPDX-License-Identifier: Apache-2.0
"""Memory of a server that answers requests for many of the largest messages."""

import os
from pathlib import Path

import pytest

from tests.rotation import rotated
from tests.servers import ZqServer, ask
from zq.model import Draft, QueueRef, new_ids
from zq.storage import connect

MESSAGES = 1000
BODY = b'"' + b"x" * 250_000 + b'"'
QUEUE = QueueRef("acme", "large")
# Default limit of bytes of bodies in a response.
MOST = 4 << 20
# Bytes by which the server's memory may grow: the requested messages would take twice as many.
GROWTH = 120 << 20
TOGETHER = 10


@pytest.mark.parametrize(
    ("method", "path", "terms"),
    rotated(
        [
            ("POST", "claims?limit=1000", {}),
            ("GET", "messages?limit=1000&echo=true", None),
            ("DELETE", "messages?pop=1000", None),
        ],
        1,
    ),
)
def test_an_answer_is_a_few_megabytes_though_a_thousand_large_messages_wait(
    tmp_path: Path, method: str, path: str, terms: object
) -> None:
    """The requests are for 256 MB; each of three responses has as many messages as fit, and memory stays low."""
    store = f"rocksdb://{tmp_path}/store"
    fill(store)
    with ZqServer(store) as server:
        assert ask(server.url, "GET", "/readyz").status == 200
        before = peak(server.pid)
        for _ in range(3):
            answer = ask(server.url, method, f"/v2/queues/{QUEUE.name}/{path}", terms, timeout=120)
            assert len(answer.document["messages"]) == MOST // len(BODY)
            assert len(answer.body) < 1.1 * MOST
        grown = peak(server.pid) - before
        assert grown < GROWTH, f"{grown >> 20} MiB"


def fill(store: str) -> None:
    """Post the messages directly to the store, because posting over HTTP takes long."""
    storage = connect(store, {"sync": "never"})
    for _ in range(0, MESSAGES, TOGETHER):
        now = storage.now()
        storage.messages.post(QUEUE, [Draft(id, BODY, 3600, 0, "alice") for id in new_ids(TOGETHER, now)], now)
    storage.close()


def peak(pid: int) -> int:
    """Return the peak memory of a process and its children in bytes."""
    total = 0
    for process in [pid, *children(pid)]:
        status = Path(f"/proc/{process}/status").read_text()
        total += int(status.partition("VmHWM:")[2].split()[0]) << 10
    return total


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    found = [int(child) for task in os.listdir(tasks) for child in (tasks / task / "children").read_text().split()]
    return found + [grandchild for child in found for grandchild in children(child)]
