# SPDX-License-Identifier: Apache-2.0
"""Encoding of names and texts in MongoDB: lossless, without collisions, and in byte order."""

import itertools

import pytest
from bson import decode, encode

from zq.model import ClaimRequest, Lease, QueueRef
from zq.storage.mongodb import layout
from zq.storage.mongodb.commands import LARGEST, split

TEXTS = ["", "a", "a/b", "a\x00b", "\x7f", "\xe9", "e\u0301", "\uffff", "\U0001f600", "\ud800", "x\udfff", "a" * 300]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_every_text_survives_bson(text: str):
    """Lone surrogates, which BSON refuses, are encoded too."""
    assert layout.decode_text(decode(encode({"t": layout.encode_text(text)}))["t"]) == text


def test_stored_texts_sort_as_their_bytes_do():
    """A listing of queues is therefore in byte order."""
    by_bytes = sorted(TEXTS, key=lambda text: text.encode("utf-8", "surrogatepass"))
    assert sorted(TEXTS, key=lambda text: layout.encode_text(text).encode()) == by_bytes


def test_no_name_is_within_another_projects_range():
    """The range in which a project's queues are listed contains only names of that project."""
    projects = [*TEXTS, "1", "1:", "1:a", "1:a/", "a/"]
    for mine, theirs in itertools.permutations(projects, 2):
        prefix = layout.project_prefix(mine)
        for name in ("b", "-", "zz", "/"):
            assert not prefix < layout.key(QueueRef(theirs, name)).shard < layout.after(prefix)
            assert prefix < layout.key(QueueRef(mine, name)).shard < layout.after(prefix)


def test_messages_and_queues_never_share_an_id():
    """The ids differ whatever id a caller chooses."""
    key = layout.key(QueueRef("acme", "jobs"))
    assert key.project[0] != key.counter[0]


def test_names_within_queues_never_collide():
    """The ids differ whatever names queues, idempotency keys and claims have."""
    names = ["a", "a/b", "b", "/", "a/", "", "1:a", "\u0661"]
    keys = [layout.key(QueueRef(project, name)) for project in ("a", "a/b", "") for name in names]
    ids = [key.named(kind, name) for key in keys for kind in "on" for name in names]
    assert len(set(ids)) == len(ids)


def test_a_found_message_gets_the_wait_that_is_stored():
    """A claimed message is available after the claim's end plus the redelivery delay of its claim count.

    The document that was found and the update that is stored use the same value.
    """
    found = {"t": 60, "e": 10**15, "d": 0, "c": {"n": 2}}
    found = layout.claimed_document(found, ClaimRequest(Lease("c", 30, 60), 1, redelivery_delays=(5, 10, 20, 40)), 1000)
    assert (found["d"], found["c"]["n"]) == (1000 + 30_000 + 20_000, 3)
    [step] = layout.claim_update(ClaimRequest(Lease("c", 30, 60), 1, redelivery_delays=(4,)), 1000)
    assert step["$set"]["d"] == 1000 + 30_000 + 4000
    [step] = layout.claim_update(ClaimRequest(Lease("c", 30, 60), 1, redelivery_delays=(4, 8)), 1000)
    assert step["$set"]["d"]["$arrayElemAt"][0] == [35_000, 39_000]


@pytest.mark.parametrize("sizes", [(LARGEST // 2, 0), (1, LARGEST // 2 - 1)])
def test_a_command_is_split_by_the_size_of_bodies_and_attributes(sizes: tuple[int, int]):
    """A command stays within the server's limit of 16 MiB, whatever the size of the messages' attributes."""
    body, attributes = sizes
    documents = [{"b": b"1" * body, "v": b"a" * attributes} for _ in range(5)]
    assert [len(part) for part in split(documents, lambda document: document)] == [2, 2, 1]
    changes = [{"u": {"$inc": {"v": 1}}}] * 5
    assert [len(part) for part in split(changes, lambda change: change["u"])] == [5]
