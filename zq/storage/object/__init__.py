# SPDX-License-Identifier: Apache-2.0
"""The driver for object stores: a local RocksDB store that uploads its write-ahead log to an object store.

One server owns the store. Another server with an empty disk can take it over.
"""

import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zq.errors import StartRefused
from zq.model import levels, store_uri
from zq.model.expiry import Expiry
from zq.model.levels import Initial
from zq.model.stats import Report
from zq.storage import rocksdb
from zq.storage.api import Storage
from zq.storage.object import offline
from zq.storage.object.checkpoints import CheckpointRules
from zq.storage.object.objects import Objects
from zq.storage.object.owner import Owner, TakeoverTerms
from zq.storage.object.shipping import Shipper
from zq.storage.object.swift import SwiftObjects
from zq.storage.options import ObjectOptions, check_choices
from zq.storage.ordered import layout
from zq.storage.ordered.startup import StorageClock
from zq.storage.ordered.storage import OrderedStorage

if TYPE_CHECKING:
    from zq.storage.object.cloud import CloudObjects

SHAPE: Final = offline.StoreFormat(layout.VERSION.decode(), layout.FAMILIES, rocksdb.admit)


def connect(
    uri: str, expiry: Expiry | None = None, initial: Initial = levels.initial, **options: Any
) -> OrderedStorage:
    """Take over and open the store at a URI such as ``swift://container/prefix`` or ``s3://bucket/prefix``."""
    chosen = ObjectOptions(**options)
    check_choices(chosen)
    lease, owner_timeout, by_position = chosen.lease, chosen.owner_timeout, chosen.fencing == "position"
    expiry, objects, now = expiry or Expiry(), objects_of(uri), StorageClock().now
    if by_position:
        objects.prove_exclusive()
    owner = Owner(
        objects,
        Path(chosen.cache) if chosen.cache else default_cache(uri),
        SHAPE,
        expiry,
        stamped=layout.STAMPED_FAMILY,
        trimmed=layout.TRIMMED_FAMILY,
        name=f"{socket.gethostname()}:{os.getpid()}",
        terms=TakeoverTerms(lease, chosen.takeover, owner_timeout, by_position),
        rules=CheckpointRules(
            chosen.checkpoint_bytes,
            chosen.checkpoint_records,
            max(chosen.keep, 10 * lease),
            owner_timeout / 3,
            10 * lease,
        ),
        ship=lambda objects, proof, position: Shipper(
            objects, proof, position, chosen.uploads, chosen.linger, chosen.patience, by_position, now=now
        ),
        now=now,
    )
    return OrderedStorage(owner.open, expiry, owner, chosen.max_clock_jump, initial)


def objects_of(uri: str) -> Objects:
    """Prepare the object store at a URI for its first use, and return a client for the object store.

    Raises ``StartRefused`` if the URI is invalid, a package is missing, or the object store is unsuitable, and
    ``Unavailable`` if the object store does not respond.
    """
    found = _client(uri)
    found.prepare()
    return found


def _client(uri: str) -> "SwiftObjects | CloudObjects":
    if store_uri.split(uri).scheme == "swift":
        return SwiftObjects(uri, os.environ)
    try:
        from zq.storage.object.cloud import CloudObjects
    except ModuleNotFoundError as error:
        raise StartRefused(f"{error.name} is not installed: pip install 'zq-queue[object]'.") from error
    return CloudObjects(uri)


def prepare(uri: str, **_: object) -> None:
    """Prepare the object store for its first use. Raises the same errors as ``objects_of``."""
    objects_of(uri)


def default_cache(uri: str) -> Path:
    digest = hashlib.sha256(store_uri.split(uri)._replace(query="").geturl().encode()).hexdigest()[:16]
    return Path("var/zq") / digest


def restore(uri: str, to: str, at: float | None = None, position: int | None = None) -> tuple[int, float]:
    """Restore the data in the object store at ``uri`` to a new embedded store at ``to``.

    By default, the latest state is restored; the time ``at`` or the log position ``position`` selects an earlier state.
    Return the log position and the time of the restored state. Times are in seconds since the Unix epoch.

    Raises ``StartRefused`` if the state is not available or ``to`` exists, and ``Unavailable`` if the object store does
    not respond.
    """
    restored = offline.restore(objects_of(uri), rocksdb.parse_path(to), SHAPE, at, position)
    return restored.position, restored.moment / 1000


def ship(uri: str, to: str, check: Callable[[Storage], object]) -> int:
    """Upload the embedded store at ``uri`` to the object store at ``to``, and return the number of files.

    ``check`` is called with the open store before the upload. Raises the same errors as ``check``, and ``StartRefused``
    if ``uri`` has no store or ``to`` already has a store.
    """

    def admit(path: Path) -> None:
        rocksdb.admit(path)
        with closing(rocksdb.connect(uri, Expiry(compaction_filter=False), max_clock_jump=0)) as storage:
            check(storage)

    moment = layout.ms(StorageClock().now())
    return offline.ship(rocksdb.parse_path(uri), objects_of(to), SHAPE._replace(admit=admit), moment)


def owner(uri: str) -> Mapping[str, str | int]:
    """Return a mapping from label to value that describes the store's owner and the positions in the log."""
    epoch, opening, head = offline.owner(_client(uri))
    now = layout.ms(StorageClock().now())
    return {
        "epoch": epoch,
        "owner": opening.owner,
        "state": "released" if head.released >= 0 else "serving or stopped without releasing the store",
        "seconds since the last report": (now - (head.moment or opening.moment)) // 1000,
        "position": max(head.acknowledged, head.released),
        "position of the newest checkpoint": head.checkpoints[-1].position if head.checkpoints else 0,
        "log removed up to position": head.removed,
    }


def check(uri: str) -> Report:
    """Restore the store to a temporary directory, check its integrity, and return the report."""
    with offline.restore_temporarily(objects_of(uri), SHAPE) as path:
        return rocksdb.check(f"rocksdb://{path}")
