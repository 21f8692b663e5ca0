# SPDX-License-Identifier: Apache-2.0
"""How many refusals wait at once under Granian."""

import asyncio

import pytest

from zq.engines import process
from zq.engines.process import Limits, Process


def test_only_so_many_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is sent at once, and one that has waited makes room."""
    monkeypatch.setattr(process, "MOST_PAUSES", 2)
    monkeypatch.setattr(process, "PAUSE", 0.05)
    shared = Process(lambda *_: [], 1, Limits(1, 1, 1, 1))

    async def waiting() -> tuple[list[bool], list[bool]]:
        first = [asyncio.ensure_future(shared.pause()) for _ in range(3)]
        await asyncio.sleep(0)
        seen = [each.done() for each in first]
        await asyncio.gather(*first)
        again = asyncio.ensure_future(shared.pause())
        await asyncio.sleep(0)
        return seen, [again.done()]

    assert asyncio.run(waiting()) == ([False, False, True], [False])
