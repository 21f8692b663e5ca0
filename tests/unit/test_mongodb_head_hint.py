# SPDX-License-Identifier: Apache-2.0
"""The hint where ready messages of a queue begin: never above one that this process has brought forward."""

import time
from types import SimpleNamespace

import pytest

from zq.storage.mongodb import head_hint
from zq.storage.mongodb.head_hint import BELIEVED, MARGIN, SKIPS, HeadHint


def test_the_head_follows_what_was_found():
    """It stays a margin behind, since other servers' clocks may be."""
    hint = HeadHint()
    _, _, token = hint.start(10)
    hint.found(500_000, token, searched_all=True)
    assert hint.start(10)[0] == 500_000 - MARGIN


def test_a_head_that_rests_on_no_full_search_is_not_believed():
    """It ages with the last search from the beginning."""
    hint = HeadHint()
    _, _, token = hint.start(10)
    hint.found(500_000, token, searched_all=False)
    assert hint.start(10)[0] == 0


def test_a_release_beside_a_search_is_not_lost():
    """A search that began before it must not set the head above it."""
    hint = HeadHint()
    _, _, token = hint.start(10)
    hint.invalidate()
    hint.found(500_000, token, searched_all=True)
    assert hint.start(10)[0] == 0


def test_after_a_collision_a_few_searches_skip_messages():
    """Below twice the wanted number, so that order suffers little; then at the head again."""
    hint = HeadHint()
    hint.collided()
    skips = [hint.start(10)[1] for _ in range(SKIPS + 5)]
    assert all(0 <= skip < 20 for skip in skips)
    assert skips[SKIPS:] == [0] * 5


def test_a_collision_long_ago_disturbs_no_order(monkeypatch: pytest.MonkeyPatch):
    """Once the other processes have stopped, a single claimer meets the messages in their order (L5)."""
    hint = HeadHint()
    hint.collided()
    monkeypatch.setattr(head_hint, "random", FarOff)
    moment = time.monotonic()
    monkeypatch.setattr(head_hint, "time", SimpleNamespace(monotonic=lambda: moment + BELIEVED + 1))
    assert hint.start(10)[1] == 0


class FarOff:
    """Chance that always skips the most."""

    @staticmethod
    def randrange(limit: int) -> int:
        return limit - 1
