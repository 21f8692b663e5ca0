# SPDX-License-Identifier: Apache-2.0
"""The command ``zq-server migrate``: moves all projects of a store to a store of any driver.

The command copies page by page. A document in the target, the *migration record*, has the position of the copy, so a
killed migration can be resumed: the target ignores what it has already. At the end, the command compares both stores.
No server may use the stores meanwhile.
"""

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from zq.errors import Invalid, StartRefused
from zq.logs import holds_password, without_secrets
from zq.model import Page, Seconds, store_uri
from zq.model.documents import DocumentRef
from zq.model.parcels import DocumentParcel, Parcel, facts
from zq.model.pools import POOL
from zq.model.quotas import Work
from zq.serving import settings
from zq.serving.features import SERVER_RECORDS
from zq.serving.settings import Configuration
from zq.storage import connect, find_driver
from zq.storage.api import Storage
from zq.storage.capabilities import Migratable, ParcelController

T = TypeVar("T")
USAGE: Final = "zq-server migrate rocksdb:///var/lib/zq redis://127.0.0.1/0"
# Number of parcels in one page.
PAGE: Final = 500
# Seconds between two updates of the migration record, and between two lines of progress.
RECORD_INTERVAL: Final = 1.0
PROGRESS_INTERVAL: Final = 10.0
# Maximum seconds by which the clocks of the two stores may differ.
MAX_SKEW: Final = 60.0
# Maximum number of messages that one slice of an open commit publishes or deletes.
SLICE: Final = 1000
# Maximum number of names in an error message.
NAMED: Final = 5
# The project of the deployment's own documents.
DEPLOYMENT: Final = ""
RECORD: Final = DocumentRef(DEPLOYMENT, "migration", "target")
# Prefix of an argument that names a file with the URI.
FILE: Final = "@"
NOT_MOVED: Final = {
    "memory": "A store in memory cannot be migrated: its data is lost when the server stops.",
    **dict.fromkeys(
        ("s3", "swift", "az", "gs"),
        "Copy a store in an object store to an embedded store with zq-server restore, or an embedded store to an "
        "object store with zq-server ship, and migrate the embedded store.",
    ),
}


class Record(Struct, frozen=True):
    """The migration record in the target.

    Attributes:
        source: The URI of the source without its password.
        projects: The projects to move; None = all.
        project: The project that is being copied; ``after``: the position in its export.
        finished: Time at which the comparison succeeded; None = the migration is not complete.
    """

    source: str
    projects: list[str] | None
    project: str = ""
    after: str = ""
    finished: Seconds | None = None


class Options(NamedTuple):
    """The options of a migration. ``projects`` are the projects to move; None = all."""

    projects: Sequence[str] | None = None
    resume: bool = False
    drop_stages: bool = False


class Digest:
    """The number of facts, and a SHA-256 digest that does not depend on their order: the sum of the facts' digests."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0

    def add(self, content: bytes) -> None:
        self.count += 1
        self.total = (self.total + int.from_bytes(sha256(content).digest())) % (1 << 256)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and (self.count, self.total) == (other.count, other.total)

    __hash__ = None  # type: ignore[assignment]


# Digests by project, kind, and lifetime: 2 ** lifetime is at most the number of seconds until the facts expire.
Digests = defaultdict[tuple[str, str, int], Digest]


def run(given: argparse.Namespace) -> int:
    """Run the command. Return 0, or 1 if the stores differ at the end. Raises ``StartRefused`` before any change."""
    if len(given.names) != 2:
        raise StartRefused(f"Name the source and the target: {USAGE}")
    if given.store:
        raise StartRefused(f"--store does not apply to migrate: {USAGE}")
    source, target = (_read_uri(name) for name in given.names)
    if source == target:
        raise StartRefused("The source and the target must be different stores.")
    with ExitStack() as opened:
        former = opened.enter_context(closing(_open(source)))
        new = opened.enter_context(closing(_open(target)))
        options = Options(given.project, given.resume, given.drop_stages)
        try:
            return migrate(former, new, without_secrets(source), options, partial(print, flush=True))
        except KeyboardInterrupt:
            raise StartRefused("The migration was interrupted: add --resume to continue.") from None


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


def _open(uri: str) -> Storage:
    find_driver(uri)  # raises for an unknown scheme
    scheme = store_uri.split(uri).scheme
    if scheme in NOT_MOVED:
        raise StartRefused(NOT_MOVED[scheme])
    os.environ[settings.variable("storage", "uri")] = uri
    return connect(uri, Configuration().current.driver_options)


def migrate(source: Storage, target: Storage, name: str, options: Options, report: Callable[[str], object]) -> int:
    """Copy the projects of the source to the target, and compare the stores. Return 0, or 1 if they differ.

    Args:
        name: URI of the source without its password.
        report: Receives the lines that the command prints.

    Raises ``StartRefused`` if the stores cannot be migrated. Nothing has changed then.
    """
    began = time.monotonic()
    migration = Migration(source, target, name, options, report)
    record = migration.check()
    if record.finished is not None:
        report("This migration is complete already.")
        return 0
    migration.copy(record)
    copied = time.monotonic()
    report(f"Copied in {copied - began:,.0f} seconds. Both stores are compared.")
    if not migration.is_equal():
        return 1
    migration.finish(record)
    report(f"The target has all data of the source. The migration took {time.monotonic() - began:,.0f} seconds.")
    report("Serve the target from now on, and never the source again.")
    return 0


class Migration:
    """One run of the command."""

    def __init__(
        self, source: Storage, target: Storage, name: str, options: Options, report: Callable[[str], object]
    ) -> None:
        self._source, self._target = source, target
        self._from, self._to = _parcels(source), _parcels(target)
        self._name = name
        self._options = options
        self._report = report
        self._projects = sorted({*(self._from.projects() if options.projects is None else options.projects)})

    def check(self) -> Record:
        """Return the migration record, which has the position from which to copy.

        Raises ``StartRefused`` if the stores cannot be migrated. Except for open commits of the source, which are
        completed, and stages that are to be dropped, nothing is changed.
        """
        now, there = self._source.now(), self._target.now()
        if abs(now - there) > MAX_SKEW:
            raise StartRefused(f"The clocks of the two stores differ by {abs(now - there):,.0f} seconds. Correct them.")
        for which, storage, moment in (("source", self._source, now), ("target", self._target, there)):
            for kind in SERVER_RECORDS:
                if storage.documents.list(DEPLOYMENT, kind, "", "", 1, moment).items:
                    raise StartRefused(
                        f"A server uses the {which}. Stop all its servers, and wait 60 seconds if one was killed."
                    )
            pools = [one.ref.name for one in storage.documents.list(DEPLOYMENT, POOL, "", "", NAMED, moment).items]
            if pools:
                raise StartRefused(
                    f"The {which} has pools, whose queues are in other stores: {', '.join(pools)}. Remove the pools "
                    "first."
                )
        record = self._find_record(there)
        self._complete_commits()
        stages = self._find_stages()
        if stages and not self._options.drop_stages:
            more = f" and {len(stages) - NAMED} more" if len(stages) > NAMED else ""
            names = ", ".join(f"{name} of project {project!r}" for project, name in stages[:NAMED])
            raise StartRefused(
                f"Stages of open transactions cannot be moved: {names}{more}. Let their producers commit them, or drop "
                "them with --drop-stages."
            )
        if not stages:
            self._check_content()
        for project, name in stages:
            self._source.transactions.drop_stage(project, name)
        return record

    def copy(self, record: Record) -> None:
        """Copy the projects from the position in the record on."""
        copied, noted, told = 0, 0.0, time.monotonic()
        self._note(record)
        for project in (one for one in self._projects if one >= record.project):
            record = replace(record, project=project, after=record.after if project == record.project else "")
            for page in self._pages(self._from, project, record.after, self._source.now):
                try:
                    self._to.adopt(project, _movable(project, page.items), self._target.now())
                except Invalid as error:
                    raise StartRefused(
                        f"The target cannot store an item of project {project!r}: {error} The source is unchanged."
                    ) from error
                copied += len(page.items)
                record = replace(record, after=page.next or "")
                moment = time.monotonic()
                if moment - noted > RECORD_INTERVAL:
                    self._note(record)
                    noted = moment
                if moment - told > PROGRESS_INTERVAL:
                    self._report(f"{copied:,} items are copied.")
                    told = moment

    def is_equal(self) -> bool:
        """Compare the projects in both stores, and report the counts and the differences."""
        now, began = self._source.now(), time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(self._digest, self._to, now)
            here, there = self._digest(self._from, now), other.result()
        elapsed = time.monotonic() - began + abs(self._source.now() - self._target.now()) + 1
        compared = {key for key in {*here, *there} if 2 ** key[2] > elapsed}
        for kind in sorted({kind for _, kind, _ in compared}):
            count = sum(here[key].count for key in compared if key[1] == kind)
            self._report(f"{count:>12,} {kind}")
        soon = sum(digest.count for key, digest in here.items() if key not in compared)
        if soon:
            self._report(f"{soon:>12,} items that expire within {2 * elapsed:,.0f} seconds were not compared")
        differing = sorted({key[:2] for key in compared if here[key] != there[key]})
        for project, kind in differing:
            keys = [key for key in compared if key[:2] == (project, kind)]
            counts = [sum(side[key].count for key in keys) for side in (here, there)]
            self._report(
                f"Project {project!r}: {counts[0]:,} {kind} in the source and {counts[1]:,} in the target differ."
            )
        if not differing:
            total = sum(here[key].total for key in compared) % (1 << 256)
            self._report(f"SHA-256 digest of both: {total:064x}")
        return not differing

    def finish(self, record: Record) -> None:
        """Note in the target that the migration is complete."""
        self._note(replace(record, project="", after="", finished=self._target.now()))

    def _find_record(self, now: Seconds) -> Record:
        """Return the migration record in the target, or a new one if the target is empty."""
        named = None if self._options.projects is None else self._projects
        new = Record(self._name, named)
        stored = self._target.documents.get(RECORD, now)
        if stored is None:
            for project in self._projects:
                page = self._to.export(project, "", PAGE, now)
                if _movable(project, page.items):
                    raise StartRefused(
                        f"The target is not empty: project {project!r} has data there. Use another target, or delete "
                        "the data."
                    )
            return new
        record = msgspec.json.decode(stored.value, type=Record)
        if (record.source, record.projects) != (new.source, new.projects):
            raise StartRefused(f"The target belongs to another migration, of {record.source}. Use another target.")
        if record.finished is None and not self._options.resume:
            raise StartRefused(
                "The target has a part of this migration, which was interrupted: add --resume to continue."
            )
        return record

    def _note(self, record: Record) -> None:
        self._target.documents.put(RECORD, msgspec.json.encode(record), self._target.now())

    def _complete_commits(self) -> None:
        work, now = self._source.transactions, self._source.now()
        while opened := work.unfinished(now):
            for commit in opened:
                while work.carry_on(commit.project, commit.producer, SLICE, now):
                    pass

    def _find_stages(self) -> list[tuple[str, str]]:
        """Return the project and the name of each stage in the projects to move."""
        now, found = self._source.now(), list[tuple[str, str]]()
        for project in self._projects:
            after: str | None = ""
            while after is not None:
                page = self._source.transactions.list(project, Work.STAGE, after, PAGE, now)
                found += [(project, one.name) for one in page.items]
                after = page.next
        return found

    def _check_content(self) -> None:
        """Raise ``StartRefused`` if the source or one of the named projects has no data."""
        now = self._source.now()
        empty = [one for one in self._projects if not _movable(one, self._from.export(one, "", PAGE, now).items)]
        if self._options.projects is not None and empty:
            raise StartRefused(f"The source has no data of project {empty[0]!r}.")
        if len(empty) == len(self._projects):
            raise StartRefused("The source has no data.")

    def _pages(
        self, parcels: ParcelController, project: str, after: str, now: Callable[[], Seconds]
    ) -> Iterator[Page[Parcel]]:
        """Yield the pages of an export. The next page is read while the caller processes a page."""
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(parcels.export, project, after, PAGE, now())
            while (page := reading.result()).next is not None:
                reading = pool.submit(parcels.export, project, page.next, PAGE, now())
                yield page

    def _digest(self, parcels: ParcelController, now: Seconds) -> Digests:
        digests: Digests = defaultdict(Digest)
        for project in self._projects:
            for page in self._pages(parcels, project, "", lambda: now):
                for parcel in _movable(project, page.items):
                    for fact in facts(parcel, now):
                        lifetime = int(fact.expires - now).bit_length() - 1
                        digests[project, fact.kind, lifetime].add(_encode(fact.content))
        return digests


def _encode(content: object) -> bytes:
    """Encode a fact for its digest. MessagePack is faster than ``repr``, but has no lone surrogates."""
    try:
        return msgspec.msgpack.encode(content)
    except UnicodeEncodeError:
        return repr(content).encode("utf-8", "surrogatepass")


def _parcels(storage: Storage) -> ParcelController:
    opened: object = storage
    if not isinstance(opened, Migratable):
        raise StartRefused("The driver of the store does not support migrate.")
    return opened.parcels


def _movable(project: str, parcels: Sequence[Parcel]) -> list[Parcel]:
    """Return the parcels without migration records, which describe one store only."""
    if project != DEPLOYMENT:
        return list(parcels)
    return [one for one in parcels if not (isinstance(one, DocumentParcel) and one.kind == RECORD.kind)]
