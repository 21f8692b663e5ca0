# SPDX-License-Identifier: Apache-2.0
"""The hint where ready messages of a queue begin: never above one that this process has brought forward."""

import time
from types import SimpleNamespace

import pytest

from zq.storage.mongodb import front as front_module
from zq.storage.mongodb.front import BELIEVED, MARGIN, WARY, Front


def test_the_head_follows_what_was_found():
    """It stays a margin behind, since other servers' clocks may be."""
    front = Front()
    _, _, token = front.look(10)
    front.found(500_000, token, searched_all=True)
    assert front.look(10)[0] == 500_000 - MARGIN


def test_a_head_that_rests_on_no_full_search_is_not_believed():
    """It ages with the last search from the beginning."""
    front = Front()
    _, _, token = front.look(10)
    front.found(500_000, token, searched_all=False)
    assert front.look(10)[0] == 0


def test_a_release_beside_a_search_is_not_lost():
    """A search that began before it must not set the head above it."""
    front = Front()
    _, _, token = front.look(10)
    front.lower()
    front.found(500_000, token, searched_all=True)
    assert front.look(10)[0] == 0


def test_after_a_collision_a_few_searches_look_elsewhere():
    """Below twice the wanted number, so that order suffers little; then at the head again."""
    front = Front()
    front.collide()
    skips = [front.look(10)[1] for _ in range(WARY + 5)]
    assert all(0 <= skip < 20 for skip in skips)
    assert skips[WARY:] == [0] * 5


def test_a_collision_long_ago_disturbs_no_order(monkeypatch: pytest.MonkeyPatch):
    """Once the other processes have stopped, a single claimer meets the messages in their order (L5)."""
    front = Front()
    front.collide()
    monkeypatch.setattr(front_module, "random", FarOff)
    moment = time.monotonic()
    monkeypatch.setattr(front_module, "time", SimpleNamespace(monotonic=lambda: moment + BELIEVED + 1))
    assert front.look(10)[1] == 0


class FarOff:
    """Chance that always looks elsewhere."""

    @staticmethod
    def randrange(limit: int) -> int:
        return limit - 1
