# SPDX-License-Identifier: Apache-2.0
"""Resumption of a store that was restored from a backup and is therefore older than the clock.

Data that has expired since the backup is gone, unless all expiry times are extended. Sequences continue far above those
that the store assigned after the backup, so that a reader's newer marker hides nothing.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from msgspec import structs

from zq.errors import StartRefused
from zq.model import Seconds
from zq.model.stats import Postpone, Restored
from zq.storage.ordered import documents, due, layout, logs, startup
from zq.storage.ordered.startup import StorageClock
from zq.storage.ordered.store import TOP, Store, Write

# Seconds after a backup for which the machine's clock is believed: the backup's moment bears witness.
WITNESSED: Final = 30 * 86400.0
# Starts that may have been counted since the backup.
STARTS: Final = 1000
# (key, value, milliseconds): what is to be written so that an entry expires so much later.
Move = Callable[[bytes, bytes, int], list[Write]]
# Bytes of one write.
FULL: Final = 4 << 20


def resume(store: Store, clock: StorageClock, moment: Seconds, shift: Postpone | None, force_clock: bool) -> Restored:
    """Resume a store whose backup was made at ``moment``. Raises ``StartRefused`` if the clock is in doubt.

    ``shift`` extends the expiry of all live data by the time since the backup; it is called for each document.
    """
    startup.check_readable(store)
    now = clock.now()
    if not force_clock:
        _check_clock(now, moment)
    if shift is not None:
        _shift(store, max(0, layout.ms(now) - layout.ms(moment)), shift)
    lower, upper = (layout.number.pack(layout.ms(end) + 1) for end in (min(moment, now), now))
    expired = sum(1 for _ in store.scan("expiry", lower, upper))
    starts = int.from_bytes(store.get("default", startup.STARTS) or b"") + STARTS
    store.write([("default", startup.STARTS, layout.number.pack(starts))])
    startup.record_clock(store, clock)
    return Restored(
        moment=moment, now=now, expired=expired, fences=sum(1 for _ in store.scan("fences", b"", TOP)), tokens=0
    )


def _shift(store: Store, later: int, postpone: Postpone) -> None:
    """Extend all expiry times by ``later`` milliseconds and remove data that had expired at the backup.

    Claims and delays are not extended.
    """
    writes: list[Write] = []
    size = 0
    moves: dict[str, Move] = {**_LATER, "records": partial(_document, postpone)}
    for family, each in moves.items():
        for key, value in store.scan(family, b"", TOP):
            found = each(key, value, later)
            writes += found
            size += sum(len(place) + len(new or b"") for _, place, new in found)
            if size > FULL:
                store.write(writes)
                writes, size = [], 0
    store.write(writes)


def _message(key: bytes, value: bytes, later: int) -> list[Write]:
    record = layout.decode_record(value)
    number, sequence = layout.pair.unpack(key)
    expires = record.expires + later
    writes: list[Write] = [
        ("expiry", layout.number.pack(record.expires) + key, None),
        ("expiry", layout.number.pack(expires) + key, b""),
        ("messages", key, layout.encode(structs.replace(record, expires=expires))),
    ]
    if record.indexed:
        place = layout.triple.pack(number, record.available, sequence)
        writes.append(("available", place, layout.number.pack(expires)))
    return writes


def _body(key: bytes, value: bytes, later: int) -> list[Write]:
    stamp = layout.stamp.unpack(value[-layout.stamp.size :])[0] + -(-later // 1000)
    return [("bodies", key, layout.unsealed(value) + layout.stamp.pack(min(stamp, layout.LATEST_STAMP)))]


def _entry(key: bytes, value: bytes, later: int) -> list[Write]:
    kept = layout.decode_entry(value)
    new = structs.replace(kept, expires=kept.expires + later)
    moved = due.writes("history", key, layout.encode(new), new.expires, due.history_note(new))
    return [*due.traces("history", key, kept.expires), *moved]


def _ending(family: str, note: Callable[[bytes], bytes]) -> Move:
    """Return the move of a family whose keys end with the expiry; ``note`` returns the note of a value in ``due``."""

    def move(key: bytes, value: bytes, later: int) -> list[Write]:
        end = due.end_of(key)
        moved = key[:-8] + layout.number.pack(end + later)
        return [*due.traces(family, key, end), *due.writes(family, moved, value, end + later, note(value))]

    return move


def _batch(key: bytes, value: bytes, later: int) -> list[Write]:
    stored = logs.decode_stored(value)
    new = structs.replace(stored, created=stored.created + later)
    gone: list[Write] = [(family, place, None) for family, place, _ in logs.entries_of(key, value)]
    return [*gone, *logs.entries_of(key, layout.encode(new))]


def _document(postpone: Postpone, key: bytes, value: bytes, later: int) -> list[Write]:
    document = documents.decode(value)
    kind = layout.project_of(layout.prefix_of(key[len(layout.prefix_of(key)) :]))
    if document.expires is None or (new := postpone(kind, document.value, later / 1000)) is None:
        return []
    moved = structs.replace(document, value=new, expires=document.expires + later)
    return [*due.traces("records", key, document.expires), *documents.writes(key, moved)]


_LATER: Final[dict[str, Move]] = {
    "messages": _message,
    "bodies": _body,
    "history": _entry,
    "keys": _ending("keys", lambda value: due.size_note(layout.decode_known(value).size)),
    "stages": _ending("stages", lambda value: layout.number.pack(layout.decode_stage(value).number)),
    "producers": _ending("producers", lambda _: b""),
    "batches": _batch,
}


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
