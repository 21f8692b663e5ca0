# SPDX-License-Identifier: Apache-2.0
"""Positions of logs: the end of a batch and the messages of a range, without Spark's processes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.servers import ZqServer
from tests.spark_python.conftest import LIMITS
from tests.stores import RedisServer
from zq.client import Client, Queue

pytest.importorskip("pyspark")

from pyspark.sql.datasource import GreaterThan

from zq.spark.browse import FilteringBatchReader, Log, split_range
from zq.spark.options import Connection, OptionParser, parse_reading_options
from zq.spark.rows import TOPIC_COLUMNS


def connection(url: str, project: str) -> Connection:
    return Connection(url, project, None, None, 5)


def holes(queue: Queue) -> None:
    """Post 300 messages, some live and some finished, with gaps in three places."""
    queue.create({"_history_ttl": 3600})
    for start in (0, 100, 200):
        queue.post_many(range(start, start + 100))
    messages = list(queue.list())
    queue.delete_messages([message.id for message in messages[50:60]])
    for message in messages[200:260:7]:
        queue.delete_message(message.id)


@pytest.mark.parametrize("state", ["live", "all", "history"])
def test_batches_follow_each_other_without_gap_or_overlap(server, project, client: Client, state: str) -> None:
    """Each batch except the last has the requested number of messages; together they have all, in order."""
    holes(client.queue("in"))
    log = Log(connection(server.url, project), "in", state)
    wanted = [message.id for message in every(client.queue("in"), state)]
    for most in (17, 40, 299, 1000):
        low, found, sizes = 0, list[str](), list[int]()
        while (scan := log.scan(low, most)).rows:
            parts = [log.between(*ends) for ends in split_range(low, scan.end, 3)]
            batch = [message.id for part in parts for page in part for message in page]
            assert (len(batch), scan.whole) == (scan.rows, scan.rows < most)
            found += batch
            sizes.append(len(batch))
            low = scan.end
        assert found == wanted, most
        assert set(sizes[:-1]) <= {most}
    assert log.last(0) == log.last(low - 1) == log.last(low) == low


def every(queue: Queue, state: str) -> list[Any]:
    reads: dict[str, Callable[[], Any]] = {"live": queue.list, "history": queue.history}
    return list(reads[state]() if state in reads else queue.history(living=True))


@pytest.fixture(scope="module")
def sparse() -> Iterator[ZqServer]:
    """Run a server on Redis, where the positions of two posts are far apart."""
    with RedisServer() as store, ZqServer(store.uri, config=LIMITS) as running:
        yield running


@pytest.mark.slow
def test_a_batch_counts_messages_and_not_positions(sparse: ZqServer, project) -> None:
    """The positions here are far apart."""
    with Client(sparse.url, project) as client:
        queue = client.queue("in")
        queue.create({"_history_ttl": 3600})
        for number in range(5):
            queue.post(number)
        first, *_, last = (message.sequence for message in queue.list())
    assert last - first > 10
    log = Log(connection(sparse.url, project), "in", "all")
    middle = log.scan(0, 3)
    end = log.scan(middle.end, 3)
    assert (middle.rows, end.rows, end.end) == (3, 2, last)
    assert sum(len(page) for page in log.between(0, middle.end)) == 3


def test_a_filter_beyond_the_end_finds_nothing(server, project, client: Client) -> None:
    """The rule applies to topics too, whose server refuses to begin beyond the end."""
    client.topic("news").publish("a")
    given = {"url": server.url, "project": project, "topic": "news", "pushdown": "true"}
    reader = FilteringBatchReader(parse_reading_options(OptionParser(given)), list(TOPIC_COLUMNS))
    assert len(reader.partitions()) == 1
    assert len(list(reader.pushFilters([GreaterThan(("seq",), 1000)]))) == 1
    assert reader.partitions() == []


def test_messages_of_a_topic_have_their_attributes(server, project, client: Client) -> None:
    """A message without attributes has null."""
    client.topic("news").publish("a", attributes={"n": 7})
    client.topic("news").publish("b")
    given = {"url": server.url, "project": project, "topic": "news"}
    reader = FilteringBatchReader(parse_reading_options(OptionParser(given)), list(TOPIC_COLUMNS))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    read = [value for batch in batches for value in batch.column("attributes").to_pylist()]
    assert [value and dict(value) for value in read] == [{"n": {"type": "Number", "value": "7"}}, None]
