# SPDX-License-Identifier: Apache-2.0
"""Cost of ten messages over SQS and over REST, in this process: ``python -m bench.sqs [--store URI]``.

Both interfaces belong to the same application on the same store, called as an engine calls it. Times are processor
times, to exclude other programs, and rounds are short, so that some are not disturbed. The command prints microseconds
a request, the minimum of its rounds.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import msgspec
from falcon.testing import create_environ

from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.http.application import App
from zq.sqs.feature import sqs_feature
from zq.sqs.json_protocol import MEDIA, TARGET_PREFIX
from zq.sqs.settings import SqsOptions
from zq.storage import connect

PROJECT = "000000000000"
BODY = "x" * 200
TEN = range(10)
REST = {"Client-ID": "5d0c1f7e4f1e4d3c8a56b8b0f3a1c2d5", "X-Project-ID": PROJECT}
QUEUE = f"http://localhost/{PROJECT}/sqs"
encode, decode = msgspec.json.encode, msgspec.json.decode
# Ten messages of a request.
SENT = encode({"QueueUrl": QUEUE, "Entries": [{"Id": str(at), "MessageBody": BODY} for at in TEN]})
POSTED = encode({"messages": [{"body": BODY} for _ in TEN]})


def headers_of(operation: str) -> dict[str, str]:
    return {"X-Amz-Target": TARGET_PREFIX + operation, "Content-Type": MEDIA}


class Sides:
    """Both interfaces of one application."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.sqs("CreateQueue", QueueName="sqs")
        self.ask("PUT", "/v2/queues/rest", REST, {"_default_message_ttl": 345_600})

    def ask(self, method: str, path: str, headers: dict[str, str], document: Any = None) -> Any:
        """Send a request and return the document of the response."""
        raw = self.raw(method, path, headers, b"" if document is None else encode(document))
        return decode(raw) if raw else None

    def raw(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
        """Send a request and return the encoded response."""
        path, _, query = path.partition("?")
        called: list[str] = []
        env = create_environ(path, query, method=method, headers=headers, body=body, host="localhost")
        raw = b"".join(self._app(env, lambda status, *_: called.append(status)))
        assert called[0].startswith("2"), (called, raw)
        return raw

    def sqs(self, operation: str, **given: Any) -> Any:
        """Call an operation and return its response."""
        return self.ask("POST", "/", headers_of(operation), given)

    def send(self) -> None:
        self.raw("POST", "/", headers_of("SendMessageBatch"), SENT)

    def post(self) -> None:
        self.raw("POST", "/v2/queues/rest/messages", REST, POSTED)

    def receive_and_delete(self) -> None:
        found = self.sqs("ReceiveMessage", QueueUrl=QUEUE, MaxNumberOfMessages=10)["Messages"]
        entries = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(found)]
        assert len(self.sqs("DeleteMessageBatch", QueueUrl=QUEUE, Entries=entries)["Successful"]) == 10

    def claim(self) -> tuple[str, list[str]]:
        """Claim ten messages and return the claim's id and the messages' ids."""
        found = self.ask("POST", "/v2/queues/rest/claims?limit=10", REST, {"ttl": 60, "grace": 60})["messages"]
        return found[0]["href"].partition("claim_id=")[2], [each["id"] for each in found]

    def claim_and_delete(self) -> None:
        """Claim and delete messages, without a result for each."""
        claim, ids = self.claim()
        self.ask("DELETE", f"/v2/queues/rest/messages?ids={','.join(ids)}&claim_ids={claim}", REST)

    def claim_and_settle(self) -> None:
        """Claim and settle messages, which must be claimed, as with SQS."""
        claim, ids = self.claim()
        assert self.ask("POST", f"/v2/queues/rest/claims/{claim}/settle", REST, {"delete": ids})["deleted"] == 10


def cost(work: Callable[[], None], count: int) -> float:
    """Return the processor time of one call in microseconds."""
    began = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - began) / count * 1e6


def main() -> None:
    """Measure all pairs, in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="memory:", help="the store's URI")
    parser.add_argument("--count", type=int, default=5, help="requests of a kind in a round")
    parser.add_argument("--rounds", type=int, default=500)
    chosen = parser.parse_args()
    storage = connect(chosen.store)
    broker = Broker(storage, ManualClock(storage.now()))
    sides = Sides(create_app(broker, features=[sqs_feature(SqsOptions(enabled=True, auth="none"), broker)]))
    pairs = {
        "send 10": (sides.send, sides.post),
        "receive 10, delete 10": (sides.receive_and_delete, sides.claim_and_delete),
        "receive 10, delete 10 if held": (sides.receive_and_delete, sides.claim_and_settle),
    }
    least: dict[str, list[float]] = {name: [float("inf")] * 2 for name in pairs}
    for _ in range(chosen.rounds):
        for _ in range(chosen.count):  # messages for the second of two receiving calls
            sides.send()
            sides.post()
        for name, works in pairs.items():
            for side, work in enumerate(works):
                least[name][side] = min(least[name][side], cost(work, chosen.count))
    print("| | SQS, µs | REST, µs | ratio |\n|---|---|---|---|")
    for name, (ours, theirs) in least.items():
        print(f"| {name} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} |")
    storage.close()


if __name__ == "__main__":
    main()
