# SPDX-License-Identifier: Apache-2.0
"""SQS consumers while servers are killed: no loss, one holder at a time, and no effect of late consumers."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.servers import ZqServer, wait_for

ACCOUNT = "123456789012"
SERVED = {"OS_SQS__ENABLED": "true", "OS_SQS__AUTH": "none"}
# Seconds of traffic, and the visibility timeout of a consumer.
SECONDS = 4.5
HOLD = 2
# Seconds within which the rest must have been received.
PATIENCE = 60.0
KILLS = 2
# Minimum of messages deleted in time, and of messages handled late.
LEAST = 20


def client_of(url: str) -> Any:
    """Return a client that does not retry."""
    once = Config(retries={"total_max_attempts": 1}, read_timeout=30)
    key = {"aws_access_key_id": ACCOUNT, "aws_secret_access_key": "x"}
    return boto3.client("sqs", endpoint_url=url, region_name="us-east-1", config=once, **key)


class Ledger:
    """A record of all responses to the clients, by body of the message."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.over = threading.Event()
        self.sent: set[str] = set()
        self.deleted: set[str] = set()
        self.seen: set[str] = set()
        self.holds: dict[str, tuple[float, float]] = {}
        self.violations: list[str] = []
        self.late = 0
        self._lock = threading.Lock()

    def hold(self, body: str, since: float, until: float) -> None:
        """Record a hold for a time, and a violation if it overlaps another hold or follows a deletion."""
        with self._lock:
            self.seen.add(body)
            if body in self.deleted:
                self.violations.append(f"{body} was deleted, and received again")
            former = self.holds.get(body)
            if former is not None and since < former[1] and former[0] < until:
                self.violations.append(f"{body} had two holders")
            self.holds[body] = since, until

    def prolong(self, body: str, until: float) -> None:
        """Record that the holder has extended its hold."""
        with self._lock:
            self.holds[body] = self.holds[body][0], until

    def delete(self, bodies: list[str]) -> None:
        """Record deletions by current holders."""
        with self._lock:
            self.deleted.update(bodies)


class Worker:
    """A client that uses all servers in turn."""

    def __init__(self, ledger: Ledger, queue: str, number: int) -> None:
        self.ledger = ledger
        self.queue = queue
        self.number = number
        self._clients = itertools.cycle([client_of(url) for url in ledger.urls])

    def ask(self, verb: str, **parameters: Any) -> dict[str, Any] | None:
        """Return the response; None if there was none or the store was unavailable."""
        try:
            answer: dict[str, Any] = getattr(next(self._clients), verb)(QueueUrl=self.queue, **parameters)
        except BotoCoreError:
            time.sleep(0.05)
            return None
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 503:
                time.sleep(0.05)
                return None
            raise
        return answer

    def produce(self) -> None:
        """Send batches of ten until the end."""
        for batch in itertools.count():
            if self.ledger.over.wait(0.02):
                return
            bodies = [f"{self.number}-{batch}-{at}" for at in range(10)]
            entries = [{"Id": str(at), "MessageBody": body} for at, body in enumerate(bodies)]
            if self.ask("send_message_batch", Entries=entries) is not None:
                self.ledger.sent.update(bodies)

    def consume(self) -> None:
        """Receive messages; extend and delete half of them in time, and handle the others late."""
        overdue: list[tuple[float, list[dict[str, Any]]]] = []
        while not self.ledger.over.is_set():
            taken = self.receive()
            self.finish(taken[::2])
            overdue.append((time.monotonic() + HOLD, taken[1::2]))
            if overdue[0][0] < time.monotonic():
                self.come_late(overdue.pop(0)[1])

    def drain(self) -> None:
        """Receive everything that is left."""
        until = time.monotonic() + PATIENCE
        while self.ledger.sent - self.ledger.seen - self.ledger.deleted and time.monotonic() < until:
            self.finish(self.receive())

    def receive(self) -> list[dict[str, Any]]:
        asked = time.monotonic()
        answer = self.ask("receive_message", MaxNumberOfMessages=10, VisibilityTimeout=HOLD, WaitTimeSeconds=1) or {}
        taken: list[dict[str, Any]] = answer.get("Messages", [])
        answered = time.monotonic()
        for message in taken:
            self.ledger.hold(message["Body"], answered, asked + HOLD)
        return taken

    def finish(self, taken: list[dict[str, Any]]) -> None:
        """Extend and delete messages that are certainly held; neither may fail."""
        asked = time.monotonic()
        held = [message for message in taken if asked + 0.5 < self.ledger.holds[message["Body"]][1]]
        if not held or self.change("change_message_visibility_batch", held, VisibilityTimeout=HOLD) is None:
            return
        for message in held:
            self.ledger.prolong(message["Body"], asked + HOLD)
        if self.change("delete_message_batch", held) is not None and time.monotonic() < asked + HOLD:
            self.ledger.delete([message["Body"] for message in held])

    def come_late(self, taken: list[dict[str, Any]]) -> None:
        """Delete or release messages that others may hold by now; this must not affect their holders."""
        self.ledger.late += len(taken)
        for at, message in enumerate(taken):
            handle = {"ReceiptHandle": message["ReceiptHandle"]}
            if at % 2:
                self.ask("delete_message", **handle)
            else:
                with suppress(ClientError):  # the message is deleted
                    self.ask("change_message_visibility", **handle, VisibilityTimeout=0)

    def change(self, verb: str, held: list[dict[str, Any]], **more: int) -> dict[str, Any] | None:
        entries = [
            {"Id": str(at), "ReceiptHandle": message["ReceiptHandle"], **more} for at, message in enumerate(held)
        ]
        asked = time.monotonic()
        answer = self.ask(verb, Entries=entries)
        for entry in (answer or {}).get("Failed", []):
            body = held[int(entry["Id"])]["Body"]
            if asked < time.monotonic() < self.ledger.holds[body][1]:
                self.ledger.violations.append(f"{body} was held, and gone: {entry['Message']}")
        return answer


@pytest.mark.store_of_the_day
@pytest.mark.timeout(600)
def test_consumers_keep_what_they_hold_over_kills(store_name: str, store_uri: str) -> None:
    """An embedded store has one server and a shared store two, which are killed in turn during batches."""
    count = 1 if store_name == "rocksdb" else 2
    servers = [ZqServer(store_uri, env=SERVED) for _ in range(count)]
    with ThreadPoolExecutor(count) as starters:
        list(starters.map(lambda server: server.start(), servers))
    try:
        ledger = Ledger([server.url for server in servers])
        queue = client_of(servers[0].url).create_queue(QueueName="jobs")["QueueUrl"]
        workers = [Worker(ledger, queue, number) for number in range(5)]
        with ThreadPoolExecutor(5) as pool:
            running = [pool.submit(worker.produce) for worker in workers[:2]]
            running += [pool.submit(worker.consume) for worker in workers[2:]]
            for at in range(KILLS):
                time.sleep(SECONDS / (KILLS + 1))
                server = servers[at % count]
                server.kill()
                server.start()
            wait_for(lambda: len(ledger.deleted) > LEAST and ledger.late > LEAST, PATIENCE, "enough has been done")
            ledger.over.set()
            for future in running:
                future.result(60)
        workers[0].drain()
    finally:
        for server in servers:
            server.close()
    assert ledger.violations == []
    assert ledger.sent - ledger.seen - ledger.deleted == set(), "acknowledged, and never received"
