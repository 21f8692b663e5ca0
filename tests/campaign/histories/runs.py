# SPDX-License-Identifier: Apache-2.0
"""The length of a history, its rounds, and the check against the laws L1 to L8.

``ZQ_HISTORY_SECONDS`` is the working time for each store (default 12): a sixth of it with the storage API, the rest
over HTTP.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.campaign.histories.checker import check_history
from tests.campaign.histories.history import OK, Call
from tests.campaign.histories.load import HTTP, Shift, finish, labour, prepare
from tests.campaign.histories.nemesis import Deployment, Nemesis, befall
from tests.campaign.histories.targets import HttpTarget
from tests.servers import ZqServer
from tests.stores import MongoServer

TOTAL = float(os.environ.get("ZQ_HISTORY_SECONDS", "12"))
SECONDS = TOTAL / 6
SERVERS = 3
# Seconds between two kills.
KILL_PAUSE = 1.0
# Seconds between one nemesis and the next.
NEMESIS_PAUSE = 0.5
# Seconds for which a server on MongoDB may overlook a release by another server, with a margin.
OVERLOOKED = 2.5
# Seconds of work after which the queues are drained and checked, and new queues are used.
ROUND_SECONDS = 60.0
# Minimum number of successful calls of each operation in a history.
MIN_CALLS = 5
# Maximum number of violations that a failure prints.
MAX_PRINTED = 10
# Maximum characters of each server's output that a failure prints.
OUTPUT_LENGTH = 4000


def embedded(store_uri: str) -> bool:
    """Return whether one process owns the store."""
    return store_uri.startswith("rocksdb:")


def assert_lawful(calls: Sequence[Call], what: str = "") -> None:
    """Fail if a law was broken, or if the history has too few calls for a result."""
    shown = ("claim", "pop", "page")
    done = Counter(call.verb for call in calls if call.outcome == OK and (call.seen or call.verb not in shown))
    assert all(done[verb] >= MIN_CALLS for verb in (*shown, "post", "renew", "release", "delete")), done
    violations = check_history(calls)
    printed = "\n".join(str(violation) for violation in violations[:MAX_PRINTED])
    assert not violations, f"{len(violations)} violations in {len(calls)} calls {dict(done)} {what}:\n{printed}"


def rounds(seconds: float) -> Iterator[tuple[str, float]]:
    """Yield a suffix for project ids and a length for each round of at most ``ROUND_SECONDS``."""
    for number in range(max(1, math.ceil(seconds / ROUND_SECONDS))):
        yield f"-{number}", min(ROUND_SECONDS, seconds)


def checked_round(
    deployment: Deployment, target: HttpTarget, nemeses: dict[str, Nemesis], seconds: float, project_suffix: str = ""
) -> None:
    """Make a history over HTTP while each nemesis acts at least once, then check it."""
    prepare(target, project_suffix)
    shift = Shift(float("inf"))
    with ThreadPoolExecutor(1) as beside:
        fate = beside.submit(befall, deployment, nemeses, time.monotonic() + seconds, NEMESIS_PAUSE)
        fate.add_done_callback(lambda _: shift.end())
        calls = labour(target, HTTP, shift, project_suffix=project_suffix)
    came = fate.result()
    overlooked = OVERLOOKED if isinstance(deployment.store, MongoServer) else 0
    calls += finish(target, HTTP, project_suffix, overlooked)
    assert_lawful(calls, f"beside {came}")


def kill_in_turn(servers: Sequence[ZqServer], until: float) -> None:
    """Kill and restart one server after the other until a time on the monotonic clock."""
    while time.monotonic() + KILL_PAUSE < until:
        time.sleep(KILL_PAUSE)
        for server in servers:
            server.kill()
            server.start()


@contextmanager
def logs_told(servers: Sequence[ZqServer]) -> Iterator[None]:
    """Add the end of each server's output to a failure."""
    try:
        yield
    except AssertionError as error:
        for server in servers:
            error.add_note(f"{server.url} wrote:\n{server.output[-OUTPUT_LENGTH:]}")
        raise
