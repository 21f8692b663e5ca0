# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a worker, and after each verb: a restart finds all acknowledged changes (L1, L2, L3, L6, L7).

``test_history.py`` kills servers under load.
"""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.faults.integrity import whole
from tests.servers import Answer, ZqServer, ask, every_message, wait_for

pytestmark = pytest.mark.store_of_the_day
SEEDED = 1500


@pytest.fixture
def server(store_uri: str, engine: str) -> Iterator[ZqServer]:
    """Return a server that a test may kill, and check the store's integrity afterwards."""
    with ZqServer(store_uri, engine=engine) as started:
        yield started
    whole(store_uri)


def bodies(url: str, queue: str) -> list[str]:
    return [message["body"] for message in every_message(url, queue)]


def seed(url: str, queue: str) -> list[str]:
    """Fill a queue with bodies "0", "1", ... and return them."""
    names = [str(number) for number in range(SEEDED)]
    for start in range(0, SEEDED, 500):
        document = {"messages": [{"body": name, "ttl": 3600} for name in names[start : start + 500]]}
        assert ask(url, "POST", f"/v2/queues/{queue}/messages", document).status == 201
    return names


def test_a_killed_worker_is_replaced_with_everything_in_place(server: ZqServer) -> None:
    """The master starts another worker, which opens the store after the kernel has released its lock."""
    names = seed(server.url, "jobs")
    for worker in server.worker_pids:
        os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not server.ready() or server.worker_pids, 60, "the kill is noticed")
    wait_for(server.ready, 60, "a new worker serves")
    assert bodies(server.url, "jobs") == names


def test_each_verb_that_was_acknowledged_survives_a_kill_right_after_it(server: ZqServer) -> None:
    """The verbs are create, patch, post, claim, renew, release, delete, bulk delete, pop, purge and drop."""

    def done(method: str, path: str, document: object = None) -> Answer:
        answer = ask(server.url, method, f"/v2/queues/{path}", document)
        assert answer.status in (200, 201, 204), (method, path, answer)
        return answer

    def post(queue: str, *names: str) -> list[str]:
        answer = done("POST", f"{queue}/messages", {"messages": [{"body": name, "ttl": 600} for name in names]})
        return [href.split("/")[-1] for href in answer.document["resources"]]

    def claim(queue: str) -> str:
        return done("POST", f"{queue}/claims", {"ttl": 300, "grace": 60}).headers["location"].split("/")[-1]

    done("PUT", "meta", {"colour": "blue"})
    done("PATCH", "meta", [{"op": "replace", "path": "/metadata/colour", "value": "green"}])
    post("renewed", "r")
    renewed = claim("renewed")
    done("PATCH", f"renewed/claims/{renewed}", {"ttl": 4000})
    post("released", "x", "y")
    released = claim("released")
    done("DELETE", f"released/claims/{released}")
    one, two, _ = post("deleted", "1", "2", "3")
    done("DELETE", f"deleted/messages/{one}")
    done("DELETE", f"deleted/messages?ids={two}")
    post("popped", "p1", "p2")
    done("DELETE", "popped/messages?pop=1")
    post("purged", "gone")
    done("POST", "purged/purge")
    post("dropped", "gone")
    done("DELETE", "dropped")
    server.kill()
    server.start()

    assert done("GET", "meta").document["colour"] == "green"
    kept = done("GET", f"renewed/claims/{renewed}").document
    assert (kept["ttl"], [message["body"] for message in kept["messages"]]) == (4000, ["r"])
    assert ask(server.url, "GET", f"/v2/queues/released/claims/{released}").status == 404
    again = done("POST", "released/claims", {}).document["messages"]
    assert [message["body"] for message in again] == ["x", "y"]
    assert bodies(server.url, "deleted") == ["3"]
    assert bodies(server.url, "popped") == ["p2"]
    assert bodies(server.url, "purged") == bodies(server.url, "dropped") == []
    names = [queue["name"] for queue in ask(server.url, "GET", "/v2/queues?limit=20").document["queues"]]
    assert "dropped" not in names
    assert "purged" in names
