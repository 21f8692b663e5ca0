# SPDX-License-Identifier: Apache-2.0
"""Checks at start: that the store is of this version, and that the machine's clock can be believed.

Expiry destroys data for good, so a clock that stands days ahead of what the store last saw is not taken at its word;
neither is one that fell back, since moments in the store would lie in the future. A small step back is waited out.
"""

import time
from datetime import UTC, datetime, timedelta

from zq.errors import StartRefused
from zq.model import Seconds
from zq.storage.rocksdb import layout
from zq.storage.rocksdb.port import Store

STEP_BACK_MS = 60_000


class StorageClock:
    """The machine's clock, which never goes back behind what the store has seen."""

    def __init__(self) -> None:
        self.seen: Seconds = 0.0

    def now(self) -> Seconds:
        self.seen = max(self.seen, time.time())
        return self.seen


def check_version(store: Store) -> None:
    """Refuse a store of another layout; mark a new one, and one that lacks only what is made when it is opened."""
    found = store.get("default", b"version")
    if found in (None, layout.FORMER_VERSION):
        store.write([("default", b"version", layout.VERSION)])
    elif found is not None and found != layout.VERSION:
        raise StartRefused(
            f"The store has layout {found.decode(errors='replace')}, this zq needs {layout.VERSION.decode()}: "
            "use the zq that wrote it, or another store."
        )


def check_clock(store: Store, now: int, max_jump: int) -> int:
    """The largest moment that the store has seen, in ms. ``max_jump`` in seconds; 0 believes any clock."""
    seen = last_seen(store)
    if seen and max_jump:
        ahead = timedelta(milliseconds=now - seen)
        told, known = (datetime.fromtimestamp(moment / 1000, UTC).isoformat(" ", "seconds") for moment in (now, seen))
        if ahead > timedelta(seconds=max_jump):
            raise StartRefused(
                f"This machine's clock says {told}, {ahead.days} days after the store was last in use ({known}). If "
                "that is right, start once with --force-clock; if not, set the clock: messages would expire for good."
            )
        if ahead < timedelta(milliseconds=-STEP_BACK_MS):
            raise StartRefused(
                f"This machine's clock says {told}, but the store was in use at {known}. Set the clock; if it is right "
                "now and was wrong then, start once with --force-clock."
            )
    return min(seen, now + STEP_BACK_MS)


def last_seen(store: Store) -> int:
    """The largest moment recorded, in ms; 0 for a new store."""
    return int.from_bytes(store.get("default", b"clock") or b"")


def record_clock(store: Store, now: int) -> None:
    """Keep the moment for the next start."""
    store.write([("default", b"clock", layout.number.pack(now))])
