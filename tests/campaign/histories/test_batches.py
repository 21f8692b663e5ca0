# SPDX-License-Identifier: Apache-2.0
"""A batch job over HTTP with two workers for each batch, while servers are killed: exactly once.

Each batch claims messages of ``in`` by a named claim, stages a result for each, and commits. Despite lost, repeated and
rejected requests, every message of ``in`` has exactly one result in ``out`` (extensions 9, L1, L2).
"""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Thread
from typing import Any

from tests.campaign.histories.runs import SECONDS, SERVERS, embedded, kill_in_turn, logs_told
from tests.servers import Answer, Lost, ZqServer, ask, every_message

SIZE = 7
PRODUCER = "etl"
# Number of inputs that a worker posts if it finds none.
SUPPLY = 500
# Minimum number of committed batches, within ``PATIENCE`` seconds.
LEAST = 10
PATIENCE = 120


class Plant:
    """The shared state of the workers: servers, time, and number of posted inputs."""

    def __init__(self, urls: list[str], seconds: float) -> None:
        self.urls = urls
        self.until = time.monotonic() + seconds
        self.inputs = 0
        self.committed = 0
        self.published = 0
        self.lock = threading.Lock()

    def goes_on(self) -> bool:
        late = time.monotonic() - self.until
        return late < 0 or (self.committed < LEAST and late < PATIENCE)


class Attempt:
    """A worker that attempts every batch and counts the batches that it has committed."""

    def __init__(self, plant: Plant, number: int) -> None:
        self.plant, self.number = plant, number
        self.asked = 0

    def run(self) -> None:
        batch = self.last() + 1
        while self.plant.goes_on():
            self.attempt(batch)
            batch = self.last() + 1

    def supply(self) -> None:
        """Post more inputs, one worker at a time, so that the inputs never run out."""
        with self.plant.lock:
            start, self.plant.inputs = self.plant.inputs, self.plant.inputs + SUPPLY
            bodies = [{"body": number, "ttl": 3600} for number in range(start, start + SUPPLY)]
            posted = self.ask("POST", "/v2/queues/in/messages", {"messages": bodies}, key=f"inputs.{start}")
            assert posted.status == 201, posted

    def attempt(self, batch: int) -> None:
        """Claim, stage and commit; a response that rejects the attempt ends it."""
        name = f"{PRODUCER}.{batch}"
        taken = self.ask("PUT", f"/v2/queues/in/claims/{name}?limit={SIZE}", {"ttl": 60, "grace": 60})
        if taken.status == 204:
            self.supply()
            return
        messages = taken.document["messages"]
        stage = f"{name}.{self.number}.{self.asked}"
        results = {"messages": [{"body": message["body"], "ttl": 3600} for message in messages]}
        # The request may be repeated after a lost response, and must count once.
        if self.ask("POST", f"/v2/queues/out/messages?stage={stage}", results, key=stage).status != 202:
            return
        document = {
            "producer": PRODUCER,
            "batch": batch,
            "publish": [stage],
            "settle": [{"queue": "in", "claim": name}],
        }
        done = self.ask("POST", "/v2/commits", document)
        assert done.status in (200, 404, 409), done
        if done.status == 200 and done.document["replayed"]:
            # A claim with this name that exists now is newer than the batch.
            self.ask("DELETE", f"/v2/queues/in/claims/{name}")
        elif done.status == 200:
            assert done.document["published"] == done.document["deleted"] == len(messages), done
            with self.plant.lock:
                self.plant.committed += 1
                self.plant.published += len(messages)

    def last(self) -> int:
        told = self.ask("GET", f"/v2/commits/{PRODUCER}")
        return told.document["batch"] if told.status == 200 else 0

    def ask(self, method: str, path: str, document: Any = None, key: str = "") -> Answer:
        """Return the response of the first server that answers; repeat a request without a response."""
        while True:
            self.asked += 1
            url = self.plant.urls[(self.number + self.asked) % len(self.plant.urls)]
            headers = {"Idempotency-Key": key} if key else {}
            try:
                answer = ask(url, method, path, document, headers=headers)
            except Lost:
                time.sleep(0.02)
                continue
            assert answer.status in (503, *range(200, 500)), (method, path, answer)
            if answer.status != 503:
                return answer


def test_every_message_has_one_result(store_uri: str) -> None:
    """Two workers attempt every batch, servers are killed in turn, and responses are lost."""
    with ExitStack() as stack:
        count = 1 if embedded(store_uri) else SERVERS - 1
        servers = [stack.enter_context(ZqServer(store_uri)) for _ in range(count)]
        plant = Plant([server.url for server in servers], SECONDS / 2)
        killer = Thread(target=kill_in_turn, args=(servers, plant.until))
        killer.start()
        with logs_told(servers), ThreadPoolExecutor(2) as pool:
            list(pool.map(Attempt.run, [Attempt(plant, number) for number in range(2)]))
            killer.join()
            results = Counter(message["body"] for message in every_message(plant.urls[0], "out"))
            left = Counter(message["body"] for message in every_message(plant.urls[0], "in"))
        assert plant.committed >= LEAST
        assert [number for number in range(plant.inputs) if results[number] + left[number] != 1] == []
        # If a commit's response was lost, more results exist than were reported.
        assert len(results) >= plant.published >= plant.committed
