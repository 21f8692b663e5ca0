# SPDX-License-Identifier: Apache-2.0
"""A commit of thousands of messages, and kills of its server at any time (extensions 9).

The commit is repeated until another server or the restarted one answers. Then all messages are published once and the
settled claims are empty; before, no partial effect is visible.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from tests.campaign.histories.runs import SERVERS, embedded, logs_told
from tests.servers import Lost, ZqServer, ask, every_message

STAGED = 2400
PART = 400
CLAIMS = 10
HELD = 20
KILLS = 2
# Seconds within which a killed commit ends, including its time limit for preparation.
PATIENCE = 120
# Done, or still in progress when the server stopped waiting.
DECIDED = (200, 202)


class Batch:
    """A commit, with the messages that it publishes and settles."""

    def __init__(self, urls: list[str], number: int) -> None:
        self.urls, self.number = urls, number
        self.out, self.source = f"out{number}", f"in{number}"
        self.document = {
            "producer": "etl",
            "batch": number,
            "publish": [f"etl.{number}.{part}" for part in range(STAGED // PART)],
            "settle": [{"queue": self.source, "claim": f"etl.{number}.{claim}"} for claim in range(CLAIMS)],
        }

    def prepare(self) -> None:
        for part, stage in enumerate(self.document["publish"]):
            bodies = [{"body": part * PART + at, "ttl": 3600} for at in range(PART)]
            assert self.ask("POST", f"/v2/queues/{self.out}/messages?stage={stage}", {"messages": bodies}) == 202
        bodies = [{"body": at, "ttl": 3600} for at in range(CLAIMS * HELD)]
        assert self.ask("POST", f"/v2/queues/{self.source}/messages", {"messages": bodies}) == 201
        for settled in self.document["settle"]:
            path = f"/v2/queues/{self.source}/claims/{settled['claim']}?limit={HELD}"
            assert self.ask("PUT", path, {"ttl": 600, "grace": 60}) == 201

    def ask(self, method: str, path: str, document: Any) -> int:
        return ask(self.urls[0], method, path, document, timeout=60).status

    def commit(self) -> int:
        """Commit on the first server and return the status; 0 if there is no response."""
        with suppress(Lost):
            return self.ask("POST", "/v2/commits", self.document)
        return 0

    def insist(self) -> dict[str, Any]:
        """Repeat the commit on any server until it is done; return the response."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(Lost):
                answer = ask(random.choice(self.urls), "POST", "/v2/commits", self.document, timeout=60)
                if answer.status == 200:
                    return answer.document
                assert answer.status in (202, 409, 503), answer
            time.sleep(0.1)
        raise AssertionError("The commit does not come to an end.")

    def check(self) -> None:
        """Assert that the commit took effect completely, once and in order."""
        told = self.insist()
        assert (told["published"], told["deleted"]) == (STAGED, CLAIMS * HELD)
        url = self.urls[-1]
        assert [message["body"] for message in every_message(url, self.out)] == list(range(STAGED))
        assert every_message(url, self.source) == []


@pytest.mark.store_of_the_day
def test_a_large_commit_survives_the_death_of_its_server(store_uri: str) -> None:
    """At the death the commit has taken effect completely or not at all, and in the end completely."""
    with ExitStack() as stack:
        count = 1 if embedded(store_uri) else SERVERS - 1
        servers = [stack.enter_context(ZqServer(store_uri)) for _ in range(count)]
        urls = [server.url for server in servers]
        with logs_told(servers), ThreadPoolExecutor(1) as pool:
            whole = Batch(urls, 1)
            whole.prepare()
            began = time.monotonic()
            assert whole.commit() in DECIDED
            took = time.monotonic() - began
            whole.check()
            for number in range(2, 2 + KILLS):
                batch = Batch(urls, number)
                batch.prepare()
                running = pool.submit(batch.commit)
                time.sleep(random.uniform(0, took))
                servers[0].kill()
                assert running.result() in (0, *DECIDED)
                servers[0].start()
                batch.check()
