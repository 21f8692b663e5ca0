# SPDX-License-Identifier: Apache-2.0
"""Commits that are decided and not done: one entry in ``default`` for each, behind ``COMMIT``.

The entry has what is left to do: of each claim's queue, by its number, the sequences of what is to be deleted; and of
each stage the number under which its messages lie. A stage that a commit has taken has no entry in ``stages`` any more.
The sequences are pinned: memory has them as ``QueueState.pinned``, so that no verb touches these messages.
"""

from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct, msgpack

from zq.storage.rocksdb import layout
from zq.storage.rocksdb.layout import COMMIT
from zq.storage.rocksdb.port import Store, Write
from zq.storage.rocksdb.readable import Readable


class Pinned(Struct, array_like=True):
    """Messages of one queue that are to be deleted; ``history`` as in ``model.Held``."""

    number: int
    history: int
    sequences: list[int]


class Shelf(Struct, array_like=True):
    """A stage that is to be published: its number, and the indexes of what is left of it."""

    number: int
    at: int
    end: int


class Unfinished(Struct, array_like=True):
    """A commit's figures, and what is left to do of it."""

    batch: int
    published: int
    deleted: int
    pinned: list[Pinned]
    shelves: list[Shelf]


decode = msgpack.Decoder(Unfinished).decode


def find(store: Store, producer: bytes) -> Unfinished | None:
    """The open commit of the producer of this key."""
    value = store.get("default", COMMIT + producer)
    return None if value is None else decode(value)


def every(store: Readable) -> Iterator[tuple[bytes, bytes]]:
    """The key of each producer that has an open commit, and the entry as it is stored."""
    for key, value in store.scan("default", COMMIT, layout.after(COMMIT)):
        yield key[len(COMMIT) :], value


def write(producer: bytes, commit: Unfinished) -> Write:
    """The entry; none if nothing is left to do."""
    left = commit.pinned or commit.shelves
    return "default", COMMIT + producer, layout.encode(commit) if left else None


def pinned(store: Store) -> dict[int, set[int]]:
    """The sequences that open commits have pinned, by the numbers of their queues."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for _, value in every(store):
        for part in decode(value).pinned:
            found[part.number].update(part.sequences)
    return found
