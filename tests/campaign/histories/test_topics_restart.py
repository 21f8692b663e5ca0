# SPDX-License-Identifier: Apache-2.0
"""Topics of several servers whose store is killed: each reader sees each message once, and all in one order."""

import pytest

from tests.campaign.histories.runs import logs_told
from tests.faults.test_topics import BETWEEN, Deployment, deployment  # noqa: F401


@pytest.mark.parametrize("deployment", ["mongodb", "redis"], indirect=True)
def test_a_restarted_store_loses_repeats_and_reorders_nothing(deployment: Deployment) -> None:  # noqa: F811
    """kill -9 of the store's server amid posts and streams. The embedded store dies with its server, in daily tests."""
    assert deployment.store is not None
    traffic = deployment.traffic("restart")
    with logs_told(deployment.servers):
        with traffic:
            traffic.wait_for_posts(BETWEEN)
            deployment.store.kill()
            deployment.store.start()
            traffic.wait_for_posts(BETWEEN)
        assert traffic.violations() == []
