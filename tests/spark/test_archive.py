# SPDX-License-Identifier: Apache-2.0
"""Archive and report, on a server's history and on one whose metrics were counted by hand."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.blocks import only
from zq.client import Client
from zq.testing import Server

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from tests.servers import ZqServer
from tests.spark.jobs import drawn, invoke, told
from zq.jobs import report, tables


def rows(spark: Any, path: Path, table: str) -> list[tuple[Any, ...]]:
    """Return sequence, body and outcome of all rows; assert their days."""
    frame = tables.read(spark, str(path), table)
    moment = "finished" if table == "finished" else "created"
    assert frame.where(F.col(moment).cast("date") != F.col("day")).count() == 0
    more = [F.col(name) if name in frame.columns else F.lit(None) for name in ("body", "outcome")]
    return [tuple(row) for row in frame.orderBy("seq").select("seq", *more).collect()]


def test_an_archive_gets_what_is_new_once_and_keeps_what_it_has(spark, timed: Server, project, tmp_path) -> None:
    """The job died before it recorded the end of a batch, and the server has removed some of its messages since."""
    path = tmp_path / "archive"
    given = ["--url", timed.url, "--project", project, path]
    with Client(timed.url, project) as client:
        assert "No queue of the project keeps a history" in invoke("archive", *given).stderr
        queue = client.queue("in")
        queue.create({"_history_ttl": 600})
        first, *_ = queue.post_batch([{"n": 1}, "2", 3, 4])
        queue.delete_message(first)
        timed.clock.advance(400)
        queue.pop(1)
        assert told(invoke("archive", *given)) == [{"queue": "in", "posted": 4, "finished": 2}]
        for table in ("posted", "finished"):
            for log in (path / "_checkpoints" / table).rglob("commits/*0*"):
                log.unlink()
        timed.clock.advance(300)
        queue.pop(1)
        queue.post(5)
        again = told(invoke("archive", *given, "--fail-on-data-loss", "false"))
        assert again == [{"queue": "in", "posted": 5, "finished": 3}]
    assert rows(spark, path, "finished") == [(1, '{"n":1}', "deleted"), (2, '"2"', "popped"), (3, "3", "popped")]
    assert rows(spark, path, "posted") == [(number, None, None) for number in (1, 2, 3, 4, 5)]


HISTORY = [  # queue, seq, posted, finished, claims, outcome
    *(("in", number, "10:00", f"10:{number:02}", 1, "deleted") for number in range(1, 21)),
    ("in", 21, "10:30", "11:30", 4, "popped"),
    ("in", 22, "10:00", "12:00", 3, "dead_lettered"),
    ("out", 1, "11:00", "11:01", 0, "popped"),
]
ALIVE = [("in", 23, "11:00"), ("in", 24, "11:50"), ("dead", 1, "12:00")]
GONE = [("in", 25, "10:00"), ("in", 26, "11:59")]


def handmade(spark: Any, path: str) -> Any:
    """Create an archive with the history above, updated at 12:02; return its backlog.

    Messages have a TTL of one hour.
    """
    home = {"project": F.lit("acme"), "day": F.lit("2026-01-01").cast("date"), "batch": F.lit("x-0")}
    finished = spark.createDataFrame(
        HISTORY, "queue string, seq long, c string, f string, claim_count int, outcome string"
    )
    posted = spark.createDataFrame([*(row[:3] for row in HISTORY), *ALIVE, *GONE], "queue string, seq long, c string")
    for table, frame in (("finished", finished), ("posted", posted)):
        more = {"created": at("c"), "ttl": F.lit(3600), **({"finished": at("f")} if table == "finished" else {})}
        absent = {
            name: F.lit(None) for name in tables.column_names(table) if name not in {*frame.columns, *more, *home}
        }
        tables.write(frame.withColumns({**more, **absent, **home}), path, table)
    known = spark.createDataFrame([("in", "12:02"), ("out", "12:02")], "queue string, c string")
    tables.write(known.select(at("c").alias("at"), F.lit("acme").alias("project"), "queue"), path, "archived")
    alive = spark.createDataFrame(ALIVE, "queue string, seq long, c string").withColumns(
        {"project": F.lit("acme"), "created": at("c"), "ttl": F.lit(3600), "claim_count": F.lit(0)}
    )
    return alive.withColumn("origin", F.when(F.col("queue") == "dead", F.lit("in")))


def at(column: str) -> Any:
    return F.to_timestamp(F.concat(F.lit("2026-01-01 "), F.col(column)))


def test_a_report_says_what_a_small_history_holds(spark, tmp_path) -> None:
    """The report has the values counted by hand, and so has the command's, for a given time and without a server."""
    backlog = handmade(spark, str(tmp_path))
    found = {table: tables.read(spark, str(tmp_path), table) for table in tables.SCHEMAS}
    found["records"] = found["finished"]
    now = F.lit("2026-01-01 12:05:00").cast("timestamp")
    dead, in_, out = (row.asDict() for row in report.compute_queue_report(found, backlog, now).collect())
    nothing = dict.fromkeys((*report.PAST, *report.PRESENT), 0) | dict.fromkeys(("p50", "p95", "p99", "oldest"))
    assert dead == {
        **nothing,
        "project": "acme",
        "queue": "dead",
        "posted": 1,
        "waiting": 1,
        "expiring": 1,
        "oldest": 300,
    }
    assert out == {
        **{**nothing, "project": "acme", "queue": "out", "posted": 1, "finished": 1},
        **{"p50": 60.0, "p95": 60.0, "p99": 60.0},
    }
    assert in_ == {
        **{"project": "acme", "queue": "in", "posted": 26, "finished": 22, "p50": 660.0, "p95": 1200.0, "p99": 3600.0},
        **{"retried": 2, "retries": 5, "dead_lettered": 1, "expired": 1},
        **{"waiting": 2, "oldest": 3900, "expiring": 2, "dead_letters": 1},
    }
    words = ("--no-backlog", "--queue", "in", "--queue", "out", "--until", "2026-01-01T11:31")
    lines = told(invoke("report", tmp_path, *words))
    hours = [(line["queue"], line["hour"], line["posted"], line["finished"]) for line in lines if line["is"] == "hour"]
    assert hours == [
        *(("in", "2026-01-01T10:00:00Z", 23, 20), ("in", "2026-01-01T11:00:00Z", 1, 1)),
        ("out", "2026-01-01T11:00:00Z", 1, 1),
    ]
    assert [line["finished"] for line in lines if line["is"] == "queue"] == [21, 1]
    quarters = report.compute_throughput(found["posted"], found["finished"], 900).where("queue = 'in'").collect()
    assert [(f"{row.at:%H:%M}", row.posted, row.finished) for row in quarters] == [
        *(("10:00", 22, 14), ("10:15", 0, 6), ("10:30", 1, 0), ("11:00", 1, 0)),
        *(("11:30", 0, 1), ("11:45", 2, 0), ("12:00", 0, 1)),
    ]


def test_the_examples_of_the_reference_run(spark, monkeypatch, tmp_path) -> None:
    """The examples of spark.md run in order on a default server; each prints its output, and the pictures exist."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "orders.csv").write_text("id,item\n1,lamp\n2,chair\n3\n")
    export, *commands = (shlex.split(line) for line in only("api-ref/spark.md", "sh").splitlines())
    assert sorted(words[2] for words in commands) == [f"zq.jobs.{job}" for job in ("archive", "ingest", "report")]
    output, places = {}, ("data/*.csv", "rejected", "archive", "plots")
    with ZqServer(f"rocksdb://{tmp_path}/store") as server, Client(server.url, "acme") as client:
        for name, value in (word.split("=") for word in export[1:]):
            monkeypatch.setenv(name, value.replace("http://localhost:8888", server.url))
        client.queue("orders").create({"_history_ttl": 3600})
        for _, _, module, *words in commands:
            name = module.rpartition(".")[2]
            output[name] = told(invoke(name, *(tmp_path / word if word in places else word for word in words)))
            client.queue("orders").pop(1)
    assert output["ingest"] == [{"queue": "orders", "files": 1, "stored_before": 0, "messages": 2, "rejected": 1}]
    assert output["archive"] == [{"queue": "orders", "posted": 2, "finished": 1}]
    [line] = [line for line in output["report"] if line["is"] == "queue"]
    assert (line["posted"], line["finished"], line["waiting"], line["expired"]) == (2, 1, 0, 0)
    assert drawn(tmp_path / "plots") == ["dwell.png", "throughput.png", "trouble.png"]
