# SPDX-License-Identifier: Apache-2.0
"""Consumers, blocking and asynchronous: every outcome of the work on a message."""

import itertools
import signal
import subprocess
import sys
import threading
from typing import Any

import msgspec
import pytest

from tests.client.client_kinds import bodies, client_of
from tests.servers import PROJECT, ZqServer, every_message, wait_for
from zq import errors
from zq.client import Client, Delivery, Event, FinishedMessage, Message
from zq.testing import Server

SHORT = {"wait": 0, "until_empty": True}


def left(queue: Any) -> list[Any]:
    """Return the bodies that can be claimed now, in order."""
    return bodies(queue.list(claimed=False))


def test_message_is_settled_after_its_loop_iteration(queue: Any) -> None:
    """Every message is delivered once and in order, and none is left, for any batch size."""
    queue.post_batch(range(45))
    assert bodies(queue.consume(batch=1000, **SHORT)) == list(range(45))
    assert queue.stats().total == 0
    queue.post_batch(range(7))
    assert bodies(queue.consume(batch=2, **SHORT)) == list(range(7))
    assert queue.stats().total == 0


def test_an_exception_releases_with_back_off_and_gives_back_the_rest(queue: Any) -> None:
    """The first message is deleted, the failed one is delayed by a growing back-off, the third is ready at once."""
    queue.post_batch(range(3))

    def fail(**how: Any) -> None:
        with queue.consume(wait=1, **how) as messages:
            for message in messages:
                if message.body == 1:
                    raise ValueError(message.body)

    with pytest.raises(ValueError, match="1"):
        fail(backoff=600)
    assert queue.stats().free == 2
    assert bodies(queue.claim(10).messages) == [2]
    (failed,) = [message for message in queue.list(delayed=True) if message.body == 1]
    assert 590 <= (failed.available_at - failed.created).total_seconds() <= 610


def test_a_break_gives_back_what_is_not_done(queue: Any) -> None:
    """The current message is released, too, unless the worker has already settled it."""
    queue.post_batch(range(4))
    for message in queue.consume(wait=1, backoff=0):
        if message.body == 1:
            break
    assert wait_for(lambda: left(queue) == [1, 2, 3], 60, "all but the first came back")
    for message in queue.consume(wait=1):
        message.done()
        break
    assert wait_for(lambda: left(queue) == [1, 3], 60, "what was done is gone: 2, since 1 went behind the others")


def test_a_worker_decides_what_becomes_of_a_message(queue: Any) -> None:
    """Messages are moved, buried, released with a delay or done; the last decision counts."""
    queue.create({"_dead_letter_queue": "dead"})
    queue.post_batch(["move", "bury", "release", "done", "plain"])
    for message in queue.consume(batch=5, **SHORT):
        if message.body == "move":
            message.move("next", body={"moved": True}, ttl=90)
        elif message.body == "bury":
            message.release(10)
            message.bury("torn")
        elif message.body == "release":
            message.release(500)
        elif message.body == "done":
            message.done()
    assert bodies(queue.list(delayed=True)) == ["release"]
    with client_of("blocking", *server_of(queue)) as client:
        (moved,) = client.queue("next").list()
        assert (moved.body, moved.ttl) == ({"moved": True}, 90)
        (dead,) = client.queue("dead").list()
        assert (dead.body, dead.reason) == ("bury", "torn")


def test_work_buries_a_message_whose_body_cannot_be_decoded(queue: Any) -> None:
    """Another attempt would fail in the same way; old servers accepted numbers that the client cannot decode."""
    queue.create({"_dead_letter_queue": "dead"})
    queue.post_batch(["good", "bad"])
    seen = []

    def handle(message: Any) -> None:
        if message.body == "bad":
            msgspec.structs.force_setattr(message, "raw", msgspec.Raw(b"[1e999]"))
            del message.__dict__["body"]
        seen.append(message.body)

    queue.work(handle, 1, **SHORT)
    assert seen == ["good"]
    assert queue.stats().total == 0
    with client_of("blocking", *server_of(queue)) as client:
        (dead,) = client.queue("dead").list()
        assert dead.reason.startswith(f"The body of message {dead.id} cannot be decoded: Number out of range")


def server_of(queue: Any) -> tuple[str, str]:
    """Return the server and the project of a handle."""
    settings = queue.transport._settings
    return settings.url, settings.headers["X-Project-ID"]


def test_a_refused_decision_is_reported_and_spoils_no_other(queue: Any) -> None:
    """The queue has no dead-letter queue: the message is released, and the others are settled."""
    queue.post_batch(range(6))

    def work() -> None:
        for message in queue.consume(batch=6, **SHORT):
            if message.body == 3:
                message.bury("nowhere to go")

    with pytest.raises(errors.Invalid, match="dead"):
        work()
    assert left(queue) == [3]


def test_handlers_work_side_by_side_and_a_failure_is_theirs_alone(queue: Any) -> None:
    """Four handlers run in parallel; a handler that raises releases its message, and the others are settled."""
    queue.post_batch(range(20))
    together, seen = threading.Barrier(4), []

    def handle(message: Any) -> None:
        seen.append(message.body)
        if message.body < 4:
            together.wait(60)
        if message.body == 5:
            raise ValueError(message.body)
        if message.body == 7:
            message.release(600)

    queue.work(handle, 4, backoff=600, **SHORT)
    assert sorted(seen) == list(range(20))
    assert sorted(bodies(queue.list(delayed=True))) == [5, 7]


def test_a_claim_is_settled_while_its_last_message_is_still_in_work(queue: Any) -> None:
    """The claim is settled after a second, so that a crash repeats little work."""
    queue.post_batch(range(3))
    for message in queue.consume(batch=3, **SHORT):
        if message.body == 2:
            wait_for(lambda: queue.stats().total == 1, 60, "the first two are deleted")
    assert queue.stats().total == 0


def test_a_lapsed_claim_is_reported(timed: Server, kind: str) -> None:
    """The consumer raises an error or calls ``on_lost``, and the lost messages are redelivered."""
    with client_of(kind, timed.url) as client:
        queue = client.queue("jobs")
        queue.post_batch(range(3))
        seen = []

        def work() -> None:
            for message in queue.consume(batch=1, wait=0):
                seen.append(message.body)
                timed.clock.advance(301)
                wait_for(lambda: queue.claim(3, ttl=60).messages, 60, "others have them")

        with pytest.raises(errors.ClaimLapsed, match="before 1 of"):
            work()
        assert seen == [0]
        timed.clock.advance(61)
        lost: list[Any] = []
        for message in queue.consume(batch=1, wait=0, until_empty=True, on_lost=lost.extend):
            if not lost and message.body == 0:
                timed.clock.advance(301)
        assert bodies(lost) == [0]
        assert queue.stats().total == 0


WORKER = """
import asyncio, sys
from zq.client import AsyncClient, Client

def note(message):
    print(message.body, flush=True)
    sys.stdin.readline()

def blocking():
    with Client(*sys.argv[2:4]) as client:
        for message in client.queue("jobs").consume(wait=1, batch=5):
            note(message)

async def asynchronous():
    async with AsyncClient(*sys.argv[2:4]) as client:
        async for message in client.queue("jobs").consume(wait=1, batch=5):
            await asyncio.to_thread(note, message)

blocking() if sys.argv[1] == "blocking" else asyncio.run(asynchronous())
print("ended well", flush=True)
"""


def worker(kind: str, url: str, project: str) -> "subprocess.Popen[str]":
    """Start a consumer process that prints each message and finishes it after a line of input."""
    command = [sys.executable, "-c", WORKER, kind, url, project]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("kind", "number"),
    [("blocking", signal.SIGTERM), ("blocking", signal.SIGINT), ("asynchronous", signal.SIGTERM)],
)
def test_a_signal_ends_the_loop_after_the_message_in_hand(
    running: ZqServer, kind: str, project: str, number: signal.Signals
) -> None:
    """The message is settled, the rest of the claim is released at once, and the program continues after the loop."""
    with client_of("blocking", running.url, project) as client, worker(kind, running.url, project) as process:
        queue = client.queue("jobs")
        queue.post_batch(range(5))
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        process.send_signal(number)
        print(file=process.stdin, flush=True)
        assert process.stdout.read() == "ended well\n"
        assert process.wait(60) == 0
        assert left(queue) == [1, 2, 3, 4]


def test_a_consumer_that_is_killed_loses_nothing(timed: Server, project: str) -> None:
    """Claimed messages are redelivered after the claim expires."""
    with client_of("blocking", timed.url, project) as client, worker("blocking", timed.url, project) as process:
        queue = client.queue("jobs")
        queue.post_batch(range(5))
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "1\n"
        process.kill()
        process.wait(60)
        assert left(queue) == []
        timed.clock.advance(301)
        back = bodies(queue.consume(wait=0, until_empty=True))
    assert back in ([1, 2, 3, 4], [0, 1, 2, 3, 4])


def test_a_consumer_outlives_a_restart_of_the_server(tmp_path) -> None:
    """The server is killed with SIGKILL during the work; every message is delivered and none is left."""
    with ZqServer(f"rocksdb://{tmp_path}/store") as server, Client(server.url, PROJECT) as client:
        queue = client.queue("jobs")
        queue.post_batch(range(6))
        seen = []
        for message in queue.consume(batch=2, **SHORT):
            seen.append(message.body)
            if message.body == 1:
                server.kill()
                server.start()
        assert sorted(seen) == list(range(6))
        assert every_message(server.url, "jobs") == []


def test_consuming_again_begins_again(queue: Any) -> None:
    """A consumer can be iterated again, and waits for new messages."""
    consumer = queue.consume(wait=1, until_empty=True)
    assert list(consumer) == []
    later = threading.Timer(0.3, queue.post_batch, [range(2)])
    later.start()
    assert bodies(itertools.islice(consumer, 2)) == [0, 1]
    later.join()


def test_an_encoded_delivery_has_the_members_of_a_message_only(queue: Any) -> None:
    """The encoding is the same before and after a decision."""
    queue.post(1)
    for message in queue.consume(**SHORT):
        before = msgspec.to_builtins(message, enc_hook=str)
        message.release(5)
        message.done()
        assert msgspec.to_builtins(message, enc_hook=str) == before
        assert {*before} <= {field.encode_name for field in msgspec.structs.fields(Message)}
    assert queue.stats().total == 0


def test_no_value_of_the_client_encodes_a_mutable_scratch_field() -> None:
    """A response of the server can set every field of the values."""
    own = {field.name for kind in (Delivery, Event, FinishedMessage) for field in msgspec.structs.fields(kind)}
    assert own - {field.name for field in msgspec.structs.fields(Message)} == {"topic", "outcome", "finished"}
