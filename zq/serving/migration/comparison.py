# SPDX-License-Identifier: Apache-2.0
"""The comparison of both stores of a migration."""

import time
from collections.abc import Callable, Sequence

from zq.model import Seconds
from zq.model.contents import Contents
from zq.serving.migration.stores import PROGRESS_INTERVAL, Store, movable, pages


class Comparison:
    """A comparison of the projects in both stores.

    ``is_resumed`` is true if an earlier run began the migration. ``report`` prints a line.
    """

    def __init__(
        self, source: Store, target: Store, projects: Sequence[str], is_resumed: bool, report: Callable[[str], object]
    ) -> None:
        self._from, self._to = source.parcels, target.parcels
        self._projects = projects
        self._is_resumed = is_resumed
        self._report = report

    def read(self, which: str, now: Seconds) -> Contents:
        """Return a summary of the projects in the store ``which``: source or target."""
        parcels = self._from if which == "source" else self._to
        contents, reported, count = Contents(), time.monotonic(), 0
        for project in self._projects:
            for page in pages(which, parcels, project, "", lambda: now):
                for parcel in movable(page.items):
                    contents.add(project, parcel, now)
                count += len(page.items)
                if time.monotonic() - reported > PROGRESS_INTERVAL:
                    self._report(f"{count:,} items of the {which} read so far.")
                    reported = time.monotonic()
        return contents

    def find_differences(self, source: Contents, target: Contents, elapsed: Seconds) -> list[str]:
        """Return a sentence for each difference between the stores.

        Ignore items that may have expired within ``elapsed`` seconds.
        """
        here, there = source.digests, target.digests
        compared = source.comparable(target, elapsed)
        for kind in sorted({kind for _, kind, _ in compared}):
            count = sum(here[key].count for key in compared if key[1] == kind)
            self._report(f"{count:>12,} {kind}")
        soon = sum(digest.count for key, digest in here.items() if key not in compared)
        if soon:
            self._report(f"{soon:>12,} items that expire within {2 * elapsed:,.0f} seconds were not compared")
        differences = []
        for project, kind in sorted({key[:2] for key in compared if here[key] != there[key]}):
            keys = [key for key in compared if key[:2] == (project, kind)]
            counts = [sum(side[key].count for key in keys) for side in (here, there)]
            differences.append(
                f"Project {project!r}: {counts[0]:,} {kind} in the source and {counts[1]:,} in the target differ."
            )
        # Each start of an embedded store skips sequences, so its counters are higher in a resumed migration. No server
        # has assigned these sequences, because the source has had the record of the migration since before the copy.
        # ``adopt`` would raise the counters of queues, but not of a topic log: in MongoDB, the log's last sequence also
        # counts its messages.
        skips = self._is_resumed and self._from.last_clock() is None
        for project, queue in () if skips else source.lower_counters(target):
            owner = f"queue {queue!r}" if queue else "the topic log"
            differences.append(f"Project {project!r}: the target has lower counters of {owner}.")
        if not differences:
            total = sum(here[key].total for key in compared) % (1 << 256)
            self._report(f"All {sum(here[key].count for key in compared):,} compared items are equal.")
            self._report(f"SHA-256 digest of both: {total:064x}")
        return differences
