# SPDX-License-Identifier: Apache-2.0
"""Health checks of a store in an object store, for ``zq-server doctor``.

The checks do not take over the store, so a server may continue to use it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from zq.diagnosis import MAX_SYNCHRONISED_OFFSET, Check, Finding, judge_clock, ok, skip, warn
from zq.errors import StartRefused
from zq.model import Seconds
from zq.storage.object import default_cache, owner
from zq.storage.object.offline import NOT_THERE
from zq.storage.options import ObjectOptions, check_choices
from zq.storage.rocksdb.doctor import check_space
from zq.storage.rocksdb.files import find_folder

# Names of the members of ``owner`` that the checks use.
STATE: Final = "state"
AGE: Final = "seconds since the last report"


@contextmanager
def diagnose(uri: str, now: Callable[[], Seconds], **options: Any) -> Iterator[Sequence[Check]]:
    """Return a context manager that provides the health checks of a store. See ``zq.storage.diagnose``."""
    chosen = ObjectOptions(**options)
    check_choices(chosen)
    try:
        known = owner(uri)
    except StartRefused as refusal:
        if str(refusal) != NOT_THERE:
            raise
        known = {}
    cache = find_folder(Path(chosen.cache) if chosen.cache else default_cache(uri))
    yield (
        Check("owner", partial(check_owner, known, chosen.owner_timeout)),
        Check("store clock", partial(check_clock, known)),
        Check("disk space", partial(check_cache, cache)),
    )


def check_owner(known: Mapping[str, str | int], timeout: float) -> Finding:
    if not known:
        return skip(NOT_THERE)
    found = f"The owner of the store is {known['owner']} ({known[STATE]}); it reported {known[AGE]} seconds ago."
    if known[STATE] != "released" and int(known[AGE]) > timeout:
        return warn(found, "Start a server on the store, or find out why its owner cannot reach the object store.")
    return ok(found)


def check_clock(known: Mapping[str, str | int]) -> Finding:
    """Check that this machine's clock is not behind the clock of the store's owner.

    The clock is behind if the time of the owner's last report is in the future. The check cannot detect a clock that is
    ahead, because the report then only seems older.
    """
    if not known:
        return skip(NOT_THERE)
    age = int(known[AGE])
    if age < -MAX_SYNCHRONISED_OFFSET:
        return judge_clock(age, "the store's owner")
    return ok("The clock of this machine is not behind the clock of the store's owner.")


def check_cache(folder: Path) -> Finding:
    """Check the free space of the cache. The server does not refuse posts before the disk is full."""
    finding = check_space(folder)
    if finding.status == "ok":
        return finding
    return warn(
        finding.found, "Enlarge the disk, or set [storage:object] cache to another one. If it is full, requests fail."
    )
