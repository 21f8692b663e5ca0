# SPDX-License-Identifier: Apache-2.0
"""Claims are renewed while the work runs, in real time: of a scripted server, since real ones grant a minute."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from tests.servers import wait_for
from zq.client.calls import Answer, Call
from zq.client.desk import Habits
from zq.client.tasks import AsyncConsumer
from zq.client.threads import Consumer
from zq.errors import ClaimNotFound

LIMITS = {"max_wait": 30, "max_messages_per_claim_or_pop": 20, "max_message_delay": 900}
HABITS = Habits(queue="jobs", wait=0, until_empty=True, ttl=0.3)  # type: ignore[arg-type]


class Script:
    """A server that has one message, once; ``asked``: what it was asked, without the query for limits."""

    def __init__(self, renews: bool = True) -> None:
        self.asked: list[str] = []
        self.before_close: list[Callable[[], Any]] = []
        self._renews = renews

    def run(self, call: Call[Any]) -> Any:
        """The scripted answer."""
        if call.path == "/v2/limits":
            return call.read(Answer(200, {}, json.dumps(LIMITS).encode()))
        self.asked.append(call.method)
        if call.method == "PUT":
            message = {"id": "m1", "ttl": 60, "age": 0, "body": 1}
            first = self.asked.count("PUT") == 1
            return call.read(Answer(201 if first else 204, {}, json.dumps({"messages": [message]}).encode()))
        if call.method == "PATCH" and not self._renews:
            raise ClaimNotFound("It is over.")
        return call.read(Answer(200, {}, b"{}"))


class AsyncScript(Script):
    """The same, asynchronously."""

    def run(self, call: Call[Any]) -> Coroutine[Any, Any, Any]:
        async def answer() -> Any:
            return Script.run(self, call)

        return answer()


def test_a_thread_renews_a_claim_while_its_message_is_in_work() -> None:
    """At each third of its ttl, and not any more once it is settled."""
    script = Script()
    for _ in Consumer(script, HABITS, None):  # type: ignore[arg-type]
        wait_for(lambda: script.asked.count("PATCH") >= 3, 10, "three renewals")
    assert script.asked[:4] == ["PUT", "PATCH", "PATCH", "PATCH"]
    assert script.asked[-2:] in (["POST", "PUT"], ["PUT", "POST"])


def test_a_task_renews_a_claim_while_its_message_is_in_work() -> None:
    """The same on an event loop."""
    script = AsyncScript()

    async def consume() -> None:
        async for _ in AsyncConsumer(script, HABITS, None):  # type: ignore[arg-type]
            async with asyncio.timeout(10):
                while script.asked.count("PATCH") < 3:
                    await asyncio.sleep(0.01)

    asyncio.run(consume())
    assert script.asked[:4] == ["PUT", "PATCH", "PATCH", "PATCH"]
    assert script.asked[-2:] in (["POST", "PUT"], ["PUT", "POST"])


def test_a_renewal_that_comes_too_late_is_told_with_the_end_of_the_work() -> None:
    """The message may be with others by then: nothing is settled, and its worker hears of it."""
    script, lost = Script(renews=False), list[Any]()
    for _ in Consumer(script, HABITS, lost.extend):  # type: ignore[arg-type]
        wait_for(lambda: "PATCH" in script.asked, 10, "a renewal was refused")
    assert [message.id for message in lost] == ["m1"]
    assert "POST" not in script.asked
