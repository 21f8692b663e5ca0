# SPDX-License-Identifier: Apache-2.0
"""Many workers on one store, side by side, and a judgement of what they saw against the laws L1 to L8.

``ZQ_HISTORY_SECONDS`` is how long the workers work per driver (default 10): half of it over HTTP on several servers, of
which one is killed and started again in the middle, half on the storage verbs, where claims and messages lapse within
seconds. A server store gets several servers and several processes; the embedded store has one process, many threads.
(More than 400 seconds want a longer ``--timeout`` of pytest, too.)
"""

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Thread

from tests.faults.history import OK, Call
from tests.faults.judge import judge
from tests.faults.load import HTTP, STORAGE, finish, labour, labour_apart, prepare
from tests.faults.targets import HttpTarget, StorageTarget
from tests.servers import ZqServer
from zq.storage import connect

SECONDS = float(os.environ.get("ZQ_HISTORY_SECONDS", "10")) / 2
PROCESSES = 3
SERVERS = 3
LEAST = 5
"""Calls of each verb that did something: so many come about in the turns that a worker takes at least."""
TOLD = 10
"""Violations that a failure prints in full."""
TOLD_OUTPUT = 4000
"""Characters of each server's output that it prints."""


def embedded(store_uri: str) -> bool:
    """Whether the store belongs to one process."""
    return store_uri.startswith("rocksdb:")


def assert_lawful(calls: Sequence[Call]) -> None:
    """No violation, in a history in which enough happened to tell."""
    shown = ("claim", "pop", "page")
    done = Counter(call.verb for call in calls if call.outcome == OK and (call.seen or call.verb not in shown))
    assert all(done[verb] >= LEAST for verb in (*shown, "post", "renew", "release", "delete")), done
    violations = judge(calls)
    told = "\n".join(str(violation) for violation in violations[:TOLD])
    assert not violations, f"{len(violations)} violations in {len(calls)} calls {dict(done)}:\n{told}"


def test_the_storage_verbs_keep_the_laws(store_uri: str) -> None:
    """Claims lapse after a second or two, messages expire, and late holders come back."""
    with StorageTarget(connect(store_uri)) as target:
        prepare(target)
        if embedded(store_uri):
            calls = labour(target, STORAGE, time.monotonic() + SECONDS)
    if not embedded(store_uri):
        calls = labour_apart(store_uri, STORAGE, SECONDS, PROCESSES)
    with StorageTarget(connect(store_uri)) as target:
        calls += finish(target, STORAGE)
    assert_lawful(calls)


def test_the_servers_keep_the_laws_while_one_is_killed(store_uri: str) -> None:
    """Each call goes to any server; what was under way on the killed one has happened, or has not, but not by half."""
    with ExitStack() as stack:
        count = 1 if embedded(store_uri) else SERVERS
        servers = [stack.enter_context(ZqServer(store_uri)) for _ in range(count)]
        target = stack.enter_context(HttpTarget([server.url for server in servers]))
        prepare(target)
        killer = Thread(target=kill_and_restart, args=(servers[0], SECONDS / 2))
        killer.start()
        with logs_told(servers):
            calls = labour(target, HTTP, time.monotonic() + SECONDS)
            killer.join()
            assert servers[0].ready()
            calls += finish(target, HTTP)
            assert_lawful(calls)


def kill_and_restart(server: ZqServer, after: float) -> None:
    time.sleep(after)
    server.kill()
    server.start()


@contextmanager
def logs_told(servers: Sequence[ZqServer]) -> Iterator[None]:
    """A failure brings the end of each server's output with it."""
    try:
        yield
    except AssertionError as error:
        for server in servers:
            error.add_note(f"{server.url} wrote:\n{server.output[-TOLD_OUTPUT:]}")
        raise
