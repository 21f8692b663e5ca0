# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any moment: whatever was acknowledged is as it was acknowledged after a restart (L1, L2, L3, L6, L7)."""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.faults.integrity import whole
from tests.faults.traffic import Claimer, Popper, Producer, Reader, Traffic
from tests.servers import Answer, ZqServer, ask, every_message, wait_for

pytestmark = pytest.mark.store_of_the_day
KILLS = 3
SEEDED = 1500


@pytest.fixture
def server(store_uri: str, engine: str) -> Iterator[ZqServer]:
    """A server that a test may kill; whatever became of it, its store is whole."""
    with ZqServer(store_uri, engine=engine) as started:
        yield started
    whole(store_uri)


def bodies(url: str, queue: str) -> list[str]:
    return [message["body"] for message in every_message(url, queue)]


def seed(url: str, queue: str) -> list[str]:
    """Fill a queue with bodies "0", "1", ...; returns them."""
    names = [str(number) for number in range(SEEDED)]
    for start in range(0, SEEDED, 500):
        document = {"messages": [{"body": name, "ttl": 3600} for name in names[start : start + 500]]}
        assert ask(url, "POST", f"/v2/queues/{queue}/messages", document).status == 201
    return names


@pytest.fixture
def after_the_kills(server: ZqServer) -> tuple[ZqServer, Traffic]:
    """A server that was killed several times under traffic and runs again, and what its clients were told."""
    seed(server.url, "work")
    seed(server.url, "pops")
    traffic = Traffic(server.url)
    traffic.producers = [Producer(traffic, name) for name in "abc"]
    traffic.claimers = [Claimer(traffic) for _ in range(2)]
    traffic.poppers = [Popper(traffic)]
    traffic.reader = Reader(traffic)
    with traffic:
        for _ in range(KILLS):
            before, enough = traffic.acknowledged, random.randint(30, 150)
            wait_for(lambda: traffic.acknowledged >= before + enough, 60, f"{enough} more answers")  # noqa: B023
            server.kill()
            server.start()
        before = traffic.acknowledged
        wait_for(lambda: traffic.acknowledged > before, 60, "an answer after the last restart")
    server.kill()
    server.start()
    return server, traffic


def test_kills_under_traffic_lose_repeat_and_revive_nothing(after_the_kills: tuple[ZqServer, Traffic]) -> None:
    """Posts, deletes, pops and claims keep their word over several kills, and a reader by marker misses nothing."""
    server, traffic = after_the_kills
    posts_are_there_exactly_once(server, traffic)
    deletes_and_claims_hold(server, traffic)
    pops_are_gone_for_good(server, traffic)


def posts_are_there_exactly_once(server: ZqServer, traffic: Traffic) -> None:
    listed = bodies(server.url, "posts")
    assert [body for body, times in Counter(listed).items() if times > 1] == []
    there = set(listed)
    for producer in traffic.producers:
        acknowledged = [body for post in producer.acknowledged for body in post]
        assert [body for body in acknowledged if body not in there] == [], "an acknowledged post is lost"
        torn = [post for post in producer.unanswered if 0 < len(there & set(post)) < len(post)]
        assert torn == [], "half a post was stored"
        own = [body for body in listed if body.startswith(producer.name)]
        assert own == sorted(own, key=lambda body: int(body.split("-")[1])), "a producer's posts changed places"
        assert set(own) <= set(acknowledged) | {body for post in producer.unanswered for body in post}
    assert traffic.reader is not None
    traffic.reader.finish()
    assert traffic.reader.seen == listed, "a reader that followed the markers over the kills saw something else"


def deletes_and_claims_hold(server: ZqServer, traffic: Traffic) -> None:
    deleted = {message for claimer in traffic.claimers for message in claimer.deleted}
    unsure = {message for claimer in traffic.claimers for message in claimer.unsure}
    claims = {claim: held for claimer in traffic.claimers for claim, held in claimer.claims.items()}
    handed_out = Counter(message for held in claims.values() for message in held)
    assert [message for message, times in handed_out.items() if times > 1] == [], "two live claims held one message"
    assert len(deleted) > 20
    assert len(claims) > 10

    left = {message["href"].split("/")[-1].split("?")[0] for message in every_message(server.url, "work")}
    assert left & deleted == set(), "a deleted message came back"
    for claim, held in claims.items():
        kept = held - deleted
        answer = ask(server.url, "GET", f"/v2/queues/work/claims/{claim}")
        if answer.status == 404:
            assert kept <= unsure, f"claim {claim} is lost"
            continue
        shown = {message["href"].split("/")[-1].split("?")[0] for message in answer.document["messages"]}
        assert kept - unsure <= shown <= kept, f"claim {claim} holds other messages than it was given"


def pops_are_gone_for_good(server: ZqServer, traffic: Traffic) -> None:
    popped = Counter(body for popper in traffic.poppers for body in popper.popped)
    assert [body for body, times in popped.items() if times > 1] == [], "a message was popped twice"
    assert len(popped) > 20
    left = bodies(server.url, "pops")
    assert set(left) & set(popped) == set(), "a popped message came back"
    missing = SEEDED - len(left) - len(popped)
    lost_answers = sum(popper.unanswered for popper in traffic.poppers)
    assert 0 <= missing <= lost_answers * Popper.LIMIT, "a message is neither there nor popped"


def test_a_killed_worker_is_replaced_with_everything_in_place(server: ZqServer) -> None:
    """The master starts a new one, which opens the store that the kernel has let go of."""
    names = seed(server.url, "jobs")
    for worker in server.worker_pids:
        os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not server.ready() or server.worker_pids, 60, "the kill is noticed")
    wait_for(server.ready, 60, "a new worker serves")
    assert bodies(server.url, "jobs") == names


def test_each_verb_that_was_acknowledged_survives_a_kill_right_after_it(server: ZqServer) -> None:
    """One kill after one of each: create, patch, post, claim, renew, release, delete, bulk delete, pop, purge, drop."""

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
