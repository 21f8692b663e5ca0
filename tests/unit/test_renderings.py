# SPDX-License-Identifier: Apache-2.0
"""Rendered events of streams: shared by all readers of a log, bounded in memory, and correct for each reader."""

from collections.abc import Callable, Sequence

import pytest

from zq.clock import ManualClock
from zq.core import tails
from zq.core.data_keys import DataKeys
from zq.core.encryption import Sealing
from zq.core.streams import Gap, Stream, Streams
from zq.core.tails import Renderings, Tails
from zq.events import NO_EVENTS
from zq.model.topics import Batch, Entry, Pattern, PublishedMessage, Retention, TopicRef
from zq.storage import connect
from zq.storage.api import Storage

STREAMS = 50


class CountingSealing(Sealing):
    """An encryption that counts the messages that it opens, once for each rendering."""

    count = 0

    def decrypt_published(self, project: str, messages: Sequence[PublishedMessage]) -> Sequence[PublishedMessage]:
        self.count += len(messages)
        return super().decrypt_published(project, messages)


class Log:
    """The log of one project in memory, with its streams and a clock that a test sets."""

    def __init__(self) -> None:
        self.storage: Storage = connect("memory:", {})
        self.clock = ManualClock(1_700_000_000.0)
        self.sealing = CountingSealing(DataKeys(self.storage.documents, self.clock, {}))
        self._streams = Streams(self.storage, self.clock, Tails(self.storage), self.sealing, 1000, NO_EVENTS, 100)

    def publish(self, topic: str, *bodies: bytes, ttl: int = 3600) -> int:
        """Publish to a topic and return the first sequence."""
        entries, now = [Entry(body, ttl) for body in bodies], self.clock.now()
        return self.storage.topics.publish(TopicRef("acme", topic), entries, now, Retention(1 << 26, 10_000), None)

    def open(self, match: str = "**", after: int | None = None, visible: Callable[[str], bool] | None = None) -> Stream:
        return self._streams.open("acme", Pattern(match), after, visible)


@pytest.fixture
def log() -> Log:
    return Log()


def sent(stream: Stream) -> bytes:
    """Return the data that a stream sends now."""
    portion = stream.next(0)
    assert not isinstance(portion, Gap)
    assert portion.count == portion.data.count(b"event: message")
    return portion.data


def test_streams_of_a_log_render_each_event_once(log: Log) -> None:
    """The 50 streams of each kind match all topics, one topic, or the visible ones."""
    everything = [log.open() for _ in range(STREAMS)]
    one = [log.open("a") for _ in range(STREAMS)]
    visible = [log.open(visible=lambda name: name == "b") for _ in range(STREAMS)]
    log.publish("a", *[b"%d" % number for number in range(100)])
    log.publish("b", b'"x"')
    assert {sent(stream).count(b"\n\n") for stream in everything} == {101}
    assert {sent(stream).count(b"\n\n") for stream in one} == {100}
    assert {sent(stream).count(b"\n\n") for stream in visible} == {1}
    assert log.sealing.count == 101


def test_streams_that_send_a_lone_batch_share_its_bytes(log: Log) -> None:
    first, second = log.open(), log.open()
    log.publish("a", b"1", b"2")
    assert sent(first) is sent(second)


def test_a_stream_that_resumes_within_a_batch_gets_the_rest(log: Log) -> None:
    whole = log.open()
    first = log.publish("a", b"1", b"2", b"3")
    assert sent(log.open(after=first)) == sent(whole).split(b"\n\n", 1)[1]


def test_an_event_shows_its_age_when_it_is_sent_and_expires(log: Log) -> None:
    """A batch is rendered again in another second."""
    streams = [log.open() for _ in range(3)]
    log.publish("a", b"1", ttl=60)
    assert b'"age":0,' in sent(streams[0])
    log.clock.advance(59.9)
    assert b'"age":59,' in sent(streams[1])
    log.clock.advance(0.1)
    assert sent(streams[2]) == b""


def test_the_shared_renderings_are_bounded(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    """The oldest batches are dropped and rendered again, but at least one is kept."""
    monkeypatch.setattr(tails, "MAX_RENDERED", 800)
    shared, sealing = Renderings(), log.sealing
    batches = [Batch("a", sequence, 0.0, [Entry(b'"%b"' % (b"x" * 200), 60)]) for sequence in (1, 2, 3)]
    for batch in batches:
        shared.render("acme", batch, 1.0, sealing)
    for batch in reversed(batches):
        shared.render("acme", batch, 1.0, sealing)
    assert sealing.count == 4, "the last two are kept"
    monkeypatch.setattr(tails, "MAX_RENDERED", 0)
    for _ in range(2):
        shared.render("acme", batches[1], 2.0, sealing)
    assert sealing.count == 5


def test_a_batch_of_the_same_sequence_is_another_one(log: Log) -> None:
    """A store that lost the end of its log uses the sequence again."""
    shared = Renderings()
    batches = [Batch("a", 1, 0.0, [Entry(body, 60)]) for body in (b"1", b"2")]
    data = [shared.render("acme", batch, 1.0, log.sealing).data for batch in batches]
    assert [b'"body":2' in each for each in data] == [False, True]
