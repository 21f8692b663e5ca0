# SPDX-License-Identifier: Apache-2.0
"""Upgrades and downgrades of shared stores under load, checked against the laws, and of the embedded store.

``ZQ_HISTORY_SECONDS`` sets the length of the histories; see ``tests.campaign.histories.runs``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.campaign.histories.nemesis import ENGINES, LASTING, Deployment
from tests.campaign.histories.runs import SECONDS, checked_round, logs_told
from tests.campaign.histories.targets import HttpTarget
from tests.campaign.upgrade.versions import Version, VersionedServer
from tests.servers import NotStarted, ZqServer, ask, every_message
from tests.stores import MongoServer, RedisServer
from zq.model import QueueRef

QUEUE = "/v2/queues/jobs/messages"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(params=["mongodb", "redis"])
def shared(request: pytest.FixtureRequest) -> Iterator[str]:
    """Start an empty store that several servers can share, and yield its URI."""
    with MongoServer() if request.param == "mongodb" else RedisServer(None, *LASTING) as server:
        yield server.uri


class FailureCounter(HttpTarget):
    """Servers whose responses with status 5xx are recorded in ``failures``."""

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(urls)
        self.failures: list[tuple[str, int, bytes]] = []

    def _exchange(self, queue: QueueRef, method: str, path: str, document: object) -> tuple[int, bytes]:
        status, body = super()._exchange(queue, method, path, document)
        if status >= 500:
            self.failures.append((f"{method} {path}", status, body))
        return status, body


def start(stack: ExitStack, uri: str, version: Version) -> Deployment:
    """Start three servers of the version."""
    servers: list[ZqServer] = []
    for engine in ENGINES:
        servers.append(VersionedServer(uri, version, engine))
        stack.callback(servers[-1].close)
        servers[-1].launch()
    deployment = Deployment(servers)
    deployment.mended()
    return deployment


def roll(deployment: Deployment, version: Version) -> None:
    """Replace one server after another."""
    for server in deployment.servers:
        assert isinstance(server, VersionedServer)
        server.replace(version)


def serve_through(deployment: Deployment, change: Callable[[Deployment], None]) -> None:
    """Let clients work during the change, and check that no acknowledged message is lost or delivered twice.

    Clients choose a server at random. A server that restarts may refuse the connection, but answers every request that
    it accepts without an error. This is stricter than a proxy that heeds ``/readyz``, which would send a leaving server
    no requests.
    """
    with logs_told(deployment.servers), FailureCounter(deployment.urls) as target:
        checked_round(deployment, target, {"change": change}, SECONDS)
        assert target.failures == []


def post(server: ZqServer, body: str) -> None:
    assert ask(server.url, "POST", QUEUE, {"messages": [{"body": body, "ttl": 3600}]}).status == 201


def bodies(server: ZqServer) -> Sequence[str]:
    return [message["body"] for message in every_message(server.url, "jobs")]


def test_each_version_imports_its_own_package(released: Version, current: Version, following: Version) -> None:
    for version in (released, current, following):
        assert version.find_package() == version.folder / "zq"
    assert following.run("--version").said == "zq 0.2.0\n"


def test_servers_are_upgraded_and_downgraded_under_load(shared: str, released: Version, current: Version) -> None:
    """No acknowledged message is lost or duplicated during an upgrade, a downgrade and another upgrade."""
    with ExitStack() as stack:
        deployment = start(stack, shared, released)

        def change(deployment: Deployment) -> None:
            for version in (current, released, current):
                roll(deployment, version)

        serve_through(deployment, change)
        status = current.run("upgrade", "--status", "--store", shared)
        assert status.code == 0, status
        assert status.said.count(" runs zq ") == len(deployment.servers)


def test_an_upgrade_is_finished_under_load(shared: str, current: Version, following: Version, last: Version) -> None:
    """The upgrade cannot be finished before the last old server is replaced; afterwards old servers do not start."""
    with ExitStack() as stack:
        deployment = start(stack, shared, current)
        first, *others = deployment.servers

        def change(deployment: Deployment) -> None:
            roll(deployment, following)
            assert isinstance(first, VersionedServer)
            first.replace(current)
            refused = following.run("upgrade", "--finish", "--store", shared)
            assert refused.code == 2, refused
            assert f":{first.port} (zq 0.1.0)" in refused.error
            first.replace(following)
            done = following.run("upgrade", "--finish", "--store", shared)
            assert done.code == 0, done
            assert done.said.startswith("The store has level 2. zq 0.2.0 supports level 2.\n")

        assert "has level 1, but zq 0.3.0 requires level 2. Start zq 0.2" in refusal(shared, last)
        serve_through(deployment, change)
        assert "upgraded to level 2 with zq 0.2.0, but zq 0.1.0 supports only level 1" in refusal(shared, current)
        post(others[0], "after")
        assert bodies(first) == ["after"]
        roll(deployment, last)
        assert bodies(first) == ["after"]


def refusal(uri: str, version: Version) -> str:
    """Return the error with which a server of the version refuses to start."""
    with pytest.raises(NotStarted) as failure, VersionedServer(uri, version):
        pass
    return str(failure.value)


def test_an_embedded_store_is_upgraded_and_downgraded(
    tmp_path: Path, released: Version, current: Version, following: Version
) -> None:
    """Each version finds the messages of the others until the upgrade is finished."""
    uri, expected = f"rocksdb://{tmp_path}/store", list[str]()
    with VersionedServer(uri, released) as server:
        for number, version in enumerate((current, released, current, following, current, following)):
            expected.append(f"{number}")
            post(server, f"{number}")
            server.replace(version)
            assert bodies(server) == expected
        assert following.run("upgrade", "--finish", "--store", uri).code == 0
        post(server, "finished")
        assert server.terminate() == 0
    assert "supports only level 1" in refusal(uri, current)
    with VersionedServer(uri, following) as server:
        assert bodies(server) == [*expected, "finished"]
        assert server.terminate() == 0
    report = following.run("check-store", "--store", uri)
    assert report.code == 0, report
