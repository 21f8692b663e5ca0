# SPDX-License-Identifier: Apache-2.0
"""Topics with several servers on a store: each reader gets each message once, and all get the same order.

Eight publishers use any server; the readers leave and resume at random points, at any server. The embedded store has
one server. Each test has a project, and therefore a log, of its own.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.campaign.histories.runs import embedded, logs_told
from tests.campaign.histories.subscribers import Traffic
from tests.faults.integrity import whole
from tests.servers import ZqServer, wait_for
from tests.stores import Stores

pytestmark = pytest.mark.store_of_the_day
SERVERS = 3
# Number of posts of each publisher.
POSTS = 25
# Number of posts between two faults.
BETWEEN = 60
STARTED_WITHIN = 120.0


class Deployment:
    """Servers on a store."""

    def __init__(self, servers: list[ZqServer]) -> None:
        self.servers = servers
        self.urls = [server.url for server in servers]

    def traffic(self, project: str, **options: int) -> Traffic:
        return Traffic(self.urls, project, **options)


@contextmanager
def deployed(uri: str) -> Iterator[Deployment]:
    """Start three servers on a shared store, or one on an embedded store."""
    with ExitStack() as stack:
        servers = [stack.enter_context(ZqServer(uri))]
        for _ in range(0 if embedded(uri) else SERVERS - 1):
            servers.append(ZqServer(uri).launch())
            stack.callback(servers[-1].close)
        for server in servers:
            wait_for(server.ready, STARTED_WITHIN, "all servers have started")
        yield Deployment(servers)
    if embedded(uri):
        whole(uri)


@pytest.fixture(scope="module", params=["rocksdb", "mongodb", "redis"])
def deployment(
    request: pytest.FixtureRequest, stores: Stores, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    with deployed(stores.empty(request.param, tmp_path_factory.mktemp("topics"), "c")) as servers:
        yield servers


def test_every_message_is_seen_once_and_in_one_order(deployment: Deployment) -> None:
    """No reader skips a message that becomes visible later, and resuming neither loses nor repeats messages (L6)."""
    traffic = deployment.traffic("race", posts=POSTS)
    with logs_told(deployment.servers):
        with traffic:
            traffic.finish()
        assert traffic.violations() == []
        assert all(reader.starts > 3 for reader in traffic.readers if reader.name != "live")


def test_a_killed_server_loses_repeats_and_reorders_nothing(deployment: Deployment) -> None:
    """kill -9 occurs during posts and streams.

    All readers get every acknowledged message, and all get the same messages.
    """
    traffic = deployment.traffic("kill")
    with logs_told(deployment.servers):
        with traffic:
            traffic.wait_for_posts(BETWEEN)
            deployment.servers[0].kill()
            deployment.servers[0].start()
            traffic.wait_for_posts(BETWEEN)
        assert traffic.violations() == []
