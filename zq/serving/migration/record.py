# SPDX-License-Identifier: Apache-2.0
"""The records that ``zq-server migrate`` writes to both stores, so that servers refuse to serve these stores.

Two runs of the command can use the same networked stores, because a run may be suspended while another one continues
its migration. Both records contain the id of the run that wrote them. A run changes a record only if no other run has
changed it; see ``Records``. The guard of each import is a fence: a document of the target with the id of the run. The
next run replaces the fence, so that no import of the earlier run takes effect afterwards.

A target's record is never deleted. A release only marks it, so that a run cannot mistake a released store for a store
without a record.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from zq import __version__
from zq.errors import Fenced, StartRefused
from zq.model import Seconds
from zq.model.documents import DocumentRef
from zq.storage.api import DocumentController

# The project of the deployment's own documents.
DEPLOYMENT: Final = ""
# Kind of both records and of the fences. They describe one store only, so they are not moved.
KIND: Final = "migration"
TARGET: Final = DocumentRef(DEPLOYMENT, KIND, "target")
SOURCE: Final = DocumentRef(DEPLOYMENT, KIND, "source")
T = TypeVar("T")
RELEASE: Final = "To let servers use this store, run zq-server migrate --release with its URI."


class TargetRecord(Struct, frozen=True):
    """The record of a migration in its target store.

    Attributes:
        projects: The projects to move; None = all.
        project: The project that is being copied.
        after: The position up to which this project was copied.
        finished: Time at which the comparison succeeded; None = the migration is not complete.
        run: The id of the run that uses the target.
        is_source_marked: Whether the source has its record. The copy begins afterwards.
        is_released: Whether the record has no effect any more; see ``Records.release_target``.
    """

    source: str
    projects: list[str] | None
    project: str = ""
    after: str = ""
    finished: Seconds | None = None
    run: str = ""
    is_source_marked: bool = True
    is_released: bool = False


class SourceRecord(Struct, frozen=True):
    """The record of a migration in its source store.

    Attributes:
        target: The URI of the target store, without its password.
        finished: Time at which the comparison succeeded; None = it has not succeeded.
        run: The id of the run that wrote the record.
        is_whole: Whether all projects are moved. Otherwise, the record is deleted at the end of the migration.
    """

    target: str
    finished: Seconds | None = None
    run: str = ""
    is_whole: bool = True


class Records:
    """The migration records of one store, for one run of the command.

    A change takes effect only if the stored record is the one that this object has read or written last. Without an
    earlier read, a record can only be created.
    """

    def __init__(self, documents: DocumentController, now: Callable[[], Seconds]) -> None:
        self._documents = documents
        self._now = now
        self._versions = dict[DocumentRef, str]()

    def read_target(self) -> TargetRecord | None:
        """Return the record of a migration to this store, or None if there is none or it was released."""
        value = self._read(TARGET)
        record = None if value is None else _decode(value, TargetRecord)
        return None if record is None or record.is_released else record

    def read_source(self) -> SourceRecord | None:
        """Return the record of a migration from this store, or None if there is none."""
        value = self._read(SOURCE)
        return None if value is None else _decode(value, SourceRecord)

    def write(self, record: TargetRecord | SourceRecord, is_vital: bool = False) -> None:
        """Replace the record of the same type. Raises ``Fenced`` if another run has changed it.

        ``is_vital`` is passed to ``DocumentController.put``.
        """
        ref, value = TARGET if isinstance(record, TargetRecord) else SOURCE, msgspec.json.encode(record)
        self._documents.put(ref, value, self._now(), self._versions.get(ref, ""), is_vital=is_vital)
        # The record decides, because the response to an earlier attempt of this write may have been lost.
        if self._read(ref) != value:
            raise Fenced

    def release_target(self, record: TargetRecord) -> None:
        """Mark the target's record as released. Raises ``Fenced`` if another run has changed it.

        Earlier versions read the marked record as the record of a completed migration, so it names no source.
        """
        self.write(replace(record, source="", finished=record.finished or self._now(), is_released=True), is_vital=True)

    def delete_source(self) -> None:
        """Delete the source's record, if it exists. Raises ``Fenced`` if another run has changed it."""
        self._documents.delete(SOURCE, self._now(), self._versions.get(SOURCE))
        if self._read(SOURCE) is not None:
            raise Fenced

    def _read(self, ref: DocumentRef) -> bytes | None:
        stored = self._documents.get(ref, self._now())
        self._versions[ref] = "" if stored is None else stored.version
        return None if stored is None else stored.value


def _decode(value: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise StartRefused(
            f"zq {__version__} cannot read the record of a migration in the store. Use a newer version of zq."
        ) from error


def fence_ref(project: str) -> DocumentRef:
    """Return the document of a target that is the fence of the project's imports."""
    return DocumentRef(project, KIND, "fence")


def release(documents: DocumentController, now: Seconds) -> bool:
    """End the migrations from this store and to it. Return whether there was one.

    A run that still uses the store cannot import anything afterwards.
    """
    records, was_target = Records(documents, lambda: now), False
    while (record := records.read_target()) is not None:
        was_target = True
        if record.finished is None:
            documents.put(fence_ref(record.project), b"released", now, is_vital=True)
        with suppress(Fenced):  # the run has continued, maybe with another project
            records.release_target(record)
    return documents.delete(SOURCE, now) or was_target


def check_served(documents: DocumentController, now: Seconds) -> None:
    """Raise ``StartRefused`` if a migration from this store has begun, or a migration to it is not complete."""
    records = Records(documents, lambda: now)
    target = records.read_target()
    if target is not None and target.finished is None:
        raise StartRefused(
            f"The store may have only a part of the data of {target.source}, because its migration is not complete. "
            f"Repeat zq-server migrate with --resume. {RELEASE}"
        )
    source = records.read_source()
    if source is not None:
        state, advice = "was moved", "Use the target store. If it refuses, repeat zq-server migrate with --resume."
        if source.finished is None or not source.is_whole:
            state, advice = "is being moved", "Repeat zq-server migrate with --resume until the migration is complete."
        raise StartRefused(f"The data of this store {state} to {source.target}. {advice} {RELEASE}")
