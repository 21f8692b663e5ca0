# SPDX-License-Identifier: Apache-2.0
"""The sample of ``api-ref/pipelines.md``, run by ``zq pipeline run`` with the session of the tests."""

import json
import re
from typing import Any

import pytest

from tests.blocks import only
from tests.servers import ZqServer

pytest.importorskip("pyspark")

from zq.cli.pipeline import MASTER
from zq.client import Client
from zq.spark import session as sessions


def test_the_sample_of_the_page_runs_until_nothing_is_left(spark, command, monkeypatch, tmp_path) -> None:
    """The server has default options. Totals are a line of JSON; settings of the command line are passed to Spark."""
    (tmp_path / "job.py").write_text(only("api-ref/pipelines.md", "python"))
    assert "\nzq pipeline run job.py --until-empty\n" in only("api-ref/pipelines.md", "sh")
    given: list[Any] = []
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr(sessions, "start_session", lambda *words: given.append(words) or spark)
    with ZqServer(f"rocksdb://{tmp_path}/store") as server, Client(server.url, "acme") as client:
        client.queue("raw").post_many([{"item": "lamp", "price": 20, "count": 3}, {"price": 1}])
        place = ["--url", server.url, "--project", "acme", "--json"]
        code, out, err = command(*place, "pipeline", "run", tmp_path / "job.py", "--until-empty", "--conf=a.b=c")
        assert code == 0, err
        assert [message.body for message in client.queue("clean").list()] == [{"item": "lamp", "total": 60.0}]
        assert [message.reason for message in client.queue("raw-dlq").list()] == ["no order with an item"]
        assert command(*place, "pipeline", "run", tmp_path / "job.py", "--until-empty", "--quiet")[::2] == (0, "")
    assert json.loads(out) == {"rounds": 1, "taken": 2, "published": 1, "buried": 1}
    assert given == [("job", MASTER, {"a.b": "c"}), ("job", MASTER, {})]
    assert re.search(r"^zq: raw\.clean: 2 messages in [\d.]+ s, \d+/s\.$", err, re.MULTILINE)
