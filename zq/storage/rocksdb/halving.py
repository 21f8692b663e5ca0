# SPDX-License-Identifier: Apache-2.0
"""Where in a run of numbered entries something begins, found by halving what lies between."""

from collections.abc import Callable

from zq.storage.rocksdb import layout
from zq.storage.rocksdb.port import Store


def first(store: Store, family: str, owner: int, low: int, high: int, is_before: Callable[[bytes], bool]) -> int:
    """The number behind the last entry that ``is_before``; ``low`` if none is. Those between ``low`` and ``high`` are
    looked at, whose keys are ``owner`` and number, both of 8 bytes."""
    while low < high:
        middle = (low + high) // 2
        bounds = layout.pair.pack(owner, middle), layout.pair.pack(owner, high)
        found = next(store.scan(family, *bounds), None)
        if found is not None and is_before(found[1]):
            low = layout.pair.unpack(found[0])[1] + 1
        else:
            high = middle
    return low
