# SPDX-License-Identifier: Apache-2.0
"""Self-tests of the nemeses: the wire's faults, and the detection of a store that loses data when it is killed."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.campaign.histories.checker import check_history
from tests.campaign.histories.load import HTTP, Shift, finish, labour, prepare
from tests.campaign.histories.nemesis import Deployment, befall, kill_store
from tests.campaign.histories.targets import HttpTarget
from tests.campaign.histories.wire import Wire
from tests.servers import ZqServer, wait_for
from tests.stores import RedisServer


def test_a_wire_can_be_cut_and_slowed() -> None:
    """A response is late and then lost; a new connection is accepted at once."""
    with RedisServer() as store, Wire(store.port) as wire, ThreadPoolExecutor(1) as beside:
        near = redis.Redis(port=wire.port, retry=None)
        with wire.slowed(0.3):
            began = time.monotonic()
            assert near.ping()
            assert time.monotonic() - began >= 0.3
        answer = beside.submit(near.execute_command, "BLPOP", "nothing", 60)
        direct = redis.Redis(port=store.port)
        wait_for(lambda: direct.info("clients")["blocked_clients"], 60, "the server is asked")
        assert wire.cut() == 1
        with pytest.raises(redis.ConnectionError):
            answer.result(20)
        assert redis.Redis(port=wire.port, retry=None).ping()


def test_checker_finds_a_store_that_loses_data() -> None:
    """Redis without persistence loses acknowledged messages when it is killed, and the checker reports it."""
    with RedisServer() as store, ZqServer(store.uri) as server, HttpTarget([server.url]) as target:
        prepare(target)
        shift = Shift(float("inf"))
        with ThreadPoolExecutor(1) as beside:
            fate = beside.submit(befall, Deployment([server], store), {"kill-store": kill_store}, 0.0, 1.5)
            fate.add_done_callback(lambda _: shift.end())
            calls = labour(target, HTTP, shift)
        assert fate.result() == ["kill-store"]
        calls += finish(target, HTTP)
    assert any("is lost" in violation.sentence for violation in check_history(calls))
