# SPDX-License-Identifier: Apache-2.0
"""The checks before a store is used: layout version, clock, and boot epoch.

**Clock.** Expiry destroys data. The server therefore refuses to start if the clock is days ahead of the store's last
use. It also refuses if the clock was set back by more than a minute, because times in the store would be in the future.
While the store is in use, a clock that jumps ahead is not trusted for some time (decision 0006).

**Boot epoch.** The boot epoch is the number of starts. It ensures that no sequence is assigned twice. A power failure
may lose the last writes, including sequences that a reader already uses as a marker. Each counter therefore skips
``EPOCH_STRIDE`` numbers for each start since the counter was last written.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from zq.errors import Deposed, StartRefused, StoreDamaged
from zq.model import Seconds, levels
from zq.model.levels import Initial
from zq.storage.ordered import layout
from zq.storage.ordered.store import Readable, Store

LOG = logging.getLogger(__name__)
# Maximum milliseconds by which the clock may have been set back since the store's last use.
STEP_BACK_MS = 60_000
# Maximum jump of the machine's clock in seconds that is trusted immediately.
MAX_TRUSTED_JUMP: Final = 60.0
# Seconds after which a larger jump is trusted.
JUMP_TRUST_SECONDS: Final = 300.0
# Key of the record of the store's level.
LEVEL: Final = b"level"
BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def uptime() -> float:
    """Return the seconds since the machine booted, including suspension. This clock cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class StorageClock:
    """A clock that follows the machine's clock, but never returns a time before ``seen``.

    If the machine's clock jumps ahead, ``now`` ignores the jump until the jump is trusted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: Seconds | None = None
        self._last_jump = 0.0
        self.seen: Seconds = 0.0
        self.latest: Seconds = 0.0
        """The latest time that ``now`` has returned, which the store must record."""
        self.distrusted_lead: Seconds = 0.0
        """Seconds by which the machine's clock is ahead of this clock, because a jump is not trusted yet."""
        self._offset: Seconds | None = None

    @property
    def offset(self) -> Seconds:
        """The machine's boot time in Unix seconds. A clock jump that is not trusted yet does not change this time."""
        return self._offset or 0.0

    def trust(self, offset: Seconds) -> None:
        """Replace the machine's boot time with ``offset`` (Unix seconds), which an earlier process has recorded."""
        with self._lock:
            self._offset, self.latest = offset, 0.0

    def now(self) -> Seconds:
        with self._lock:
            ran = uptime()
            self._judge_offset(time.time() - ran, ran)
            moment = max(self.seen, ran + self.offset)
            self.latest = max(self.latest, moment)
            return moment

    def _judge_offset(self, offset: Seconds, ran: Seconds) -> None:
        """Decide whether to trust the machine's clock.

        ``offset`` is the time of the machine's boot according to this clock, in Unix seconds. ``ran`` is ``uptime()``.
        """
        leap = 0.0 if self._offset is None else offset - self._offset
        if leap > MAX_TRUSTED_JUMP and (self._since is None or abs(leap - self._last_jump) > MAX_TRUSTED_JUMP):
            self._since, self._last_jump = ran, leap
            LOG.error(LEAPT, leap, JUMP_TRUST_SECONDS)
        if leap > MAX_TRUSTED_JUMP and self._since is not None and ran - self._since < JUMP_TRUST_SECONDS:
            self.distrusted_lead = leap
            return
        if self._since is not None:
            LOG.warning(STAYED if leap > MAX_TRUSTED_JUMP else WENT_BACK, abs(self._last_jump))
        self._since, self.distrusted_lead, self._offset = None, 0.0, offset


LEAPT: Final = (
    "This machine's clock jumped ahead by %.0f seconds. The server is not ready until the clock has been stable for "
    "%.0f seconds, because a wrong clock would expire messages. If the clock is wrong, correct it."
)
STAYED: Final = "This machine's clock is stable after its jump of %.0f seconds. The server uses the new time."
WENT_BACK: Final = "This machine's clock had jumped ahead by %.0f seconds and is correct again."


def check_version(store: Store, initial: Initial) -> None:
    """Check the store's layout version and its level: the number of the data format that servers write.

    If the store is new, record the current version and the level that ``initial`` returns. Raises ``StartRefused`` if
    this version of zq cannot use the store.
    """
    found = store.get("default", b"version")
    if found is None:
        store.write([("default", b"version", layout.VERSION), ("default", LEVEL, initial())])
    else:
        _check_layout(found)
        levels.check(store.get("default", LEVEL))


def check_readable(store: Readable) -> None:
    """Raise ``StartRefused`` if this version of zq cannot read the store.

    A store whose layout version or level is missing or damaged is accepted.
    """
    with suppress(StoreDamaged):
        _check_layout(store.get("default", b"version"))
    with suppress(StoreDamaged):
        levels.check(store.get("default", LEVEL))


def check_layout(families: Collection[str], read: Callable[[bytes], bytes | None]) -> None:
    """Check that a database is a store that this version can use, before it is opened for writing.

    A database without a layout version may be a new store whose first start was interrupted.

    Args:
        families: The column families of the database.
        read: Returns the value of a key in the family ``default``.

    Raises:
        StartRefused: The store has another layout version or level, or the database belongs to another program.
    """
    found = read(b"version")
    if found is None and (foreign := sorted(set(families) - {*layout.FAMILIES})):
        raise StartRefused(
            "The directory contains a RocksDB database that belongs to another program, with the column families "
            f"{', '.join(foreign)}. Use another directory for the store."
        )
    _check_layout(found)
    levels.check(read(LEVEL))


def _check_layout(found: bytes | None) -> None:
    if found is not None and found != layout.VERSION:
        raise StartRefused(
            f"The store has layout {found.decode(errors='replace')}, but this version of zq requires "
            f"{layout.VERSION.decode()}. Use the version of zq that wrote the store, or another store."
        )


def check_clock(store: Store, clock: StorageClock, max_jump: int) -> None:
    """Check the machine's clock against the latest time that the store has recorded, and set ``clock.seen``.

    Raises ``StartRefused`` if the clock is more than ``max_jump`` seconds ahead, or was set back by more than a minute.
    If ``max_jump`` is 0, there is no check.
    """
    seen, now = last_seen(store), layout.ms(clock.now())
    if seen and max_jump:
        ahead = timedelta(milliseconds=now - seen)
        today, then = (datetime.fromtimestamp(moment / 1000, UTC).isoformat(" ", "seconds") for moment in (now, seen))
        if ahead > timedelta(seconds=max_jump):
            raise StartRefused(
                f"This machine's clock says {today}, {ahead.days} days after the store was last in use ({then}). If "
                "the clock is right, start once with --force-clock. If the clock is wrong, correct it; otherwise "
                "messages would expire."
            )
        if ahead < timedelta(milliseconds=-STEP_BACK_MS):
            raise StartRefused(
                f"This machine's clock says {today}, but the store was in use at {then}. Correct the clock. If the "
                "clock is correct now and was wrong at that time, start once with --force-clock."
            )
        _restore_offset(store, clock)
    clock.seen = min(seen, now + STEP_BACK_MS) / 1000
    clock.now()  # determine immediately whether the machine's clock is trusted


def read_boot_id() -> bytes:
    """Return the id of the machine's current boot, or b"" if the operating system has none."""
    with suppress(OSError):
        return BOOT.read_bytes().strip()
    return b""


def _restore_offset(store: Store, clock: StorageClock) -> None:
    """Restore the recorded boot time, so that a restarted server does not trust a clock jump immediately."""
    known, _, believed = (store.get("default", b"boot") or b"").rpartition(b" ")
    if known and known == read_boot_id() and clock.offset - int(believed) / 1000 > MAX_TRUSTED_JUMP:
        clock.trust(int(believed) / 1000)


def last_seen(store: Store) -> int:
    """Return the latest time that the store has recorded, in Unix milliseconds, or 0 for a new store."""
    return int.from_bytes(store.get("default", b"clock") or b"")


def record_clock(store: Store, clock: StorageClock) -> None:
    """Store the latest time that the clock has returned, and the machine's boot time.

    ``check_clock`` compares both with the machine's clock at the next start.
    """
    moment, offset = layout.ms(clock.latest), layout.ms(clock.offset)
    store.write(
        [("default", b"clock", layout.number.pack(moment)), ("default", b"boot", b"%s %d" % (read_boot_id(), offset))]
    )


# Number of sequences and history positions that each start skips. If a power failure loses more of them, markers of
# readers may hide new messages.
EPOCH_STRIDE: Final = 1_000_000
STARTS: Final = b"starts"
# Key of the last opener: the id of its ``StoreHandle``, then the number of starts.
OPENER: Final = b"opener"
OPENED_BY_OTHER: Final = "Another process has opened the store since this process closed it. Start the server again."


def count_start(store: Store, opener: bytes) -> int:
    """Increment the number of starts, record the id of the opener, and return the number. It is the boot epoch.

    The new number is on disk when this function returns, regardless of the sync mode.
    """
    start = int.from_bytes(store.get("default", STARTS) or b"") + 1
    count = layout.number.pack(start)
    store.write([("default", STARTS, count), ("default", OPENER, opener + count)])
    store.wait_durable(always=True)
    return start


def check_opener(store: Store, opener: bytes) -> None:
    """Raise ``Deposed`` if another process has opened the store since ``opener`` did.

    A store in an object store is not checked, because a server may take it over again.
    """
    if not store.contended and store.get("default", OPENER) != opener + (store.get("default", STARTS) or b""):
        raise Deposed(OPENED_BY_OTHER)


def epoch_growth(before: int, start: int) -> int:
    """Return the number of values that a counter skips between two boot epochs (numbers of starts)."""
    return EPOCH_STRIDE * (start - before)


def initial_value(start: int) -> int:
    """Return the initial value of a new counter. ``start`` is the boot epoch (number of starts).

    The value is at least as large as every number that the counter may have assigned before a power failure.
    """
    return epoch_growth(1, start)
