# SPDX-License-Identifier: Apache-2.0
"""The pauses of connections whose last request was too much: for how long, for how many, and not behind a proxy."""

from types import SimpleNamespace
from typing import Any

import pytest

from zq.engines.gthread import pauses
from zq.engines.gthread.pauses import PAUSE, Pauses


def settings(behind_proxy: bool = False, strategy: str = "token") -> Any:
    return SimpleNamespace(behind_proxy=behind_proxy, auth=SimpleNamespace(strategy=strategy))


def connection() -> Any:
    return SimpleNamespace()


def test_a_pause_is_over_after_its_time_and_the_loop_wakes_for_it() -> None:
    now = [100.0]
    paused, first, second = Pauses(settings(), lambda: now[0]), connection(), connection()
    assert paused.wait(0.5) == 0.5
    assert paused.begin(first)
    now[0] += PAUSE / 2
    assert paused.begin(second)
    assert paused.wait(0.5) == pytest.approx(PAUSE / 2)
    assert paused.wait(0.01) == 0.01
    assert list(paused.over(everyone=False)) == []
    now[0] += PAUSE / 2
    assert paused.wait(0.5) == 0
    assert list(paused.over(everyone=False)) == [first]
    now[0] += PAUSE
    assert paused.wait(0.5) == 0
    assert list(paused.over(everyone=False)) == [second]
    assert paused.wait(0.5) == 0.5


def test_all_pauses_are_over_when_the_process_ends() -> None:
    paused, both = Pauses(settings()), [connection(), connection()]
    assert all(paused.begin(each) for each in both)
    assert list(paused.over(everyone=True)) == both
    assert list(paused.over(everyone=True)) == []


def test_only_so_many_pause_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "MOST_PAUSES", 2)
    paused = Pauses(settings())
    assert [paused.begin(connection()) for _ in range(3)] == [True, True, False]
    assert len(list(paused.over(everyone=True))) == 2
    assert paused.begin(connection())


@pytest.mark.parametrize("chosen", [settings(behind_proxy=True), settings(strategy="proxy")])
def test_a_connection_that_projects_share_does_not_pause(chosen: Any) -> None:
    assert not Pauses(chosen).begin(connection())
