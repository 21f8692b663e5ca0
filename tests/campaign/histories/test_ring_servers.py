# SPDX-License-Identifier: Apache-2.0
"""Moves between queues while servers are killed: no loss, no duplicate (L1, L2, L7)."""

import time
from contextlib import ExitStack
from threading import Thread

from tests.campaign.histories.ring_targets import HttpRing
from tests.campaign.histories.runs import SECONDS, SERVERS, embedded, kill_in_turn, logs_told
from tests.campaign.histories.token_ring import assert_in_place, find_faults, run_ring
from tests.servers import ZqServer


def test_tokens_stay_whole_while_servers_are_killed(store_uri: str) -> None:
    """After a lost response, a client repeats the request with its key on any server."""
    with ExitStack() as stack:
        count = 1 if embedded(store_uri) else SERVERS - 1
        servers = [stack.enter_context(ZqServer(store_uri)) for _ in range(count)]
        target = HttpRing([server.url for server in servers])
        until = time.monotonic() + SECONDS / 2
        killer = Thread(target=kill_in_turn, args=(servers, until))
        killer.start()
        with logs_told(servers):
            tally = run_ring(target, SECONDS / 2)
            killer.join()
            assert_in_place(find_faults(target, tally), tally)
