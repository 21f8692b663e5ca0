# SPDX-License-Identifier: Apache-2.0
"""Health checks of an embedded store for ``zq-server doctor``. The checks do not open the store."""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from zq.diagnosis import Check, Finding, fail, measure, ok, skip, warn
from zq.model import Seconds
from zq.storage.options import RocksdbOptions, check_choices
from zq.storage.rocksdb import BACKED_UP, parse_path
from zq.storage.rocksdb.files import OWNER_ONLY, find_folder
from zq.storage.rocksdb.space import thresholds

# Number and size in bytes of the synced writes, and the duration in seconds of a slow one.
WRITES: Final = 100
WRITE_SIZE: Final = 4096
# Seconds after which no further write begins.
MAX_SYNC_SECONDS: Final = 5.0
SLOW_SYNC: Final = 0.05
# Age in seconds from which a backup is old, like in the alert ``ZqBackupOld``.
OLD_BACKUP: Final = 93_600


@contextmanager
def diagnose(uri: str, now: Callable[[], Seconds], **options: Any) -> Iterator[Sequence[Check]]:
    """Provide the health checks of an embedded store within a ``with`` block; see ``zq.storage.diagnose``."""
    chosen = RocksdbOptions(**options)
    check_choices(chosen)
    path = parse_path(uri)
    folder = find_folder(path)
    yield (
        Check("store folder", partial(check_mode, path)),
        Check("disk space", partial(check_space, folder, chosen.min_free_space)),
        Check("disk sync", partial(check_sync, folder)),
        Check("durability", partial(check_durability, chosen)),
        Check("backup", partial(check_backup, path, now)),
    )


def check_mode(path: Path) -> Finding:
    if not path.exists():
        return skip(f"There is no store in {path} yet.")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & ~OWNER_ONLY & 0o777:
        return warn(f"{path} has mode {mode:o}, so other users may read all messages.", f"Run: chmod 700 {path}")
    return ok(f"Only the owner of {path} can read it.")


def check_space(folder: Path, min_free: int | None = None) -> Finding:
    """Compare the free space with the space below which the server refuses posts; see ``space.thresholds``."""
    usage = shutil.disk_usage(folder)
    minimum, recovered = thresholds(usage.total, min_free)
    found = f"The disk of {folder} has {usage.free / (1 << 30):,.1f} GiB free, {usage.free / usage.total:.0%} of it."
    advice = f"Enlarge the disk, or shorten ttls. Below {minimum / (1 << 30):,.1f} GiB, the server refuses posts."
    if usage.free < minimum:
        return fail(found, advice)
    return warn(found, advice) if usage.free < recovered else ok(found)


def check_sync(folder: Path) -> Finding:
    with tempfile.TemporaryFile(dir=folder) as file:

        def write() -> None:
            os.write(file.fileno(), bytes(WRITE_SIZE))
            os.fsync(file.fileno())

        durations = measure(write, WRITES, MAX_SYNC_SECONDS)
    slowest = durations[-1 - len(durations) // 100]
    found = f"The 99th percentile of {len(durations)} synced writes in {folder} is {1000 * slowest:.1f} ms."
    if slowest > SLOW_SYNC:
        return warn(found, "Each post waits for a sync: use a local SSD, or stop other writers on this disk.")
    return ok(found)


def check_durability(chosen: RocksdbOptions) -> Finding:
    if chosen.sync == "always":
        return ok("Changes are synced before they are acknowledged.")
    loss = f"the last {chosen.sync_interval:g} seconds of" if chosen.sync == "interval" else "an unknown number of"
    return warn(
        f"With [storage:rocksdb] sync = {chosen.sync}, a power failure loses {loss} acknowledged changes.",
        "Set sync = always unless you accept the loss.",
    )


def check_backup(path: Path, now: Callable[[], Seconds]) -> Finding:
    if not (path / "CURRENT").exists():
        return skip(f"There is no store in {path} yet.")
    advice = "Run zq-server backup daily, for example from cron."
    try:
        age = now() - (path / BACKED_UP).stat().st_mtime
    except FileNotFoundError:
        return warn("No backup of the store was ever made.", advice)
    found = f"The last backup is {age / 3600:,.1f} hours old."
    return warn(found, advice) if age > OLD_BACKUP else ok(found)
