# SPDX-License-Identifier: Apache-2.0
"""Cost of a refusal compared with an admitted request: processor time of one request in milliseconds.

``python -m bench.refusals [--engine gunicorn|granian] [--rounds N]`` posts a message of 1 kB repeatedly on one
connection, as a project within its rate and as one beyond it, in turn. ``behind_proxy`` is on, so that no connection is
paused. It asserts nothing.
"""

import argparse
import tempfile
from http.client import HTTPConnection
from typing import Final

from bench.neighbours import PATH, POSTED, seconds_of, token
from tests.servers import CLIENT, ZqServer

# Requests of each kind in a round.
CALLS: Final = 500
CONFIG: Final = """\
[DEFAULT]
auth_strategy = token
[server]
behind_proxy = true
[quota]
requests = 1
"""
WIDE: Final = '{"limits": {"requests": 1000000000, "messages": 1000000000, "bytes": 1000000000000}}'


class Asker:
    """A connection with a project's credential.

    A request is sent like the standard library's client does, or in one piece.
    """

    def __init__(self, port: int, credential: str, method: str, whole: bool) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"Authorization": f"Bearer {credential}", "Client-ID": CLIENT}
        self._method = method
        self._whole = whole
        self.opened = 0

    def ask(self) -> int:
        """Send a request and return its status."""
        connection, body = self._connection, POSTED if self._method == "POST" else None
        if connection.sock is None:
            connection.connect()
            self.opened += 1
        if self._whole and body:
            lines = {"Host": "localhost", "Content-Length": str(len(body)), **self._headers}
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            connection.sock.sendall(f"POST {PATH} HTTP/1.1\r\n{head}\r\n{body}".encode())
            reply = connection.response_class(connection.sock, method="POST")
            reply.begin()
        else:
            connection.request(self._method, PATH, body, self._headers)
            reply = connection.getresponse()
        reply.read()
        if reply.will_close:
            connection.close()
        return reply.status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="gunicorn")
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = f"rocksdb:{folder}/store"
        wide, narrow = token(store, "wide"), token(store, "narrow")
        admin = token(store, "admin", "--admin")
        with ZqServer(store, engine=given.engine, config=CONFIG) as server:
            connection = HTTPConnection("127.0.0.1", server.port)
            connection.request("PUT", "/v2/admin/project?project=wide", WIDE, {"Authorization": f"Bearer {admin}"})
            assert connection.getresponse().status == 200
            rows = {
                "post, 201": Asker(server.port, wide, "POST", whole=False),
                "post, 429": Asker(server.port, narrow, "POST", whole=False),
                "post in one piece, 201": Asker(server.port, wide, "POST", whole=True),
                "post in one piece, 429": Asker(server.port, narrow, "POST", whole=True),
                "get, 200": Asker(server.port, wide, "GET", whole=False),
                "get, 429": Asker(server.port, narrow, "GET", whole=False),
            }
            least = dict.fromkeys(rows, float("inf"))
            for _ in range(given.rounds):
                for name, asker in rows.items():
                    statuses, before = {asker.ask() for _ in range(10)}, seconds_of(server)
                    statuses = {asker.ask() for _ in range(CALLS)}
                    least[name] = min(least[name], (seconds_of(server) - before) / CALLS * 1e3)
                    assert len(statuses) < 3, statuses
            for name, asker in rows.items():
                print(f"{given.engine}: {name:24}{least[name]:6.3f} ms, {asker.opened} connections", flush=True)


if __name__ == "__main__":
    main()
