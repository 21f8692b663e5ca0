# SPDX-License-Identifier: Apache-2.0
"""Number of zq's own functions that a request calls, above and below the storage interface.

``bench.figures`` runs this file with the interpreter of the tree to examine: it does not import ``tests``, and uses
only those parts of ``zq`` that every tree has. ``calls.py URI`` prints a JSON object: request -> [above, below, files,
depth].
"""

import json
import sys
import time
from collections.abc import Callable
from inspect import CO_GENERATOR
from pathlib import Path
from statistics import median_low
from types import FrameType
from typing import Any
from uuid import uuid4

from webtest import TestApp, TestResponse

import zq
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.storage import connect

HOME = str(Path(zq.__file__).parent) + "/"
STORAGE = HOME + "storage/"
WARM = 3
ROUNDS = 8
"""Number of rounds. The first ones fill caches and are not counted."""
BODY = {"event": "backup", "node": 17}
Counted = tuple[int, int, int, int]


class Tracer:
    """A profiler that counts calls of functions whose source is in ``zq``.

    Calls below the interface are a verb of the storage and all that it calls. A comprehension is not a function, and a
    generator counts once, however often it is resumed.
    """

    def __init__(self) -> None:
        self.above = self.below = self.deepest = 0
        self.files: set[str] = set()
        self._stack: list[bool] = []
        self._generators: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(HOME) or (code.co_name.startswith("<") and code.co_name != "<lambda>"):
            return
        if event == "return":
            self._stack.pop()
        elif event == "call":
            below = any(self._stack[-1:]) or code.co_filename.startswith(STORAGE)
            self._stack.append(below)
            self.deepest = max(self.deepest, len(self._stack))
            self.files.add(code.co_filename)
            if code.co_flags & CO_GENERATOR:
                if frame in self._generators:
                    return
                self._generators.add(frame)
            self.below += below
            self.above += not below


class Caller:
    """A tenant that sends requests, and counts the calls of named ones."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._web = TestApp(app, lint=False)
        self._headers = {"Client-ID": uuid4().hex, "X-Project-ID": f"figures-{uuid4().hex[:8]}"}
        self.counted: dict[str, list[Counted]] = {}

    def send(self, path: str, document: Any, name: str = "", method: str = "POST") -> TestResponse:
        """Send a request and return its response; assert a status below 400."""
        body = json.dumps(document).encode()
        tracer = Tracer()
        sys.setprofile(tracer if name else None)
        try:
            answer = self._web.request(f"/v2/{path}", method=method, headers=self._headers, body=body)
        finally:
            sys.setprofile(None)
        if name:
            row = (tracer.above, tracer.below, len(tracer.files), tracer.deepest)
            self.counted.setdefault(name, []).append(row)
        return answer


def messages(count: int) -> dict[str, Any]:
    return {"messages": [{"body": BODY, "ttl": 600}] * count}


def one_round(caller: Caller, turn: int) -> None:
    """Send each kind of request; claimed messages are settled or committed."""
    caller.send("queues/in/messages", messages(3), "POST messages (3)")
    claim = caller.send("queues/in/claims?limit=3", {"ttl": 300, "grace": 60}, "POST claims (3)").json
    ids = [message["id"] for message in claim["messages"]]
    name = claim["messages"][0]["href"].partition("claim_id=")[2]
    settled = {"delete": ids[:1], "release": [{"id": ids[1], "delay": 600}], "move": [{"id": ids[2], "queue": "out"}]}
    caller.send(f"queues/in/claims/{name}/settle", settled, "settle (delete, release, move)")
    caller.send("queues/in/messages", messages(3))
    caller.send(f"queues/in/claims/job.{turn}?limit=3", {"ttl": 300, "grace": 60}, method="PUT")
    caller.send(f"queues/out/messages?stage=job.{turn}", messages(3))
    commit = {
        "producer": "job",
        "batch": turn,
        "publish": [f"job.{turn}"],
        "settle": [{"queue": "in", "claim": f"job.{turn}"}],
    }
    caller.send("commits", commit, "commit (1 stage, 1 claim)")
    caller.send("topics/news/messages", messages(3), "publish (3)")


def main(uri: str) -> None:
    storage = connect(uri, {"sync": "never"} if uri.startswith("rocksdb:") else {})
    try:
        caller = Caller(create_app(Broker(storage, ManualClock(time.time()))))
        for turn in range(1, ROUNDS + 1):
            one_round(caller, turn)
    finally:
        storage.close()
    counted = {name: zip(*rows[WARM:], strict=True) for name, rows in caller.counted.items()}
    print(json.dumps({name: [median_low(column) for column in columns] for name, columns in counted.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
