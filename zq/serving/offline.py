# SPDX-License-Identifier: Apache-2.0
"""``zq-server`` commands that open a store themselves, without a server.

``salvage`` requires an embedded store. ``check-store`` accepts an embedded store, or a zq store that is kept in an
object store such as Swift. ``ship`` copies an embedded store to an object store, ``restore`` copies it back, and
``owner`` shows which server owns it there. Each function returns the exit code of its command and raises
``StartRefused`` for an unsupported store.
"""

from datetime import UTC, datetime

from zq.errors import StartRefused
from zq.model.stats import Report
from zq.serving.migration.record import check_served
from zq.storage import check, owner, restore, salvage, ship

OBJECT_STORE = "swift://container/prefix"


def check_store(uri: str) -> int:
    """Check that the store is readable and consistent. Return 0 if so, otherwise 1."""
    report = check(uri)
    if report is None:
        raise StartRefused(f"check-store supports only rocksdb:///var/lib/zq and {OBJECT_STORE}.")
    return print_report(report)


def salvage_store(uri: str, to: str | None) -> int:
    """Copy the readable data of a damaged store to a new store at ``to``.

    Return 0, or 1 if data is lost or the new store is not consistent.

    Raises ``StartRefused`` if ``to`` is missing or the store is not an embedded store.
    """
    if not to:
        raise StartRefused("--to is required: zq-server salvage --store rocksdb:///old --to /new")
    salvaged = salvage(uri, to)
    if salvaged is None:
        raise StartRefused("salvage supports only an embedded store: rocksdb:///var/lib/zq.")
    for kind, count in salvaged.saved.items():
        print(f"{count:>12,} {kind} saved")  # noqa: T201
    print(f"{len(salvaged.damage):>12,} unreadable places")  # noqa: T201
    print(f"{len(salvaged.lost):>12,} known losses")  # noqa: T201
    for sentence in salvaged.damage + salvaged.lost:
        print(f"{sentence.rstrip('.')}.")  # noqa: T201
    print("The new store:")  # noqa: T201
    return max(print_report(salvaged.report), 1 if salvaged.damage or salvaged.lost else 0)


def restore_store(uri: str, to: str | None, at: str | None, position: int | None) -> int:
    """Restore a store in an object store to a new embedded store, as of a time or log position. Return 0."""
    if not to:
        raise StartRefused(
            "Name a backup: zq-server restore BACKUP --store rocksdb:///new. Or name a store in an object store: "
            f"zq-server restore --store {OBJECT_STORE} --to rocksdb:///new"
        )
    if at is not None and position is not None:
        raise StartRefused("--at cannot be combined with --position.")
    restored = restore(uri, to, None if at is None else _moment(at), position)
    if restored is None:
        raise StartRefused(
            f"Without the NAME of a backup, restore requires the URI of an object store: --store {OBJECT_STORE}."
        )
    reached, moment = restored
    when = datetime.fromtimestamp(moment, UTC).isoformat(" ", "seconds") if moment else "its beginning"
    print(f"{to} contains all changes up to log position {reached}, as of {when}.")  # noqa: T201
    return 0


def ship_store(uri: str, to: str | None) -> int:
    """Copy an embedded store to an object store. Return 0.

    Raises ``StartRefused`` if the store takes part in a migration, because servers would refuse to open the copy.
    """
    shipped = ship(uri, to, lambda storage: check_served(storage.documents, storage.now())) if to else None
    if shipped is None:
        raise StartRefused(f"Name the target: zq-server ship --store rocksdb:///var/lib/zq --to {OBJECT_STORE}")
    print(f"{to} contains all of {uri}, in {shipped} files. From now on, serve only one of the two.")  # noqa: T201
    return 0


def print_owner(uri: str) -> int:
    """Print which server owns a store in an object store. Return 0."""
    known = owner(uri)
    if known is None:
        raise StartRefused(f"Only a store in an object store has an owner. Use a URI such as {OBJECT_STORE}.")
    for name, value in known.items():
        print(f"{name}: {value}")  # noqa: T201
    return 0


def _moment(text: str) -> float:
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise StartRefused(f"--at must be a time such as 2026-11-25T10:00:00Z, not {text[:100]!r}.") from None
    return (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()


def print_report(report: Report) -> int:
    """Print the report of a check. Return 1 if the store is damaged or inconsistent."""
    for kind, count in report.counted.items():
        print(f"{count:>12,} {kind}")  # noqa: T201
    print(f"{report.contradictions:>12,} contradictions")  # noqa: T201
    print(f"{len(report.damage):>12,} unreadable places")  # noqa: T201
    for sentence in report.examples + report.damage:
        print(f"{sentence.rstrip('.')}.")  # noqa: T201
    return 1 if report.contradictions or report.damage else 0
