# SPDX-License-Identifier: Apache-2.0
"""The procedure of ``zq-server migrate``: check the stores, copy the projects, and compare the stores."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from zq.errors import Fenced, Invalid, StartRefused, Unavailable
from zq.model import Seconds
from zq.model.documents import Guard
from zq.model.parcels import Parcel
from zq.model.pools import POOL
from zq.serving.migration.comparison import Comparison
from zq.serving.migration.record import DEPLOYMENT, Records, SourceRecord, TargetRecord, fence_ref
from zq.serving.migration.stores import (
    MAX_NAMES,
    PAGE,
    PROGRESS_INTERVAL,
    RESUME_HINT,
    SERVED,
    MigrationIncomplete,
    OtherRun,
    Store,
    failures_of,
    find_servers,
    has_servers,
    movable,
    pages,
    read_clocks,
)
from zq.serving.migration.transactions import OpenTransactions

# Seconds for which the command watches the stored times for changes by servers.
WATCH_SECONDS: Final = 5.0
# Seconds between two updates of the record in the target.
RECORD_INTERVAL: Final = 1.0
# Maximum seconds by which the clocks of the two stores may differ.
MAX_SKEW: Final = 60.0
RELEASE: Final = "zq-server migrate --release, with its URI."
GIVE_UP: Final = (
    "use another target. If you do not need the copied part, release the target (zq-server migrate --release, with its "
    "URI), and delete the copied projects in it."
)
MOVED: Final = "The data of the source {} to {}. Use that store, or release the source first: " + RELEASE
SOURCE_RELEASED: Final = (
    "The source was released after this migration began, so servers may have changed it. The target has {}. Therefore, "
    + GIVE_UP
)


class Options(NamedTuple):
    """The options of a migration.

    If ``projects`` is ``None``, all projects are moved. To detect running servers, the command checks for ``watch``
    seconds whether the timestamps in the stores change.
    """

    projects: Sequence[str] | None = None
    resume: bool = False
    drop_stages: bool = False
    watch: float = WATCH_SECONDS


class Migration:
    """A migration from a source store to a target store: one run of the command."""

    def __init__(self, source: Store, target: Store, options: Options, report: Callable[[str], object]) -> None:
        self._stores = source, target
        self._source, self._target = source.storage, target.storage
        self._from, self._to = source.parcels, target.parcels
        self._names = source.name, target.name
        self._options = options
        self._report = report
        self._projects = sorted(self._find_projects())
        self._run = uuid4().hex
        self._transactions = OpenTransactions(source, self._projects, options.drop_stages)
        self._is_resumed = False
        self._source_records = Records(self._source.documents, self._source.now)
        self._target_records = Records(self._target.documents, self._target.now)

    def check(self) -> TargetRecord:
        """Check that the stores can be migrated. Return the target's record, which contains the position of the copy.

        This method changes nothing. Raises ``StartRefused`` if the stores cannot be migrated.
        """
        completed = self._find_completed()
        if completed is not None:
            return completed
        for obstacle in find_servers(*self._stores, self._options.watch, read_clocks(*self._stores), time.monotonic()):
            raise StartRefused(obstacle)
        now, there = self._source.now(), self._target.now()
        for which, storage, moment in (("source", self._source, now), ("target", self._target, there)):
            pools = [one.ref.name for one in storage.documents.list(DEPLOYMENT, POOL, "", "", MAX_NAMES, moment).items]
            if pools:
                raise StartRefused(
                    f"The {which} has pools, whose queues are in other stores: {', '.join(pools)}. Remove the pools "
                    "first."
                )
        if abs(now - there) > MAX_SKEW:
            raise StartRefused(f"The clocks of the two stores differ by {abs(now - there):,.0f} seconds. Correct them.")
        record = self._find_record(self._check_records())
        self._check_deployment(now)
        self._transactions.check()
        return record

    def _find_completed(self) -> TargetRecord | None:
        """Return the target's record if an earlier run has completed this migration. Servers may use the target then.

        If only some projects were moved, the source has no record after the migration, because it is served.
        """
        stored, source = self._target_records.read_target(), self._read_source_record()
        if stored is None or stored.finished is None or not (self._options.resume and self._is_same(stored)):
            return None
        if self._options.projects is None and (source is None or source.run != stored.run):
            return None
        return stored

    def _check_records(self) -> SourceRecord | None:
        """Return the source's record of a migration to this target.

        Raises ``StartRefused`` if the records of other migrations do not permit this migration.
        """
        former, moved = self._source_records.read_target(), self._source_records.read_source()
        if former is not None and former.finished is None:
            raise StartRefused(
                f"The source has only a part of the data of {former.source}. Complete that migration, or release the "
                f"source: {RELEASE}"
            )
        is_whole = self._options.projects is None
        if moved and (
            moved.target != self._names[1] or (moved.finished is not None and moved.is_whole and not is_whole)
        ):
            state = "is being moved" if moved.finished is None else "was moved"
            raise StartRefused(MOVED.format(state, moved.target))
        onward = self._target_records.read_source()
        if onward is not None:
            state = "is being moved" if onward.finished is None else "was moved"
            raise StartRefused(f"The data of the target {state} to {onward.target}. Use another target.")
        return moved

    def begin(self, record: TargetRecord) -> TargetRecord:
        """Write the records of the migration to both stores, and prepare the source. Return the target's record.

        The method finishes the incomplete commits of the projects. If the option ``drop_stages`` is set, it deletes
        uncommitted messages (stages). A deletion can affect a new stage of the same name only if the run is suspended
        directly before it, and the source is released and used meanwhile.

        The target's record is written before the source's record, and again afterwards. A kill between these writes
        thus differs from a source that was released during the migration. If the target has become unusable since
        ``check``, the method removes the records again.
        """
        record = replace(record, run=self._run)
        self._note(record)
        try:
            with failures_of("source"):
                self._mark_source(record)
            with failures_of("target"):
                self._check_marked_target(record)
            with failures_of("source"):
                self._transactions.check()
        except (OtherRun, StartRefused):
            if not record.is_source_marked:
                self._withdraw()
            raise
        record = replace(record, is_source_marked=True)
        self._note(record)
        with failures_of("source"):
            self._transactions.complete_commits()
            for project, name in self._transactions.find_stages() if self._options.drop_stages else ():
                self._check_run()
                self._source.transactions.drop_stage(project, name)
        return record

    def _mark_source(self, record: TargetRecord) -> None:
        """Write the source's record. Raises ``Fenced`` if the source was released or belongs to another migration.

        Each record is read before the check of the run, so that a later run cannot change it unnoticed in between.
        """
        source = self._source_records.read_source()
        self._check_target_run()
        if source is not None and source.target != self._names[1]:
            raise Fenced
        if source is None and record.is_source_marked:
            raise Fenced
        self._source_records.write(SourceRecord(self._names[1], run=self._run, is_whole=self._options.projects is None))
        former = self._source_records.read_target()
        self._check_target_run()
        if former is not None and former.finished is None:
            raise Fenced
        if former is not None:
            self._source_records.release_target(former)

    def _check_marked_target(self, record: TargetRecord) -> None:
        """Check the target again after both stores have their records.

        Raises ``Fenced`` if the target is the source of another migration, and ``StartRefused`` if a server uses a
        store or the target has data of the projects before the copy.
        """
        onward = self._target_records.read_source()
        self._check_target_run()
        if onward is not None:
            raise Fenced
        if record.is_source_marked:  # an earlier run has checked the rest after it had marked both stores
            return
        for which, store in zip(("source", "target"), self._stores, strict=True):
            if has_servers(store):
                raise StartRefused(SERVED.format(which))
        self._check_empty("Use another target, or delete the data.")

    def _withdraw(self) -> None:
        """Remove the records of this run from both stores. They then remain only if a store fails."""
        with suppress(Fenced, Unavailable):
            source = self._source_records.read_source()
            if source is not None and source.run == self._run:
                self._source_records.delete_source()
            target = self._target_records.read_target()
            if target is not None and target.run == self._run:
                self._target_records.release_target(target)

    def _check_run(self) -> None:
        """Raise ``Fenced`` if one of the records is not of this run."""
        self._check_target_run()
        source = self._source_records.read_source()
        if source is None or source.run != self._run:
            raise Fenced

    def _check_target_run(self) -> None:
        target = self._target_records.read_target()
        if target is None or target.run != self._run:
            raise Fenced

    def copy(self, record: TargetRecord) -> None:
        """Copy the projects from the position in the record. Raises ``MigrationIncomplete`` if a store fails.

        The projects are copied one after another, so that a single position suffices to resume the copy. A million
        messages take about a minute.
        """
        copied, noted, reported = 0, 0.0, time.monotonic()
        if record.project not in self._projects:
            self._fence(record)  # an earlier run may still import items of this project
        for project in (one for one in self._projects if one >= record.project):
            record = replace(record, project=project, after=record.after if project == record.project else "")
            fence = self._fence(record)
            for page in pages("source", self._from, project, record.after, self._source.now):
                self._adopt(project, page.items, fence)
                copied += len(page.items)
                record = replace(record, after=page.next or "")
                moment = time.monotonic()
                if moment - noted > RECORD_INTERVAL:
                    self._note(record)
                    noted = moment
                if moment - reported > PROGRESS_INTERVAL:
                    self._report(f"{copied:,} items copied so far.")
                    reported = moment
            with failures_of("target"):
                self._remove_fence(fence)

    def _fence(self, record: TargetRecord) -> Guard:
        """Replace the fence of the recorded project, and write the record. Return the guard of the project's imports.

        Each import checks this guard. The run must own the record between the read of the old fence and the write of
        the new one, so that it does not replace the fence of a later run. It must own the record afterwards, because
        the later run may have removed its fence.
        """
        guard, documents = Guard(fence_ref(record.project), self._run.encode()), self._target.documents
        is_replaced = False
        while not is_replaced:
            with failures_of("target"):
                stored = documents.get(guard.ref, self._target.now())
            self._note(record)
            with failures_of("target"):
                version = "" if stored is None else stored.version
                is_replaced = documents.put(guard.ref, guard.value, self._target.now(), version)
                self._check_target_run()
        return guard

    def _remove_fence(self, guard: Guard) -> None:
        """Delete the fence of the guard, unless another run has replaced it."""
        stored = self._target.documents.get(guard.ref, self._target.now())
        if stored is not None and stored.value == guard.value:
            self._target.documents.delete(guard.ref, self._target.now(), stored.version)

    def compare(self, record: TargetRecord) -> None:
        """Compare the projects in both stores, and report the counts."""
        now, there = self._source.now(), self._target.now()
        clocks, began = read_clocks(*self._stores), time.monotonic()
        comparison = Comparison(*self._stores, self._projects, self._is_resumed, self._report)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(comparison.read, "target", now)
            contents = comparison.read("source", now), other.result()
        elapsed = time.monotonic() - began + abs(now - there) + 1
        differences = comparison.find_differences(*contents, elapsed)
        differences += find_servers(*self._stores, self._options.watch, clocks, began)
        with failures_of("source"):
            new = self._find_projects().difference(self._projects)
            if self._read_source_record() is None:
                raise MigrationIncomplete(SOURCE_RELEASED.format(_format_data(record)))
        differences += [f"Project {one!r} is new in the source: a server is using the source." for one in sorted(new)]
        if differences:
            self._note(replace(record, project="", after=""))
            for line in differences:
                self._report(line)
            raise MigrationIncomplete(f"{RESUME_HINT} If the stores still differ then, use an empty target.")

    def finish(self, record: TargetRecord) -> None:
        """Record in both stores that the migration is complete. Repeatable.

        The source's record is changed first. If the source was released before, this change fails, so that the target
        stays incomplete. If only some projects were moved, the source's record is deleted at the end, because servers
        may use the source again.
        """
        if record.finished is None:
            with failures_of("source"):
                source = self._read_source_record()
                if source is None or source.run != record.run:
                    raise Fenced
                self._source_records.write(replace(source, finished=self._source.now()))
            self._note(replace(record, project="", after="", finished=self._target.now()))
        with failures_of("source"):
            source = self._read_source_record()
            if source is not None and source.run == record.run:
                if self._options.projects is not None:
                    self._source_records.delete_source()
                elif source.finished is None:  # an earlier version has changed the target's record first
                    self._source_records.write(replace(source, finished=record.finished))

    def _find_projects(self) -> set[str]:
        if self._options.projects is not None:
            return set(self._options.projects)
        return {DEPLOYMENT, *self._from.projects()}

    def _find_record(self, source: SourceRecord | None) -> TargetRecord:
        """Return the record in the target, or a new one if the target has no data of the projects."""
        stored = self._target_records.read_target()
        if stored is not None and stored.finished is None:
            if not self._is_same(stored):
                raise StartRefused(
                    f"The target has {_format_data(stored)} of {stored.source}, because another migration is not "
                    f"complete. Repeat that migration with --resume, or {GIVE_UP}"
                )
            if source is None and stored.is_source_marked:
                raise StartRefused(SOURCE_RELEASED.format(_format_data(stored)))
            if not self._options.resume:
                raise StartRefused(
                    "The target has a part of this migration, which was interrupted: add --resume to continue."
                )
            self._is_resumed = True
            return stored
        if source is not None and source.finished is not None and (source.is_whole or stored is None):
            raise StartRefused(MOVED.format("was moved", source.target))
        advice = "Use another target, or delete the data."
        if stored is not None and stored.finished is not None:
            self._check_repetition(stored, source)
            when = format_time(stored.finished)
            advice = f"A migration from {stored.source} was completed at {when}. Use another target."
        self._check_empty(advice)
        self._check_source()
        return TargetRecord(self._names[0], self._named_projects, is_source_marked=False)

    def _check_repetition(self, stored: TargetRecord, source: SourceRecord | None) -> None:
        """Raise ``StartRefused`` if the complete migration of the target's record has moved one of the projects.

        A repetition could copy messages again that the target has deleted. After a migration of all projects, the
        source must be released first, which is a decision to repeat the migration.
        """
        if source is not None and source.run == stored.run:
            raise StartRefused(
                "The migration to this target lacks only its last step. Repeat it with the same options and --resume."
            )
        if stored.source == self._names[0] and not set(stored.projects or ()).isdisjoint(self._projects):
            raise StartRefused(
                f"A migration of these projects was completed at {format_time(stored.finished or 0)}. Use another "
                "target. To repeat the migration, release the target (zq-server migrate --release, with its URI), and "
                "delete these projects in it."
            )

    def _is_same(self, record: TargetRecord) -> bool:
        """Return whether the target's record is of a migration of the same projects from the same source."""
        return (record.source, record.projects) == (self._names[0], self._named_projects)

    @property
    def _named_projects(self) -> list[str] | None:
        return None if self._options.projects is None else self._projects

    def _check_empty(self, advice: str) -> None:
        """Raise ``StartRefused`` if the target has data of the projects."""
        for project in self._projects:
            if movable(self._to.export(project, "", PAGE, self._target.now()).items):
                raise StartRefused(f"The target is not empty: project {project!r} has data there. {advice}")

    def _read_source_record(self) -> SourceRecord | None:
        """Return the source's record of a migration to this target."""
        stored = self._source_records.read_source()
        return stored if stored is not None and stored.target == self._names[1] else None

    def _check_deployment(self, now: Seconds) -> None:
        """Raise ``StartRefused`` if the migration would leave deployment-wide records behind in the source."""
        if DEPLOYMENT in self._projects or not movable(self._from.export(DEPLOYMENT, "", PAGE, now).items):
            return
        raise StartRefused(
            "The source has records that belong to no project, such as data keys and tokens. The projects "
            "need these records. To migrate the records too, add --project ''."
        )

    def _note(self, record: TargetRecord) -> None:
        with failures_of("target"):
            self._target_records.write(record)

    def _check_source(self) -> None:
        """Raise ``StartRefused`` if the source has no data to move."""
        now = self._source.now()
        used = self._transactions.find_projects(now)
        empty = [
            one
            for one in self._projects
            if one not in used and not movable(self._from.export(one, "", PAGE, now).items)
        ]
        if self._options.projects is not None and empty:
            raise StartRefused(f"The source has no data of project {empty[0]!r}.")
        if len(empty) == len(self._projects):
            raise StartRefused("The source has no data.")

    def _adopt(self, project: str, parcels: Sequence[Parcel], fence: Guard) -> None:
        try:
            with failures_of("target"):
                self._to.adopt(project, movable(parcels), self._target.now(), fence)
        except Invalid as error:
            raise MigrationIncomplete(
                f"The target cannot store an item of project {project!r}: {error} The source still has all its data. "
                "Use another target."
            ) from error


def _format_data(record: TargetRecord) -> str:
    """Return a description of the data that an incomplete migration has copied to the target."""
    if record.projects is None:
        return "a part of the data"
    names = ", ".join(map(repr, record.projects[:MAX_NAMES]))
    more = len(record.projects) - MAX_NAMES
    return f"a part of the projects {names}{f' and {more} more' if more > 0 else ''}"


def format_time(moment: Seconds) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(" ", "seconds")
