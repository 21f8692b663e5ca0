# SPDX-License-Identifier: Apache-2.0
"""Histories over HTTP on several servers, with every nemesis of the store, checked against L1 to L8.

``ZQ_HISTORY_SECONDS`` sets the length (``runs``), ``ZQ_NEMESES`` selects some nemeses. To run four hours on MongoDB:

    ZQ_HISTORY_SECONDS=14400 python -m pytest tests/campaign/histories/test_servers.py -k mongodb
"""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.campaign.histories.load import clear
from tests.campaign.histories.nemesis import NEMESES, deployed, wanted
from tests.campaign.histories.runs import SECONDS, TOTAL, checked_round, logs_told, rounds
from tests.campaign.histories.targets import HttpTarget

# Fraction of the time over HTTP: MongoDB and Redis have two deployments each.
OF_THE_REST = {"rocksdb": 1.0, "mongodb": 0.6, "mongodb-mixed": 0.4, "redis": 0.6, "redis-sentinel": 0.4}


@pytest.mark.timeout(600 + 5 * TOTAL)
@pytest.mark.parametrize("kind", NEMESES)
def test_the_servers_keep_the_laws_whatever_befalls_them(kind: str, tmp_path: Path) -> None:
    """Each call goes to any server; a call that a nemesis interrupts has taken effect completely or not at all."""
    with ExitStack() as stack:
        deployment = stack.enter_context(deployed(kind, tmp_path))
        stack.enter_context(logs_told(deployment.servers))
        target = stack.enter_context(HttpTarget(deployment.urls))
        for project_suffix, seconds in rounds(5 * SECONDS * OF_THE_REST[kind]):
            checked_round(deployment, target, wanted(kind), seconds, project_suffix)
            clear(target, project_suffix)
