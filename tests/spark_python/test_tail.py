# SPDX-License-Identifier: Apache-2.0
"""Streams that follow without claims, and lost messages, without Spark's processes."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.conftest import timed  # noqa: F401
from zq.client import Client
from zq.testing import Server

pytest.importorskip("pyspark")

from zq.spark import tail as tails
from zq.spark.browse import TrimmedMessages
from zq.spark.options import OptionParser, parse_reading_options
from zq.spark.rows import FINISHED_COLUMNS, TOPIC_COLUMNS
from zq.spark.tail import MessagesLost, TailReader, make_offset

BEGIN = make_offset(0)


def tail(url: str, project: str, **more: Any) -> TailReader:
    given = {"url": url, "project": project, "mode": "tail", "wait": "0", **more}
    return TailReader(
        parse_reading_options(OptionParser(given)), list(TOPIC_COLUMNS if "topic" in more else FINISHED_COLUMNS)
    )


def step(stream: TailReader, start: dict[str, Any]) -> dict[str, Any]:
    return stream.latestOffset(start, stream.getDefaultReadLimit())


def count(stream: TailReader, start: dict[str, Any], end: dict[str, Any]) -> int:
    """Return the number of rows of a batch."""
    return sum(batch.num_rows for part in stream.partitions(start, end) for batch in stream.read(part))


class Place:
    """A queue on a server with a settable clock, and streams that follow it, each as if newly started."""

    def __init__(self, server: Server, client: Client, project: str) -> None:
        self.queue = client.queue("in")
        self.queue.create({"_history_ttl": 100})
        self.clock = server.clock
        self.url = server.url
        self.project = project

    def tail(self, **more: Any) -> TailReader:
        return tail(self.url, self.project, queue="in", **more)

    def skip(self) -> None:
        """Leave a position without a message, as on other stores or after a restart."""
        self.queue.post("short", ttl=60)
        self.clock.advance(61)


@pytest.fixture
def place(timed: Server, project) -> Iterator[Place]:  # noqa: F811
    with Client(timed.url, project) as client:
        yield Place(timed, client, project)


def test_records_that_may_be_gone_stop_a_stream(place: Place) -> None:
    """The stream starts after the history's TTL, and positions are missing. With the option, it continues."""
    place.queue.post_batch(range(3))
    first = step(place.tail(), BEGIN)
    assert (first["after"], first["rows"]) == (3, 3)
    place.queue.post("new")
    place.clock.advance(1000)
    assert step(place.tail(), first)["after"] == 4  # late, but nothing is missing
    place.queue.pop(10)
    place.queue.post("newer")
    place.clock.advance(90)
    late = {**first, "seen": first["seen"] + 1000}
    assert step(place.tail(), late)["after"] == 5  # the history entry still exists
    place.clock.advance(90)
    with pytest.raises(MessagesLost, match="Queue in keeps records for 100 seconds"):
        step(place.tail(), late)
    assert step(place.tail(failOnDataLoss="false"), late)["after"] == 5


def test_an_existing_message_does_not_hide_lost_ones(place: Place) -> None:
    """The next position exists, but later entries were removed."""
    place.queue.post("a")
    first = step(place.tail(), BEGIN)
    place.queue.post("b")
    place.queue.post("gone")
    [*_, gone] = place.queue.list()
    place.queue.delete_message(gone.id)
    place.queue.post("c")
    place.clock.advance(200)
    with pytest.raises(MessagesLost, match="up to position 4, may have been lost"):
        step(place.tail(), first)


def test_records_that_expire_while_a_backlog_is_worked_off_are_reported(place: Place) -> None:
    """A history stream detects the loss by the next entry, which it knew, others by the time since the last end."""
    for number in range(4):
        place.queue.post(number)
        place.queue.pop()
    start = step(place.tail(state="history", maxMessagesPerBatch="2"), BEGIN)
    assert (start["after"], start["next"]) == (2, 3)
    assert step(place.tail(state="history", maxMessagesPerBatch="2"), start)["after"] == 4
    everything = place.tail(maxMessagesPerBatch="2")
    begun = step(everything, BEGIN)
    place.clock.advance(60)
    place.queue.post("new")
    cut = step(everything, begun)
    assert cut == make_offset(4, cut["seen"], 2)
    assert cut["seen"] - begun["seen"] < 30  # since the batch was cut, seen no later than its last message
    place.clock.advance(60)
    with pytest.raises(MessagesLost, match="and the record at 3 was removed before it was read"):
        step(place.tail(state="history"), start)
    place.queue.pop()
    with pytest.raises(MessagesLost, match="up to position 5, may have been lost"):
        step(place.tail(state="history"), start)
    with pytest.raises(MessagesLost, match="up to position 5, may have been lost"):
        step(everything, begun)


@pytest.mark.parametrize("state", ["all", "history"])
def test_a_batch_that_is_done_again_has_all_its_rows_or_fails(place: Place, state: str) -> None:
    """The driver died during the batch and restarts after some messages were removed.

    With the option, it continues with the remaining ones.
    """
    place.queue.post_batch(range(3))
    place.queue.pop(2)
    end = step(place.tail(state=state), BEGIN)
    again = place.tail(state=state)
    assert count(again, BEGIN, end) == end["rows"] == (3 if state == "all" else 2)
    place.clock.advance(200)
    with pytest.raises(
        MessagesLost, match=f"had {end['rows']} messages after position 0, but now has only {end['rows'] - 2}"
    ):
        again.partitions(BEGIN, end)
    assert count(place.tail(state=state, failOnDataLoss="false"), BEGIN, end) == end["rows"] - 2


def test_a_stream_that_polls_without_messages_is_not_late_afterwards(place: Place) -> None:
    """The stream records such a poll in an empty batch, in each run or from time to time.

    A gap in positions is then no gap in messages.
    """
    place.queue.post(1)
    end = step(place.tail(), BEGIN)
    assert step(place.tail(), end) == end  # not so soon
    place.skip()
    looked = step(place.tail(), end)
    assert (looked["after"], looked["rows"]) == (1, 0)
    assert looked["seen"] >= end["seen"] + 60
    stream = place.tail()
    assert step(stream, looked) == looked
    assert count(stream, end, looked) == 0
    place.clock.advance(90)
    place.queue.post(3)
    assert step(place.tail(), looked)["after"] == 3
    with pytest.raises(MessagesLost):
        step(place.tail(), end)


def test_a_late_poll_is_not_recorded(place: Place, monkeypatch) -> None:
    """Entries may have been added and removed before the poll."""
    place.queue.post(1)
    end = step(place.tail(), BEGIN)
    stream = place.tail()
    monkeypatch.setattr(stream, "_now", lambda _: end["seen"] + 50)
    assert step(stream, end) == make_offset(1, end["seen"] + 50)
    monkeypatch.setattr(stream, "_now", lambda _: end["seen"] + 198)
    assert step(stream, end) == end


def test_a_stream_archives_in_the_order_of_finishing(place: Place) -> None:
    """Each finished message is archived once, whatever the order of posting."""
    ids = place.queue.post_batch(range(10))
    for one in reversed(ids[5:]):
        place.queue.delete_message(one)
    stream, found, low = place.tail(state="history", maxMessagesPerBatch="4"), list[str](), BEGIN
    for _ in range(3):
        high = step(stream, low)
        for part in stream.partitions(low, high):
            found += [id for batch in stream.read(part) for id in batch.column("id").to_pylist()]
        low = high
        place.queue.pop(1)
    assert (found, low["after"]) == ([*reversed(ids[5:]), ids[0], ids[1]], 7)


def test_a_queue_without_history_is_followed_only_on_request(place: Place) -> None:
    """The error names the rule to set."""
    place.queue.update({"_history_ttl": 0})
    place.queue.post("a")
    with pytest.raises(Exception, match=r"Queue in keeps no history.* Set its _history_ttl"):
        step(place.tail(), BEGIN)
    assert step(place.tail(failOnDataLoss="false"), BEGIN)["after"] == 1


def test_a_recreated_queue_is_reported(place: Place) -> None:
    """Its positions begin below those that were read, so the stream would wait forever."""
    place.queue.post_batch(range(3))
    end = step(place.tail(), BEGIN)
    place.queue.delete()
    place.queue.create({"_history_ttl": 100})
    place.clock.advance(10)
    stream = place.tail()
    assert step(stream, end) == end
    place.queue.post("new")
    [new] = place.queue.list()
    assert new.sequence <= 3
    stream.done.clear()
    with pytest.raises(MessagesLost, match="Queue in was deleted and created again"):
        step(stream, end)


def test_a_queue_that_stops_keeping_history_stops_a_stream(place: Place, monkeypatch) -> None:
    """The stream checks from time to time."""
    place.queue.post("a")
    stream = place.tail()
    end = step(stream, BEGIN)
    place.queue.update({"_history_ttl": 0})
    place.queue.post("b")
    monkeypatch.setattr(tails, "CHECK_INTERVAL", 0)
    with pytest.raises(Exception, match="Queue in keeps no history"):
        step(stream, end)


def test_a_stream_may_begin_at_the_end(server, project, client: Client) -> None:
    """The stream queries the end once, because Spark needs the same answer twice; an empty first batch records it."""
    client.queue("in").create({"_history_ttl": 600})
    client.queue("in").post_batch(range(5))
    stream = tail(server.url, project, queue="in", startingOffset="latest")
    stream.prepareForTriggerAvailableNow()
    first = stream.initialOffset()
    client.queue("in").post("new")
    assert stream.initialOffset() == first == make_offset(5)
    begun = step(stream, first)
    assert (begun["after"], begun["rows"]) == (5, 0)
    assert begun["seen"] > 0
    assert step(stream, begun) == begun  # the end of a run that processes only existing messages
    again = tail(server.url, project, queue="in", startingOffset="latest")
    assert step(again, begun)["after"] == 6
    assert again.reportLatestOffset() == {"after": 6}


def test_messages_that_have_fallen_off_a_topic_stop_a_stream(server, project, client: Client) -> None:
    """A repeated batch fails too; with the option, the stream continues.

    Progress reports and new starts are not affected.
    """
    topic = client.topic("news")
    topic.publish_many(range(10))
    stream = tail(server.url, project, topic="news")
    first = step(stream, BEGIN)
    assert (first["rows"], stream.reportLatestOffset()) == (10, {"after": 10})
    topic.publish_many(range(3000))
    with pytest.raises(TrimmedMessages, match="Messages of topic news after"):
        step(tail(server.url, project, topic="news"), first)
    with pytest.raises(MessagesLost, match="had 10 messages after position 0, but now has only 0"):
        tail(server.url, project, topic="news").partitions(BEGIN, first)
    stream.done.clear()
    assert stream.reportLatestOffset() == {"after": 3010}
    stream = tail(server.url, project, topic="news", failOnDataLoss="false")
    assert 900 < count(stream, first, step(stream, first)) < 3000
    latest = tail(server.url, project, topic="news", startingOffset="latest")
    assert latest.initialOffset() == make_offset(3010)


def test_a_quiet_topic_is_followed_through_what_others_publish(server, project, client: Client) -> None:
    """The stream skips other topics, at once in this process and by empty batches for later processes."""
    client.topic("quiet").publish("a")
    stream = tail(server.url, project, topic="quiet")
    first = step(stream, BEGIN)
    client.topic("busy").publish_many(range(500))
    passed = step(stream, first)
    assert passed == make_offset(501)
    for _ in range(3):
        client.topic("busy").publish_many(range(500))
        assert step(stream, passed) == passed
    client.topic("quiet").publish("b")
    assert step(stream, passed)["rows"] == 1
    with pytest.raises(TrimmedMessages):
        step(tail(server.url, project, topic="quiet"), passed)
