# SPDX-License-Identifier: Apache-2.0
"""The stores of a migration: reads of their pages, their failures, and the servers that use them."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, NamedTuple

from zq.errors import CommitRunning, Fenced, StartRefused, Unavailable, ZqError
from zq.model import Page, Seconds
from zq.model.parcels import DocumentParcel, Parcel
from zq.serving.features import SERVER_RECORDS
from zq.serving.migration.record import DEPLOYMENT, KIND
from zq.storage.api import Storage
from zq.storage.capabilities import MigratableStorage, ParcelController

# Number of parcels in one page.
PAGE: Final = 500
# Maximum number of names in an error message.
MAX_NAMES: Final = 5
# Seconds between two lines of progress.
PROGRESS_INTERVAL: Final = 10.0
OTHER_RUN: Final = (
    "This run has stopped, because another run of zq-server migrate uses the stores, or a store was released. If no "
    "other run is under way, repeat the command with --resume."
)
RESUME_HINT: Final = "Do not serve the target. Repeat the command with --resume."
SERVED: Final = "A server is using the {}. Stop all its servers, and wait 60 seconds."


class MigrationIncomplete(ZqError):
    """Raised if a migration ends early, after it has changed the target."""


class OtherRun(MigrationIncomplete):
    """Raised if another run, or the release of a store, has changed the records of the migration."""


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


def read_clocks(source: Store, target: Store) -> tuple[Seconds | None, Seconds | None]:
    return source.parcels.last_clock(), target.parcels.last_clock()


def find_servers(
    source: Store, target: Store, watch: Seconds, clocks: tuple[Seconds | None, Seconds | None], began: float
) -> list[str]:
    """Return an error message for each store that a running server uses or may use.

    ``clocks`` contains the timestamps of both stores, read at the monotonic time ``began``. A server uses the store
    if the timestamp has changed, or if the store contains records of servers. A server may use the store if the
    store's clock is behind the timestamp.
    """
    if clocks != (None, None):
        time.sleep(max(0.0, watch - (time.monotonic() - began)))
    found, later = list[str](), read_clocks(source, target)
    sides = ("source", source), ("target", target)
    for (which, store), before, after in zip(sides, clocks, later, strict=True):
        if before != after or has_servers(store):
            found.append(SERVED.format(which))
        elif after and store.storage.now() - after < watch / 2:
            found.append(
                f"The clock of the {which} is behind its stored time, so the command cannot detect servers that "
                f"use the {which}. Wait a minute, and repeat the command."
            )
    return found


def has_servers(store: Store) -> bool:
    """Return whether the store has records of running servers.

    An embedded store has only the records of ended servers, because only one process can open the store.
    """
    if store.parcels.last_clock() is None:
        return False
    storage, now = store.storage, store.storage.now()
    return any(storage.documents.list(DEPLOYMENT, kind, "", "", 1, now).items for kind in SERVER_RECORDS)


def pages(
    which: str, parcels: ParcelController, project: str, after: str, now: Callable[[], Seconds]
) -> Iterator[Page[Parcel]]:
    """Yield the pages of a project. ``which`` names the store in errors: source or target."""
    with failures_of(which), ThreadPoolExecutor(1) as pool:
        reading = pool.submit(parcels.export, project, after, PAGE, now())
        while (page := reading.result()).next is not None:
            reading = pool.submit(parcels.export, project, page.next, PAGE, now())
            yield page


@contextmanager
def failures_of(which: str) -> Iterator[None]:
    """Convert errors of the ``with`` block to ``MigrationIncomplete``: Unavailable, Fenced and CommitRunning.

    ``which`` names the store that the block uses: source or target.
    """
    try:
        yield
    except Unavailable as error:
        raise MigrationIncomplete(f"The {which} has failed: {error} {RESUME_HINT}") from error
    except Fenced as error:
        raise OtherRun(OTHER_RUN) from error
    except CommitRunning as error:
        raise MigrationIncomplete(
            f"A commit is under way in the {which}, so a server is using this store. Stop the server. {RESUME_HINT}"
        ) from error


def movable(parcels: Sequence[Parcel]) -> list[Parcel]:
    """Return the parcels (exported items) to move: all except the records of migrations and running servers."""
    return [one for one in parcels if not (isinstance(one, DocumentParcel) and one.kind in (KIND, *SERVER_RECORDS))]
