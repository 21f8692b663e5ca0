# SPDX-License-Identifier: Apache-2.0
"""Posting any number of messages: batches, memory, progress, errors, and a crash of the server."""

import itertools
import math
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.client.client_kinds import bodies, client_of
from tests.client.misbehaving import LOST_ANSWER, Proxy, Trouble
from tests.servers import ZqServer, every_message
from tests.tables import every_row
from zq import errors
from zq.client import Client, Draft, PostStopped, Retries
from zq.client.posting import LINGER, MAX_BATCH, Batch, Packer, pack_batches

POSTED = 4000


def test_many_messages_are_posted_in_order_and_counted_as_they_go(queue: Any) -> None:
    """Batches are posted one at a time; ttl and delay apply to all messages or come from a draft."""
    counts: list[int] = []
    assert queue.post_many(range(2 * MAX_BATCH + 5), ttl=100, progress=counts.append) == 2 * MAX_BATCH + 5
    assert counts == [MAX_BATCH, 2 * MAX_BATCH, 2 * MAX_BATCH + 5]
    assert bodies(itertools.islice(queue.list(page=20), 45)) == list(range(45))
    queue.purge()
    assert queue.post_many([1, Draft(2, ttl=90), msgspec.Raw(b"[3]")], ttl=100) == 3
    assert [(message.body, message.ttl) for message in queue.list()] == [(1, 100), (2, 90), ([3], 100)]
    assert queue.post_many([]) == 0
    for concurrency in (0, -1):
        with pytest.raises(errors.Invalid, match="concurrency"):
            queue.post_many([1], concurrency=concurrency)
    with pytest.raises(PostStopped) as caught:
        queue.post_many([1], ttl=60.9)
    assert isinstance(caught.value.__cause__, errors.InvalidBody), "seconds are not cut to whole ones unasked"


def test_the_queues_own_bound_is_kept(queue: Any) -> None:
    """No batch exceeds the queue's size limit; a message that exceeds the limit stops the post."""
    queue.create({"_max_messages_post_size": 400})
    counts: list[int] = []
    assert queue.post_many(["x" * 50] * 20, progress=counts.append) == 20
    assert len(counts) > 2
    with pytest.raises(PostStopped) as caught:
        queue.post_many(["a", "b", "x" * 500, "c"])
    assert (caught.value.stored, caught.value.maybe_stored) == ([range(2)], [])
    assert isinstance(caught.value.__cause__, errors.Invalid)


@every_row("number", ["1e999", "-1e999", "9223372036854775808", "1" * 400 + ".5"])
def test_a_number_that_no_client_can_read_is_refused_by_every_verb(queue: Any, number: str) -> None:
    """The error names the message, and no message is stored."""
    raw = msgspec.Raw(f'{{"a": [{number}]}}'.encode())
    queue.create({})
    for refused in (
        lambda: queue.post(raw),
        lambda: queue.post_batch([raw]),
        lambda: queue.post_batch([Draft(raw)]),
    ):
        with pytest.raises(errors.InvalidBody, match=r"Message 0: body\.a\[0\] contains a number out of range"):
            refused()
    with pytest.raises(PostStopped) as caught:
        queue.post_many([raw])
    assert isinstance(caught.value.__cause__, errors.InvalidBody)
    assert queue.stats().total == 0


@every_row("number", [math.nan, math.inf, -math.inf])
@every_row("form", [lambda number: number, lambda number: [1, None, number], lambda number: {"a": {"b": (number,)}}])
def test_nan_and_infinities_are_refused_by_every_verb(queue: Any, number: float, form: Any) -> None:
    """JSON cannot represent the value; None is posted as null."""
    body = form(number)
    queue.create({})
    for refused in (lambda: queue.post(body), lambda: queue.post_batch([None, Draft(body)])):
        with pytest.raises(
            errors.InvalidBody, match=r"Message [01]: body.* is (nan|-?inf), which JSON cannot represent"
        ):
            refused()
    with pytest.raises(PostStopped) as caught:
        queue.post_many([body])
    assert isinstance(caught.value.__cause__, errors.InvalidBody)
    assert queue.stats().total == 0
    with pytest.raises(errors.InvalidBody, match="which JSON cannot represent"):
        queue.create({"weight": body})
    with pytest.raises(errors.InvalidBody, match="which JSON cannot represent"):
        queue.update({"weight": body})
    queue.post(None)
    (claimed,) = bodies_of_deliveries(queue)
    with pytest.raises(errors.InvalidBody, match="which JSON cannot represent"):
        claimed.move("other", body=body)
    queue.purge()


def bodies_of_deliveries(queue: Any) -> list[Any]:
    return list(queue.consume(wait=0, until_empty=True))


@every_row(
    "body", [b"1e308", b"-1E+308", b"1e-999", b"9223372036854775807", b'"1e999"', b'["0e000", "\\u0000"]', b"1.10"]
)
def test_the_client_reads_every_body_that_the_server_accepts(queue: Any, body: bytes) -> None:
    """Bodies at the limits of numbers and text are listed, claimed and popped."""
    queue.purge()
    queue.post(msgspec.Raw(body))
    expected = msgspec.json.decode(body)
    assert bodies(queue.list()) == [expected]
    claim = queue.claim(1)
    assert bodies(claim.messages) == [expected]
    queue.release(claim.id)
    assert bodies(queue.pop(1)) == [expected]


def test_batches_go_side_by_side(queue: Any) -> None:
    """All messages arrive, in any order."""
    queue.create({"_max_messages_post_size": 1000})
    assert queue.post_many(range(600), concurrency=4) == 600
    assert sorted(bodies(queue.list(page=20))) == list(range(600))


def test_an_endless_source_is_read_no_further_than_needed(proxy: Proxy, kind: str, project: str) -> None:
    """The next batch is built during a request; a failure ends both and reports what is stored."""
    source = itertools.count()
    with client_of(kind, proxy.url, project, retries=Retries(attempts=2, first_delay=0.01)) as client:
        proxy.fails_from = 4  # the queue's metadata, the limits and two batches
        with pytest.raises(PostStopped, match=f"{2 * MAX_BATCH} messages") as caught:
            client.queue("jobs").post_many(source)
    assert caught.value.stored == [range(2 * MAX_BATCH)]
    assert caught.value.maybe_stored == [range(2 * MAX_BATCH, 3 * MAX_BATCH)]
    assert next(source) <= 5 * MAX_BATCH


def test_a_body_that_is_no_json_stops_the_posting(queue: Any) -> None:
    """Earlier whole batches are stored, and the error has the number of the body."""
    with pytest.raises(PostStopped) as caught:
        queue.post_many([*range(MAX_BATCH + 3), object()])
    assert caught.value.stored == [range(MAX_BATCH)]
    assert isinstance(caught.value.__cause__, errors.InvalidBody)
    assert f"Message {MAX_BATCH + 3} " in str(caught.value.__cause__)


def test_a_second_run_under_the_same_key_stores_nothing_twice(queue: Any) -> None:
    """Each batch of the repeated post gets its original response."""
    for _ in range(2):
        assert queue.post_many(range(MAX_BATCH + 7), key="upload.1") == MAX_BATCH + 7
    assert queue.stats().total == MAX_BATCH + 7


def test_the_error_says_exactly_what_may_be_stored(proxy: Proxy, kind: str, project: str) -> None:
    """A rejection proves that the batch is not stored only if no earlier attempt may have stored it."""
    refused = Trouble(passes=False, status=401)
    with client_of(kind, proxy.url, project, retries=Retries(first_delay=0.01)) as client:
        for troubles, maybe_stored in (([LOST_ANSWER, refused], [range(3)]), ([refused], [])):
            proxy.plan(None, None, *troubles)
            with pytest.raises(PostStopped) as caught:
                client.queue("jobs").post_many([1, 2, 3])
            assert (caught.value.stored, caught.value.maybe_stored) == ([], maybe_stored)
            assert isinstance(caught.value.__cause__, errors.NotAuthorized)


def test_whatever_stops_a_post_the_error_says_what_is_stored(queue: Any) -> None:
    """The cause may be the source of bodies or the progress callback."""

    def torn() -> Iterator[int]:
        yield from range(MAX_BATCH + 5)
        raise KeyError("the file is torn")

    with pytest.raises(PostStopped) as caught:
        queue.post_many(torn(), concurrency=2)
    assert (caught.value.stored, caught.value.maybe_stored) == ([range(MAX_BATCH)], [])
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(PostStopped) as caught:
        queue.post_many([1], progress=lambda count: 1 // 0)
    assert caught.value.stored == [range(1)]
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_with_a_key_batches_end_where_the_bodies_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches do not depend on the speed of the source; without a key a batch lingers, excluding send time."""
    now = [0.0]
    monkeypatch.setattr("zq.client.posting.time.monotonic", lambda: now[0])

    def slow(pause: float) -> Iterator[str]:
        for number in range(9):
            now[0] += pause
            yield str(number)

    def cuts(pause: float, linger: float, sending: float = 0.0) -> list[int]:
        counts = []
        for batch in pack_batches(Packer(10**9, None, None, max_messages=4, linger=linger), slow(pause)):
            counts.append(batch.count)
            now[0] += sending
        return counts

    assert cuts(5.0, math.inf) == cuts(0.0, math.inf) == [4, 4, 1]
    assert cuts(0.6, LINGER) == [2, 2, 2, 2, 1]
    assert cuts(0.0, LINGER, sending=60.0) == [4, 4, 1]
    packer = Packer(60, None, None, linger=LINGER)
    assert packer.add("x" * 20) is None
    assert packer.add("y" * 20), "it is full, and the second body waits in the next one"
    now[0] += 60
    packer.restart_linger()
    assert packer.add(1) is None


def test_a_draft_keeps_what_it_does_not_say_of_its_own(queue: Any) -> None:
    """A draft with a ttl still has the delay of the call."""
    queue.create({"_default_message_delay": 1})
    queue.post_batch([Draft("a", ttl=600), Draft("b", delay=0), "c"], ttl=90, delay=600)
    assert [(message.body, message.ttl) for message in queue.list(delayed=True)] == [("a", 600), ("b", 90), ("c", 90)]
    assert bodies(queue.claim(10).messages) == ["b"]


def test_bodies_may_come_asynchronously(running: ZqServer, project: str) -> None:
    """The asynchronous client accepts an asynchronous generator."""

    closed = []

    async def numbers() -> AsyncIterator[Any]:
        try:
            for number in range(5):
                yield number
            yield object()
        finally:
            closed.append(True)

    with client_of("asynchronous", running.url, project) as client:
        for post in (client.queue("jobs").post_many, client.topic("news").publish_many):
            with pytest.raises(PostStopped):
                post(numbers())
            post(range(5))
        assert len(closed) == 2, "a source is closed when the posting stops"
        assert bodies(client.topic("news").list()) == bodies(client.queue("jobs").list()) == list(range(5))


def test_batches_are_as_large_as_they_may_be() -> None:
    """A batch is full if one more message would exceed the bytes or the count; the order is kept."""
    size = 1000
    made = list(pack_batches(Packer(size, 60, 0), ["é" * (number % 40) for number in range(500)]))
    assert all(len(batch.body) <= size for batch in made)
    documents = [msgspec.json.decode(batch.body)["messages"] for batch in made]
    assert [message["body"] for page in documents for message in page] == ["é" * (number % 40) for number in range(500)]
    assert {(message["ttl"], message["delay"]) for page in documents for message in page} == {(60, 0)}
    for batch, following in itertools.pairwise(made):
        first = msgspec.json.encode(msgspec.json.decode(following.body)["messages"][0])
        assert len(batch.body) + 1 + len(first) > size
    assert [(batch.first, batch.count) for batch in pack_batches(Packer(10**9, None, None), range(MAX_BATCH + 1))] == [
        (0, MAX_BATCH),
        (MAX_BATCH, 1),
    ]
    assert list(pack_batches(Packer(5, None, None), [1])) == [Batch(0, 1, b'{"messages":[{"body":1}]}')]


def test_a_server_that_is_killed_while_many_are_posted_neither_loses_nor_doubles(tmp_path) -> None:
    """The server is killed with SIGKILL and restarted; the post continues, and every message is stored once."""
    with ZqServer(f"rocksdb://{tmp_path}/store") as server, Client(server.url, "acme") as client:
        queue = client.queue("jobs")
        queue.create({"_max_messages_post_size": 2000})
        reached = threading.Event()

        def progress(count: int) -> None:
            if count > POSTED // 3:
                reached.set()

        def restart() -> None:
            reached.wait(30)
            server.kill()
            server.start()

        restarting = threading.Thread(target=restart)
        restarting.start()
        assert queue.post_many(range(POSTED), progress=progress) == POSTED
        restarting.join()
        assert reached.is_set()
        assert [message["body"] for message in every_message(server.url, "jobs")] == list(range(POSTED))


def test_batches_have_no_more_messages_than_the_server_allows(kind: str, tmp_path: Path) -> None:
    """The limit also applies to staged and published messages (S5)."""
    config = "[transport]\nmax_messages_per_post = 7\n"
    with ZqServer(f"rocksdb://{tmp_path}/store", config=config) as server, client_of(kind, server.url) as client:
        assert client.queue("jobs").post_many(range(20)) == 20
        assert client.queue("jobs").post_many(range(20), stage="s.1") == 20
        assert client.topic("news").publish_many(range(20)) == 20
        with pytest.raises(errors.Invalid, match="1 to 7 values, not 8"):
            client.queue("jobs").post_batch(range(8))
        assert client.queue("jobs").stats().total == 20
