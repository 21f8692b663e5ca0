# SPDX-License-Identifier: Apache-2.0
"""Large pages of messages, which are read from the store in slices. Other requests run between the slices."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from zq import turns
from zq.model import ListFilter, Message, Page, QueueRef, Seconds
from zq.storage.api import MessageController

T = TypeVar("T")
# A position in a listing, as the store represents it.
Marker = Any


def read_page(
    read: Callable[[Marker, int, int], tuple[Sequence[T], Marker]],
    marker: Marker,
    size: int,
    max_bytes: int,
    size_of: Callable[[T], int],
) -> tuple[list[T], Marker]:
    """Read up to ``size`` items after ``marker`` in slices. Return the items and the marker of the last item.

    If there are no items, the returned marker is ``None``. The first item may exceed ``max_bytes``.

    ``read`` reads one slice. Its arguments are a marker, a maximum number of items and their maximum total size in
    bytes. It returns at least one item, if any exists, and the marker of the last item.
    """
    if size <= turns.SLICE:
        found, following = read(marker, size, max_bytes)
        return list(found), following
    items: list[T] = []
    while True:
        wanted = min(turns.SLICE, size - len(items))
        found, following = read(marker, wanted, max_bytes)
        max_bytes -= sum(map(size_of, found))
        if following is None or (items and max_bytes < 0):  # the end, or one item beyond the limit
            return items, marker if items else None
        items += found
        marker = following
        if len(found) < wanted or len(items) == size or max_bytes <= 0:
            return items, marker
        turns.give_way()


def list_messages(
    messages: MessageController,
    queue: QueueRef,
    after: int,
    size: int,
    list_filter: ListFilter,
    now: Seconds,
    max_bytes: int,
    expected: bytes | None,
) -> Page[Message]:
    """Return a page of messages, like ``MessageController.list``, but read a large page in slices.

    If ``expected`` is set and differs from the queue's metadata, the page contains the metadata and no messages.
    """
    if size <= turns.SLICE:
        return messages.list(queue, after, size, list_filter, now, max_bytes, expected)
    others: list[bytes] = []

    def read(marker: int, limit: int, left: int) -> tuple[list[Message], int | None]:
        page = messages.list(queue, marker, limit, list_filter, now, left, expected)
        if page.metadata is not None:
            others.append(page.metadata)
        return page.items, None if page.next is None else int(page.next)

    items, position = read_page(read, after, size, max_bytes, attrgetter("size"))
    if others:
        return Page([], None, others[0])
    return Page(items, None if position is None else str(position))
