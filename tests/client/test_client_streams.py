# SPDX-License-Identifier: Apache-2.0
"""Streams of topics: in order and without duplicates across lost connections and restarts; gaps are reported."""

import itertools
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.client_kinds import client_of
from tests.client.misbehaving import Proxy, Trouble
from tests.servers import ZqServer
from zq import errors
from zq.client import Client, Event, Gap, Retries
from zq.client.streams import EventReader


@pytest.fixture
def client(running: ZqServer, kind: str, project: str) -> Iterator[Any]:
    with client_of(kind, running.url, project) as opened:
        yield opened


def first(stream: Any, count: int) -> list[Any]:
    """Return the next events of a stream and close the stream."""
    events = list(itertools.islice(stream, count))
    stream.close()
    return events


def test_a_stream_gives_what_the_log_has_and_goes_on_where_it_was_left(client: Any) -> None:
    """A stream starts at the beginning or after an event, and may cover all matching topics."""
    eu, asia = client.topic("news.eu"), client.topic("news.asia")
    eu.publish_batch(["Oslo", "Rome"])
    asia.publish("Tokyo")
    events = first(eu.stream(0), 2)
    assert [(event.body, event.topic) for event in events] == [("Oslo", "news.eu"), ("Rome", "news.eu")]
    assert [event.body for event in first(client.stream("news.*", events[0].id), 2)] == ["Rome", "Tokyo"]
    assert [event.body for event in first(client.stream(after=0), 3)] == ["Oslo", "Rome", "Tokyo"]


def test_a_gap_is_a_value(tmp_path) -> None:
    """The gap covers messages that were trimmed before the stream began."""
    config = "[topics]\ntopic_log_messages = 1000\n"
    with ZqServer(f"rocksdb://{tmp_path}/store", config=config) as server, Client(server.url, "acme") as client:
        topic = client.topic("news")
        topic.publish_many(range(3000))
        gap, event = first(topic.stream(1), 2)
        assert isinstance(gap, Gap)
        assert gap.after == 1
        assert gap.resumes is not None
        assert int(event.id) >= gap.resumes


def test_a_stream_outlives_a_restart_of_the_server(tmp_path) -> None:
    """The server is killed with SIGKILL between two events; the other events arrive once."""
    with ZqServer(f"rocksdb://{tmp_path}/store") as server, Client(server.url, "acme") as client:
        topic = client.topic("news")
        topic.publish_many(range(100))
        seen = []
        for event in topic.stream(0):
            assert isinstance(event, Event)
            seen.append(event.body)
            if event.body == 99:
                server.kill()
                server.start()
                topic.publish_many(range(100, 150))
            if event.body == 149:
                break
        assert seen == list(range(150))


def test_a_stream_outlives_the_loss_of_the_store(tmp_path) -> None:
    """The log of the position is lost: the stream reports a gap of unknown size and continues with the new log."""
    with ZqServer(f"rocksdb://{tmp_path}/store") as server, Client(server.url, "acme") as client:
        client.topic("news").publish_many(range(5))
        stream = client.topic("news").stream(0)
        assert [event.body for event in itertools.islice(stream, 5)] == list(range(5))
        server.kill()
        shutil.rmtree(tmp_path / "store")
        server.start()
        client.topic("news").publish("new")
        gap, event = first(stream, 2)
        assert (gap, event.body) == (Gap(None, None), "new")


def test_a_stream_that_cannot_be_opened_is_an_error(running: ZqServer, kind: str, project: str) -> None:
    """A rejection is raised at once, a persistent failure after the retries."""
    few = Retries(attempts=2, first_delay=0.01)
    with Proxy(running.url).serving() as proxy, client_of(kind, proxy.url, project, retries=few) as client:
        with pytest.raises(errors.Invalid):
            first(client.stream("***"), 1)
        proxy.plan(*[Trouble(passes=False, status=503)] * 2)
        with pytest.raises(errors.Unavailable):
            first(client.topic("news").stream(), 1)


def test_a_stream_that_brings_nothing_is_opened_less_and_less_often() -> None:
    """A stream that breaks after an event reconnects at once."""
    reader = EventReader("/v2/stream", {}, 3)
    pauses = []
    for _ in range(8):
        reader.call()
        reader.prepare_reconnect(None)
        pauses.append(reader.pause)
    assert pauses == [0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]
    reader.feed(b'data: {"id":"7","ttl":60,"age":0,"body":1,"topic":"t"}\n\n')
    assert reader.pause < 1


@pytest.mark.parametrize("garbage", [b"data: garbage\n\n", b"id: \xff\n\n", b'event: gap\ndata: {"after": "x"}\n\n'])
def test_garbage_in_a_stream_is_an_error_of_one_sentence(garbage: bytes) -> None:
    """The error is never an exception of a library."""
    with pytest.raises(errors.ZqError, match="This client cannot parse the response"):
        EventReader("/v2/stream", {}, None).feed(garbage)


def test_events_are_read_whatever_the_pieces_in_which_they_come() -> None:
    """Pieces of any size and all line ends are accepted; comments with an id move the resume position."""
    received = (
        b": zq\n\nid: 7\r\nevent: message\r\n"
        b'data: {"id":"7","href":"/v2/topics/t/messages/7","ttl":60,"age":0,"body":{"a":"b"},"topic":"t"}\r\n\r\n'
        b': heartbeat\nid: 9\n\nid: 11\nevent: gap\ndata: {"after":9,"resumes":12}\n\nid: 13\nda'
    )
    for size in (1, 7, len(received)):
        reader = EventReader("/v2/stream", {}, None)
        pieces = [received[start : start + size] for start in range(0, len(received), size)]
        event, gap = [event for piece in pieces for event in reader.feed(piece)]
        assert isinstance(event, Event)
        assert (event.id, event.body, event.topic) == ("7", {"a": "b"}, "t")
        assert gap == Gap(9, 12)
        assert reader.last == "11"
        assert reader.call().headers["Last-Event-ID"] == "11"


def test_a_break_before_any_position_is_known_is_a_gap_of_unknown_size() -> None:
    """The gap is always reported."""
    reader = EventReader("/v2/stream", {}, None)
    reader.feed(b": zq\n\n")
    assert reader.prepare_reconnect(None) == [Gap(None, None)]
    reader.feed(b": heartbeat\nid: 3\n\n")
    assert reader.prepare_reconnect(errors.Unavailable("It broke.")) == []


def test_a_position_of_the_callers_own_that_is_refused_is_an_error() -> None:
    """A rejected position that the server had sent is a gap instead."""
    refused = errors.Invalid("The marker must not be beyond the log's end.")
    reader = EventReader("/v2/stream", {}, 7)
    with pytest.raises(errors.Invalid):
        reader.prepare_reconnect(refused)
    reader.feed(b": zq\nid: 7\n\n")
    assert reader.prepare_reconnect(refused) == [Gap(None, None)]
    assert reader.call().headers["Last-Event-ID"] == "0"
    with pytest.raises(errors.Invalid):
        reader.prepare_reconnect(refused)
