# SPDX-License-Identifier: Apache-2.0
"""The weaker sync modes of the embedded store: a power failure may lose data, a killed process never does."""

from pathlib import Path

import pytest

from tests.servers import ZqServer, ask, every_message


@pytest.mark.parametrize("mode", ["interval", "never"])
def test_a_kill_loses_nothing_in_any_sync_mode(tmp_path: Path, mode: str) -> None:
    """The server is killed right after the last response to posts and deletions."""
    config = f"[storage]\nuri = rocksdb://{tmp_path}/store\n[storage:rocksdb]\nsync = {mode}\nsync_interval = 600\n"
    with ZqServer("", config=config) as server:
        for number in range(20):
            document = {"messages": [{"body": number, "ttl": 600}]}
            answer = ask(server.url, "POST", "/v2/queues/jobs/messages", document)
            assert answer.status == 201
        assert ask(server.url, "DELETE", answer.document["resources"][0]).status == 204
        server.kill()
        server.start()
        assert [message["body"] for message in every_message(server.url, "jobs")] == list(range(19))
