# SPDX-License-Identifier: Apache-2.0
"""Masters of Redis that are replaced on order while posts go on: nothing acknowledged is lost, and posts soon succeed.

``ZQ_FAILOVER_RUNS`` says how many failovers each group has to go through, 1 without it; with
``-o log_cli=true --log-cli-level=INFO`` pytest tells the figures of each.
"""

import logging
import os

import pytest

from tests.faults.failovers import DEADLINE, ClusterGroup, Group, SentinelGroup, replaced_under_load
from tests.faults.test_redis_faults import BINARIES
from tests.servers import ZqServer, wait_for

LOG = logging.getLogger(__name__)
RUNS = int(os.environ.get("ZQ_FAILOVER_RUNS", "1"))
IDS = ["valkey", "redis"][: len(BINARIES)]
MOST = 3.0 if RUNS > 1 else 8.0
"""Seconds for which posts may fail: what is promised is measured where somebody asks for many runs."""


def run_through(group: Group) -> None:
    with group, ZqServer(group.uri) as server:
        for run in range(RUNS):
            if run:
                wait_for(group.settled, DEADLINE, "the old master follows the new one")
            outcome = replaced_under_load(group, server)
            LOG.info("run %d: %s", run + 1, outcome)
            assert outcome.lost == 0, outcome
            assert outcome.outage < MOST, outcome


@pytest.mark.parametrize("binary", BINARIES, ids=IDS)
def test_an_ordered_failover_by_sentinels_loses_nothing(binary: str | None):
    """One replica, default options, load all the time. The Sentinel that leads is not even named in the URI."""
    run_through(SentinelGroup(binary, told=2))


def test_an_ordered_failover_of_a_cluster_loses_nothing():
    """CLUSTER FAILOVER, likewise."""
    run_through(ClusterGroup())
