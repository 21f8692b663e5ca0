# SPDX-License-Identifier: Apache-2.0
"""The memory of blocks without visible messages, for listings of the embedded engine, by client (attack S7)."""

import random
from collections.abc import Iterator

import pytest

from tests.rotation import SEED, examples
from zq.model import Draft, ListFilter, QueueRef
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.ordered.hints import BLOCK, CLIENTS_BLOCKS, MAX_CLIENTS, NEVER, VisibilityIndex

QUEUE = QueueRef("p", "q")
OWN, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def storage() -> Iterator[Storage]:
    opened = connect("memory:")
    yield opened
    opened.close()


def post(storage: Storage, first: int, clients: list[str]) -> None:
    drafts = [Draft(f"{first + place:032x}", b"1", 3600, 0, client) for place, client in enumerate(clients)]
    storage.messages.post(QUEUE, drafts, storage.now())


def listed(storage: Storage, without: str, marker: int = 0) -> list[int]:
    found = storage.messages.list(QUEUE, marker, 1000, ListFilter(without, True, True), storage.now()).items
    return [int(message.id, 16) for message in found]


def test_a_listing_without_own_messages_skips_their_blocks(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second listing decodes only the last block; other clients see each message, and the client sees theirs."""
    from zq.storage.ordered import layout

    post(storage, 0, [OWN] * 100 * BLOCK)
    assert listed(storage, OWN) == []
    decoded = []
    decode = layout.decode_record
    monkeypatch.setattr(layout, "decode_record", lambda value: decoded.append(1) or decode(value))
    assert listed(storage, OWN) == []
    assert len(decoded) <= 2 * BLOCK
    assert listed(storage, OTHER)[:3] == [0, 1, 2]
    post(storage, 100 * BLOCK, [OTHER])
    assert listed(storage, OWN) == [100 * BLOCK]


def test_earlier_listings_hide_no_message(storage: Storage) -> None:
    """Three clients post runs of messages, and each lists them repeatedly from any position."""
    source = random.Random(SEED)
    clients = [OWN, OTHER, "c" * 32]
    posted: list[str] = []
    for _ in range(examples(60)):
        batch = [source.choice(clients)] * source.randrange(1, 3 * BLOCK)
        post(storage, len(posted), batch)
        posted += batch
        for without in [*clients, ""]:
            marker = source.randrange(len(posted) + 1)
            expected = [place for place, client in enumerate(posted) if client != without and place >= marker]
            assert listed(storage, without, marker) == expected[:1000]


def test_the_memory_of_clients_is_bounded() -> None:
    """The number of clients is limited, the oldest being dropped, and so is the number of blocks of each.

    Only every other block is recorded, so that blocks are not merged into larger ones.
    """
    index, blocks = VisibilityIndex(), range(0, 2 * CLIENTS_BLOCKS + 1, 2)
    filters = [ListFilter(str(number)) for number in range(MAX_CLIENTS + 1)]
    for each in filters:
        index.record(each, {}, dict.fromkeys(blocks, NEVER))
    last = blocks[-1] * BLOCK
    assert [index.skip(each, last, 0) - last for each in filters] == [0, *[BLOCK] * MAX_CLIENTS]
    assert [index.skip(each, 0, 0) for each in filters] == [0] * (MAX_CLIENTS + 1), "the first block was not dropped"
