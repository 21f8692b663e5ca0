# SPDX-License-Identifier: Apache-2.0
"""Paused queues with several ``zq-server``s on a store."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.rotation import CAMPAIGN
from tests.servers import Answer, ZqServer, ask

pytestmark = pytest.mark.shared
QUEUE = "/v2/queues/jobs"
MESSAGES = f"{QUEUE}/messages"
# Requests that take or add messages. {} stands for a number.
TAKES = [
    ("POST", f"{QUEUE}/claims?limit=1", {"ttl": 300}),
    ("DELETE", f"{MESSAGES}?pop=1", None),
    ("PUT", f"{QUEUE}/claims/c.{{}}?limit=1", {"ttl": 300}),
    ("POST", f"{QUEUE}/claims?limit=1&wait=1", {"ttl": 300}),
    ("DELETE", f"{MESSAGES}?pop=1&wait=1", None),
]
BRINGS = ("POST", MESSAGES, {"messages": [{"body": 1, "ttl": 600}]})
# Number of pauses in a run, and the seconds of each pause and of the time before it.
PAUSES = 8 if CAMPAIGN else 3
LASTS = 0.3


def change(server: ZqServer, paused: str | None) -> None:
    operations = [{"op": "add", "path": "/metadata/_paused", "value": paused}]
    assert ask(server.url, "PATCH", QUEUE, operations).status == 200


def brought(answer: Answer) -> bool:
    """Return whether a message was taken or stored."""
    return answer.status == 201 or bool(answer.status == 200 and answer.document.get("messages"))


class Watch:
    """A record of requests that took or stored messages during an acknowledged pause."""

    def __init__(self) -> None:
        self.pause = 0
        self.over = False
        self.violations: list[tuple[str, Answer]] = []
        self.passed = 0

    def run(self, server: ZqServer, method: str, path: str, document: object) -> None:
        """Repeat a request. It counts if it begins and ends within the same pause."""
        number = 0
        while not self.over:
            number += 1
            began = self.pause
            answer = ask(server.url, method, path.format(f"{threading.get_ident()}.{number}"), document)
            assert answer.status in (200, 201, 204, 409), answer
            if began and self.pause == began and brought(answer):
                self.violations.append((f"{method} {path}", answer))
            self.passed += brought(answer)


@pytest.mark.store_of_the_day
def test_no_server_takes_or_stores_anything_once_a_pause_was_acknowledged(store_uri: str, engine: str) -> None:
    """This holds for claims, pops and posts, waiting or not, at the server that pauses the queue and at the other."""
    with ZqServer(store_uri, engine=engine) as one, ZqServer(store_uri, engine=engine) as other:
        assert ask(one.url, "PUT", QUEUE).status == 201
        for _ in range(20):
            assert (
                ask(one.url, "POST", MESSAGES, {"messages": [{"body": n, "ttl": 600} for n in range(50)]}).status == 201
            )
        watch = Watch()
        works = [(server, *each) for server in (one, other) for each in (*TAKES, BRINGS)]
        with ThreadPoolExecutor(len(works)) as pool:
            running = [pool.submit(watch.run, *work) for work in works]
            for number in range(1, PAUSES + 1):
                time.sleep(LASTS)
                change(one, "all")
                watch.pause = number
                time.sleep(LASTS)
                watch.pause = 0
                change(other if number % 2 else one, None)
            time.sleep(LASTS)
            watch.over = True
            for each in running:
                each.result(60)
        assert watch.violations == []
        assert watch.passed > PAUSES * len(works) / 2, "the queue was worked at between the pauses"


def test_who_waits_is_answered_when_the_queue_is_resumed(store_uri: str, engine: str) -> None:
    """The server that resumes the queue answers at once.

    The other answers at its next poll, long before 20 seconds end.
    """
    with ZqServer(store_uri, engine=engine) as one, ZqServer(store_uri, engine=engine) as other:
        assert ask(one.url, "PUT", QUEUE, {"_paused": "claims"}).status == 201
        assert ask(one.url, "POST", MESSAGES, {"messages": [{"body": n, "ttl": 600} for n in range(8)]}).status == 201

        def wait(server: ZqServer, method: str, path: str, document: object) -> tuple[Answer, float]:
            answer = ask(server.url, method, path.replace("wait=1", "wait=20").format("a"), document, timeout=60)
            return answer, time.monotonic()

        with ThreadPoolExecutor(4) as pool:
            waiting = [(server, pool.submit(wait, server, *each)) for server in (one, other) for each in TAKES[3:]]
            time.sleep(1)
            assert not [each for _, each in waiting if each.done()]
            change(one, None)
            resumed = time.monotonic()
            for _, each in waiting:
                answer, moment = each.result(60)
                assert brought(answer)
                assert moment - resumed < 18
