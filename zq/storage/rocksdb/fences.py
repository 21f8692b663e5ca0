# SPDX-License-Identifier: Apache-2.0
"""Fences: the last epoch given out of each. Checked and advanced under the fence's stripe."""

from zq.errors import Fenced
from zq.model import Fence, QueueRef
from zq.storage.rocksdb import layout
from zq.storage.rocksdb.port import Store


def names(project: str, fence: Fence | None) -> list[bytes]:
    """What a verb that was given this fence must hold."""
    return [] if fence is None else [name(project, fence.name)]


def name(project: str, fence: str) -> bytes:
    return b"fence " + _key(project, fence)


def check(store: Store, project: str, fence: Fence | None) -> None:
    """Raises ``Fenced`` unless this is the last epoch given out."""
    if fence is not None and fence.epoch != _last(store, _key(project, fence.name)):
        raise Fenced("A newer epoch of the fence was given out, or this one never was.")


def advance(store: Store, project: str, fence: str) -> int:
    """Give out the next epoch."""
    key = _key(project, fence)
    epoch = _last(store, key) + 1
    store.write([("fences", key, layout.number.pack(epoch))])
    return epoch


def _key(project: str, fence: str) -> bytes:
    return layout.queue_key(QueueRef(project, fence))


def _last(store: Store, key: bytes) -> int:
    return int.from_bytes(store.get("fences", key) or b"")
