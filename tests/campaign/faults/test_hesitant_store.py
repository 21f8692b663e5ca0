# SPDX-License-Identifier: Apache-2.0
"""Valid tokens that are no longer cached: during a pause of the store and during an attack (attack D2 and D4).

The attacker sends invalid tokens from the same address.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.commands import new_token
from tests.servers import ZqServer, ask
from tests.stores import RedisServer
from zq.auth.credentials import BURST

CONFIG = "[DEFAULT]\nauth_strategy = token\n"
MEMORY = 6.0
"""Seconds after which a token is no longer cached, with a margin of one second."""
PAUSES = [5.3, 5.5, 5.7, 5.9]
"""Seconds of the store's pauses: slightly longer than ``storage_timeout``."""


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with RedisServer(None) as started:
        yield started


@pytest.fixture
def server(store: RedisServer, engine: str) -> Iterator[ZqServer]:
    with ZqServer(store.uri, engine=engine, config=CONFIG) as started:
        yield started


def post(server: ZqServer, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}", "X-Project-ID": "acme"}
    document = {"messages": [{"body": 1}]}
    return ask(server.url, "POST", "/v2/queues/q/messages", document, headers=headers, timeout=60).status


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_valid_token_is_never_invalid_while_the_store_stands_still(server: ZqServer, store: RedisServer) -> None:
    """Posts that wait for the stopped store are answered 503, or 201 if it resumes in time, but never 401 or 429."""
    token = new_token(store.uri, "acme")
    seen: Counter[int] = Counter()
    for pause in PAUSES:
        assert post(server, token) == 201
        time.sleep(MEMORY)
        with ThreadPoolExecutor(4) as pool:
            with store.frozen():
                posts = []
                for _ in range(4):
                    posts.append(pool.submit(post, server, token))
                    time.sleep(0.1)  # the responses arrive around the end of the pause
                time.sleep(pause - 0.4)
            seen += Counter(one.result() for one in posts)
    assert set(seen) <= {201, 503}
    assert seen[503] > 0


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_invalid_tokens_lock_no_valid_one_of_their_address_out(server: ZqServer, store: RedisServer) -> None:
    """With a hundred invalid tokens per second from its address, a valid token that is not cached always gets 201."""
    token = new_token(store.uri, "acme")
    ending = threading.Event()

    def attack() -> Sequence[int]:
        statuses = []
        while not ending.wait(0.03):
            statuses.append(post(server, f"x{len(statuses)}"))
        return statuses

    assert post(server, token) == 201
    with ThreadPoolExecutor(3) as pool:
        attacks = [pool.submit(attack) for _ in range(3)]
        try:
            answers = []
            for _ in range(3):
                time.sleep(MEMORY)
                answers.append(post(server, token))
        finally:
            ending.set()
    refused = Counter(status for one in attacks for status in one.result())
    assert answers == [201, 201, 201]
    assert set(refused) <= {401, 429}
    assert refused[429] > BURST
