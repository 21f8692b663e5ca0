# SPDX-License-Identifier: Apache-2.0
"""The commands of ``zq-server`` on an embedded store that no server has open: check it, salvage it."""

from zq.errors import StartRefused
from zq.model.stats import Report
from zq.storage import check, salvage


def check_store(uri: str) -> int:
    """Say whether all of a store can be read and its parts agree: 0 if so, 1 if not."""
    report = check(uri)
    if report is None:
        raise StartRefused("Only an embedded store can be checked: rocksdb:///var/lib/zq.")
    return _print_report(report)


def salvage_store(uri: str, to: str | None) -> int:
    """Save what can be read into a new store: 0 if that is all, 1 if not."""
    if not to:
        raise StartRefused("Where shall the new store be? zq-server salvage --store rocksdb:///old --to /new")
    salvaged = salvage(uri, to)
    if salvaged is None:
        raise StartRefused("Only an embedded store can be salvaged: rocksdb:///var/lib/zq.")
    for kind, count in salvaged.saved.items():
        print(f"{count:>12,} {kind} saved")  # noqa: T201
    print(f"{len(salvaged.damage):>12,} places that cannot be read")  # noqa: T201
    print(f"{len(salvaged.lost):>12,} losses known by name")  # noqa: T201
    for sentence in salvaged.damage + salvaged.lost:
        print(f"{sentence.rstrip('.')}.")  # noqa: T201
    print("The new store:")  # noqa: T201
    return max(_print_report(salvaged.report), 1 if salvaged.damage or salvaged.lost else 0)


def _print_report(report: Report) -> int:
    for kind, count in report.counted.items():
        print(f"{count:>12,} {kind}")  # noqa: T201
    print(f"{report.contradictions:>12,} contradictions")  # noqa: T201
    print(f"{len(report.damage):>12,} places that cannot be read")  # noqa: T201
    for sentence in report.examples + report.damage:
        print(f"{sentence.rstrip('.')}.")  # noqa: T201
    return 1 if report.contradictions or report.damage else 0
