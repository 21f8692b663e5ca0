# SPDX-License-Identifier: Apache-2.0
"""Topics over HTTP in memory, sound by one lock, and the same with one fault each, which the judge must find.

It speaks as much of the interface as ``subscribers`` use. Now and then it stores a post and never answers.
"""

import fnmatch
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.faults.planted import EVERY, RACE

HEARTBEAT = 0.2
PAGE = 0.05
"""Seconds that an empty page takes."""


class Stored(NamedTuple):
    id: int
    topic: str
    body: str

    def shown(self) -> dict[str, str]:
        return {"id": str(self.id), "topic": self.topic, "body": self.body}


class MemoryTopics:
    """One project's log; a context manager that serves it at ``url``."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.log: list[Stored] = []
        self.last = 0
        self.once: dict[str, int] = {}
        self.calls = 0
        self._http = Server(("127.0.0.1", 0), Handler)
        self._http.topics = self
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))

    def __enter__(self) -> "MemoryTopics":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def publish(self, topic: str, bodies: Sequence[str], key: str) -> int:
        """The first id."""
        with self.changed:
            if key not in self.once:
                self.once[key] = self.number(bodies)
                self.append(topic, bodies, self.once[key])
            return self.once[key]

    def number(self, bodies: Sequence[str]) -> int:
        self.last += len(bodies)
        return self.last - len(bodies) + 1

    def append(self, topic: str, bodies: Sequence[str], first: int) -> None:
        self.log += [Stored(id, topic, body) for id, body in enumerate(bodies, first)]
        self.log.sort()
        self.changed.notify_all()

    def read(self, after: int, pattern: str) -> list[Stored]:
        with self.changed:
            return [stored for stored in self.log if stored.id > after and fnmatch.fnmatch(stored.topic, pattern)]

    def follow(self, after: int | None, pattern: str) -> Iterator[list[Stored]]:
        """What comes, and an empty list now and then."""
        after = self.last if after is None else after
        while True:
            with self.changed:
                self.changed.wait_for(lambda after=after: self.last > after, HEARTBEAT)
            found = self.read(after, pattern)
            yield found
            after = found[-1].id if found else after

    def now_and_then(self) -> bool:
        self.calls += 1
        return self.calls % EVERY == 0


class CounterRace(MemoryTopics):
    """The race of the issue: takes the ids, and shows the messages only later."""

    def publish(self, topic: str, bodies: Sequence[str], key: str) -> int:
        with self.changed:
            known = key in self.once
            first = self.once[key] if known else self.once.setdefault(key, self.number(bodies))
        if not known:
            time.sleep(RACE)
            with self.changed:
                self.append(topic, bodies, first)
        return first


class SharedCounter(MemoryTopics):
    """Two posts may read the same counter."""

    def number(self, bodies: Sequence[str]) -> int:
        return super().number(bodies) - (1 if self.last and self.now_and_then() else 0)


class ForgottenKey(MemoryTopics):
    """A post that is repeated, since its answer was lost, is stored twice."""

    def publish(self, topic: str, bodies: Sequence[str], key: str) -> int:
        return super().publish(topic, bodies, f"{key} {time.monotonic()}")


class PieceByPiece(MemoryTopics):
    """Other posts come between the messages of one, whose ids are told as if they had not."""

    def publish(self, topic: str, bodies: Sequence[str], key: str) -> int:
        firsts = []
        for number, body in enumerate(bodies):
            firsts.append(super().publish(topic, [body], f"{key} {number}"))
            time.sleep(RACE / 3)
        return firsts[0]


class LateListener(MemoryTopics):
    """A stream reads the log, and only then begins to listen; what was published in between it never tells."""

    def follow(self, after: int | None, pattern: str) -> Iterator[list[Stored]]:
        if after is not None:
            yield self.read(after, pattern)
        time.sleep(RACE)
        yield from super().follow(None, pattern)


class ResumesAtLast(MemoryTopics):
    """A stream that is resumed tells the last message again."""

    def follow(self, after: int | None, pattern: str) -> Iterator[list[Stored]]:
        return super().follow(after and after - 1, pattern)


class LostPost(MemoryTopics):
    """Answers that a post is stored, and drops it."""

    def append(self, topic: str, bodies: Sequence[str], first: int) -> None:
        if len(bodies) < 2 or not self.now_and_then():
            super().append(topic, bodies, first)


class LeakyPattern(MemoryTopics):
    """A pattern that means too much."""

    def read(self, after: int, pattern: str) -> list[Stored]:
        return super().read(after, pattern.replace(".us", ".*"))


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    topics: MemoryTopics
    answers = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        bodies = [message["body"] for message in document["messages"]]
        base = self.path.removesuffix("/messages")
        key = self.headers["Idempotency-Key"]
        first = self.server.topics.publish(base.rpartition("/")[2], bodies, key)
        self.server.answers += 1
        if self.server.answers % EVERY == 0:
            self.close_connection = True
            return
        self.answer(201, {"resources": [f"{self.path}/{first + at}" for at in range(len(bodies))]})

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        named = re.fullmatch(r"/v2/topics/(.+)/(messages|stream)", parts.path)
        pattern = named[1] if named else query["match"]
        if named and named[2] == "messages":
            self.page(pattern, int(query["marker"]), int(query["limit"]))
        else:
            self.stream(pattern)

    def page(self, topic: str, marker: int, limit: int) -> None:
        found = self.server.topics.read(marker, topic)[:limit]
        if not found:
            time.sleep(PAGE)
        links = [{"rel": "next", "href": f"/?marker={found[-1].id if found else marker}"}]
        self.answer(200, {"messages": [stored.shown() for stored in found], "links": links})

    def stream(self, pattern: str) -> None:
        last = self.headers.get("Last-Event-ID")
        self.close_connection = True
        coming = self.server.topics.follow(int(last) if last else None, pattern)
        try:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for found in coming:
                lines = [f"id: {stored.id}\nevent: message\ndata: {json.dumps(stored.shown())}\n\n" for stored in found]
                text = "".join(lines) or ": still here\n\n"
                self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
        except OSError:
            return

    def answer(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
