# SPDX-License-Identifier: Apache-2.0
"""Positions: where a batch ends, what a range holds, and that what is gone is told. Without Spark's processes."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.client.conftest import Timed, timed  # noqa: F401
from zq.client import Client, Queue

pytest.importorskip("pyspark")

from zq.spark.logs import FAR, Gap, Log, split
from zq.spark.options import Connection, Given, reading_options
from zq.spark.rows import FINISHED, PUBLISHED
from zq.spark.tail import Lost, Tail


def connection(url: str, project: str) -> Connection:
    return Connection(url, project, None, None, 5)


def tail(url: str, project: str, **more: Any) -> Tail:
    given = {"url": url, "project": project, "mode": "tail", "wait": "0", **more}
    return Tail(reading_options(Given(given)), list(PUBLISHED if "topic" in more else FINISHED))


def step(stream: Tail, start: dict[str, Any]) -> dict[str, Any]:
    return stream.latestOffset(start, stream.getDefaultReadLimit())


def holes(queue: Queue) -> None:
    """300 messages of which some lived and some finished; in three places there is nothing."""
    queue.create({"_history_ttl": 3600})
    for start in (0, 100, 200):
        queue.post_many(range(start, start + 100))
    messages = list(queue.list())
    queue.delete_messages([message.id for message in messages[50:60]])
    for message in messages[200:260:7]:
        queue.delete_message(message.id)


@pytest.mark.parametrize("state", ["live", "all", "history"])
def test_batches_follow_each_other_without_gap_or_overlap(server, project, client: Client, state: str) -> None:
    """Each holds at least one message and at most as many as wanted; together they hold all, in order."""
    holes(client.queue("in"))
    log = Log(connection(server.url, project), "in", state)
    wanted = [message.id for message in every(client.queue("in"), state)]
    for most in (1, 3, 40, 299, 1000):
        low, found, sizes = 0, list[str](), list[int]()
        while (high := log.end(low, most)) > low:
            parts = [log.between(*ends) for ends in split(low, high, 3)]
            batch = [message.id for part in parts for page in part for message in page]
            found += batch
            sizes.append(len(batch))
            low = high
        assert found == wanted, most
        assert all(0 < size <= most for size in sizes)
        assert len(sizes) <= 1 + 2 * len(wanted) // most
    assert log.end(0, FAR) == log.end(low - 1, FAR)


def every(queue: Queue, state: str) -> list[Any]:
    reads: dict[str, Callable[[], Any]] = {"live": queue.list, "history": queue.history}
    return list(reads[state]() if state in reads else queue.history(living=True))


def test_records_that_may_be_gone_stop_a_stream(timed: Timed, project) -> None:  # noqa: F811
    """When it comes back later than records are kept, and positions are missing. By option it goes on."""
    with Client(timed.url, project) as client:
        queue = client.queue("in")
        queue.create({"_history_ttl": 100})
        queue.post_batch(range(3))
        first = step(tail(timed.url, project, queue="in"), {"after": 0, "seen": 0})
        assert first["after"] == 3
        queue.post("new")
        timed.clock.advance(1000)
        assert step(tail(timed.url, project, queue="in"), first)["after"] == 4  # late, and nothing is missing
        queue.pop(10)
        queue.post("newer")
        timed.clock.advance(90)
        assert step(tail(timed.url, project, queue="in"), first)["after"] == 5  # the record is there still
        timed.clock.advance(90)
        with pytest.raises(Lost, match="Queue in keeps records for 100 seconds"):
            step(tail(timed.url, project, queue="in"), first)
        assert step(tail(timed.url, project, queue="in", failOnDataLoss="false"), first)["after"] == 5


def test_messages_that_have_fallen_off_a_topic_stop_a_stream(server, project, client: Client) -> None:
    """With a sentence; by option it goes on with what is left."""
    topic = client.topic("news")
    topic.publish_many(range(10))
    first = step(tail(server.url, project, topic="news"), {"after": 0, "seen": 0})
    topic.publish_many(range(3000))
    with pytest.raises(Gap, match="Messages of topic news behind"):
        step(tail(server.url, project, topic="news"), first)
    stream = tail(server.url, project, topic="news", failOnDataLoss="false")
    end = step(stream, first)
    read = sum(batch.num_rows for part in stream.partitions(first, end) for batch in stream.read(part))
    assert 900 < read < 3000


def test_a_stream_may_begin_at_the_end(server, project, client: Client) -> None:
    """And asks for it once: Spark wants the same answer twice."""
    client.queue("in").create({"_history_ttl": 600})
    client.queue("in").post_batch(range(5))
    stream = tail(server.url, project, queue="in", startingOffset="latest")
    first = stream.initialOffset()
    client.queue("in").post("new")
    assert stream.initialOffset() == first == {"after": 5, "seen": 0}
    assert step(stream, first)["after"] == 6
    assert stream.reportLatestOffset() == {"after": 6}
