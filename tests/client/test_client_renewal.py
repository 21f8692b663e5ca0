# SPDX-License-Identifier: Apache-2.0
"""Claim renewal during the work, in real time, with a scripted server, because real claims last at least a minute."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from tests.servers import wait_for
from zq.client.async_consumer import AsyncConsumer
from zq.client.calls import Call, Response
from zq.client.consumer import Consumer
from zq.client.consumer_state import ConsumerOptions
from zq.errors import ClaimNotFound

LIMITS = {"max_wait": 30, "max_messages_per_claim_or_pop": 20, "max_message_delay": 900}
HABITS = ConsumerOptions(queue="jobs", wait=0, until_empty=True, ttl=2)  # type: ignore[arg-type]


class Script:
    """A server that delivers `count` messages once; ``asked`` has the methods of all requests except for limits."""

    def __init__(self, renews: bool = True, count: int = 1) -> None:
        self.asked: list[str] = []
        self.before_close: list[Callable[[], Any]] = []
        self._renews = renews
        self._messages = [{"id": f"m{number + 1}", "ttl": 60, "age": 0, "body": 1} for number in range(count)]

    def run(self, call: Call[Any]) -> Any:
        """Return the scripted response."""
        if call.path == "/v2/limits":
            return call.read(Response(200, {}, json.dumps(LIMITS).encode()))
        self.asked.append(call.method)
        if call.method == "PUT":
            first = self.asked.count("PUT") == 1
            return call.read(Response(201 if first else 204, {}, json.dumps({"messages": self._messages}).encode()))
        if call.method == "PATCH" and not self._renews:
            raise ClaimNotFound("It is over.")
        return call.read(Response(204 if call.method == "PATCH" else 200, {}, b"{}"))


class AsyncScript(Script):
    """An asynchronous version of the scripted server."""

    def run(self, call: Call[Any]) -> Coroutine[Any, Any, Any]:
        async def answer() -> Any:
            return Script.run(self, call)

        return answer()


def test_a_thread_renews_a_claim_while_its_message_is_in_work() -> None:
    """The claim is renewed at each third of its ttl until it is settled."""
    script = Script()
    for _ in Consumer(script, HABITS, None):  # type: ignore[arg-type]
        wait_for(lambda: script.asked.count("PATCH") >= 3, 60, "three renewals")
    assert script.asked[:4] == ["PUT", "PATCH", "PATCH", "PATCH"]
    assert script.asked[-2:] in (["POST", "PUT"], ["PUT", "POST"])


def test_a_task_renews_a_claim_while_its_message_is_in_work() -> None:
    """The task on the event loop renews the claim like the thread."""
    script = AsyncScript()

    async def consume() -> None:
        async for _ in AsyncConsumer(script, HABITS, None):  # type: ignore[arg-type]
            async with asyncio.timeout(60):
                while script.asked.count("PATCH") < 3:
                    await asyncio.sleep(0.01)

    asyncio.run(consume())
    assert script.asked[:4] == ["PUT", "PATCH", "PATCH", "PATCH"]
    assert script.asked[-2:] in (["POST", "PUT"], ["PUT", "POST"])


def test_claims_are_renewed_while_a_settlement_is_on_its_way() -> None:
    """The server delays the settlement until two more renewals arrive."""

    class Slow(Script):
        def run(self, call: Call[Any]) -> Any:
            if call.method == "POST" and "settled" not in self.asked:
                heard = self.asked.count("PATCH")
                wait_for(lambda: self.asked.count("PATCH") >= heard + 2, 60, "two renewals")
                self.asked.append("settled")
            return super().run(call)

    script = Slow(count=2)
    for message in Consumer(script, HABITS, None):  # type: ignore[arg-type]
        if message.id == "m2":
            wait_for(lambda: "settled" in script.asked, 60, "the first one is settled")


def test_a_late_renewal_is_reported_with_the_end_of_the_work() -> None:
    """Another consumer may have the message, so it is not settled, and ``on_lost`` is called."""
    script, lost = Script(renews=False), list[Any]()

    def listen(messages: list[Any]) -> None:
        others = threading.Thread(target=consumer._finish, args=(messages[0], messages[0].id))
        others.start()
        others.join(60)
        assert not others.is_alive(), "on_lost holds up no other thread"
        lost.extend(messages)

    consumer = Consumer(script, HABITS, listen)  # type: ignore[arg-type]
    for _ in consumer:
        wait_for(lambda: "PATCH" in script.asked, 60, "a renewal was refused")
    assert [message.id for message in lost] == ["m1"]
    assert "POST" not in script.asked
