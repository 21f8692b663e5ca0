# SPDX-License-Identifier: Apache-2.0
"""Published batches in MongoDB: large ones in several documents, and no collision with documents of queues."""

import itertools

from bson import decode, encode

from zq.model import QueueRef
from zq.model.topics import Batch, Entry
from zq.storage.mongodb import layout, topic_log

POSITION = topic_log.LogPosition(5, 1000, "writer")
PROJECTS = ["", "a", "a/", "1:a/", "l", "l1:a/", "\ud800", "\u0661"]


def stored(entries: list[Entry], topic: str = "news") -> list[layout.BsonDocument]:
    """Return the documents after a round trip through BSON."""
    made = topic_log.documents(topic_log.key("acme"), topic, entries, 7000, POSITION)
    return [decode(encode(document), layout.CODEC) for document in made]


def test_a_batch_survives_bson():
    """Topic, bodies, TTLs, checksums and lone surrogates are preserved; the batch expires with its last message."""
    entries = [Entry(b"1", 60), Entry(b'"\xff"', 300, "MD5:1"), Entry(b"", 60, "\ud800")]
    [found] = stored(entries, "n\udfff.\U0001f600")
    assert topic_log.to_batch(found) == Batch("n\udfff.\U0001f600", 5, 7.0, entries)
    assert (int(found["e"]), topic_log.previous_sequence(found)) == (307_000, 4)
    assert sorted(found["t"]) == [[60, 2], [300, 1]]


def test_a_large_batch_is_stored_in_several_documents():
    """Each document is within the server's limit, and each refers to the previous sequence."""
    entries = [Entry(b"1" * (3 << 20), 60 + at) for at in range(7)] + [Entry(b"2", 60)] * 1000
    found = stored(entries)
    assert len(found) > 2
    assert all(len(encode(document)) < 16 << 20 for document in found)
    batches = [topic_log.to_batch(document) for document in found]
    assert [entry for batch in batches for entry in batch.entries] == entries
    assert [batch.sequence for batch in batches] == [topic_log.previous_sequence(document) + 1 for document in found]
    assert [batch.last + 1 for batch in batches[:-1]] == [batch.sequence for batch in batches[1:]]
    assert {(document["f"], document["z"]) for document in found} == {(POSITION.sequence, POSITION.before)}
    assert len({document["_id"] for document in found}) == len(found)


def test_keys_of_logs_and_queues_never_collide():
    """Keys differ whatever projects and queues are called."""
    logs = [topic_log.key(project) for project in PROJECTS]
    queues = [layout.key(QueueRef(project, name)) for project in PROJECTS for name in [*PROJECTS, "x"]]
    for one, other in itertools.permutations([*logs, *queues], 2):
        if {one, other} & set(logs):
            assert one.shard != other.shard
            assert one.messages != other.messages
            assert one.counter != other.counter
            assert one.idempotency_keys != other.idempotency_keys
    names = [key.named("o", name) for key in [*logs, *queues] for name in ("a", "/a", "a/")]
    assert len(set(names)) == len(names)
    assert [topic_log.project_of(key.shard) for key in logs] == PROJECTS
    notes = [topic_log.purge_note(key, topic)["_id"] for key in logs for topic in PROJECTS]
    assert len(set(notes)) == len(notes)
