# SPDX-License-Identifier: Apache-2.0
"""Fair sharing of the event loop and the threads among callers."""

import asyncio
from collections.abc import Sequence

import pytest

from zq.serving import fairness
from zq.serving.fairness import CREDENTIALS, KEYSTONE, MAX_STEPS, MAX_STEPS_ALONE, PROJECTS, FairQueue, caller

SIGNATURE = "AWS4-HMAC-SHA256 SignedHeaders=host, Credential=AKIA1/20261127/us-east-1/sqs/aws4_request, Signature=77"


@pytest.mark.parametrize(
    ("headers", "given", "found"),
    [
        (CREDENTIALS, {"authorization": "Bearer zq_a"}, b"zq_a"),
        (CREDENTIALS, {"authorization": "bearer   zq_a", "x-auth-token": "junk"}, b"zq_a"),
        (CREDENTIALS, {"x-auth-token": "zq_a"}, b"zq_a"),
        (CREDENTIALS, {"url-signature": "f00", "authorization": "junk"}, b"f00"),
        (CREDENTIALS, {"authorization": SIGNATURE}, b"AKIA1"),
        (KEYSTONE, {"x-auth-token": "gAAA", "authorization": "junk"}, b"gAAA"),
        (KEYSTONE, {"x-storage-token": "gAAA"}, b"gAAA"),
        (PROJECTS, {"x-project-id": "acme", "authorization": "junk"}, b"acme"),
        (PROJECTS, {"x-tenant-id": "acme"}, b"acme"),
        (PROJECTS, {"authorization": SIGNATURE}, b"AKIA1"),
        (PROJECTS, {}, bytes((10, 0, 0, 1))),
    ],
)
def test_a_caller_is_the_credential_or_project_that_counts(
    headers: Sequence[bytes], given: dict[str, str], found: bytes
) -> None:
    """A client cannot count as several callers by headers that authentication ignores, or by other spellings."""
    scope = {
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("10.0.0.1", 4711),
    }
    assert caller(scope, headers) == found


def test_waits_that_end_together_take_turns_with_another_caller() -> None:
    """A change that ends a hundred polls of one caller delays another caller's request by only a few steps."""

    async def wake() -> None:
        loop = asyncio.get_running_loop()
        queue, greedy = FairQueue(loop, bool), [loop.create_future() for _ in range(100)]
        for turn in greedy:
            queue.notify(b"greedy", turn)
        modest = loop.create_future()
        queue.notify(b"modest", modest)
        await modest
        assert 0 < sum(turn.done() for turn in greedy) <= 3 * MAX_STEPS
        await asyncio.wait_for(asyncio.gather(*greedy), 60)

    asyncio.run(wake())


def test_a_cancelled_wait_takes_no_step() -> None:
    async def wake() -> None:
        loop = asyncio.get_running_loop()
        queue, turns = FairQueue(loop, bool), [loop.create_future() for _ in range(20)]
        for turn in turns:
            queue.notify(b"greedy", turn)
        for turn in turns[:-1]:
            turn.cancel()
        await asyncio.wait_for(turns[-1], 60)

    asyncio.run(wake())


def test_a_project_takes_more_steps_after_it_has_been_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another project's first request still passes the rest of a burst; then the number of steps is limited again."""
    monkeypatch.setattr(fairness, "SHARED_SECONDS", 0.0)
    company: list[bool] = []

    async def step() -> None:
        loop = asyncio.get_running_loop()
        queue = FairQueue(loop, lambda: bool(company))

        async def take_step(name: bytes) -> None:
            if not queue.begin_step():
                await queue.wait(name)

        while queue.begin_step():
            pass
        await asyncio.sleep(0)
        assert [queue.begin_step() for _ in range(MAX_STEPS_ALONE + 1)] == [True] * MAX_STEPS_ALONE + [False]
        burst = [asyncio.ensure_future(take_step(b"greedy")) for _ in range(4 * MAX_STEPS_ALONE)]
        await asyncio.ensure_future(take_step(b"modest"))
        assert sum(turn.done() for turn in burst) <= 2 * MAX_STEPS_ALONE
        await asyncio.wait_for(asyncio.gather(*burst), 60)
        monkeypatch.setattr(fairness, "SHARED_SECONDS", 60.0)
        company.append(True)
        while queue.begin_step():
            pass
        await asyncio.sleep(0.01)
        assert [queue.begin_step() for _ in range(MAX_STEPS + 1)] == [True] * MAX_STEPS + [False]

    asyncio.run(step())
