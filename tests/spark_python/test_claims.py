# SPDX-License-Identifier: Apache-2.0
"""Claims of a claiming stream, without Spark: made, found again, renewed, settled, released."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.client.conftest import timed  # noqa: F401
from tests.client.misbehaving import Proxy
from tests.servers import wait_for
from zq.client import Client
from zq.errors import Fenced, Invalid
from zq.testing import Server

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadMaxRows

from zq.spark.claiming import ClaimReader
from zq.spark.claims import Heartbeat
from zq.spark.options import Connection, OptionParser, parse_claiming_options
from zq.spark.rows import CLAIMED_COLUMNS

LIMIT = ReadMaxRows(20)
SCHEMA = list(CLAIMED_COLUMNS)


@pytest.fixture
def reader(options) -> Iterator[Callable[..., ClaimReader]]:
    """Yield a function that makes readers of one stream, one for each start of its query."""
    made: list[ClaimReader] = []

    def another(**more: str) -> ClaimReader:
        given = {**options, "consumer": "etl", "queue": "in", "claimSize": "20", "wait": "0", **more}
        made.append(ClaimReader(parse_claiming_options(OptionParser(given)), SCHEMA))
        return made[-1]

    yield another
    for one in made:
        one.stop()


def read(reader: ClaimReader, start: Any, end: Any) -> list[int]:
    rows = [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(int(row["body"]) for row in rows)


def held(client: Client) -> int:
    return client.queue("in").stats().claimed


def test_batches_follow_each_other_and_each_is_settled(reader, client) -> None:
    """The previous batch is settled while the next one is read, and the last one when there are no more messages."""
    client.queue("in").post_many(range(50))
    one, seen = reader(), []
    start = one.initialOffset()
    while (end := one.latestOffset(start, LIMIT)) != start:
        seen += read(one, start, end)
        start = end
    assert seen == list(range(50))
    assert client.queue("in").stats().total == 0


def test_while_there_is_a_backlog_the_next_batch_is_prefetched(reader, client) -> None:
    """A single batch is prefetched; without a backlog, none is."""
    client.queue("in").post_many(range(45))
    one = reader()
    first = one.latestOffset(one.initialOffset(), LIMIT)
    wait_for(lambda: held(client) == 40, 60, "two batches are held")
    second = one.latestOffset(first, LIMIT)
    wait_for(lambda: (held(client), client.queue("in").stats().total) == (25, 25), 60, "one is settled, one claimed")
    third = one.latestOffset(second, LIMIT)
    assert read(one, second, third) == list(range(40, 45))
    client.queue("in").post_many(range(3))
    wait_for(lambda: client.queue("in").stats().total == 8, 60, "the second is settled")
    assert held(client) == 5


def test_a_query_that_ends_releases_what_it_prefetched(reader, client) -> None:
    """Messages that the checkpoint may name stay claimed."""
    client.queue("in").post_many(range(50))
    one = reader()
    one.latestOffset(one.initialOffset(), LIMIT)
    one.stop()
    assert held(client) == 20


def test_a_crash_between_two_settlements_leaves_nothing_behind(reader, client) -> None:
    """The checkpoint has the last batch and the one before, which may not have been settled."""
    client.queue("in").post_many(range(60))
    one = reader()
    first = one.latestOffset(one.initialOffset(), LIMIT)
    second = one.latestOffset(first, LIMIT)
    names = [f"etl.{second['run']}.{batch}.0" for batch in (1, 2, 3)]
    wait_for(lambda: client.queue("in").stats().total == 40, 60, "the first batch is settled")
    client.queue("in").post_many(range(100, 105))
    again = client.queue("in").claim(20, name=names[0])  # as if it had not been settled
    assert [message.body for message in again.messages] == [*range(100, 105)]
    other = reader()
    third = other.latestOffset(second, LIMIT)
    assert read(other, second, third) == list(range(40, 60))
    assert other.latestOffset(third, LIMIT) == third
    assert client.queue("in").stats().total == 0


def test_claims_are_made_again_under_their_names_after_a_crash(reader, client) -> None:
    """The batch was claimed but not logged: the next start from the checkpoint gets the same messages."""
    client.queue("in").post_many(range(50))
    before, after = reader(), reader()
    start = {**before.initialOffset(), "run": 1, "batch": 3}
    limit = ReadMaxRows(1000)
    end = before.latestOffset(start, limit)
    assert after.latestOffset(start, limit) == end
    assert end == {"consumer": "etl", "run": 1, "batch": 4, "claims": 3, "before": 0}
    for one in (after, reader()):  # the second reader has no claims and queries the server
        assert read(one, start, end) == list(range(50))
    assert after.latestOffset(end, limit) == end
    assert client.queue("in").stats().total == 0
    with pytest.raises(Fenced, match="Another query has started"):
        before.latestOffset(end, limit)


def test_an_idle_stream_settles_once(reader, client, proxy: Proxy) -> None:
    """Later polls do not settle again."""
    client.queue("in").post_many(range(5))
    one = reader(url=proxy.url)
    end = one.latestOffset(one.initialOffset(), LIMIT)
    for _ in range(3):
        assert one.latestOffset(end, LIMIT) == end
    assert sum(path.partition("?")[0].endswith("/settle") for _, path, _ in proxy.seen) == 1


def test_a_batch_that_is_read_again_is_kept_alive_at_once(timed: Server, project) -> None:  # noqa: F811
    """A driver that restarts shortly before the claims expire renews them for their whole time."""
    options = {"url": timed.url, "project": project, "consumer": "etl", "queue": "in", "wait": "0", "claimSize": "20"}
    before, after, third = (ClaimReader(parse_claiming_options(OptionParser(options)), SCHEMA) for _ in range(3))
    with Client(timed.url, project) as client:
        client.queue("in").post_many(range(50))
        start = before.initialOffset()
        end = before.latestOffset(start, LIMIT)
        wait_for(lambda: held(client) == 40, 60, "one batch is prefetched")
        timed.clock.advance(290)
        assert len(read(after, start, end)) == 20
        assert client.queue("in").get_claim(f"etl.{end['run']}.1.0").age < 10
        following = third.latestOffset(end, LIMIT)  # adopts the prefetched claims
        timed.clock.advance(20)
        assert read(third, end, following) == list(range(20, 40))
        assert len(client.queue("in").get_claim(f"etl.{end['run']}.2.0").messages) == 20
    for one in (before, after, third):
        one.stop()


def test_claims_are_renewed_while_a_batch_is_worked_on(timed: Server, project) -> None:  # noqa: F811
    """Renewals end when the claims are dropped, or when a newer query starts."""
    connection = Connection(timed.url, project, None, None, 5)
    queue = connection.client().queue("in")
    queue.post(1)
    queue.claim(ttl=60, name="etl.1.1.0")
    heartbeat = Heartbeat(connection, "in", ttl=60, pause=0.02)
    heartbeat.keep_alive(["etl.1.1.0"])
    for _ in range(3):
        timed.clock.advance(40)
        wait_for(lambda: queue.get_claim("etl.1.1.0").age < 40, 60, "it is renewed")
    heartbeat.fence = connection.client().fence("etl")
    connection.client().fence("etl")
    wait_for(heartbeat._stopped.is_set, 60, "it stops")


def test_names_of_one_consumer_are_not_those_of_another(reader, options) -> None:
    """Dots in the names of consumers and queues do not make queries collide, and long names are accepted."""
    one, other = reader(queue="b.c", consumer="a"), reader(queue="c", consumer="a.b")
    for turn in (one, other, one):
        assert turn.latestOffset(turn.initialOffset(), LIMIT) == turn.initialOffset()
    long = reader(queue="q" * 64, consumer="c" * 64)
    assert long.latestOffset(long.initialOffset(), LIMIT) == long.initialOffset()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"claimSize": "1001"},
            r"Option claimSize must be at most 1000 \(the server's max_messages_per",
        ),
        ({"claimTtl": "43201"}, "Option claimTtl must be at most 43200"),
    ],
)
def test_a_value_beyond_the_servers_limit_is_refused_by_the_options_name(reader, wrong, sentence: str) -> None:
    """The error does not use the name of the request's field."""
    one = reader(**wrong)
    with pytest.raises(Invalid, match=sentence):
        one.latestOffset(one.initialOffset(), LIMIT)
