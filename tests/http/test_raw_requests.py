# SPDX-License-Identifier: Apache-2.0
"""The table of raw requests, sent to servers of each engine and of both parsers of gunicorn."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abilities import need
from tests.http.raw_requests import CLOSED, MARK, Row, rows
from tests.rotation import rotated
from tests.servers import ZqServer

pytestmark = pytest.mark.slow

PYTHON_PARSER = "import sys\nsys.modules['gunicorn_h1c'] = None\n"
"""A ``sitecustomize`` module that hides the C parser."""
PARSERS = ["gunicorn", "gunicorn with the Python parser"]
ENGINES = [*rotated(PARSERS, 1), "granian"]
WITHIN = 30.0
"""Seconds for a response. The deadline of the server for headers is longer, so it refuses no request."""
WITHIN_PENDING = 3.0
"""Seconds for the response to a request that the engine is known to accept."""
SILENCE = 0.5
"""Seconds without another byte after which a response is complete."""
TOGETHER = 32
"""Number of simultaneous connections."""
NO_ANSWER = b"no answer, and no end"


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, ZqServer]]:
    """Return an engine's name and a server that runs it."""
    name, _, parser = str(request.param).partition(" ")
    env = {"OS_SERVER__HEAD_TIMEOUT": "60"}
    if request.param == "gunicorn":
        need("gunicorn_h1c")
    if parser:
        Path(tmp_path, "sitecustomize.py").write_text(PYTHON_PARSER)
        env["PYTHONPATH"] = str(tmp_path)
    with ZqServer(f"rocksdb://{tmp_path}/store", engine=name, env=env) as server:
        yield name, server


async def exchange(port: int, raw: bytes, patience: float) -> bytes:
    """Send a request on a connection of its own. Return all bytes until the end or until a pause after a response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        writer.write(raw)
        while piece := await asyncio.wait_for(reader.read(65536), patience):
            received += piece
            patience = SILENCE
    except ConnectionResetError:
        pass
    except TimeoutError:
        if not received:
            return NO_ANSWER
    finally:
        writer.transport.abort()
    return received


async def answers(port: int, table: list[Row], engine: str) -> list[bytes]:
    """Send all requests of a table, ``TOGETHER`` at a time; return their responses in the order of the table."""
    places = asyncio.Semaphore(TOGETHER)

    async def one(row: Row) -> bytes:
        async with places:
            return await exchange(port, row.raw, WITHIN_PENDING if engine in row.pending else WITHIN)

    return list(await asyncio.gather(*map(one, table)))


def status(received: bytes) -> int:
    return int(received[9:12]) if received.startswith(b"HTTP/1.") else CLOSED


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_raw_requests_are_answered_as_the_table_says(engine: tuple[str, ZqServer]) -> None:
    """Every parser refuses the same requests and never answers 500. The table lists the exceptions of each engine."""
    name, server = engine
    table = rows()
    wrong = []
    for row, received in zip(table, asyncio.run(answers(server.port, table, name)), strict=True):
        found = mistake(row, received, name)
        if name in row.pending:
            found = "" if found else "it is refused now: take the engine out of the row's pending"
        if found:
            wrong.append(f"{row.name}: {found}; expected {sorted(row.expected)}; received {received[:300]!r}")
    assert not wrong, f"{len(wrong)} of {len(table)} rows failed:\n" + "\n".join(wrong)
    assert server.ready(), "a request has stopped the server"


def mistake(row: Row, got: bytes, engine: str) -> str:
    """Return the error in a response, or "". A refusal must have a title and a description and quote nothing.

    gunicorn's own refusals are pages of HTML, and Granian's parser refuses without a body.
    """
    if got == NO_ANSWER:
        return "there is no answer, and the connection stays open"
    found = status(got)
    if found not in row.expected:
        return f"the status is {found}"
    if found < 400 or engine == "gunicorn":
        return ""
    head, _, body = got.partition(b"\r\n\r\n")
    if MARK in got:
        return "it quotes what was sent"
    if not body:
        return ""
    told = {"title"} if found == 404 else {"title", "description"}
    if b"content-type: application/json" not in head.lower() or not told <= set(json.loads(body)):
        return "it is no JSON with a title and a sentence"
    return ""
