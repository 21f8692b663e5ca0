# SPDX-License-Identifier: Apache-2.0
"""Writing rows to queues: the messages that arrive, and failures, which neither duplicate nor leave messages."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.client.misbehaving import BUSY, LOST_ANSWER, Proxy
from tests.rotation import rotated
from zq.client import Client, Queue

pytest.importorskip("pyspark")

FAILURE = "A body of type binary must contain JSON"


def bodies(queue: Queue) -> list[Any]:
    return [message.body for message in queue.list(page=1000, delayed=True)]


def failing(folder: Path, attempts: int, how: str) -> Any:
    """Return an SQL function that returns its JSON, but fails or ends its process at 19000 in the first attempts."""
    from pyspark.sql.functions import udf

    def passed(body: str) -> bytes:
        from pyspark import TaskContext

        if body == "19000" and TaskContext.get().attemptNumber() < attempts:
            (folder / "failed").touch()
            if how == "dies":
                os._exit(1)
            return b"{"
        return body.encode()

    return udf(passed, "binary", useArrow=False)


def numbers(spark: Any, count: int, partitions: int = 2) -> Any:
    return spark.range(0, count, 1, partitions).selectExpr("cast(id as string) body")


def test_rows_arrive_as_messages_in_the_order_of_their_partitions(spark, client, options) -> None:
    """The rows need several requests, by number and by the queue's limit in bytes."""
    client.queue("out").create({"_max_messages_post_size": 2000})
    numbers(spark, 2500).write.format("zq").options(**options, queue="out").mode("append").save()
    assert bodies(client.queue("out")) == [str(number) for number in range(2500)]
    numbers(spark, 2500).write.format("zq").options(**options).mode("append").save("large")
    assert bodies(client.queue("large")) == [str(number) for number in range(2500)]


def test_columns_set_queue_ttl_and_delay_of_a_row(spark, client, options) -> None:
    """``queueColumn``, ``ttlColumn`` and ``delayColumn`` override the options, unless they are null."""
    rows = [("a", "left", 100, 0), ("b", "right", None, 0), ("c", None, 300, 60)]
    frame = spark.createDataFrame(rows, "body string, place string, life int, later int").coalesce(1)
    writer = frame.write.format("zq").options(**options, queue="rest", ttl=200, queueColumn="place")
    client.queue("rest").create({"_default_message_delay": 1})  # a queue without this rule ignores delays
    writer.options(ttlColumn="life", delayColumn="later").mode("append").save()
    found = {
        name: [(message.body, message.ttl) for message in client.queue(name).list(delayed=True)]
        for name in ("left", "right", "rest")
    }
    assert found == {"left": [("a", 100)], "right": [("b", 200)], "rest": [("c", 300)]}
    assert list(client.queue("rest").list()) == []


def test_bodies_keep_their_types(spark, client, options) -> None:
    """Structs, variants and binary JSON become JSON values, text stays text, and null is null."""
    frame = spark.sql(
        "select struct(1 as a, array('x') as b, map('k', 2) as c) body, parse_json('{\"n\":[1,null]}') v, "
        "cast('[1, 2]' as binary) raw, 'text' t, cast(null as string) nothing"
    )
    for column in ("body", "v", "raw", "t", "nothing"):
        frame.write.format("zq").options(**options, queue="out", bodyColumn=column).mode("append").save()
    assert bodies(client.queue("out")) == [{"a": 1, "b": ["x"], "c": {"k": 2}}, {"n": [1, None]}, [1, 2], "text", None]


@pytest.mark.parametrize("zone", rotated(["Europe/Berlin", "Europe/Amsterdam", "Asia/Kolkata"], 1))
def test_moments_before_standard_time_are_written_in_utc(spark, client, options, zone: str) -> None:
    """Local mean time has an offset with seconds.

    The cases are single timestamps and those in structs, arrays and maps.
    """
    expected = datetime(1880, 6, 1, 12, 30, 15, tzinfo=UTC)
    moment = f"timestamp'{expected:%Y-%m-%d %H:%M:%S} UTC'"
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for body in (moment, f"struct(array({moment}) as a, map('k', {moment}) as m, 1.5 as n, 'text' as t)"):
            frame = spark.sql(f"select {body} body").coalesce(1)
            frame.write.format("zq").options(**options, queue="out").mode("append").save()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    alone, nested = bodies(client.queue("out"))
    found = [alone, nested["a"][0], nested["m"]["k"]]
    assert [datetime.fromisoformat(text) for text in found] == [expected] * 3
    assert all(text.endswith("Z") for text in found)


@pytest.mark.parametrize(
    "body",
    rotated(
        [
            "cast('NaN' as double)",
            "struct(1 as a, array(cast('Infinity' as double)) as b)",
            "map('k', cast('-Infinity' as float))",
            "to_variant_object(struct(cast('Infinity' as double) as a))",
            "cast('[1e999]' as binary)",
        ],
        2,
    ),
)
def test_numbers_that_json_cannot_hold_fail_the_job(spark, client, options, body: str) -> None:
    """A job with such a number stores nothing; the number does not become null."""
    frame = spark.sql(f"select {body} body").coalesce(1)
    with pytest.raises(Exception, match=r"which JSON cannot represent|must contain JSON"):
        frame.write.format("zq").options(**options, queue="out").mode("append").save()
    assert bodies(client.queue("out")) == []


def stages(proxy: Proxy) -> list[str]:
    """Return the names of all stages with a post."""
    return sorted({path.partition("stage=")[2] for method, path, _ in proxy.seen if method == "POST" and "=" in path})


@pytest.mark.parametrize("how", rotated(["fails", "dies"], 1))
def test_a_task_that_is_tried_again_doubles_nothing(spark, client, options, tmp_path, proxy: Proxy, how: str) -> None:
    """The task fails after some of its rows were sent."""
    client.queue("out").create({"_max_messages_post_size": 20_000})
    frame = numbers(spark, 20_000).select(failing(tmp_path, 1, how)("body").alias("body"))
    frame.write.format("zq").options(**{**options, "url": proxy.url}, queue="out").mode("append").save()
    assert (tmp_path / "failed").exists()
    tried = [stage.split(".")[-3:-1] for stage in stages(proxy)]
    assert tried == [["0", "0"], ["1", "0"], ["1", "1"]] or (how == "dies" and ["1", "1"] in tried)
    assert sorted(bodies(client.queue("out"))) == list(range(20_000))


def test_a_job_that_fails_leaves_nothing(spark, client, options, tmp_path, proxy: Proxy) -> None:
    """Every attempt fails after some of its rows were sent: no message is visible, and all stages are dropped."""
    frame = numbers(spark, 20_000, 1).select(failing(tmp_path, 9, "fails")("body").alias("body"))
    client.queue("out").create({"_max_messages_post_size": 20_000})
    with pytest.raises(Exception, match=FAILURE):
        frame.write.format("zq").options(**{**options, "url": proxy.url}, queue="out").mode("append").save()
    assert bodies(client.queue("out")) == []
    dropped = {path.rpartition("/")[2] for method, path, _ in proxy.seen if method == "DELETE"}
    assert len(stages(proxy)) == 3
    assert dropped.issuperset(stages(proxy))


def test_a_job_that_is_run_again_under_its_key_does_nothing(spark, client, options) -> None:
    """Schedulers repeat jobs in this way."""
    for _ in range(2):
        frame = numbers(spark, 10)
        frame.write.format("zq").options(**options, queue="out", idempotencyKey="night-1").mode("append").save()
    assert len(bodies(client.queue("out"))) == 10
    assert client.committed("night-1").published == 10


def test_answers_that_are_lost_and_refusals_that_pass_double_nothing(spark, client, options, proxy: Proxy) -> None:
    """Replies to the first posts and to commits are lost, and some of these requests are refused at first."""
    proxy.plan(LOST_ANSWER, BUSY, LOST_ANSWER, LOST_ANSWER, BUSY)
    proxy.commits.extend([LOST_ANSWER, BUSY])
    numbers(spark, 1000).write.format("zq").options(**{**options, "url": proxy.url}).mode("append").save("out")
    assert not proxy.troubles
    assert not proxy.commits
    assert sorted(map(int, bodies(client.queue("out")))) == list(range(1000))


def test_empty_partitions_and_empty_frames_are_written(spark, client, options) -> None:
    """An empty partition creates no stage; a frame without rows creates no queue."""
    numbers(spark, 10).where("body = '7'").write.format("zq").options(**options).mode("append").save("out")
    assert bodies(client.queue("out")) == ["7"]
    numbers(spark, 10).where("body = 'x'").write.format("zq").options(**options).mode("append").save("none")
    assert not client.queue("none").exists()


def test_a_body_that_is_too_large_is_named_by_the_server(spark, client, options) -> None:
    """Nothing of the job is stored."""
    client.queue("out").create({"_max_messages_post_size": 100})
    frame = spark.sql("select repeat('x', 200) body union all select 'y'")
    with pytest.raises(Exception, match=r"\b100\b"):
        frame.write.format("zq").options(**options).mode("append").save("out")
    assert bodies(client.queue("out")) == []


def test_a_server_that_is_down_fails_the_job_with_its_address(spark, project) -> None:
    """The job fails after its retries, here none."""
    options = {"url": "http://127.0.0.1:9", "project": project, "retryFor": "0", "queue": "out"}
    with pytest.raises(Exception, match=r"The server at 127\.0\.0\.1:9 cannot be reached"):
        numbers(spark, 1).write.format("zq").options(**options).mode("append").save()


def test_a_stream_publishes_each_batch_once(spark, client: Client, options, finish, tmp_path) -> None:
    """The stream publishes rows of files; a lost checkpoint entry does not publish a batch again."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1").write_text("a\nb\n")
    (tmp_path / "in" / "2").write_text("c\n")

    def copy() -> None:
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(f"{tmp_path}/in")
        finish(lines.selectExpr("value body").writeStream.format("zq").options(**options, queue="out"))

    copy()
    assert sorted(bodies(client.queue("out"))) == ["a", "b", "c"]
    for log in (tmp_path / "checkpoint" / "commits").iterdir():
        if log.name in ("1", ".1.crc"):
            log.unlink()
    copy()
    assert sorted(bodies(client.queue("out"))) == ["a", "b", "c"]


def test_each_batch_has_a_traceparent_of_its_own_with_foreach_batch(spark, client, options, finish) -> None:
    client.queue("in").post_many("ab")
    stream = spark.readStream.format("zq").options(**options, consumer="each", maxMessagesPerBatch=1, claimSize=1)

    def write(rows: Any, number: int) -> None:
        parent = f"00-{'1' * 32}-{number + 1:016x}-01"
        writer = rows.select("body").write.format("zq").options(**options, traceparent=parent)
        writer.mode("append").save("out")

    finish(stream.load("in").writeStream.foreachBatch(write))
    found = {message.body: message.attributes["traceparent"][-5:] for message in client.queue("out").list()}
    assert found == {"a": "01-01", "b": "02-01"}
    assert bodies(client.queue("in")) == []


def test_decimals_and_floats_arrive_as_documented(spark, client, options) -> None:
    """Each expression of the table in spark.md has the body in its row."""
    page = (Path(__file__).parents[2] / "api-ref" / "spark.md").read_text()
    table = page.partition("| Column | Expression | Body |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [[cell.strip("` ") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert len(rows) == 5
    typed = "select cast('1.10' as decimal(10,2)) amount, cast('0.1' as float) rate"
    for number, (_, expression, body) in enumerate(rows):
        spark.sql(typed).selectExpr(f"{expression} body").write.format("zq").options(**options).mode("append").save(
            f"typed{number}"
        )
        [message] = client.queue(f"typed{number}").list()
        assert message.content.decode() == body
