# SPDX-License-Identifier: Apache-2.0
"""Delayed messages by the wall clock during a takeover (S-C4, law L4)."""

import pytest

from tests.object.conftest import Open
from tests.object.work import QUEUE, post
from tests.servers import CLIENT, wait_for
from zq.model import Draft, new_ids
from zq.storage.api import Storage

pytestmark = pytest.mark.slow

DELAY = 3


def post_late(storage: Storage) -> float:
    """Post a delayed message and return the time at which it is due."""
    now = storage.now()
    storage.messages.post(QUEUE, [Draft(*new_ids(1, now), b'"late"', 3600, DELAY, CLIENT)], now)
    return now + DELAY


def popped(storage: Storage) -> list[bytes]:
    return [message.body for message in storage.messages.pop(QUEUE, 10, storage.now())]


def test_a_message_is_never_early_before_and_after_a_takeover(machine: Open) -> None:
    """A delayed message is available with the server that accepted it and with the next one, but never early."""
    first = machine("first")
    due = post_late(first)
    post(first, "at once")
    assert popped(first) == [b'"at once"']
    assert wait_for(lambda: popped(first), 60, "it is due") == [b'"late"']
    assert first.now() >= due
    due = post_late(first)
    second = machine("second")
    found = popped(second)
    assert (found == []) or second.now() >= due
    assert found or wait_for(lambda: popped(second), 60, "it is due there") == [b'"late"']
    assert second.now() >= due
