# SPDX-License-Identifier: Apache-2.0
"""How names and texts are stored in MongoDB: nothing is lost, nothing meets, and bytes keep their order."""

import itertools

import pytest
from bson import decode, encode

from zq.model import QueueRef
from zq.storage.mongodb import layout

TEXTS = ["", "a", "a/b", "a\x00b", "\x7f", "\xe9", "e\u0301", "\uffff", "\U0001f600", "\ud800", "x\udfff", "a" * 300]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_every_text_comes_back_through_bson(text: str):
    """Lone surrogates included, which BSON itself refuses."""
    assert layout.original(decode(encode({"t": layout.text(text)}))["t"]) == text


def test_stored_texts_sort_as_their_bytes_do():
    """So that a listing of queues is in byte order."""
    by_bytes = sorted(TEXTS, key=lambda text: text.encode("utf-8", "surrogatepass"))
    assert sorted(TEXTS, key=lambda text: layout.text(text).encode()) == by_bytes


def test_no_name_is_within_another_projects_range():
    """The range in which a project's queues are listed holds its own names only."""
    projects = [*TEXTS, "1", "1:", "1:a", "1:a/", "a/"]
    for mine, theirs in itertools.permutations(projects, 2):
        prefix = layout.project_prefix(mine)
        for name in ("b", "-", "zz", "/"):
            assert not prefix < layout.key(QueueRef(theirs, name)).shard < layout.after(prefix)
            assert prefix < layout.key(QueueRef(mine, name)).shard < layout.after(prefix)


def test_messages_and_queues_never_share_an_id():
    """Whatever id a caller chooses."""
    key = layout.key(QueueRef("acme", "jobs"))
    assert key.project[0] != key.counter[0]
