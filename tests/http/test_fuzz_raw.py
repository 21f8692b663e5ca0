# SPDX-License-Identifier: Apache-2.0
"""Thousands of damaged requests, sent as bytes through sockets to both engines on every store.

Each connection sends a valid request, two damaged requests and a valid request that closes the connection, all at
once. The responses are never 5xx except for missing features and lack of space, no connection stays open, and the
objects of another project do not change. A campaign sends 5,000 requests to each engine, a daily run a third;
``ZQ_FUZZ=10`` sends ten times as many, ``ZQ_SEED`` others.
"""

import asyncio
import os
import re
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any
from urllib.parse import parse_qs
from uuid import uuid4

import pytest

from tests.http.mutants import FOR_KNOWN, SUBSCRIBER, Request, mutant, recorded, request
from tests.rotation import SEED, examples
from tests.servers import Answer, ZqServer, ask
from zq.http.openapi import document
from zq.model.limits import Limits

pytestmark = pytest.mark.slow

TIMES = int(os.environ.get("ZQ_FUZZ", "1"))
REQUESTS = examples(5000 * TIMES)
TOGETHER = 32
"""Number of simultaneous connections."""
BURST = 4
"""Number of requests per connection."""
QUIET = 0.5
"""Seconds without a response after which the client closes its side, because a body may be too short."""
PATIENCE = 60.0
"""Seconds within which the server must then close the connection, even on a busy machine."""
ALLOWED = {501, 503}
"""Allowed statuses from 500 on: missing features, and lack of space or store."""
TOLD = 5
"""Number of wrong responses that a failure prints."""
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
LENGTH = re.compile(rb"(?im)^content-length: *(\d+)\r?$")
ENDLESS = ("/v2/topics/{topic}/stream", "/v2/stream")
UNSENT = {"wait", "filters", ""}
"""Parameters that the requests omit; ``filters`` stands for names of any kind."""
SIGNED = f"[signed_url]\nsecret_key = {'k' * 40}\n"
"""Configuration of a server that accepts subscriptions."""
AGES = re.compile(r'"age": *\d+')


class Project:
    """A project with one object of every kind, created over HTTP."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self.ask("PUT", "/v2/queues/jobs", {"colour": "blue", "_history_ttl": 3600})
        posted = self.ask("POST", "/v2/queues/jobs/messages", {"messages": [self.message(n) for n in range(4)]})
        ids = [href.rsplit("/", 1)[1] for href in posted.document["resources"]]
        self.ask("DELETE", f"/v2/queues/jobs/messages/{ids[0]}")
        claim = self.ask("POST", "/v2/queues/jobs/claims?limit=1", {"ttl": 3600, "grace": 60})
        self.claim = claim.headers["location"].rsplit("/", 1)[1]
        self.held, self.free = ids[1], ids[3]
        self.ask("POST", "/v2/fences/etl")
        self.ask("PUT", "/v2/queues/jobs/claims/kept.1?limit=1&fence=etl:1", {"ttl": 3600, "grace": 60})
        self.ask("POST", "/v2/queues/jobs/messages", {"messages": [{**self.message(4), "delay": 800}]})
        self.ask("POST", "/v2/commits", {"producer": "etl", "batch": 1})
        self.ask("PUT", "/v2/topics/news", {"colour": "blue"})
        self.ask("POST", "/v2/topics/news/messages", {"messages": [self.message(9)]})
        subscribed = self.ask("POST", "/v2/queues/jobs/subscriptions", {"subscriber": SUBSCRIBER})
        self.subscription = subscribed.document["subscription_id"]

    @staticmethod
    def message(number: int) -> dict[str, Any]:
        return {"body": {"number": number}, "ttl": 7200}

    def ask(self, method: str, path: str, document: object = None) -> Answer:
        answer = ask(self.url, method, path, document, headers={"X-Project-ID": self.name})
        assert answer.status < 300, (method, path, answer)
        return answer

    def requests(self) -> list[Request]:
        return recorded(self.name, self.free, self.held, self.claim, self.subscription)

    def shown(self) -> list[str]:
        """Return the responses that show the whole content of the project, without ages."""
        everything = "limit=20&echo=true&include_claimed=true&include_delayed=true&detailed=true"
        paths = [
            *("/v2/queues?detailed=true", "/v2/topics?detailed=true", "/v2/queues/jobs", "/v2/queues/jobs/stats"),
            *(
                f"/v2/queues/jobs/messages?{everything}",
                "/v2/queues/jobs/history",
                f"/v2/queues/jobs/claims/{self.claim}",
            ),
            *("/v2/queues/jobs/claims/kept.1", "/v2/commits/etl", "/v2/queues/jobs/subscriptions"),
            *("/v2/topics/news", "/v2/topics/news/messages?detailed=true"),
        ]
        answers = [(path, ask(self.url, "GET", path, headers={"X-Project-ID": self.name})) for path in paths]
        return [AGES.sub("", f"{path} {answer.status} {answer.body.decode()}") for path, answer in answers]

    def fence(self) -> int:
        """Advance the fence and return its epoch."""
        return int(self.ask("POST", "/v2/fences/etl").document["epoch"])


async def exchange(port: int, sent: bytes) -> bytes:
    """Return all bytes that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = bytearray()
    try:
        writer.write(sent)
        try:
            async with asyncio.timeout(QUIET) as quiet:
                while chunk := await reader.read(65536):
                    heard += chunk
                    quiet.reschedule(asyncio.get_running_loop().time() + QUIET)
        except TimeoutError:
            writer.write_eof()
            async with asyncio.timeout(PATIENCE):
                while chunk := await reader.read(65536):
                    heard += chunk
    except (ConnectionError, BrokenPipeError):
        pass  # the server closed the connection without reading all input
    finally:
        writer.transport.abort()
    return bytes(heard)


def statuses(heard: bytes) -> list[tuple[int, bytes]]:
    """Return the status and the bytes of each response."""
    found = []
    while (begun := STATUS.search(heard)) is not None:
        head, _, rest = heard[begun.start() :].partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        # A response to HEAD has the length of the omitted body.
        size = int(length[1]) if length and not STATUS.match(rest) else 0
        found.append((int(begun[1]), head + b"\r\n\r\n" + rest[:size]))
        heard = rest[size:]
    return found


async def storm(port: int, requests: list[Request], count: int, seed: str) -> tuple[Counter[int], list[str]]:
    """Send ``count`` requests, half of them damaged.

    Return the number of responses by status, and descriptions of wrong responses with their requests.
    """
    random, came, wrong = Random(seed), Counter[int](), list[str]()
    last = request("closing", "GET", "/healthz")
    last = last._replace(headers=(*last.headers, b"Connection: close"))
    bursts = iter(range(count // BURST))

    async def one_of_many() -> None:
        for _ in bursts:
            parts = [random.choice(requests).raw(), mutant(random, requests), mutant(random, requests), last.raw()]
            for status, answer in statuses(await exchange(port, b"".join(parts))):
                came[status] += 1
                if status >= 500 and status not in ALLOWED:
                    wrong.append(f"{answer[:1000]!r} to {[part[:1000] for part in parts[1:3]]}")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(TOGETHER):
            tasks.create_task(one_of_many())
    return came, wrong


@pytest.mark.timeout(600 * TIMES)
@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_damaged_requests_break_nothing(store_uri: str, engine: str) -> None:
    """No response is a 5xx, no connection stays open, the log has no traceback, and the other project is unchanged."""
    with ZqServer(store_uri, engine=engine, config=SIGNED) as server:
        control, fuzzed = Project(server.url, "control"), Project(server.url, "fuzzed")
        before = control.shown()
        assert all(" 200 " in thing for thing in before)
        came, wrong = asyncio.run(storm(server.port, fuzzed.requests(), REQUESTS, f"{SEED} {engine}"))
        assert not wrong, f"ZQ_SEED={SEED}: {len(wrong)} of {came}:\n" + "\n".join(wrong[:TOLD])
        assert control.shown() == before
        assert control.fence() == 2
        assert server.ready()
        # Otherwise the damage was so severe that no request got past the parser.
        assert sum(count for status, count in came.items() if status < 300) > REQUESTS / 8, came
        assert sum(count for status, count in came.items() if 400 <= status < 500) > REQUESTS / 8, came
    assert "Traceback" not in server.output, server.output[-4000:]


def test_what_must_not_come_is_found_among_other_answers() -> None:
    """A 500 is found after a response to HEAD, which has a length but no body, and a response without a body."""
    heard = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
        b"HTTP/1.1 204 No Content\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 500 Oops\r\ncontent-length: 1\r\n\r\n?"
    )
    assert [status for status, _ in statuses(heard)] == [200, 204, 200, 500]
    assert statuses(heard)[3][1].endswith(b"?")


def test_every_route_is_damaged_with_every_parameter() -> None:
    """The requests cover all documented parameters except those of endless streams and waits."""
    described, sent = document(Limits()), recorded("fuzzed", "free", "held", "leased", "subscribed")
    for path, operations in described["paths"].items():
        shape = re.compile(re.sub(r"\{\w+\}", "[^/]+", path))
        for verb in operations.keys() & {"get", "head", "put", "post", "patch", "delete"}:
            given = [one for one in sent if one.method == verb.upper().encode() and shape.fullmatch(bare(one))]
            assert given or path in ENDLESS or path.startswith(FOR_KNOWN), f"{verb} {path}"
            names = {named(described, one) for one in operations[verb].get("parameters", ())} - UNSENT
            missed = {name for name in names if not any(name in told(one) for one in given)}
            assert not missed or path in ENDLESS or path.startswith(FOR_KNOWN), f"{verb} {path}: {missed}"


def bare(one: Request) -> str:
    return one.path.decode().partition("?")[0]


def told(one: Request) -> set[str]:
    """Return the names of the request's parameters and headers."""
    query = one.path.decode().partition("?")[2]
    return parse_qs(query).keys() | {line.partition(b":")[0].decode() for line in one.headers}


def named(described: dict[str, Any], parameter: dict[str, Any]) -> str:
    """Return the name of a parameter, referenced or inline; "" for a path parameter."""
    if "$ref" in parameter:
        parameter = described["components"]["parameters"][parameter["$ref"].rpartition("/")[2]]
    return "" if parameter["in"] == "path" else str(parameter["name"])


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("POST", "/v2/queues/jobs/messages", {"messages": [{"body": 1}]}),
        ("DELETE", "/v2/queues/jobs/claims/kept.1", None),
        ("PATCH", "/v2/queues/jobs", [{"op": "replace", "path": "/metadata/colour", "value": "red"}]),
        ("POST", "/v2/topics/news/messages", {"messages": [{"body": 1}]}),
        ("POST", "/v2/commits", {"producer": "etl", "batch": 2}),
    ],
)
def test_a_change_of_what_a_project_has_is_seen(control: Project, method: str, path: str, document: object) -> None:
    """The project's messages, claim, metadata, topic and producer are compared."""
    before = control.shown()
    control.ask(method, path, document)
    assert control.shown() != before


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZqServer]:
    """Return a server on the embedded store that receives no damaged requests."""
    with ZqServer(f"rocksdb://{tmp_path_factory.mktemp('alone')}/store", config=SIGNED) as server:
        yield server


@pytest.fixture
def control(alone: ZqServer) -> Project:
    return Project(alone.url, f"control-{uuid4().hex[:12]}")
