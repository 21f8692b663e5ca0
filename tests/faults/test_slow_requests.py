# SPDX-License-Identifier: Apache-2.0
"""The WARNING of a server about a slow request; ``HUP`` changes its threshold."""

import os
import re
import signal
from pathlib import Path

from tests.servers import ZqServer, ask, wait_for

LARGE = {"messages": [{"body": "x" * 200_000}]}
LINE = r"method='POST' path='/v2/queues/q/messages' route='/v2/queues/\{queue\}/messages' status=201 seconds="


def test_a_server_warns_of_slow_requests_but_not_of_long_polls(engine: str, tmp_path: Path) -> None:
    """The wait of a long poll for messages does not make it slow."""
    file = tmp_path / "zq.conf"
    file.write_text("[log]\nslow = 0.9\n")
    with ZqServer(f"rocksdb://{tmp_path}/store", "--config", str(file), engine=engine) as server:
        assert ask(server.url, "GET", "/v2/queues/q/messages?wait=1").status == 200
        assert "Slow request." not in server.output
        file.write_text("[log]\nslow = 0.001\n")
        os.kill(server.pid, signal.SIGHUP)

        def is_warned_of_post() -> bool:
            assert ask(server.url, "POST", "/v2/queues/q/messages", LARGE).status == 201
            return re.search(f"WARNING zq.requests: Slow request.*{LINE}", server.stderr) is not None

        wait_for(is_warned_of_post, 60, "a post is slower than a millisecond")
