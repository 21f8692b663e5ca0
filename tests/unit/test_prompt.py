# SPDX-License-Identifier: Apache-2.0
"""Work on a thread that serves many (``zq.prompt``), and the answers that wait for what they owe."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import Queue

import pytest

from zq import prompt
from zq.engines.pool import Debts, Owed
from zq.engines.process import is_short
from zq.errors import Unavailable
from zq.model import Draft, QueueRef
from zq.prompt import Debt, TakesLong
from zq.storage import connect


@pytest.fixture
def promptly() -> Iterator[None]:
    prompt.begin()
    yield
    prompt.end()


def test_elsewhere_nothing_is_held() -> None:
    """On all other threads, and after the end."""
    prompt.begin()
    prompt.end()
    prompt.may_take_long()
    assert not prompt.owe(int)
    assert not prompt.release_when_paid(int)


@pytest.mark.usefixtures("promptly")
def test_a_request_is_given_up_until_it_has_changed_something() -> None:
    with pytest.raises(TakesLong):
        prompt.may_take_long()
    prompt.changed()
    prompt.may_take_long()


@pytest.mark.usefixtures("promptly")
def test_other_threads_are_not_concerned() -> None:
    seen: Queue[bool] = Queue()
    other = threading.Thread(target=lambda: (prompt.may_take_long(), seen.put(prompt.owe(int))))
    other.start()
    other.join()
    assert seen.get(timeout=60) is False


def test_a_request_owes_the_last_thing_and_releases_once() -> None:
    prompt.begin()
    assert not prompt.release_when_paid(int)
    first, last, release = object, dict, list
    assert prompt.owe(first)
    assert prompt.release_when_paid(release)
    assert prompt.owe(last)
    assert not prompt.release_when_paid(int)
    assert prompt.end() == Debt(last, release)
    prompt.begin()
    assert prompt.end() is None


def test_a_request_does_not_wait_for_a_queue_that_another_thread_changes() -> None:
    """As a post of many messages does: the thread that serves many would wait for it."""
    storage = connect("memory:", {})
    storage.queues.create(QueueRef("acme", "jobs"), b"{}")
    held, go_on = threading.Event(), threading.Event()

    class Slow(list[Draft]):
        def __iter__(self) -> Iterator[Draft]:
            held.set()
            go_on.wait(60)
            return super().__iter__()

    drafts = [Draft("0" * 32, b"1", 60, 0, "me")]
    post = partial(storage.messages.post, QueueRef("acme", "jobs"), now=storage.now())
    other = threading.Thread(target=post, args=(Slow(drafts),))
    other.start()
    try:
        assert held.wait(60)
        prompt.begin()
        with pytest.raises(TakesLong):
            post(drafts)
    finally:
        prompt.end()
        go_on.set()
        other.join()
    storage.close()


def test_the_store_s_sync_is_owed_and_the_store_stays_open_for_it(tmp_path: Path) -> None:
    """Closing waits for whoever has not been answered yet."""
    storage = connect(f"rocksdb:{tmp_path}/s", {"sync": "always"})
    assert storage.prompt
    prompt.begin()
    assert storage.queues.create(QueueRef("p", "q"), b"{}")
    debt = prompt.end()
    assert debt is not None
    assert debt.release is not None
    closing = threading.Thread(target=storage.close)
    closing.start()
    time.sleep(0.1)
    assert closing.is_alive()
    debt.pay()
    debt.release()
    closing.join(60)
    assert not closing.is_alive()


def test_one_payment_does_for_all_that_came_meanwhile() -> None:
    debts, done, go, paid = Debts(), Queue[str](), threading.Event(), []

    def pay() -> None:
        paid.append(1)
        go.wait(60)

    def owed(name: str) -> Owed:
        return Owed(Debt(pay, lambda: done.put(f"{name} released")), lambda: done.put(name), lambda: done.put("lost"))

    debts.put(owed("a"))
    while not paid:
        time.sleep(0.001)
    debts.put(owed("b"))
    debts.put(owed("c"))
    time.sleep(0.05)
    assert debts.waits() > 0.04
    assert done.empty()
    go.set()
    assert [done.get(timeout=60) for _ in range(6)] == ["a released", "a", "b released", "b", "c released", "c"]
    assert len(paid) == 2
    assert debts.waits() < 5


def test_what_cannot_be_paid_is_refused() -> None:
    """And those who come later are not concerned."""
    debts, done = Debts(), Queue[str]()

    def fail() -> None:
        raise Unavailable

    for pay in (fail, int):
        debts.put(Owed(Debt(pay, lambda: done.put("released")), lambda: done.put("sent"), lambda: done.put("refused")))
    assert [done.get(timeout=60) for _ in range(4)] == ["released", "refused", "released", "sent"]


@pytest.mark.parametrize(
    ("line", "body", "short"),
    [
        ("POST /v2/queues/q/messages", b'{"messages": [{"body": 1}]}', True),
        ("POST /v2/queues/q/messages", b"{" * 24, True),
        ("POST /v2/queues/q/messages", b"{" * 25, False),
        ("POST /v2/queues/q/messages", b" " * 16384, True),
        ("POST /v2/queues/q/messages", b" " * 16385, False),
        ("GET /v2/queues/q/messages?limit=20&echo=true", b"", True),
        ("GET /v2/queues/q/messages?limit=21", b"", False),
        ("GET /v2/queues/q/messages?limit=100", b"", False),
        ("GET /v2/queues/q/messages?limit=2&limit=30", b"", False),
        ("GET /v2/queues/q/messages/id", b"", True),
        ("DELETE /v2/queues/q/messages?pop=10", b"", True),
        ("DELETE /v2/queues/q/messages?pop=50", b"", False),
        ("DELETE /v2/queues/q/messages?ids=" + "a" * 1020, b"", True),
        ("DELETE /v2/queues/q/messages?ids=" + "a" * 1021, b"", False),
        ("POST /v2/queues/q/claims?limit=10", b'{"ttl": 60}', True),
        ("PATCH /v2/queues/q/claims/c", b'{"ttl": 60}', True),
        ("POST /v2/queues/q/claims/c/settle", b'{"ack": []}', True),
        ("POST /v2/topics/t/messages", b'{"messages": [{"body": 1}]}', True),
        ("DELETE /v2/queues/q", b"", False),
        ("POST /v2/queues/q/purge", b"{}", False),
        ("POST /v2/queues/q/redrive", b"{}", False),
        ("GET /v2/queues/q/history", b"", False),
        ("GET /v2/topics/t/stream", b"", False),
        ("GET /v2/queues/q/messages/a/b", b"", False),
        ("POST /v2/commits", b"{}", False),
        ("GET /metrics", b"", False),
    ],
)
def test_which_requests_are_short(line: str, body: bytes, short: bool) -> None:
    method, _, target = line.partition(" ")
    path, _, query = target.partition("?")
    assert is_short({"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query}, body) is short
