# SPDX-License-Identifier: Apache-2.0
"""The preparation of a store that was restored from a backup, before its first start.

Data that has expired since the backup is lost, unless all expiries are extended by the age of the backup. The boot
epoch (the number of starts) is raised far above all epochs since the backup. New sequences therefore exceed all markers
that readers may have.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Final

from msgspec import structs

from zq.errors import StartRefused
from zq.model import Seconds
from zq.model.stats import Postpone, RestoreResult
from zq.storage.ordered import documents, due, layout, logs, startup
from zq.storage.ordered.entries import difference, message_changes, record_entries
from zq.storage.ordered.startup import StorageClock
from zq.storage.ordered.store import LAST_KEY, Store, Write

# Maximum age of a backup in seconds. With an older one, the machine's clock may be wrong, and everything would expire.
MAX_TRUSTED_AGE: Final = 30 * 86400.0
# Assumed maximum number of starts since the backup.
STARTS: Final = 1000
# A function (key, value, milliseconds) that extends the expiry of a record. It returns the new key and value, or
# ``None`` if the record does not expire.
Shift = Callable[[bytes, bytes, int], tuple[bytes, bytes] | None]
# Maximum size of one write in bytes.
MAX_WRITE_BYTES: Final = 4 << 20


def resume(
    store: Store, clock: StorageClock, moment: Seconds, shift: Postpone | None, force_clock: bool
) -> RestoreResult:
    """Prepare the store for its next start.

    In the result, ``tokens`` is 0. The caller sets it to the number of access tokens in the store.

    Args:
        moment: The time of the backup, as Unix time in seconds.
        shift: If given, all expiries are extended by the age of the backup. ``shift`` is called with each document that
            has an expiry. It returns the document's new value, or None to keep the value.
        force_clock: Whether to trust the machine's clock even if it is implausible.

    Raises ``StartRefused`` if the store has another layout version, or the machine's clock is implausible.
    """
    startup.check_readable(store)
    now = clock.now()
    if not force_clock:
        _check_clock(now, moment)
    if shift is not None:
        _shift_all(store, max(0, layout.ms(now) - layout.ms(moment)), shift)
    lower, upper = (layout.number.pack(layout.ms(end) + 1) for end in (min(moment, now), now))
    expired = sum(1 for _ in store.scan("expiry", lower, upper))
    starts = int.from_bytes(store.get("default", startup.STARTS) or b"") + STARTS
    store.write([("default", startup.STARTS, layout.number.pack(starts))])
    startup.record_clock(store, clock)
    return RestoreResult(
        moment=moment, now=now, expired=expired, fences=sum(1 for _ in store.scan("fences", b"", LAST_KEY)), tokens=0
    )


def _shift_all(store: Store, later: int, postpone: Postpone) -> None:
    """Extend all expiries by ``later`` milliseconds, including past ones. Claims and delays stay unchanged."""
    postponed: dict[str, Shift] = {**_SHIFTS, "records": partial(_shift_document, postpone)}
    found: Iterator[list[Write]] = chain(
        (_shift_message(key, value, later) for key, value in store.scan("messages", b"", LAST_KEY)),
        ([("bodies", key, _shift_body(value, later))] for key, value in store.scan("bodies", b"", LAST_KEY)),
        (
            difference(record_entries(family, key, value), record_entries(family, *new))
            for family, each in postponed.items()
            for key, value in store.scan(family, b"", LAST_KEY)
            if (new := each(key, value, later)) is not None
        ),
    )
    writes: list[Write] = []
    size = 0
    for some in found:
        writes += some
        size += sum(len(place) + len(new or b"") for _, place, new in some)
        if size > MAX_WRITE_BYTES:
            store.write(writes)
            writes, size = [], 0
    store.write(writes)


def _shift_message(key: bytes, value: bytes, later: int) -> list[Write]:
    record = layout.decode_record(value)
    new = structs.replace(record, expires=record.expires + later)
    return [("messages", key, layout.encode(new)), *message_changes(key, record.index_fields(), new)]


def _shift_body(value: bytes, later: int) -> bytes:
    stamp = layout.stamp.unpack(value[-layout.stamp.size :])[0] + -(-later // 1000)
    return layout.unseal_body(value) + layout.stamp.pack(min(stamp, layout.LATEST_STAMP))


def _shift_history(key: bytes, value: bytes, later: int) -> tuple[bytes, bytes]:
    kept = layout.decode_entry(value)
    return key, layout.encode(structs.replace(kept, expires=kept.expires + later))


def _shift_key(key: bytes, value: bytes, later: int) -> tuple[bytes, bytes]:
    return key[:-8] + layout.number.pack(due.parse_expiry(key) + later), value


def _shift_batch(key: bytes, value: bytes, later: int) -> tuple[bytes, bytes]:
    stored = logs.decode_stored(value)
    return key, layout.encode(structs.replace(stored, created=stored.created + later))


def _shift_document(postpone: Postpone, key: bytes, value: bytes, later: int) -> tuple[bytes, bytes] | None:
    document = documents.decode(value)
    kind = layout.decode_project(layout.extract_project_prefix(key[len(layout.extract_project_prefix(key)) :]))
    if document.expires is None or (new := postpone(kind, document.value, later / 1000)) is None:
        return None
    return key, layout.encode(structs.replace(document, value=new, expires=document.expires + later))


_SHIFTS: Final[dict[str, Shift]] = {
    "history": _shift_history,
    "keys": _shift_key,
    "stages": _shift_key,
    "producers": _shift_key,
    "batches": _shift_batch,
}


def _check_clock(now: Seconds, moment: Seconds) -> None:
    today, then = (datetime.fromtimestamp(time, UTC).isoformat(" ", "seconds") for time in (now, moment))
    if now < moment - startup.STEP_BACK_MS / 1000:
        raise StartRefused(
            f"This machine's clock says {today}, which is before the backup was made ({then}). Correct the clock, or "
            "restore with --force-clock."
        )
    if now > moment + MAX_TRUSTED_AGE:
        raise StartRefused(
            f"This machine's clock says {today}, {timedelta(seconds=now - moment).days} days after the backup was made "
            f"({then}). If the clock is wrong, correct it. If it is right, restore with --force-clock, and with "
            "--shift-time to keep messages that have expired since the backup."
        )
