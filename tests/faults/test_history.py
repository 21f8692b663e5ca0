# SPDX-License-Identifier: Apache-2.0
"""Many workers on one store, side by side, and a check of what they saw against the laws L1 to L8.

``ZQ_HISTORY_SECONDS`` is how long the workers work per store (default 12): a sixth of it on the storage verbs, where
claims and messages lapse within seconds, the rest over HTTP on several servers, while everything befalls them that
``nemesis`` knows for the store; ``ZQ_NEMESES`` picks some of it. A server store gets several servers and several
processes; the embedded store has one process, many threads. Four hours:

    ZQ_HISTORY_SECONDS=14400 python -m pytest tests/faults/test_history.py -k mongodb
"""

import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.faults.checker import check_history
from tests.faults.history import OK, Call
from tests.faults.load import HTTP, STORAGE, Shift, clear, finish, labour, labour_apart, prepare
from tests.faults.nemesis import NEMESES, Deployment, befall, deployed, wanted
from tests.faults.targets import HttpTarget, StorageTarget
from tests.servers import ZqServer
from zq.storage import connect

TOTAL = float(os.environ.get("ZQ_HISTORY_SECONDS", "12"))
SECONDS = TOTAL / 6
PROCESSES = 3
SERVERS = 3
# Seconds of work over HTTP after which the queues are drained and checked, and new ones are begun.
ROUND = 60.0
# Seconds between one nemesis and the next.
PAUSE = 0.5
# Share of the time over HTTP: Redis has two deployments.
OF_THE_REST = {"rocksdb": 1.0, "mongodb": 1.0, "redis": 0.6, "redis-sentinel": 0.4}
# Seconds for which servers of MongoDB may overlook what another one released, and some more.
OVERLOOKED = 2.5
# Calls of each verb that did something: so many come about in the turns that a worker takes at least.
LEAST = 5
# Violations that a failure prints in full.
TOLD = 10
# Characters of each server's output that it prints.
TOLD_OUTPUT = 4000


def embedded(store_uri: str) -> bool:
    """Whether the store belongs to one process."""
    return store_uri.startswith("rocksdb:")


def assert_lawful(calls: Sequence[Call], what: str = "") -> None:
    """No violation, in a history in which enough happened to tell."""
    shown = ("claim", "pop", "page")
    done = Counter(call.verb for call in calls if call.outcome == OK and (call.seen or call.verb not in shown))
    assert all(done[verb] >= LEAST for verb in (*shown, "post", "renew", "release", "delete")), done
    violations = check_history(calls)
    told = "\n".join(str(violation) for violation in violations[:TOLD])
    assert not violations, f"{len(violations)} violations in {len(calls)} calls {dict(done)} {what}:\n{told}"


def rounds(seconds: float) -> Iterator[tuple[str, float]]:
    """The time in pieces of at most ``ROUND`` seconds, each with project ids of its own."""
    for number in range(max(1, math.ceil(seconds / ROUND))):
        yield f"-{number}", min(ROUND, seconds)


@pytest.mark.timeout(600 + 5 * TOTAL)
def test_the_storage_verbs_keep_the_laws(store_uri: str) -> None:
    """Claims lapse after a second or two, messages expire, and late holders come back."""
    for project_suffix, seconds in rounds(SECONDS):
        with StorageTarget(connect(store_uri)) as target:
            prepare(target, project_suffix)
            if embedded(store_uri):
                calls = labour(target, STORAGE, Shift(seconds), project_suffix=project_suffix)
        if not embedded(store_uri):
            calls = labour_apart(store_uri, STORAGE, seconds, PROCESSES, project_suffix)
        with StorageTarget(connect(store_uri)) as target:
            calls += finish(target, STORAGE, project_suffix)
            assert_lawful(calls)
            clear(target, project_suffix)


@pytest.mark.timeout(600 + 5 * TOTAL)
@pytest.mark.parametrize("kind", NEMESES)
def test_the_servers_keep_the_laws_whatever_befalls_them(kind: str, tmp_path: Path) -> None:
    """Each call goes to any server; what was under way when harm was done has happened, or has not, never by half."""
    with ExitStack() as stack:
        deployment = stack.enter_context(deployed(kind, tmp_path))
        stack.enter_context(logs_told(deployment.servers))
        target = stack.enter_context(HttpTarget(deployment.urls))
        for project_suffix, seconds in rounds(5 * SECONDS * OF_THE_REST[kind]):
            checked_round(kind, deployment, target, project_suffix, seconds)
            clear(target, project_suffix)


def checked_round(kind: str, deployment: Deployment, target: HttpTarget, project_suffix: str, seconds: float) -> None:
    """Work while harm is done, each nemesis once at least; then the check."""
    prepare(target, project_suffix)
    shift = Shift(float("inf"))
    with ThreadPoolExecutor(1) as beside:
        fate = beside.submit(befall, deployment, wanted(kind), time.monotonic() + seconds, PAUSE)
        fate.add_done_callback(lambda _: shift.end())
        calls = labour(target, HTTP, shift, project_suffix=project_suffix)
    came = fate.result()
    calls += finish(target, HTTP, project_suffix, OVERLOOKED if kind == "mongodb" else 0)
    assert_lawful(calls, f"beside {came}")


@contextmanager
def logs_told(servers: Sequence[ZqServer]) -> Iterator[None]:
    """A failure brings the end of each server's output with it."""
    try:
        yield
    except AssertionError as error:
        for server in servers:
            error.add_note(f"{server.url} wrote:\n{server.output[-TOLD_OUTPUT:]}")
        raise
