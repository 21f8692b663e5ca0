# SPDX-License-Identifier: Apache-2.0
"""Live streams of servers: readers that stop reading, many readers, and shutdown of the server."""

import os
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.servers import Answer, Lost, ZqServer, ask, wait_for
from tests.sse import Event, Stream
from tests.stores import Stores

TOPIC = "/v2/topics/news"
PATTERN = "/v2/stream?match=*"
ENGINES = ["gunicorn", "granian"]
# Number of streams of a project, which is a quarter of all.
PLACES = 2
CONFIG = f"[server]\nthreads = 24\nmax_waiters = 4\nmax_streams = {4 * PLACES}\n"
RECONNECTS = 200
LARGE = "x" * 200_000
# Number of large messages: more than the kernels of both sides buffer for a connection, and less than the log keeps.
BACKLOG = 60
# Settings of a server with stalled readers: half a minute is too long for a test.
PATIENCE = """\
import zq.core.streams
zq.core.streams.STALL_TIMEOUT = 2.0
"""
DROPPED_WITHIN = FREED_WITHIN = 60.0


def publish(server: ZqServer, *bodies: str) -> Answer:
    answer = ask(server.url, "POST", f"{TOPIC}/messages", {"messages": [{"body": body} for body in bodies]})
    assert answer.status == 201, answer
    return answer


def place(server: ZqServer) -> bool:
    """Return whether another stream is accepted now, and close it at once."""
    with Stream(server.url, PATTERN) as stream:
        return stream.answer.status == 200


def opened(server: ZqServer, last: str) -> Stream | None:
    """Return a resumed stream, or None if no slot is free."""
    stream = Stream(server.url, PATTERN, last=last)
    if stream.answer.status == 200:
        return stream
    stream.close()
    return None


def next_bodies(events: Iterator[Event], count: int) -> list[str]:
    return [next(events).document["body"] for _ in range(count)]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reader_that_stops_reading_is_dropped_and_slows_nobody(engine: str, tmp_path: Path) -> None:
    """The reader's slot becomes free, the reader gets unread messages when it resumes, and posts are not slowed."""
    (tmp_path / "sitecustomize.py").write_text(PATIENCE)
    env = {"PYTHONPATH": str(tmp_path)}
    with (
        ZqServer(f"rocksdb://{tmp_path}/store", engine=engine, config=CONFIG, env=env) as server,
        ExitStack() as stack,
    ):
        asleep = stack.enter_context(Stream(server.url, PATTERN, slow=True))
        awake = stack.enter_context(Stream(server.url, PATTERN))
        events = awake.events()
        assert not place(server)
        took: list[float] = []
        for number in range(BACKLOG):
            began = time.monotonic()
            publish(server, f"{number} {LARGE}")
            took.append(time.monotonic() - began)
            assert next(events).document["body"].startswith(f"{number} ")
        assert statistics.median(took) < 1, took
        wait_for(lambda: place(server), DROPPED_WITHIN, "the sleeper's place is free")
        seen = [event.document["body"] for event in left(asleep)]
        assert len(seen) < BACKLOG, "the backlog was too small to prove anything"
        again = stack.enter_context(
            wait_for(lambda: opened(server, asleep.last or "0"), FREED_WITHIN, "a place to resume")
        )
        seen += next_bodies(again.events(), BACKLOG - len(seen))
        assert [int(body.split()[0]) for body in seen] == list(range(BACKLOG))


def left(stream: Stream) -> list[Event]:
    """Return the remaining events of a dropped stream: gunicorn breaks it off, Granian ends it properly."""
    events = []
    with suppress(Lost):
        for event in stream.events():
            events.append(event)
    return events


@pytest.mark.parametrize(
    ("driver", "engine"),
    [("rocksdb", "gunicorn"), ("mongodb", "gunicorn"), ("redis", "gunicorn"), ("rocksdb", "granian")],
)
def test_the_end_of_a_server_ends_its_streams_in_good_order(
    driver: str, engine: str, stores: Stores, tmp_path: Path
) -> None:
    """At SIGTERM, earlier messages are sent, the last chunk is sent, and shutdown does not wait for readers."""
    with ZqServer(stores.empty(driver, tmp_path, "a"), engine=engine) as server, ExitStack() as stack:
        streams = [stack.enter_context(Stream(server.url, path)) for path in (PATTERN, f"{TOPIC}/stream")]
        publish(server, "last words")
        open_streams = [stream.events() for stream in streams]
        for stream, events in zip(streams, open_streams, strict=True):
            assert stream.headers["transfer-encoding"] == "chunked"
            assert next_bodies(events, 1) == ["last words"]
        began = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        assert [list(events) for events in open_streams] == [[], []]
        assert time.monotonic() - began < 25
        assert server.wait(60) == 0, server.output
        assert "Traceback" not in server.output


def test_a_reader_that_takes_nothing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """The reader's thread blocks in a send; the connection is closed soon after the signal."""
    with ZqServer(f"rocksdb://{tmp_path}/store") as server, Stream(server.url, PATTERN, slow=True):
        for number in range(BACKLOG):
            publish(server, f"{number} {LARGE}")
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait(25) == 0, server.output  # sooner than the stream's and the engine's usual timeouts of 30 s
        assert "Traceback" not in server.output


@pytest.mark.parametrize("engine", ENGINES)
def test_streams_leave_threads_for_work_and_places_for_others(engine: str, tmp_path: Path) -> None:
    """With all slots used, a stream is refused with Retry-After, and other requests work.

    Every disconnect is noticed, even of a reader that reconnects in a loop.
    """
    with ZqServer(f"rocksdb://{tmp_path}/store", engine=engine, config=CONFIG) as server, ExitStack() as stack:
        streams = [stack.enter_context(Stream(server.url, PATTERN)) for _ in range(PLACES)]
        refused = ask(server.url, "GET", PATTERN)
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) > 0
        publish(server, "on")
        assert [next_bodies(stream.events(), 1) for stream in streams] == [["on"]] * PLACES
        stack.close()
        wait_for(lambda: place(server), FREED_WITHIN, "who leaves gives the place back")
        for _ in range(RECONNECTS):
            place(server)
        again = [wait_for(lambda: opened(server, "0"), FREED_WITHIN, "a place") for _ in range(PLACES)]
        for stream in again:
            assert next_bodies(stack.enter_context(stream).events(), 1) == ["on"]
