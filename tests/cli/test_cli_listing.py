# SPDX-License-Identifier: Apache-2.0
"""``zq queue list`` and ``zq topic list``: names, counts and metadata."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.cli.conftest import Zq
from zq.cli.resources import COUNT_REQUESTS
from zq.client.transport import HttpTransport
from zq.errors import StoreDamaged

IMPOSSIBLE = {"_dead_letter_queue": "no such name"}


@pytest.fixture
def orders(zq: Zq) -> Zq:
    """Create a queue with two ready, one claimed and one dead message, and an empty queue."""
    zq("queue", "create", "orders", "_dead_letter_queue=orders.dead", "owner=shop")
    zq("queue", "create", "quiet")
    zq("post", "orders", "-", given="1\n2\n3\n4\n")
    first, _ = zq("claim", "orders", "--limit", "2")
    zq("settle", "orders", first["claim"], "--bury", first["id"])
    return zq


def test_a_line_of_json_has_everything(orders: Zq) -> None:
    """A JSON line has counts, the number of dead letters if the queue may have some, and all metadata."""
    one, dead, quiet = orders("queue", "list")
    assert (one["name"], one["total"], one["free"], one["claimed"]) == ("orders", 3, 2, 1)
    assert (one["dead_letters"], dead["dead_letters"], quiet["dead_letters"]) == (1, None, None)
    assert one["oldest"] >= one["newest"] >= 0
    assert quiet["oldest"] is None
    assert {"name": "orders", **one["metadata"]} == orders("queue", "show", "orders")[0]
    (topic,) = orders("topic", "publish", "news", "x") and orders("topic", "list")
    assert (topic["name"], topic["total"]) == ("news", 1)
    assert "dead_letters" not in topic


def test_table_has_counts_and_with_l_the_settings(orders: Zq) -> None:
    """``-l`` shows only metadata that was set, because the defaults would fill the screen."""
    shown = [line.split() for line in orders.run("queue", "list", "--table").stdout.splitlines()]
    assert shown[0] == ["name", "messages", "claimed", "oldest", "dead", "letters"]
    assert (shown[1][:3], shown[1][-1]) == (["orders", "3", "1"], "1")
    assert shown[3] == ["quiet", "0", "0"]
    _, one, dead, _ = orders.run("queue", "list", "-l", "--table").stdout.splitlines()
    assert one.endswith("1  _dead_letter_queue=orders.dead owner=shop")
    assert "_default" not in one + dead
    head, *_ = orders.run("topic", "list", "--table").stdout.splitlines()
    assert head.split() == ["name", "messages", "oldest"]


def test_counts_are_a_request_for_each_and_can_be_spared(orders: Zq) -> None:
    """The counts of a dead-letter queue that is also listed are requested once."""
    asked = orders.run("queue", "list", "-v").stderr
    assert asked.count("/stats") == 3
    asked = orders.run("queue", "list", "--name", "orders", "--limit", "1", "-v").stderr
    assert asked.count("/stats") == 2
    result = orders.run("queue", "list", "--no-counts", "-v")
    assert "/stats" not in result.stderr
    assert [sorted(json.loads(line)) for line in result.stdout.splitlines()] == [["metadata", "name"]] * 3
    head, *_ = orders.run("queue", "list", "--no-counts", "--table").stdout.splitlines()
    assert head.split() == ["name"]


class Patient(BaseHTTPRequestHandler):
    """A server that returns counts only when ``COUNT_REQUESTS`` requests wait for them."""

    together = threading.Barrier(COUNT_REQUESTS, timeout=60)

    def do_GET(self) -> None:
        """Answer with a listing or with counts."""
        if "/stats" in self.path:
            self.together.wait()
            found: object = {"messages": {"total": 0, "free": 0, "claimed": 0}}
        else:
            found = {
                "queues": [{"name": f"q{number}", "metadata": IMPOSSIBLE} for number in range(COUNT_REQUESTS)],
                "links": [],
            }
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log no requests."""


@pytest.fixture
def patient() -> Iterator[str]:
    """Start the server and yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Patient) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_counts_are_asked_for_at_once(zq: Zq, patient: str) -> None:
    """The server waits for all count requests. An invalid dead-letter queue name from an old server is ignored."""
    found = zq("queue", "list", "--url", patient)
    assert [row["dead_letters"] for row in found] == [None] * COUNT_REQUESTS


@pytest.mark.parametrize(
    "words",
    [["queue", "list"], ["queue", "stats"], ["top", "--once", "--interval", "0.1"], ["export"]],
    ids=lambda words: words[-1] if words[0] == "queue" else words[0],
)
def test_a_queue_that_cannot_be_read_is_named_and_hides_no_other(
    zq: Zq, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """The listing continues, and the exit code shows that a queue is missing."""
    for name in ("a", "bad", "z"):
        zq("post", name, name)

    run = HttpTransport.run

    def refusing(self: Any, call: Any) -> Any:
        if "/queues/bad/" in call.path:
            raise StoreDamaged("What the request reads is damaged.")
        return run(self, call)

    monkeypatch.setattr(HttpTransport, "run", refusing)
    result = zq.run(*words)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    read = {row["name"] for row in rows if row.get("total") or row.get("is") == "message"}
    assert read == {"a", "z"}
    assert "bad could not be read: What the request reads is damaged." in result.stderr
    assert result.exit_code == 7
