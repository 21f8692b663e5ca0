# SPDX-License-Identifier: Apache-2.0
"""Operations on a store in an object store that need no running server: restore, check, upload and owner lookup."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from zq.errors import StartRefused
from zq.storage.object.checkpoints import Manifest, checkpoint_name, describe_files, download, upload
from zq.storage.object.entries import Entry
from zq.storage.object.epochs import (
    CheckpointRef,
    Head,
    Opening,
    RestorePoints,
    TakeoverLost,
    check_layout,
    depose,
    newest_opened,
    open_epoch,
    read,
    win_election,
    write,
)
from zq.storage.object.objects import Objects
from zq.storage.object.restoring import acknowledged_position, read_chain, read_epoch
from zq.storage.object.store import ShippedStore
from zq.storage.rocksdb.files import Damage, create_directory
from zq.storage.rocksdb.store import Store

NOT_THERE: Final = "There is no store under this prefix in the object store."

USED: Final = "The prefix already contains objects of a store. Use another prefix."
SHIPPED: Final = (
    "The prefix already contains a complete store, which zq-server ship uploaded at {} UTC. Serve this store, or use "
    "another prefix."
)
# Name of the owner of an uploaded store that no server has opened yet.
SHIP: Final = "zq-server ship"


class RestoreState(NamedTuple):
    """The state that a restore has reached.

    ``position`` is the log position. ``moment`` is the creation time of the last applied log record, in milliseconds
    since the Unix epoch. If the restore has applied no log records, ``moment`` is the creation time of the checkpoint.
    It is 0 for an empty store.
    """

    position: int
    moment: int


class StoreFormat(NamedTuple):
    """The layout number and the column families of stores that this version of zq writes."""

    layout: str
    families: Sequence[str]
    admit: Callable[[Path], object]


def restore(
    objects: Objects, to: Path, shape: StoreFormat, at: float | None = None, position: int | None = None
) -> RestoreState:
    """Restore the store to the new directory ``to``, and return the log position and the time of the restored state.

    By default, the latest state is restored; ``at`` (seconds since the Unix epoch) or the log position ``position``
    selects an earlier state. The object store is not changed.

    Raises ``StartRefused`` if the state is not available or ``to`` exists.
    """
    epoch, opening = newest_opened(objects)
    if opening is None:
        raise StartRefused(NOT_THERE)
    check_layout(opening, shape.layout)
    kept: RestorePoints = read(objects, f"head/{epoch}", Head) or opening
    latest = None if at is None else int(at * 1000)
    mark = _find_checkpoint(kept, latest, position)
    with create_directory(to) as folder:
        if mark is not None:
            download(objects, mark, folder)
        reached, moment = (mark.position, mark.moment) if mark else (kept.removed, 0)
        shape.admit(folder)
        store = Store(folder, shape.families, "never", 0)
        try:
            # Records after the requested position may be missing, so they are not read.
            for entry in _read_log(objects, epoch, opening, kept, reached) if reached != position else ():
                if _is_beyond(position, entry.position) or _is_beyond(latest, entry.moment):
                    break
                for batch in entry.batches:
                    store.write(batch.writes, batch.gone)
                reached, moment = entry.position, entry.moment
                if reached == position:
                    break
            else:
                if position is not None and reached < position:
                    raise StartRefused(f"The log ends at position {reached}.")
            store.wait_durable(always=True)
        finally:
            store.close()
    return RestoreState(reached, moment)


def ship(path: Path, objects: Objects, shape: StoreFormat, moment: int) -> int:
    """Upload the embedded store in the directory ``path`` to an unused prefix. Return the store's file count.

    ``moment`` is the current time in milliseconds since the Unix epoch. If an earlier call was killed, a repeated call
    takes over its election like a server, because no epoch was opened. Files that only the earlier call has uploaded
    stay in the object store. A call that was killed after it opened an epoch leaves a complete store without an owner.

    Raises ``StartRefused`` if the prefix has a store, if another process creates one at the same time, or if the
    directory has no store.
    """
    used = newest_opened(objects)[1]
    if used is not None:
        when = datetime.fromtimestamp(used.moment / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        raise StartRefused(SHIPPED.format(when) if used.owner == SHIP else USED)
    if not (path / "CURRENT").exists():
        raise StartRefused(f"There is no store in {path}.")
    shape.admit(path)
    folder = path.with_name(f"{path.name}.shipping")
    store = ShippedStore(path, shape.families, "", Damage())
    try:
        epoch = win_election(objects)
        if newest_opened(objects)[1] is not None or depose(objects, epoch)[1] is not None:
            raise StartRefused(USED)
        shutil.rmtree(folder, ignore_errors=True)
        store.link(folder)
        files = describe_files(folder, {})
        upload(objects, folder, files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        store.close()
    mark = CheckpointRef(0, moment, epoch)
    write(objects, checkpoint_name(mark), Manifest(0, epoch, moment, files))
    opening = Opening(owner=SHIP, moment=moment, chain=[], checkpoints=[mark], layout=shape.layout)
    # The store must never have an opened epoch whose owner seems to be alive.
    write(objects, f"head/{epoch}", Head(checkpoints=[mark], released=0, moment=moment))
    try:
        open_epoch(objects, epoch, opening)
    except TakeoverLost as error:
        raise StartRefused(USED) from error
    return len(files)


def owner(objects: Objects) -> tuple[int, Opening, Head]:
    """Return the newest epoch, its opening record and the progress record of its owner."""
    epoch, opening = newest_opened(objects)
    if opening is None:
        raise StartRefused(NOT_THERE)
    head = read(objects, f"head/{epoch}", Head)
    return epoch, opening, head or Head(removed=opening.removed, checkpoints=opening.checkpoints)


@contextmanager
def restore_temporarily(objects: Objects, shape: StoreFormat) -> Iterator[Path]:
    """Return a context manager that restores the store to a temporary directory and provides the store's path."""
    with tempfile.TemporaryDirectory(prefix="zq-check-") as folder:
        restore(objects, Path(folder, "store"), shape)
        yield Path(folder, "store")


def _is_beyond(bound: int | None, value: int) -> bool:
    return bound is not None and value > bound


def _find_checkpoint(kept: RestorePoints, latest: int | None, position: int | None) -> CheckpointRef | None:
    """Return the newest checkpoint at or before the requested state, or None if there is no such checkpoint.

    The state is given by the time ``latest`` (milliseconds since the Unix epoch) or by the log position ``position``.
    Raises ``StartRefused`` if the data for this state has been removed.
    """
    fitting = [
        mark
        for mark in kept.checkpoints
        if not _is_beyond(latest, mark.moment) and not _is_beyond(position, mark.position)
    ]
    if not fitting and kept.removed:
        raise StartRefused(
            "The store can no longer be restored to this time or position: the log of that period is older than "
            "[storage:object] keep, and was deleted."
        )
    return fitting[-1] if fitting else None


def _read_log(objects: Objects, epoch: int, opening: Opening, kept: RestorePoints, base: int) -> Iterator[Entry]:
    yield from read_chain(objects, base, opening.chain)
    base = max([base, *(span.last for span in opening.chain)])
    yield from read_epoch(objects, epoch, base, None, acknowledged_position(kept), by_position=opening.by_position)
