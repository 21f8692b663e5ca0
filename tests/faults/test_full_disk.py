# SPDX-License-Identifier: Apache-2.0
"""A disk that is temporarily full: clean refusals, no partial writes, and recovery without a restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abilities import need
from tests.faults.disks import Disk, LimitedFiles, SmallFileSystem
from tests.rotation import rotated
from tests.servers import Answer, Lost, ZqServer, ask, every_message, wait_for

RECOVERED_WITHIN = 60.0
QUEUE = "/v2/queues/jobs"


@pytest.fixture(params=rotated(["limited files", "limited files, granian", "small file system"], 1))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    engine = "granian" if request.param.endswith("granian") else "gunicorn"
    small = request.param == "small file system"
    if small:
        need("unshare")
    made: Disk = SmallFileSystem(tmp_path) if small else LimitedFiles(tmp_path, engine)
    try:
        with made.server:
            yield made
    finally:
        made.close()


class Poster:
    """A producer of bodies "0...", "1...", which records acknowledged and refused posts."""

    def __init__(self, disk: Disk) -> None:
        self._server = disk.server
        self._filling = disk.filling
        self._next = 0
        self.acknowledged: list[str] = []
        self.refused: list[str] = []

    def post(self) -> Answer:
        """Post two messages; the status must be 201 or 503."""
        bodies = [f"{self._next}{half}{self._filling}" for half in "ab"]
        self._next += 1
        document = {"messages": [{"body": body, "ttl": 3600} for body in bodies]}
        answer = ask(self._server.url, "POST", f"{QUEUE}/messages", document)
        assert answer.status in (201, 503), answer
        (self.acknowledged if answer.status == 201 else self.refused).extend(bodies)
        return answer

    def accepted(self) -> bool:
        return self.post().status == 201


def listed(server: ZqServer) -> list[str]:
    return [message["body"] for message in every_message(server.url, "jobs")]


def test_a_full_disk_refuses_writes_cleanly_and_the_server_recovers_by_itself(disk: Disk) -> None:
    """Posts get 503 and a log line; refused posts never appear. With space again posts succeed, also after kill -9."""
    server = disk.server
    poster = Poster(disk)
    for _ in range(5):
        assert poster.accepted()
    workers = server.worker_pids
    logged = len(server.output)

    disk.fill()
    refusal = wait_for(lambda: refused(poster), 60, "a post is refused")
    disk.fill()
    assert refusal.document["title"] == "Service temporarily unavailable"
    assert refusal.document["description"]
    for _ in range(3):
        poster.post()
    reads_tell_the_truth(server, poster)
    told = wait_for(lambda: server.output[logged:].strip(), 60, "a log line about the failure")
    assert any(words in told for words in ("IO error", "No space left", "File too large")), told
    assert disk.filling not in told, "a body is in the log"
    assert ask(server.url, "GET", "/healthz").status == 200
    wait_for(lambda: not server.ready(), 60, "/readyz says that the store cannot write")

    disk.free()
    wait_for(poster.accepted, RECOVERED_WITHIN, "posts pass again")
    assert server.worker_pids == workers, "a worker was restarted"
    wait_for(server.ready, 60, "/readyz is well again")
    assert listed(server) == poster.acknowledged
    assert poster.accepted()

    server.kill()
    server.start()
    assert listed(server) == poster.acknowledged


def test_deletes_and_claims_on_a_full_disk_happen_wholly_or_not_at_all(disk: Disk) -> None:
    """Refused changes have no effect and acknowledged ones have, before and after kill -9."""
    server = disk.server
    poster = Poster(disk)
    for _ in range(3):
        assert poster.accepted()
    *_, last = every_message(server.url, "jobs")
    disk.fill()
    wait_for(lambda: refused(poster), 60, "a post is refused")
    disk.fill()
    claim = ask(server.url, "POST", f"{QUEUE}/claims?limit=1", {"ttl": 3600})
    pop = ask(server.url, "DELETE", f"{QUEUE}/messages?pop=1")
    drop = ask(server.url, "DELETE", last["href"])
    assert {claim.status, pop.status, drop.status} <= {200, 201, 204, 503}

    def as_answered() -> bool:
        stats = ask(server.url, "GET", f"{QUEUE}/stats").document["messages"]
        gone = (drop.status == 204) + (len(pop.document["messages"]) if pop.status == 200 else 0)
        assert stats["total"] == len(poster.acknowledged) - gone
        assert stats["claimed"] == (1 if claim.status == 201 else 0)
        return True

    disk.free()
    wait_for(poster.accepted, RECOVERED_WITHIN, "posts pass again")
    assert as_answered()
    server.kill()
    server.start()
    assert as_answered()


def refused(poster: Poster) -> Answer | None:
    answer = poster.post()
    return answer if answer.status == 503 else None


def reads_tell_the_truth(server: ZqServer, poster: Poster) -> None:
    """Assert that reads of a full store succeed or get 503, and never show refused messages."""
    try:
        answer = ask(server.url, "GET", f"{QUEUE}/messages?limit=20&echo=true")
    except Lost as error:
        raise AssertionError("a read was cut off") from error
    assert answer.status in (200, 503), answer
    if answer.status == 200:
        bodies = [message["body"] for message in answer.document["messages"]]
        assert bodies == poster.acknowledged[:20]
