# SPDX-License-Identifier: Apache-2.0
"""How a store that was restored from a backup goes on: it is older than the clock.

What expired meanwhile is gone, unless all that lived is given the time between. Sequences go on far above all that the
store gave out after the backup, so that no marker that a reader has since then hides anything.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from zq.errors import StartRefused
from zq.model import Seconds
from zq.model.stats import Restored
from zq.storage.ordered import layout, startup
from zq.storage.ordered.startup import StorageClock
from zq.storage.ordered.store import TOP, Store

# Seconds after a backup for which the machine's clock is believed: the backup's moment bears witness.
WITNESSED: Final = 30 * 86400.0
# Starts that may have been counted since the backup.
STARTS: Final = 1000


def resume(store: Store, clock: StorageClock, moment: Seconds, shift: bool, force_clock: bool) -> Restored:
    """Let the store go on, ``moment`` being that of its backup. Raises ``StartRefused`` if the clock is in doubt."""
    startup.check_readable(store)
    now = clock.now()
    if not force_clock:
        _check_clock(now, moment)
    if shift:
        raise StartRefused("--shift-time is not built.")
    lower, upper = (layout.number.pack(layout.ms(end) + 1) for end in (min(moment, now), now))
    expired = sum(1 for _ in store.scan("expiry", lower, upper))
    starts = int.from_bytes(store.get("default", startup.STARTS) or b"") + STARTS
    store.write([("default", startup.STARTS, layout.number.pack(starts))])
    startup.record_clock(store, clock)
    return Restored(
        moment=moment, now=now, expired=expired, fences=sum(1 for _ in store.scan("fences", b"", TOP)), tokens=0
    )


def _check_clock(now: Seconds, moment: Seconds) -> None:
    today, then = (datetime.fromtimestamp(time, UTC).isoformat(" ", "seconds") for time in (now, moment))
    if now < moment - startup.STEP_BACK_MS / 1000:
        raise StartRefused(
            f"This machine's clock says {today}, and the backup was made at {then}. Set the clock, or restore with "
            "--force-clock."
        )
    if now > moment + WITNESSED:
        raise StartRefused(
            f"This machine's clock says {today}, {timedelta(seconds=now - moment).days} days after the backup was made "
            f"({then}): what expired since would be gone. If that is right, restore with --force-clock; with "
            "--shift-time too, everything expires later by these days."
        )
