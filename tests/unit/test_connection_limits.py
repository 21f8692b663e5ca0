# SPDX-License-Identifier: Apache-2.0
"""Connections of deliveries: failing subscribers leave connections for the others (criterion E2)."""

import asyncio

from zq.subscriptions.delivery.worker import FAILED_FRACTION, MAX_PER_HOST, ConnectionLimits

MOST = 40


class Crowd:
    """Deliveries that never end."""

    def __init__(self) -> None:
        self._connection_limits = ConnectionLimits(MOST)
        self._tasks: list[asyncio.Task[None]] = []
        self.inside = 0

    async def come(self, count: int, project: str, host: str = "", *, failed: bool) -> int:
        """Start ``count`` deliveries, each to its own host or all to ``host``, and return how many got a connection."""
        before = self.inside
        for number in range(count):
            url = f"http://{host or f'{project}{number}.example'}/"
            self._tasks.append(asyncio.create_task(self._hang(project, url, failed=failed)))
        for _ in range(10):  # enough iterations of the event loop for every delivery that gets a connection
            await asyncio.sleep(0)
        return self.inside - before

    async def _hang(self, project: str, url: str, *, failed: bool) -> None:
        async with self._connection_limits.reserve(project, url, failed=failed):
            self.inside += 1
            await asyncio.Event().wait()

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def test_failing_subscribers_have_their_own_share() -> None:
    async def run() -> None:
        crowd = Crowd()
        assert await crowd.come(2 * MOST, "failing", failed=True) == MOST // FAILED_FRACTION
        assert await crowd.come(1, "good", failed=False) == 1
        assert await crowd.come(2 * MOST, "many", failed=False) == MOST - MOST // FAILED_FRACTION - 1
        await crowd.end()

    asyncio.run(run())


def test_a_project_has_a_few_to_a_host() -> None:
    """Another project can still connect to the same host."""

    async def run() -> None:
        crowd = Crowd()
        assert await crowd.come(2 * MAX_PER_HOST, "one", "hook.example", failed=False) == MAX_PER_HOST
        assert await crowd.come(1, "other", "hook.example", failed=False) == 1
        await crowd.end()

    asyncio.run(run())
