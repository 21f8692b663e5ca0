# SPDX-License-Identifier: Apache-2.0
"""Requests without a credential, many or large: they cost less than valid requests and block no tenant."""

import contextlib
import socket
import threading
import time
from pathlib import Path

from bench.neighbours import seconds_of as processor_time
from tests.commands import new_token
from tests.faults.test_strangers import BODY
from tests.servers import CLIENT, ZqServer, ask
from zq.auth.credentials import CREDENTIAL_REQUIRED

CONFIG = "[DEFAULT]\nauth_strategy = token\n"


def test_a_refusal_costs_less_than_what_is_served(engine: str, tmp_path: Path) -> None:
    """The refusal uses less processor time although the body is 300 times as large, because the body is not read."""
    uri = f"rocksdb://{tmp_path}/store"
    credential = new_token(uri, "acme")
    with ZqServer(uri, engine=engine, config=CONFIG) as server:

        def cost(body: bytes, header: str, count: int) -> float:
            """Return the processor seconds for each request; strangers have their own address, which is blocked."""
            source = ("127.0.0.1" if header else "127.0.0.2", 0)
            head = f"POST /v2/queues/jobs/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            head += f"Client-ID: {CLIENT}\r\nConnection: close\r\n{header}\r\n"
            processes = [server.pid, *server.worker_pids]
            before = processor_time(processes)
            for _ in range(count):
                with socket.create_connection(("127.0.0.1", server.port), 20, source) as connection:
                    connection.sendall(head.encode())
                    with contextlib.suppress(OSError):
                        connection.sendall(body)
                    assert connection.recv(12)[-3:] in ((b"201",) if header else (b"401", b"429"))
            return (processor_time(processes) - before) / count

        small = b'{"messages": [{"body": "' + b"x" * 800 + b'"}]}'
        mine = f"Authorization: Bearer {credential}\r\n"
        cost(small, mine, 50)
        tries = []
        for _ in range(5):  # the best value counts on a busy machine
            tries.append(cost(b"x" * BODY, "", 400) / cost(small, mine, 400))
            if tries[-1] < 1:
                return
        raise AssertionError(f"A refusal costs so many times what is served: {tries}")


def test_strangers_with_large_bodies_do_not_stop_a_tenant(engine: str, tmp_path: Path) -> None:
    """Eight strangers send large bodies without a pause, but all requests of the tenant succeed.

    No message of the strangers is stored. The tenant is known before, because an address with too many failures cannot
    authenticate new tokens.
    """
    uri = f"rocksdb://{tmp_path}/store"
    credential = new_token(uri, "acme")
    mine = {"Authorization": f"Bearer {credential}"}
    over, refused = threading.Event(), []

    with ZqServer(uri, engine=engine, config=CONFIG) as server:
        assert ask(server.url, "PUT", "/v2/queues/jobs", {}, headers=mine).status == 201

        def flood() -> None:
            head = (
                f"POST /v2/queues/jobs/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY}\r\n\r\n".encode()
            )
            while not over.is_set():
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 20) as stranger:
                    stranger.sendall(head + b"x" * BODY)
                    refused.append(stranger.recv(12)[-3:])

        def told() -> int:
            return refused.count(b"401") + refused.count(b"429")

        strangers = [threading.Thread(target=flood) for _ in range(8)]
        for stranger in strangers:
            stranger.start()
        try:
            end, answered = time.monotonic() + 4, 0
            while time.monotonic() < end or min(answered, told()) <= 20:
                posted = {"messages": [{"body": answered}]}
                assert ask(server.url, "POST", "/v2/queues/jobs/messages", posted, headers=mine).status == 201
                answered += 1
        finally:
            over.set()
            for stranger in strangers:
                stranger.join()
        assert {status for status in refused if status} <= {b"401", b"429", b"503"}
        stats = ask(server.url, "GET", "/v2/queues/jobs/stats", headers=mine).document["messages"]
        assert stats["total"] == answered
    assert CREDENTIAL_REQUIRED not in server.output, "refusals are for the audit log"
