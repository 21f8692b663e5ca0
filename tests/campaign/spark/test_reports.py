# SPDX-License-Identifier: Apache-2.0
"""Reports on some of a project's queues."""

import pytest

pytest.importorskip("pyspark")

from tests.spark.jobs import invoke, told
from tests.spark.test_archive import handmade
from zq.wire.extensions import BuryTerms


def test_a_report_on_one_queue_finds_its_dead_letters(spark, server, client, project, tmp_path) -> None:
    """The report counts dead letters without a row for their queue; a queue that is named twice counts once."""
    handmade(spark, str(tmp_path))
    client.queue("raw").create({"_dead_letter_queue": "raw-dlq"})
    client.queue("raw").post_batch([1, 2])
    claim = client.queue("raw").claim(1)
    client.queue("raw").settle(claim.id, bury=[BuryTerms(claim.messages[0].id, "bad")])
    asked: list[str] = []
    given = ("--url", server.url, "--project", project, tmp_path)
    for queues in (["raw", "raw"], ["raw-dlq"]):
        lines = told(invoke("report", *given, *(f"--queue={queue}" for queue in queues)))
        asked += [f"{line['queue']} {line['waiting']} {line['dead_letters']}" for line in lines]
    assert asked == ["raw 1 1", "raw-dlq 1 0"]
