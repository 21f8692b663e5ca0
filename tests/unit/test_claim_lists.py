# SPDX-License-Identifier: Apache-2.0
"""Listings of claims: the inherited implementation, stored holders of the embedded store, and the work for one page."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zq.clock import ManualClock
from zq.conformance.builders import Scene
from zq.errors import NotBuilt
from zq.model import Holder, QueueRef
from zq.storage.api import ClaimController
from zq.storage.memory import MemoryStore, connect
from zq.storage.ordered import layout
from zq.storage.ordered.claims import MAX_STEPS


def test_a_first_driver_refuses_to_list_claims() -> None:
    """The error message is the one for any verb that a store does not support."""

    class First(ClaimController):
        """A driver that does not implement the listing of claims."""

    with pytest.raises(NotBuilt, match="does not support listings of claims"):
        First().list("acme", "", 10, 0.0)


@given(
    ends=st.integers(0, 2**50),
    sequences=st.sets(st.integers(1, 2**53), min_size=1, max_size=70),
    client=st.text(max_size=40),
    agent=st.text(max_size=64),
)
def test_a_group_keeps_its_holder(ends: int, sequences: set[int], client: str, agent: str) -> None:
    """A group keeps a holder of any length; a group that was written without a holder has none."""
    holder = layout.encode((client, agent))
    value = layout.encode_group(ends, sequences, holder)
    assert layout.decode_group(value) == (ends, sorted(sequences))
    assert layout.decode_holder(layout.decode_group_holder(value)) == (client, agent)
    before = layout.encode_group(ends, sequences)
    assert layout.decode_group(before) == (ends, sorted(sequences))
    assert layout.decode_group_holder(before) == b""


def test_a_page_of_a_project_reads_a_bounded_number_of_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a project also reads a bounded number of claim groups, including expired ones."""
    scene = Scene(connect("memory:"), ManualClock(1_700_000_000.0), QueueRef("acme", "jobs"))
    for number in range(MAX_STEPS + 500):
        scene.storage.queues.create(QueueRef("acme", f"idle-{number:05}"), b"{}")
    scene.post(MAX_STEPS + 500)
    for _ in range(MAX_STEPS + 500):
        scene.take(1, ttl=60, holder=Holder("a", "b"))
    scene.tick(61)
    looked = 0
    scan = MemoryStore.scan

    def counted(self: MemoryStore, *terms: Any, **more: Any) -> Iterator[tuple[bytes, bytes]]:
        nonlocal looked
        for entry in scan(self, *terms, **more):
            looked += 1
            yield entry

    monkeypatch.setattr(MemoryStore, "scan", counted)
    after, pages = "", 0
    while True:
        looked = 0
        page = scene.storage.claims.list("acme", after, 10, scene.now)
        assert page.items == []
        assert looked <= MAX_STEPS + 10
        pages += 1
        if page.next is None:
            break
        after = page.next
    assert pages >= 3
