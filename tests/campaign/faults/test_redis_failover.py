# SPDX-License-Identifier: Apache-2.0
"""Manual failovers of Redis masters during posts: no acknowledged message is lost, and posts soon succeed.

``ZQ_FAILOVER_RUNS`` is the number of failovers of each group, by default 1; with ``-o log_cli=true
--log-cli-level=INFO`` pytest shows the results of each.
"""

import logging
import os
import time

import pytest

from tests.campaign.faults.failovers import (
    DEADLINE,
    ClusterGroup,
    Group,
    Posts,
    SentinelGroup,
    admin,
    judged,
    replaced_under_load,
    role,
)
from tests.faults.test_redis_faults import BINARIES, open_scene, round_trip
from tests.servers import ZqServer, wait_for
from tests.stores import RedisServer
from zq.conformance.topic_builders import Follower, Log
from zq.storage.redis import failover

LOG = logging.getLogger(__name__)
RUNS = int(os.environ.get("ZQ_FAILOVER_RUNS", "1"))
IDS = ["valkey", "redis"][: len(BINARIES)]
# Maximum seconds for which posts may fail: the documented bound is checked only with many runs.
MOST = 3.0 if RUNS > 1 else 30.0


def in_replicas(master: RedisServer) -> bool:
    """Return whether a replica has all data of the master, now or soon.

    Replication is asynchronous: an earlier failover would lose acknowledged messages.
    """
    with admin(master) as client:
        client.ping()
        return bool(client.wait(1, 4000))


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
    """The group has one replica, default options and constant load. The leading Sentinel is not in the URI."""
    run_through(SentinelGroup(binary, told=2))


def test_an_ordered_failover_of_a_cluster_loses_nothing():
    """The failover is requested by CLUSTER FAILOVER."""
    run_through(ClusterGroup())


def test_stopped_server_queries_the_master_before_it_writes():
    """The server was stopped during the whole failover, and the old master would still accept its writes."""
    with SentinelGroup(stubborn=True) as group, ZqServer(group.uri) as server:
        posts, former = Posts(server.url), group.master
        with posts.running():
            posts.go_on()
            with server.frozen():
                wait_for(group.order, DEADLINE, "the order is taken")
                wait_for(lambda: group.master is not former, DEADLINE, "there is a new master")
                time.sleep(failover.VALIDITY)
            posts.go_on()
            assert role(former) == "master"
        outcome = judged(group.uri, posts)
        assert outcome.lost == 0, outcome


def ours(server: RedisServer) -> int:
    """Return the number of zq's connections to the server."""
    with admin(server) as client:
        return sum(found["name"] == "zq" for found in client.client_list())


@pytest.mark.parametrize("binary", BINARIES, ids=IDS)
def test_no_connection_is_left_to_a_master_that_was_replaced(binary: str | None):
    """Connections for notifications are closed, too, while the old master still considers itself the master."""
    with SentinelGroup(binary, sentinels=1, told=1, stubborn=True) as group:
        scene = open_scene(group.uri)
        follower = Follower(scene.storage, "acme")
        heard: list[object] = []
        scene.storage.listen(heard.append)
        former = group.master
        posted = scene.post(2)
        assert in_replicas(former), "else the failover loses it, as the page says"
        wait_for(group.order, DEADLINE, "the order is taken")
        wait_for(lambda: group.master is not former and ours(former) == 0, DEADLINE, "nobody talks to the old one")
        assert role(former) == "master"
        assert follower.receives_loss()
        heard.clear()
        wait_for(lambda: posted.extend(scene.post(1)) or heard, DEADLINE, "a post is told")
        log = Log(scene.storage, scene.clock, "acme")
        wait_for(lambda: follower.receives(log.publish()[0]), DEADLINE, "a batch is told")
        assert scene.page() == posted
        round_trip(scene.at("other"))
        assert ours(former) == 0
        scene.storage.close()
