# SPDX-License-Identifier: Apache-2.0
"""Listings of claims on MongoDB and Redis: the work for one page, and removal of the holder when a claim ends."""

import re
from collections.abc import Callable

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import Scene, ids_of
from zq.conformance.test_claim_lists import WHO, claims, names
from zq.model import ClaimRef, Commit, QueueRef
from zq.model.transactions import Bounds
from zq.storage.mongodb import MongoStorage, layout, observing
from zq.storage.redis import RedisStorage
from zq.storage.redis import layout as redis_layout
from zq.storage.redis.claims import MAX_READ_QUEUES

MONGODB = pytest.mark.parametrize("store_name", ["mongodb"], indirect=True)
REDIS = pytest.mark.parametrize("store_name", ["redis"], indirect=True)


@pytest.fixture
def scene(storage: MongoStorage | RedisStorage, clock: ManualClock, queue: QueueRef) -> Scene:
    return Scene(storage, clock, queue)


@MONGODB
@pytest.mark.parametrize("steps", [1, 2, 5, 8])
def test_a_page_that_ends_within_a_claim_counts_all_of_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Each claim is listed once with all its messages.

    Some claims are larger than the messages read for a page, one name occurs in many queues, and claims of another
    project are between them.
    """
    monkeypatch.setattr(observing, "STEPS", steps)
    expected = []
    for number in range(4):
        at, beside = scene.at(f"queue-{number}"), scene.at(f"queue-{number}", "other")
        for place in (at, beside):
            place.post(11)
            place.take(7, name="same", holder=WHO)
            place.take(number + 1, name=f"own-{place.queue.project}-{number}", holder=WHO)
        expected += [(at.queue.name, "same", 7), (at.queue.name, f"own-acme-{number}", number + 1)]
    for limit in (1, 3, 100):
        found = claims(scene, limit, whole_project=True)
        assert sorted((one.queue, one.id, one.messages) for one in found) == sorted(expected)
    assert names(claims(scene.at("queue-2"), 1)) == [("queue-2", "own-acme-2"), ("queue-2", "same")]


@MONGODB
def test_a_page_is_read_along_the_index_and_ends(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page uses the index: it reads at most the bounded number of messages and sorts nothing."""
    monkeypatch.setattr(observing, "STEPS", 20)
    for _ in range(30):
        scene.post(2)
        scene.take(2, holder=WHO)
    client = scene.storage._client
    sent: list[dict[str, object]] = []
    aggregate = client.aggregate

    def noted(stages: list[dict[str, object]], hint: str) -> list[dict[str, object]]:
        sent.append({"aggregate": "messages", "pipeline": stages, "cursor": {}, "hint": hint})
        return aggregate(stages, hint)

    monkeypatch.setattr(client, "aggregate", noted)
    assert scene.storage.claims.list("acme", "", 100, scene.now).next
    plan = client.database.command("explain", sent[0], verbosity="executionStats", codec_options=layout.CODEC)
    told = str(plan)
    assert "'stage': 'SORT'" not in told
    assert max(map(int, re.findall(r"'totalDocsExamined': (\d+)", told))) == 20


@MONGODB
@pytest.mark.parametrize("end", ["release", "finish"])
def test_a_message_keeps_nothing_of_a_holder(scene: Scene, end: str) -> None:
    """When its claim is over, a message keeps only the number of claims and the time of the first one."""
    scene.post(1)
    scene.take(1, name="a", holder=WHO)
    if end == "release":
        scene.release("a")
    else:
        scene.settle("a", rest=True, history=60)
    [kept] = [found["c"] for found in scene.storage._client.find({"c": {"$exists": True}})]
    assert kept == {"n": 1, "f": kept["f"]}, "how often it was claimed, and when first"


@REDIS
def test_a_page_reads_claims_of_a_bounded_number_of_queues(scene: Scene) -> None:
    """A page reads the claims of a bounded number of queues, even if all of these claims have expired."""
    for number in range(MAX_READ_QUEUES + 1):
        at = scene.at(f"lapsed-{number:03}")
        at.post(1)
        at.take(1, ttl=60)
    scene.tick(61)
    page = scene.storage.claims.list("acme", "", 100, scene.now)
    assert (page.items, page.next) == ([], f"lapsed-{MAX_READ_QUEUES:03}/")


@REDIS
@pytest.mark.parametrize("end", ["delete", "release", "commit", "large commit", "purge", "expire", "take over"])
def test_nothing_is_left_of_a_holder(scene: Scene, end: str) -> None:
    """When its claim is over, the claim's hash is deleted."""
    commit = Commit("acme", "etl", 1, [], [ClaimRef(scene.queue, "a.1")], 600)
    ends: dict[str, Callable[[], object]] = {
        "delete": lambda: scene.settle("a.1", rest=True),
        "release": lambda: scene.release("a.1"),
        "commit": lambda: scene.storage.transactions.commit(commit, scene.now),
        "large commit": lambda: scene.storage.transactions.commit(commit, scene.now, Bounds(1, 10)),
        "purge": lambda: scene.storage.queues.purge(scene.queue),
        "expire": lambda: (scene.tick(10_000), scene.storage.maintain(scene.now), scene.claim()),
        "take over": lambda: (scene.tick(61), scene.settle(scene.take().id, rest=True)),
    }
    scene.post(3, ttl=600)
    assert len(ids_of(scene.take(3, name="a.1", ttl=60, holder=WHO).messages)) == 3
    key = redis_layout.keys(scene.queue).claims
    client = scene.storage._client
    assert client.command(key, b"HLEN", key) == 2
    ends[end]()
    assert client.command(key, b"EXISTS", key) == 0
