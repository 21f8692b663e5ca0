# SPDX-License-Identifier: Apache-2.0
"""Reading without claims: tables of messages, history and topics, and streams that follow them."""

from datetime import datetime
from typing import Any

import pytest

from zq.client import Client

pytest.importorskip("pyspark")


def table(spark: Any, options: dict[str, str], **more: Any) -> Any:
    return spark.read.format("zq").options(**{**options, **more}).load()


def column(frame: Any, name: str = "body") -> list[Any]:
    return sorted(row[name] for row in frame.select(name).collect())


def archive(spark: Any, client: Client) -> None:
    """Post 100 messages: 60 are deleted in reverse order, 20 popped, and 20 live, of which 5 are claimed."""
    queue = client.queue("in")
    queue.create({"_history_ttl": 3600})
    queue.post_many(range(100))
    claim = queue.claim(60)
    for message in reversed(claim.messages):
        queue.settle(claim.id, delete=[message.id])
    queue.pop(20)
    queue.claim(5)


def test_living_messages_are_a_table(spark, client, options) -> None:
    """The table has all messages, with claimed and delayed ones, in the requested partitions; none is claimed."""
    client.queue("in").create({"_default_message_delay": 60})
    client.queue("in").post_many(range(2500), delay=0)
    client.queue("in").post("late")
    client.queue("in").claim(100)
    frame = table(spark, options, queue="in", numPartitions=3)
    assert frame.rdd.getNumPartitions() == 3
    assert column(frame) == sorted([*map(str, range(2500)), "late"])
    assert frame.where("seq <= 10").count() == 10
    assert client.queue("in").stats().claimed == 100
    assert table(spark, options, queue="none").count() == 0


def test_dead_letters_tell_where_they_come_from_and_why(spark, client, options) -> None:
    """The table is that of the dead-letter queue."""
    client.queue("in").create({"_dead_letter_queue": "dead", "_max_claim_count": 3})
    client.queue("in").post("poison")
    claim = client.queue("in").claim()
    from zq.wire.extensions import BuryTerms

    client.queue("in").settle(claim.id, bury=[BuryTerms(claim.messages[0].id, "it does not parse")])
    [row] = table(spark, options, queue="dead").collect()
    assert (row.body, row.origin, row.origin_claim_count, row.reason) == ("poison", "in", 1, "it does not parse")


def test_history_is_a_table_of_what_finished(spark, client, options) -> None:
    """A history entry has its outcome and time; with state ``all``, live messages are in the table too."""
    archive(spark, client)
    finished = table(spark, options, queue="in", state="history")
    assert {row.outcome: row["count"] for row in finished.groupBy("outcome").count().collect()} == {
        "deleted": 60,
        "popped": 20,
    }
    assert finished.where("finished >= created").count() == 80
    everything = table(spark, options, queue="in", state="all", numPartitions=7)
    assert column(everything, "seq") == list(range(1, 101))
    assert everything.where("outcome is null").count() == 20


def test_the_option_determines_the_type_of_bodies(spark, client, options) -> None:
    """A body is JSON text, or a variant whose members SQL can read."""
    client.queue("in").post({"n": 1})
    [row] = table(spark, options, queue="in", bodyType="binary").collect()
    assert bytes(row.body) == b'{"n":1}'
    frame = table(spark, options, queue="in", bodyType="variant")
    assert frame.selectExpr("variant_get(body, '$.n', 'int') n").collect()[0].n == 1


def test_filters_narrow_what_is_read(spark, client, options, proxy) -> None:
    """Filters on sequences and on times in the history are pushed down; the rows are the same as without."""
    archive(spark, client)
    there = {**options, "url": proxy.url}
    for state in ("live", "all"):
        some = table(spark, there, queue="in", state=state, pushdown="true").where("seq > 90 and seq <= 95")
        assert column(some, "seq") == [91, 92, 93, 94, 95]
    assert not any("marker=0" in path and "limit=1&" not in path for _, path, _ in proxy.seen)
    history = table(spark, options, queue="in", state="history")
    moments = [row.finished for row in history.orderBy("finished").collect()]
    middle: datetime = moments[40]
    bound = f"timestamp'{middle.isoformat(sep=' ')}'"
    for compare in (">", ">=", "<", "<="):
        where = f"finished {compare} {bound}"
        pushed = table(spark, there, queue="in", state="history", pushdown="true").where(where)
        assert column(pushed, "seq") == column(history.where(where), "seq")
    assert any("since=" in path for _, path, _ in proxy.seen)
    assert any("until=" in path for _, path, _ in proxy.seen)


def test_a_stream_follows_a_queue_with_history(spark, client, options, finish, tmp_path) -> None:
    """Messages are in the order of posting, each once, whatever happened to them between two runs."""
    archive(spark, client)

    def copy() -> None:
        tail = spark.readStream.format("zq").options(**options, queue="in", mode="tail", maxMessagesPerBatch=60).load()
        finish(tail.writeStream.format("parquet").option("path", f"{tmp_path}/archive"))

    copy()
    client.queue("in").post_many(range(100, 150))
    client.queue("in").pop(70)
    copy()
    assert column(spark.read.parquet(f"{tmp_path}/archive"), "seq") == list(range(1, 151))
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == 3


def test_a_stream_follows_a_topic(spark, client, options, finish) -> None:
    """The stream begins at its start offset and omits other topics; the table has the whole topic."""
    topic = client.topic("news")
    for number in range(10):
        topic.publish(number)
        client.topic("other").publish("x")
    third = list(topic.list())[2].sequence
    tail = spark.readStream.format("zq").options(**options, topic="news", mode="tail", startingOffset=third).load()
    finish(tail.selectExpr("body").writeStream.format("zq").options(**options, queue="out"))
    assert sorted(message.body for message in client.queue("out").list()) == [str(number) for number in range(3, 10)]
    assert table(spark, options, topic="news").count() == 10
