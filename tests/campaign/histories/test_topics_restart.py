# SPDX-License-Identifier: Apache-2.0
"""Topics on several servers whose store is killed: each reader receives each message once and in one order."""

import pytest

from tests.campaign.histories.runs import logs_told
from tests.faults.test_topics import BETWEEN, deployed
from tests.stores import MongoServer, RedisServer


@pytest.mark.parametrize("driver", ["mongodb", "redis"])
def test_a_restarted_store_loses_repeats_and_reorders_nothing(driver: str) -> None:
    """The store's server is killed during posts and streams. Daily tests kill the embedded store with its server."""
    lasting = ("--appendonly", "yes", "--appendfsync", "always")
    with (
        MongoServer() if driver == "mongodb" else RedisServer(None, *lasting) as store,
        deployed(store.uri) as deployment,
        logs_told(deployment.servers),
    ):
        traffic = deployment.traffic("restart")
        with traffic:
            traffic.wait_for_posts(BETWEEN)
            store.kill()
            store.start()
            traffic.wait_for_posts(BETWEEN)
        assert traffic.violations() == []
