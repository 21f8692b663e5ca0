# SPDX-License-Identifier: Apache-2.0
"""Streams that claim messages from a queue: each is read, and with ackColumn each exactly once."""

from pathlib import Path
from typing import Any

import pytest

from tests.client.misbehaving import Proxy
from tests.servers import wait_for
from tests.spark.streams import SLOW, bodies, started, taking, writing
from zq.client import Client

pytest.importorskip("pyspark")


def test_a_stream_takes_all_that_there_is_and_settles_it(spark, client, options, finish) -> None:
    """The stream takes several batches of several claims, and settles the last batch too."""
    client.queue("in").post_many(range(250))
    finish(writing(taking(spark, options, maxMessagesPerBatch=100, claimSize=30).selectExpr("body"), options))
    assert sorted(map(int, bodies(client))) == list(range(250))
    assert client.queue("in").stats().total == 0


def test_rows_have_all_fields_of_messages(spark, client, options, finish) -> None:
    """A row has all columns.

    Messages outlive their claim, so the TTL has grown. ackColumn accepts the claim.
    """
    client.queue("in").post_many([{"n": 1}, "text", None], ttl=100)
    [first, *_] = client.queue("in").list()
    seen: list[Any] = []
    stream = taking(spark, options).writeStream.foreachBatch(lambda frame, _: seen.extend(frame.collect()))
    finish(stream)
    assert [row.body for row in seen] == ['{"n":1}', "text", None]
    row = seen[0]
    assert (row.id, row.seq, row.ttl, row.claim_count, row.queue) == (first.id, first.sequence, 360, 1, "in")
    assert row.created.timestamp() == pytest.approx(first.created.timestamp(), abs=0.01)
    assert row.claim.startswith("in/etl.")


def test_with_the_claims_column_reading_and_writing_are_one_step(spark, client, options, finish, tmp_path) -> None:
    """The source settles claims whose rows are all filtered out. A lost checkpoint entry does not repeat a batch."""
    client.queue("in").post_many(range(250))

    def copy() -> None:
        rows = taking(spark, options, maxMessagesPerBatch=100, claimSize=20)
        finish(writing(rows.where("cast(body as int) >= 50"), options, ackColumn="claim"))

    copy()
    assert sorted(map(int, bodies(client))) == list(range(50, 250))
    assert client.queue("in").stats().total == 0
    commits = sorted((file for file in (tmp_path / "checkpoint" / "commits").iterdir()), key=lambda file: file.name)
    last = max(int(file.name) for file in commits if file.name.isdigit())
    for file in commits:
        if file.name.strip(".").removesuffix(".crc") == str(last):
            file.unlink()
    client.queue("in").post_many(range(250, 260))
    copy()
    assert sorted(map(int, bodies(client))) == list(range(50, 260))


def releasing(folder: str, url: str, project: str) -> Any:
    """Return an SQL function that returns its text, and releases the claim of the first row."""
    from pyspark.sql.functions import udf

    def passed(body: str, claim: str) -> str:
        if not Path(folder, "released").exists():
            Path(folder, "released").touch()
            with Client(url, project) as client:
                client.queue("in").release(claim.partition("/")[2])
        return body

    return udf(passed, "string", useArrow=False)


def test_a_claim_that_lapses_in_work_refuses_the_batch(spark, server, client, options, finish, tmp_path) -> None:
    """The query fails and publishes nothing of the batch; after a restart each message is published once."""
    client.queue("in").post_many(range(20))
    release = releasing(str(tmp_path), server.url, options["project"])
    rows = taking(spark, options).withColumn("body", release("body", "claim"))
    with pytest.raises(Exception, match="ClaimLapsed"):
        finish(writing(rows, options, ackColumn="claim"))
    assert bodies(client) == []
    finish(writing(rows, options, ackColumn="claim"))
    assert sorted(map(int, bodies(client))) == list(range(20))


def test_a_second_query_of_the_same_consumer_stops_the_first(spark, client, options, finish, tmp_path) -> None:
    """The first query fails with an error that names the cause; the second one continues."""
    client.queue("in").post("a")
    stream = writing(taking(spark, options, wait=1), options).option("checkpointLocation", f"{tmp_path}/first")
    first = started(stream, lambda: bodies(client) == ["a"], "the first query works")
    try:
        wait_for(lambda: client.queue("in").stats().total == 0, SLOW, "it has settled")
        finish(writing(taking(spark, options), options))
        wait_for(lambda: not first.isActive, SLOW, "the first query has stopped")
        assert "Another query has started as consumer etl of queue in" in str(first.exception())
        client.queue("in").post("b")
        finish(writing(taking(spark, options), options))
        assert bodies(client) == ["a", "b"]
    finally:
        first.stop()


def test_an_idle_stream_waits_at_the_server(spark, client, options, proxy: Proxy, tmp_path) -> None:
    """The stream uses long polls, gets a message at once, and survives the deletion of its queue."""
    stream = writing(taking(spark, {**options, "url": proxy.url}, wait=10), options)
    stream = stream.option("checkpointLocation", f"{tmp_path}/checkpoint")
    query = started(stream, lambda: any(method == "PUT" for method, *_ in proxy.seen), "it asks for messages")
    try:
        client.queue("in").post("a")
        wait_for(lambda: bodies(client) == ["a"], SLOW, "the message is copied")
        client.queue("in").delete()
        client.queue("in").post("b")
        wait_for(lambda: bodies(client) == ["a", "b"], SLOW, "the message is copied")
        assert sum(method == "PUT" for method, *_ in proxy.seen) < 12
        assert query.isActive
    finally:
        query.stop()


def test_a_schema_of_the_users_own_chooses_columns(spark, client, options, finish) -> None:
    """The columns may be in any order."""
    client.queue("in").post("a")
    reader = spark.readStream.format("zq").options(**options, consumer="etl", queue="in")
    finish(writing(reader.schema("queue string, body string").load(), options))
    assert bodies(client) == ["a"]
