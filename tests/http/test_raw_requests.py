# SPDX-License-Identifier: Apache-2.0
"""The table of raw requests against real servers: each engine, and both parsers of gunicorn."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abilities import need
from tests.http.raw_requests import CLOSED, MARK, Row, rows
from tests.servers import ZqServer

PYTHON_PARSER = "import sys\nsys.modules['gunicorn_h1c'] = None\n"
"""A ``sitecustomize`` under which the C parser is not installed."""
ENGINES = ["gunicorn", "gunicorn with the Python parser", "granian"]
WITHIN = 30.0
"""Seconds for an answer; beyond the deadline of a head, which must not be what refuses."""


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ZqServer]]:
    """An engine's name and a server of it."""
    name, _, parser = str(request.param).partition(" ")
    folder = tmp_path_factory.mktemp("raw")
    env = {"OS_SERVER__HEAD_TIMEOUT": "60"}
    if request.param == "gunicorn":
        need("gunicorn_h1c")
    if parser:
        Path(folder, "sitecustomize.py").write_text(PYTHON_PARSER)
        env["PYTHONPATH"] = str(folder)
    with ZqServer(f"rocksdb://{folder}/store", engine=name, env=env) as server:
        yield name, server


def answer(server: ZqServer, raw: bytes) -> bytes:
    """All that comes back until the connection is closed, or one answer and a pause."""
    got = b""
    with socket.create_connection(("127.0.0.1", server.port), WITHIN) as connection:
        connection.sendall(raw)
        try:
            while piece := connection.recv(65536):
                got += piece
                connection.settimeout(0.05)
        except TimeoutError:
            assert got, "no answer, and no end"
        except ConnectionResetError:
            pass
    return got


def status(got: bytes) -> int:
    return int(got[9:12]) if got.startswith(b"HTTP/1.") else CLOSED


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_a_raw_request_is_answered_as_the_table_says(engine: tuple[str, ZqServer], row: Row) -> None:
    """Whatever parses it: the same refusal, and never a 500. What an engine does not do yet is said in the table."""
    name, server = engine
    got = answer(server, row.raw)
    wrong = mistake(row, got, may_be_bare=name == "granian")
    if name in row.pending:
        assert wrong, "it does now: take the engine out of the row's pending"
    else:
        assert not wrong, (wrong, got[:500])


def mistake(row: Row, got: bytes, *, may_be_bare: bool) -> str:
    """What is wrong with an answer; "" if nothing is. A refusal has a title and a sentence and quotes nothing.

    ``may_be_bare``: the engine may refuse without a body, since its parser answers before anybody is asked.
    """
    found = status(got)
    if found not in row.expected:
        return f"the status is {found}"
    if found < 400:
        return ""
    head, _, body = got.partition(b"\r\n\r\n")
    if MARK in got:
        return "it quotes what was sent"
    if may_be_bare and not body:
        return ""
    told = {"title"} if found == 404 else {"title", "description"}
    if b"content-type: application/json" not in head.lower() or not told <= set(json.loads(body)):
        return "it is no JSON with a title and a sentence"
    return ""


def test_the_server_serves_after_all_of_it(engine: tuple[str, ZqServer]) -> None:
    """The last test of the module: nothing above has stopped the server."""
    assert engine[1].ready()
