# SPDX-License-Identifier: Apache-2.0
"""Costs of grouped queues on MongoDB: few index keys for a group of any size, and none for other queues."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import Scene, drafts
from zq.model import Draft, Grouping, QueueRef
from zq.storage.mongodb import MongoStorage, groups, layout

ON_MONGODB = pytest.mark.parametrize("store_name", ["mongodb"], indirect=True)
GROUPS, EACH = 4, 50


@pytest.fixture
def scene(storage: MongoStorage, clock: ManualClock, queue: QueueRef) -> Scene:
    return Scene(storage, clock, queue)


@ON_MONGODB
@pytest.mark.parametrize("kind", [Grouping.ORDERED, Grouping.FAIR])
def test_heads_of_groups_are_found_by_one_key_each(scene: Scene, kind: Grouping):
    """The server's query plan reads one key for each group, and the first message of each group is its head."""
    scene.storage.queues.create(scene.queue, b"{}", kind)
    new = drafts(GROUPS * EACH, scene.now)
    sent = [Draft(one.id, one.body, 60, 0, "alice", group=f"g{at % GROUPS}") for at, one in enumerate(new)]
    scene.storage.messages.post(scene.queue, sent, scene.now)
    key, client = layout.key(scene.queue), scene.storage._client
    names = sorted(layout.group_fields(kind, f"g{at}")["h1"] for at in range(GROUPS))
    stages = groups.first_stages(key, names)
    command = {"aggregate": layout.MESSAGES, "pipeline": stages, "cursor": {}, "hint": kind.value}
    told = client.database.command({"explain": command, "verbosity": "executionStats"})
    stats = told["stages"][0]["$cursor"]["executionStats"]
    assert stats["totalKeysExamined"] <= 2 * GROUPS
    assert stats["totalDocsExamined"] == 0
    found = {one["_id"]: int(one["k"]) for one in client.aggregate(stages, kind.value)}
    first = {message.group: message.sequence for message in reversed(scene.walk())}
    assert found == {layout.group_fields(kind, group)["h1"]: sequence for group, sequence in first.items()}


def test_a_group_is_only_in_the_index_of_its_order():
    """The field's value shows the order, and documents of queues without groups have no such field."""
    ordered, fair = (layout.group_fields(kind, "group")["h1"] for kind in (Grouping.ORDERED, Grouping.FAIR))
    assert (groups.index_of(ordered), groups.index_of(fair)) == (layout.ORDERED, layout.FAIR)
    assert ordered[1:] == fair[1:]
    assert fair < layout.IN_ORDER["h1"]["$gte"] == layout.IN_TURN["h1"]["$lt"] <= ordered
    assert layout.group_fields(Grouping.NONE, "group") == {}


@ON_MONGODB
def test_queues_without_groups_are_served_by_no_more_commands(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    """A claim needs one command to find and one to update messages, and no group field is stored."""
    ids = scene.post(6)
    scene.take(1)
    with counted(scene, monkeypatch) as commands:
        claim = scene.take(5)
    assert commands == ["aggregate", "update"]
    for change, expected in (
        (lambda: scene.renew(claim.id), ["update"]),
        (lambda: scene.delete(ids[1], claim.id), ["delete"]),
        (lambda: scene.delete_many(ids[2:4]), ["delete"]),
        (lambda: scene.settle(claim.id, delete=[ids[4]]), ["delete"]),
        (lambda: scene.release(claim.id), ["update"]),
    ):
        with counted(scene, monkeypatch) as commands:
            change()
        assert commands == expected
    documents = scene.storage._client.messages
    assert documents.count_documents({"$or": [{"h1": {"$exists": True}}, {"q": layout.key(scene.queue).entries}]}) == 0


@contextmanager
def counted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sequence[str]]:
    """Record the commands that are sent to the collection of messages."""
    client, sent = scene.storage._client, []
    with monkeypatch.context() as patch:
        for name in ("command", "cursor_command"):
            send = getattr(client.database, name)

            def noted(command, *rest, send=send, **options):
                if layout.MESSAGES in command.values():
                    sent.append(next(iter(command)))
                return send(command, *rest, **options)

            patch.setattr(client.database, name, noted)
        yield sent
