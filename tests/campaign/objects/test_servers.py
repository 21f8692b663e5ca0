# SPDX-License-Identifier: Apache-2.0
"""An owner that is stopped until its successor has removed its log."""

import pytest

from tests.object.test_servers import ENOUGH, Machines, machines, refuses, whole
from tests.object.work import Producers, listed
from tests.servers import Lost, wait_for
from zq.storage.object.epochs import Head, Opening, read
from zq.storage.object.objects import Objects

pytestmark = pytest.mark.slow
__all__ = ["machines"]


@pytest.mark.parametrize(("uri", "fencing"), [("swift", "look"), ("s3", "position")], indirect=["uri"])
def test_an_owner_that_slept_until_its_log_was_removed_is_fenced(
    machines: Machines, objects: Objects, fencing: str
) -> None:
    """The owner's next log position is free again in the object store, but the owner acknowledges nothing there."""
    options = {"lease": 1, "records": 10, "keep": 10, "fencing": fencing}
    first = machines.started("first", **options)
    with Producers(first.url, "early") as early:
        wait_for(lambda: len(early.acknowledged) >= ENOUGH, 60, f"{ENOUGH} messages")
    with first.frozen():
        second = machines.started("second", **options)
        began = read(objects, "open/2", Opening)
        assert began is not None
        with Producers(second.url, "late") as late:
            wait_for(lambda: removed(objects) > began.chain[-1].last, 90, "the log of the first one is removed")
    with pytest.raises(Lost):
        refuses(first)
    second.terminate()
    whole(listed(machines.started("third").url), [*early.acknowledged, *late.acknowledged])


def removed(objects: Objects) -> int:
    """Return the position up to which the second owner has removed the log."""
    head = read(objects, "head/2", Head)
    return head.removed if head else 0
