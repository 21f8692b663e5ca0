# SPDX-License-Identifier: Apache-2.0
"""Histories over HTTP on several servers, with every nemesis that the store can have, checked against L1 to L8.

``ZQ_HISTORY_SECONDS`` sets the length (``runs``), ``ZQ_NEMESES`` selects some nemeses. Four hours on MongoDB:

    ZQ_HISTORY_SECONDS=14400 python -m pytest tests/campaign/histories/test_servers.py -k mongodb
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.campaign.histories.load import HTTP, Shift, clear, finish, labour, prepare
from tests.campaign.histories.nemesis import NEMESES, Deployment, befall, deployed, wanted
from tests.campaign.histories.runs import SECONDS, TOTAL, assert_lawful, logs_told, rounds
from tests.campaign.histories.targets import HttpTarget

# Seconds between one nemesis and the next.
PAUSE = 0.5
# Share of the time over HTTP: Redis has two deployments.
OF_THE_REST = {"rocksdb": 1.0, "mongodb": 1.0, "redis": 0.6, "redis-sentinel": 0.4}
# Seconds for which servers of MongoDB may overlook a release by another server, with a margin.
OVERLOOKED = 2.5


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
