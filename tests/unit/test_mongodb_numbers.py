# SPDX-License-Identifier: Apache-2.0
"""MongoDB counters beyond the range of a 32-bit integer and of a float's exact integers."""

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import Scene
from zq.conformance.test_numbers import answers_in_plain_numbers
from zq.conformance.topic_builders import Log
from zq.model import QueueRef
from zq.storage.mongodb import MongoStorage


@pytest.mark.parametrize("store_name", ["mongodb"], indirect=True)
@pytest.mark.parametrize("counted", [2**31, 2**53 + 1])
def test_a_store_that_has_counted_far_answers_in_plain_numbers(
    storage: MongoStorage, clock: ManualClock, queue: QueueRef, counted: int
) -> None:
    """The counters are set to values as after years of messages."""
    scene = Scene(storage, clock, queue)
    scene.post(1)
    scene.pop(1, history=600)
    Log(storage, clock).publish()
    for counter in ("k1", "p1"):
        storage._client.messages.update_many({counter: {"$exists": True}}, {"$set": {counter: counted}})
    answers_in_plain_numbers(scene, counted)
