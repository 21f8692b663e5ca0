# SPDX-License-Identifier: Apache-2.0
"""The lock of an embedded store: a second process is refused with an error and does not affect the first."""

import os
import signal

import pytest

from tests.faults.refusal import sentence_of
from tests.servers import ZqServer, ask, every_message, wait_for

POST = {"messages": [{"body": "mine", "ttl": 600}]}


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_second_server_on_one_store_is_refused_with_a_sentence(tmp_path, engine: str) -> None:
    """The second server exits soon with one error message that names alternatives; the first continues."""
    uri = f"rocksdb://{tmp_path}/store"
    with ZqServer(uri) as first:
        assert ask(first.url, "POST", "/v2/queues/jobs/messages", POST).status == 201
        sentence = sentence_of(ZqServer(uri, engine=engine))
        assert "process" in sentence
        assert str(tmp_path / "store") in sentence
        assert ask(first.url, "POST", "/v2/queues/jobs/messages", POST).status == 201
        assert len(every_message(first.url, "jobs")) == 2
        first.kill()
        with ZqServer(uri, engine=engine) as heir:
            assert len(every_message(heir.url, "jobs")) == 2


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_worker_ends_when_its_master_is_gone(tmp_path, engine: str) -> None:
    """This holds however the master ends, because an orphan would hold the store and block the next server."""
    uri = f"rocksdb://{tmp_path}/store"
    with ZqServer(uri, engine=engine) as server:
        assert ask(server.url, "POST", "/v2/queues/jobs/messages", POST).status == 201
        assert server.worker_pids
        os.kill(server.pid, signal.SIGKILL)
        wait_for(lambda: not server.worker_pids, 60, "the worker has ended")
        with ZqServer(uri, engine=engine) as heir:
            assert len(every_message(heir.url, "jobs")) == 1
