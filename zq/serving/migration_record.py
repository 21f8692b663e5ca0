# SPDX-License-Identifier: Apache-2.0
"""The records that ``zq-server migrate`` writes to both stores, so that servers refuse to serve these stores."""

from typing import Final

import msgspec
from msgspec import Struct

from zq.errors import StartRefused
from zq.model import Seconds
from zq.model.documents import DocumentRef
from zq.storage.api import DocumentController

# The project of the deployment's own documents.
DEPLOYMENT: Final = ""
# Kind of both records. They describe one store only, so they are not moved.
KIND: Final = "migration"
TARGET: Final = DocumentRef(DEPLOYMENT, KIND, "target")
SOURCE: Final = DocumentRef(DEPLOYMENT, KIND, "source")
RELEASE: Final = "To let servers use this store, run zq-server migrate --release with its URI."


class TargetRecord(Struct, frozen=True):
    """The record of a migration in its target store.

    Attributes:
        projects: The projects to move; None = all.
        project: The project that is being copied.
        after: The position up to which this project was copied.
        finished: Time at which the comparison succeeded; None = the migration is not complete.
    """

    source: str
    projects: list[str] | None
    project: str = ""
    after: str = ""
    finished: Seconds | None = None


class SourceRecord(Struct, frozen=True):
    """The record of a migration in its source store.

    Attributes:
        target: The URI of the target store, without its password.
        finished: Time at which the migration was completed; None = the migration is not complete.
    """

    target: str
    finished: Seconds | None = None


def read_target(documents: DocumentController, now: Seconds) -> TargetRecord | None:
    """Return the record of a migration to this store, or None if there is none."""
    stored = documents.get(TARGET, now)
    return None if stored is None else msgspec.json.decode(stored.value, type=TargetRecord)


def read_source(documents: DocumentController, now: Seconds) -> SourceRecord | None:
    """Return the record of a migration from this store, or None if there is none."""
    stored = documents.get(SOURCE, now)
    return None if stored is None else msgspec.json.decode(stored.value, type=SourceRecord)


def write(documents: DocumentController, record: TargetRecord | SourceRecord, now: Seconds) -> None:
    ref = TARGET if isinstance(record, TargetRecord) else SOURCE
    documents.put(ref, msgspec.json.encode(record), now)


def release(documents: DocumentController, now: Seconds) -> bool:
    """Delete the records of a migration from this store or to it. Return whether there was a record to delete."""
    was_target = documents.delete(TARGET, now)
    return documents.delete(SOURCE, now) or was_target


def check_served(documents: DocumentController, now: Seconds) -> None:
    """Raise ``StartRefused`` if a migration from this store has begun, or a migration to it is not complete."""
    target = read_target(documents, now)
    if target is not None and target.finished is None:
        raise StartRefused(
            f"The store may have only a part of the data of {target.source}, because its migration is not complete. "
            f"Repeat zq-server migrate with --resume. {RELEASE}"
        )
    source = read_source(documents, now)
    if source is not None:
        state, advice = "was moved", "Use the target store."
        if source.finished is None:
            state, advice = "is being moved", "Repeat zq-server migrate with --resume until the migration is complete."
        raise StartRefused(f"The data of this store {state} to {source.target}. {advice} {RELEASE}")
