# SPDX-License-Identifier: Apache-2.0
"""The command ``zq-server migrate``, which moves projects to another store. The stores may have different drivers.

The command copies page by page. A record in the target contains the position of the copy, so that an interrupted
migration can be resumed. The target ignores items that it already has. At the end, the command compares both stores.

During a migration, no server may use the stores, not even in the mode ``read_only``, in which a server still expires
messages and delivers notifications. A server updates a timestamp in a networked store every two seconds,
so the command can detect running servers. The command also writes a record to each store, so that no server starts on
the store; see ``migration_record``.

The command does not detect another run of itself on networked stores. A run that was suspended can therefore change the
target after another run has completed the migration.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, NoReturn
from urllib.parse import unquote

from msgspec.structs import replace

from zq.errors import CommitRunning, Invalid, StartRefused, Unavailable, ZqError
from zq.logs import holds_password, without_secrets
from zq.model import Page, Seconds, UnfinishedCommit, store_uri
from zq.model.contents import Contents
from zq.model.parcels import DocumentParcel, Parcel
from zq.model.pools import POOL
from zq.model.quotas import Work
from zq.serving import migration_record, settings
from zq.serving.features import SERVER_RECORDS
from zq.serving.migration_record import DEPLOYMENT, KIND, SOURCE, TARGET, SourceRecord, TargetRecord
from zq.serving.settings import Configuration
from zq.storage import connect, find_driver
from zq.storage.api import Storage
from zq.storage.capabilities import MigratableStorage, ParcelController, UndecidedCommit

USAGE: Final = "zq-server migrate rocksdb:///var/lib/zq redis://127.0.0.1/0"
# Number of parcels in one page.
PAGE: Final = 500
# Seconds for which the command watches the stored times for changes by servers.
WATCH_SECONDS: Final = 5.0
# Seconds between two updates of the record in the target, and between two lines of progress.
RECORD_INTERVAL: Final = 1.0
PROGRESS_INTERVAL: Final = 10.0
# Maximum seconds by which the clocks of the two stores may differ.
MAX_SKEW: Final = 60.0
# Maximum number of messages that one slice of an open commit publishes or deletes.
COMMIT_SLICE: Final = 1000
# Maximum number of names in an error message.
MAX_NAMES: Final = 5
# Prefix of an argument that names a file with the URI.
FILE: Final = "@"
EMBEDDED: Final = "rocksdb"
RELEASE: Final = "zq-server migrate --release, with its URI."
RESUME_HINT: Final = "Do not serve the target. Repeat the command with --resume."
NOT_MOVED: Final = {
    "memory": "A store in memory cannot be migrated: its data is lost when the server stops.",
    **dict.fromkeys(
        ("s3", "swift", "az", "gs"),
        "A store in an object store cannot be migrated directly. Migrate an embedded store: zq-server restore copies "
        "an object store to an embedded store, and zq-server ship copies an embedded store to an object store.",
    ),
}


class MigrationIncomplete(ZqError):
    """Raised if a migration ends early, after it has changed the target."""


class Store(NamedTuple):
    """An open store. ``name`` is its URI without the password."""

    storage: Storage
    name: str

    @property
    def parcels(self) -> ParcelController:
        opened: object = self.storage
        if not isinstance(opened, MigratableStorage):
            raise StartRefused("The driver of the store does not support migrate.")
        return opened.parcels


class Options(NamedTuple):
    """The options of a migration.

    If ``projects`` is ``None``, all projects are moved. To detect running servers, the command checks for ``watch``
    seconds whether the timestamps in the stores change.
    """

    projects: Sequence[str] | None = None
    resume: bool = False
    drop_stages: bool = False
    watch: float = WATCH_SECONDS


def run(args: argparse.Namespace) -> int:
    """Run the command. Return 0, or 1 if the migration is not complete."""
    if args.store:
        raise StartRefused(f"--store does not apply to migrate: {USAGE}")
    if args.release:
        return _release(args)
    if len(args.names) != 2:
        raise StartRefused(f"Name the source and the target: {USAGE}")
    source, target = (_read_uri(name) for name in args.names)
    if source == target:
        raise StartRefused("The source and the target must be different stores.")
    with ExitStack() as opened:
        former = Store(opened.enter_context(closing(_open(source))), without_secrets(source))
        new = Store(opened.enter_context(closing(_open(target, is_new=True))), without_secrets(target))
        options = Options(args.project, args.resume, args.drop_stages, WATCH_SECONDS)
        report = partial(print, flush=True)
        try:
            return migrate(former, new, options, report)
        except KeyboardInterrupt:
            report(f"The migration was interrupted. {RESUME_HINT}")
            return 1


def _release(args: argparse.Namespace) -> int:
    """Delete the migration records of a store, so that servers can use the store again. Return 0."""
    if len(args.names) != 1 or args.project or args.resume or args.drop_stages:
        raise StartRefused("Name one store, without other options: zq-server migrate --release rocksdb:///var/lib/zq")
    with closing(_open(_read_uri(args.names[0]))) as storage:
        if not migration_record.release(storage.documents, storage.now()):
            raise StartRefused("The store is not part of a migration, so servers can already use it.")
    print("Servers can use the store. Do not serve it together with the other store of its migration.")  # noqa: T201
    return 0


def _read_uri(name: str) -> str:
    if not name.startswith(FILE):
        if holds_password(name):
            raise StartRefused(
                "The URI must not contain a password, because every user of this machine could read it: write the URI "
                "to a file, and name the file: @/etc/zq/target.uri."
            )
        return name
    try:
        return Path(name[len(FILE) :]).read_text().strip()
    except (OSError, ValueError) as error:
        raise StartRefused(f"The file {name[len(FILE) :]} with the URI of a store cannot be read.") from error


def _open(uri: str, is_new: bool = False) -> Storage:
    """Open a store. The store must exist, unless ``is_new`` is true.

    Raises ``StartRefused`` if the store does not exist or cannot be migrated.
    """
    find_driver(uri)  # raises for an unknown scheme
    parts = store_uri.split(uri)
    if parts.scheme in NOT_MOVED:
        raise StartRefused(NOT_MOVED[parts.scheme])
    folder = Path(unquote(parts.path))
    try:
        if parts.scheme == EMBEDDED and not is_new and not (folder / "CURRENT").exists():
            raise StartRefused(f"There is no store in {folder}.")
    except OSError as error:
        raise StartRefused(f"The store in {folder} cannot be read. Run the command as the server's user.") from error
    os.environ[settings.variable("storage", "uri")] = uri

    def reject() -> NoReturn:
        raise StartRefused(f"There is no store at {without_secrets(uri)}.")

    return connect(uri, Configuration().current.driver_options, initial=None if is_new else reject)


def migrate(source: Store, target: Store, options: Options, report: Callable[[str], object]) -> int:
    """Copy the projects of the source to the target, and compare the stores. ``report`` prints a line.

    Return 0 if the migration is complete, otherwise 1. If the command fails before it copies data, the function raises
    ``StartRefused`` or ``Unavailable``.
    """
    began = time.monotonic()
    migration = Migration(source, target, options, report)
    try:
        record = migration.check()
    except CommitRunning as error:
        raise StartRefused("A commit is under way in one of the stores. Wait ten seconds, and try again.") from error
    checked = time.monotonic()
    try:
        if record.finished is not None:
            migration.finish(record)
            report(
                f"This migration was completed at {_format_time(record.finished)}. Later changes to the stores are not "
                "compared."
            )
            return 0
        migration.begin(record)
        migration.copy(record)
        report(f"Copied in {time.monotonic() - checked:,.0f} seconds. Comparing both stores.")
        migration.compare(record)
        migration.finish(record)
    except (MigrationIncomplete, StartRefused) as error:
        report(str(error))
        return 1
    except Unavailable as error:
        report(f"{error} {RESUME_HINT}")
        return 1
    report(f"The migration took {time.monotonic() - began:,.0f} seconds.")
    moved = "the source" if options.projects is None else "these projects from the source"
    report(f"Serve the target from now on, and never {moved} again.")
    return 0


class Migration:
    """A migration from a source store to a target store: one run of the command."""

    def __init__(self, source: Store, target: Store, options: Options, report: Callable[[str], object]) -> None:
        self._source, self._target = source.storage, target.storage
        self._from, self._to = source.parcels, target.parcels
        self._names = source.name, target.name
        self._options = options
        self._report = report
        self._projects = sorted(self._find_projects())
        self._is_resumed = False

    def check(self) -> TargetRecord:
        """Check that the stores can be migrated. Return the target's record, which contains the position of the copy.

        This method changes nothing. Raises ``StartRefused`` if the stores cannot be migrated.
        """
        for obstacle in self._find_servers(self._read_clocks(), time.monotonic()):
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
        former = migration_record.read_target(self._source.documents, now)
        if former is not None and former.finished is None:
            raise StartRefused(
                f"The source has only a part of the data of {former.source}. Complete that migration, or release the "
                f"source: {RELEASE}"
            )
        moved = migration_record.read_source(self._source.documents, now)
        is_moved = moved is not None and moved.finished is not None
        if moved and is_moved and (moved.target != self._names[1] or self._options.projects is not None):
            raise StartRefused(
                f"The data of the source was moved to {moved.target}. Use that store, or release the source first: "
                f"{RELEASE}"
            )
        record = self._find_record(there)
        if record.finished is None:
            self._check_deployment(now)
            self._check_commits(now)
            self._check_stages()
        return record

    def begin(self, record: TargetRecord) -> None:
        """Write the records of the migration to both stores, and prepare the source.

        The method finishes the incomplete commits of the projects. If the option ``drop_stages`` is set, it deletes
        uncommitted messages (stages). The order of the first three writes distinguishes a kill between them from a
        completed migration, and from a source that was released during the migration.
        """
        stored = self._read_target_record()
        if stored is not None and stored.finished is not None:
            with _failures_of("target"):
                self._target.documents.delete(TARGET, self._target.now())
        with _failures_of("source"):
            migration_record.write(self._source.documents, SourceRecord(self._names[1]), self._source.now())
        self._note(record)
        with _failures_of("target"):
            self._target.documents.delete(SOURCE, self._target.now())
        with _failures_of("source"):
            self._complete_commits()
            for project, name in self._find_stages() if self._options.drop_stages else ():
                self._source.transactions.drop_stage(project, name)

    def copy(self, record: TargetRecord) -> None:
        """Copy the projects from the position in the record. Raises ``MigrationIncomplete`` if a store fails.

        The projects are copied one after another, so that a single position suffices to resume the copy. A million
        messages take about a minute.
        """
        copied, noted, reported = 0, 0.0, time.monotonic()
        for project in (one for one in self._projects if one >= record.project):
            record = replace(record, project=project, after=record.after if project == record.project else "")
            for page in self._pages("source", project, record.after, self._source.now):
                self._adopt(project, page.items)
                copied += len(page.items)
                record = replace(record, after=page.next or "")
                moment = time.monotonic()
                if moment - noted > RECORD_INTERVAL:
                    self._note(record)
                    noted = moment
                if moment - reported > PROGRESS_INTERVAL:
                    self._report(f"{copied:,} items copied so far.")
                    reported = moment

    def compare(self, record: TargetRecord) -> None:
        """Compare the projects in both stores, and report the counts."""
        now, there = self._source.now(), self._target.now()
        clocks, began = self._read_clocks(), time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(self._read_contents, "target", now)
            contents = self._read_contents("source", now), other.result()
        elapsed = time.monotonic() - began + abs(now - there) + 1
        differences = self._find_differences(*contents, elapsed)
        differences += self._find_servers(clocks, began)
        with _failures_of("source"):
            new = self._find_projects().difference(self._projects)
            if self._read_source_record() is None:
                differences.append("The source was released during the migration.")
        differences += [f"Project {one!r} is new in the source: a server is using the source." for one in sorted(new)]
        if differences:
            self._note(replace(record, project="", after=""))
            for line in differences:
                self._report(line)
            raise MigrationIncomplete(f"{RESUME_HINT} If the stores still differ then, use an empty target.")

    def finish(self, record: TargetRecord) -> None:
        """Record in both stores that the migration is complete. Repeatable.

        The source's record is changed last. Until then, servers refuse to start on the source, and a repeat of the
        command completes this step.
        """
        if record.finished is None:
            self._note(replace(record, project="", after="", finished=self._target.now()))
        with _failures_of("source"):
            now, source = self._source.now(), self._read_source_record()
            if self._options.projects is None and (source is None or source.finished is None):
                migration_record.write(self._source.documents, SourceRecord(self._names[1], now), now)
            elif self._options.projects is not None and source is not None:
                self._source.documents.delete(SOURCE, now)

    def _find_projects(self) -> set[str]:
        if self._options.projects is not None:
            return set(self._options.projects)
        return {DEPLOYMENT, *self._from.projects()}

    def _read_clocks(self) -> tuple[Seconds | None, Seconds | None]:
        return self._from.last_clock(), self._to.last_clock()

    def _find_servers(self, clocks: tuple[Seconds | None, Seconds | None], began: float) -> list[str]:
        """Return an error message for each store that a running server uses or may use.

        ``clocks`` contains the timestamps of both stores, read at the monotonic time ``began``. A server uses the store
        if the timestamp has changed, or if the store contains records of servers. A server may use the store if the
        store's clock is behind the timestamp.
        """
        if clocks != (None, None):
            time.sleep(max(0.0, self._options.watch - (time.monotonic() - began)))
        found, later = list[str](), self._read_clocks()
        sides = ("source", self._source), ("target", self._target)
        for (which, storage), before, after in zip(sides, clocks, later, strict=True):
            if after is None:  # no server can have opened an embedded store
                continue
            now = storage.now()
            reports = (storage.documents.list(DEPLOYMENT, kind, "", "", 1, now).items for kind in SERVER_RECORDS)
            if before != after or any(reports):
                found.append(f"A server is using the {which}. Stop all its servers, and wait 60 seconds.")
            elif after and now - after < self._options.watch / 2:
                found.append(
                    f"The clock of the {which} is behind its stored time, so the command cannot detect servers that "
                    f"use the {which}. Wait a minute, and repeat the command."
                )
        return found

    def _find_record(self, now: Seconds) -> TargetRecord:
        """Return the record in the target, or a new one if the target has no data of the projects."""
        new = TargetRecord(self._names[0], None if self._options.projects is None else self._projects)
        stored = self._read_target_record()
        if stored is not None:
            is_same = (stored.source, stored.projects) == (new.source, new.projects)
            is_marked = self._read_source_record() is not None
            # If only some projects were moved, the source has no record after the migration, because it is served.
            can_resume = is_marked or (stored.finished is not None and self._options.projects is not None)
            if is_same and self._options.resume and can_resume:
                self._is_resumed = True
                return stored
            if stored.finished is None and not is_same:
                raise StartRefused(
                    f"The target belongs to another migration, whose source is {stored.source}. Use another target, "
                    f"or empty the target and release it: {RELEASE}"
                )
            if stored.finished is None and not can_resume:
                raise StartRefused(
                    "The source was released after this migration began, so servers may have changed it. Use another "
                    f"target, or empty the target and release it: {RELEASE}"
                )
            if stored.finished is None:
                raise StartRefused(
                    "The target has a part of this migration, which was interrupted: add --resume to continue."
                )
        for project in self._projects:
            if _movable(project, self._to.export(project, "", PAGE, now).items):
                reason = "Use another target, or delete the data."
                if stored is not None and stored.finished is not None:
                    when = _format_time(stored.finished)
                    reason = f"A migration from {stored.source} was completed at {when}. Use another target."
                raise StartRefused(f"The target is not empty: project {project!r} has data there. {reason}")
        self._check_source()
        return new

    def _read_target_record(self) -> TargetRecord | None:
        return migration_record.read_target(self._target.documents, self._target.now())

    def _read_source_record(self) -> SourceRecord | None:
        """Return the source's record of a migration to this target."""
        stored = migration_record.read_source(self._source.documents, self._source.now())
        return stored if stored is not None and stored.target == self._names[1] else None

    def _check_deployment(self, now: Seconds) -> None:
        """Raise ``StartRefused`` if the migration would leave deployment-wide records behind in the source."""
        if DEPLOYMENT in self._projects or not _movable("", self._from.export(DEPLOYMENT, "", PAGE, now).items):
            return
        raise StartRefused(
            "The source has records that belong to no project, such as data keys and tokens. The projects "
            "need these records. To migrate the records too, add --project ''."
        )

    def _note(self, record: TargetRecord) -> None:
        with _failures_of("target"):
            migration_record.write(self._target.documents, record, self._target.now())

    def _check_commits(self, now: Seconds) -> None:
        """Raise ``StartRefused`` if a commit of the projects is undecided.

        With the option ``drop_stages``, a commit whose time limit has passed is accepted, because ``begin`` aborts it
        and drops its stages.
        """
        for project, producer, seconds in self._find_undecided(now):
            if seconds > 0:
                raise StartRefused(
                    f"A commit of producer {producer!r} of project {project!r} is under way. Wait {seconds:.0f} "
                    "seconds, and repeat the command."
                )
            if not self._options.drop_stages:
                raise StartRefused(
                    f"Stages of open transactions cannot be moved: a commit of producer {producer!r} of project "
                    f"{project!r} was interrupted. Let the producer repeat it, or drop its stages with --drop-stages."
                )

    def _find_undecided(self, now: Seconds) -> list[UndecidedCommit]:
        return [one for project in self._projects for one in self._from.find_undecided_commits(project, now)]

    def _find_unfinished(self, now: Seconds) -> list[UnfinishedCommit]:
        return [one for one in self._source.transactions.find_unfinished_commits(now) if one.project in self._projects]

    def _complete_commits(self) -> None:
        """Finish the incomplete commits (transactions) of the projects: abort undecided and complete decided ones."""
        work, now = self._source.transactions, self._source.now()
        for project, producer, _ in self._find_undecided(now):
            self._from.abort_commit(project, producer, now)
        while opened := self._find_unfinished(now):
            for commit in opened:
                while work.continue_commit(commit.project, commit.producer, COMMIT_SLICE, now):
                    pass

    def _check_stages(self) -> None:
        """Raise ``StartRefused`` if there are stages (uncommitted messages), unless ``drop_stages`` is set."""
        stages = self._find_stages()
        if stages and not self._options.drop_stages:
            more = f" and {len(stages) - MAX_NAMES} more" if len(stages) > MAX_NAMES else ""
            names = ", ".join(f"{name} of project {project!r}" for project, name in stages[:MAX_NAMES])
            raise StartRefused(
                f"Stages of open transactions cannot be moved: {names}{more}. Let their producers commit them, or drop "
                "them with --drop-stages."
            )

    def _check_source(self) -> None:
        """Raise ``StartRefused`` if the source has no data to move."""
        now = self._source.now()
        used = {project for project, _ in self._find_stages()}
        used |= {one.project for one in self._find_undecided(now)} | {one.project for one in self._find_unfinished(now)}
        empty = [
            one
            for one in self._projects
            if one not in used and not _movable(one, self._from.export(one, "", PAGE, now).items)
        ]
        if self._options.projects is not None and empty:
            raise StartRefused(f"The source has no data of project {empty[0]!r}.")
        if len(empty) == len(self._projects):
            raise StartRefused("The source has no data.")

    def _find_stages(self) -> list[tuple[str, str]]:
        now, found = self._source.now(), list[tuple[str, str]]()
        for project in self._projects:
            after: str | None = ""
            while after is not None:
                page = self._source.transactions.list(project, Work.STAGE, after, PAGE, now)
                found += [(project, one.name) for one in page.items]
                after = page.next
        return found

    def _adopt(self, project: str, parcels: Sequence[Parcel]) -> None:
        try:
            with _failures_of("target"):
                self._to.adopt(project, _movable(project, parcels), self._target.now())
        except Invalid as error:
            raise MigrationIncomplete(
                f"The target cannot store an item of project {project!r}: {error} The source still has all its data. "
                "Use another target."
            ) from error

    def _pages(self, which: str, project: str, after: str, now: Callable[[], Seconds]) -> Iterator[Page[Parcel]]:
        parcels = self._from if which == "source" else self._to
        with _failures_of(which), ThreadPoolExecutor(1) as pool:
            reading = pool.submit(parcels.export, project, after, PAGE, now())
            while (page := reading.result()).next is not None:
                reading = pool.submit(parcels.export, project, page.next, PAGE, now())
                yield page

    def _read_contents(self, which: str, now: Seconds) -> Contents:
        contents, reported, count = Contents(), time.monotonic(), 0
        for project in self._projects:
            for page in self._pages(which, project, "", lambda: now):
                for parcel in _movable(project, page.items):
                    contents.add(project, parcel, now)
                count += len(page.items)
                if time.monotonic() - reported > PROGRESS_INTERVAL:
                    self._report(f"{count:,} items of the {which} read so far.")
                    reported = time.monotonic()
        return contents

    def _find_differences(self, source: Contents, target: Contents, elapsed: Seconds) -> list[str]:
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
        # has assigned these sequences, because the source has had the record of the migration since the first run.
        skips = self._is_resumed and self._from.last_clock() is None
        for project, queue in () if skips else source.lower_counters(target):
            owner = f"queue {queue!r}" if queue else "the topic log"
            differences.append(f"Project {project!r}: the target has lower counters of {owner}.")
        if not differences:
            total = sum(here[key].total for key in compared) % (1 << 256)
            self._report(f"All {sum(here[key].count for key in compared):,} compared items are equal.")
            self._report(f"SHA-256 digest of both: {total:064x}")
        return differences


def _format_time(moment: Seconds) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(" ", "seconds")


@contextmanager
def _failures_of(which: str) -> Iterator[None]:
    """Convert the errors ``Unavailable`` and ``CommitRunning`` of the ``with`` block to ``MigrationIncomplete``.

    ``which`` names the store that the block uses: source or target.
    """
    try:
        yield
    except Unavailable as error:
        raise MigrationIncomplete(f"The {which} has failed: {error} {RESUME_HINT}") from error
    except CommitRunning as error:
        raise MigrationIncomplete(
            f"A commit is under way in the {which}, so a server is using this store. Stop the server. {RESUME_HINT}"
        ) from error


def _movable(project: str, parcels: Sequence[Parcel]) -> list[Parcel]:
    """Return the parcels (exported items) to move: all except the records of migrations and running servers."""
    if project != DEPLOYMENT:
        return list(parcels)
    return [one for one in parcels if not (isinstance(one, DocumentParcel) and one.kind in (KIND, *SERVER_RECORDS))]
