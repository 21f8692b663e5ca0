# SPDX-License-Identifier: Apache-2.0
"""A rolling restart of two servers on a store, each after ``zq-server drain``, as in a Kubernetes deployment."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.campaign.histories.subscribers import Traffic
from tests.commands import run_apart
from tests.faults.test_draining import Producer
from tests.servers import ZqServer, wait_for
from tests.stores import RedisServer

CLIENTS = 50
# Seconds between two posts of a client, so few that requests are in progress at any time.
PAUSE = 0.02
# Number of streams whose readers stay until the server ends them. Three more streams have other readers.
LIVE_STREAMS = 7
# Maximum number of posts of each publisher. The publishers must not finish before the last restart.
POSTS = 10_000
# Number of topic posts before and after each restart.
BETWEEN = 100
# Seconds of the drain. The streams do not end earlier.
DRAIN = 3
PATIENCE = 120
# With gunicorn, each stream holds a thread, and a project may have a quarter of the streams.
OPTIONS = {"granian": "", "gunicorn": "threads = 128\nmax_streams = 64\n"}


def wait_for_each(clients: list[Producer]) -> None:
    """Wait until each client has posted again."""
    for client, posted in [(client, client.posted) for client in clients]:
        wait_for(partial(client.is_beyond, posted), PATIENCE, "the client goes on")


@pytest.mark.parametrize("engine", ["granian", "gunicorn"])
def test_a_rolling_restart_after_drains_fails_no_request_and_misses_no_message(
    engine: str, store: RedisServer, tmp_path: Path
) -> None:
    """50 clients keep their connections, and 10 streams resume on either server (operations contract, section 9)."""
    with ExitStack() as stack:
        files = [tmp_path / f"{name}.conf" for name in "ab"]
        for file in files:
            file.write_text(
                f"[server]\ncontrol = {file.with_suffix('.sock')}\n{OPTIONS[engine]}[storage]\nuri = {store.uri}\n"
            )
        servers = [stack.enter_context(ZqServer("", "--config", str(file), engine=engine)) for file in files]
        traffic = Traffic([server.url for server in servers], "drain", POSTS, PATIENCE, LIVE_STREAMS)
        stayed: list[int] = []
        with traffic, ExitStack() as load:
            ports = [server.port for server in servers]
            clients = [load.enter_context(Producer(ports, keeps=True, pause=PAUSE)) for _ in range(CLIENTS)]
            for server, file in zip(servers, files, strict=True):
                traffic.wait_for_posts(BETWEEN)
                drained = run_apart("drain", "--wait", DRAIN, "--config", file)
                assert drained.code == 0, drained
                wait_for_each(clients)
                wait_for_each(clients)
                stayed += [client.port for client in clients if client.port == server.port]
                assert server.terminate() == 0, server.output
                server.start()
            wait_for_each(clients)
            traffic.wait_for_posts(BETWEEN)
        assert [failure for client in clients for failure in client.failures] == []
        assert stayed == [], "after the drain, the clients use the other server"
        assert traffic.violations() == []
