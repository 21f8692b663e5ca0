# SPDX-License-Identifier: Apache-2.0
"""What a server remembers of the expiry schedule in Redis, without a server."""

from typing import Any

import pytest

from zq.model import QueueRef
from zq.storage.redis import store

NOW = 10**12
LATER = NOW + 10**6


class Counting:
    """A client that counts the scripts it runs."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, *_: Any) -> None:
        self.runs += 1


def test_one_queue_too_many_drives_out_one_and_not_all(monkeypatch: pytest.MonkeyPatch):
    """Else every post to one of many queues would cost a round trip more for a while."""
    monkeypatch.setattr(store, "MOST_KNOWN", 3)
    client: Any = Counting()
    kept = store.Store(client)
    queues = [QueueRef("acme", f"q{number}") for number in range(4)]
    for queue in queues:
        kept.schedule_expiry(queue, LATER, NOW)
    client.runs = 0
    for queue in reversed(queues):
        kept.schedule_expiry(queue, LATER, NOW)
    assert client.runs == 1
