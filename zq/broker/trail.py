# SPDX-License-Identifier: Apache-2.0
"""What callers have changed or destroyed, kept in the store for a while, so that a page can show it (console E11).

An entry is written by a thread of its own after its request was answered: it neither delays nor fails what it is about,
and is lost if the process is killed or the store is away just then. A project has ``MOST`` entries a second at most,
the others are counted. Names sort by time, the latest first; each entry is stored for its project, and for
administrators.
"""

import logging
import re
import threading
import time
from collections import deque
from datetime import UTC, datetime
from os import urandom
from typing import Final

import msgspec
from msgspec import structs

from zq.audit import Entry
from zq.clock import Clock
from zq.errors import InvalidParameter
from zq.limits import DEFAULT_PAGE, within
from zq.model import Page, Seconds
from zq.model.documents import DocumentRef
from zq.storage.api import DocumentController
from zq.wire.extensions import moment

LOG = logging.getLogger(__name__)
KIND: Final = "audit"
# Entries of one page.
MOST_LISTED: Final = 100
# Entries of a project that are kept in one second.
MOST: Final = 20
# Entries that wait to be written, of all projects.
ROOM: Final = 1000
# Seconds for which an entry is kept, unless options say otherwise.
TTL: Final = 30 * 86_400
# Microseconds above all moments: until the year 9999.
END: Final = 253_402_300_800_000_000
_NAME: Final = re.compile(r"[0-9]{18}\.[0-9a-f]{8}")
_decode: Final = msgspec.json.Decoder(Entry).decode


class Trail:
    """Entries of all projects; safe to call from any thread."""

    def __init__(self, documents: DocumentController, clock: Clock) -> None:
        self.ttl = TTL
        self._documents = documents
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[Entry] = deque()
        self._accounts: dict[str, list[int]] = {}
        """Of each project: the second, its entries in it, and how many of them are only counted."""
        self._busy = False
        self._thread: threading.Thread | None = None
        self._last = 0

    def put(self, entry: Entry) -> None:
        """Have the entry written soon; it is only counted if its project has had too many in this second."""
        with self._changed:
            second = int(time.monotonic())
            if self._accounts.get(entry.project, [second])[0] != second:
                self._tell_counted(second)
            account = self._accounts.setdefault(entry.project, [second, 0, 0])
            account[1] += 1
            if account[1] > MOST or len(self._waiting) >= ROOM:
                account[2] += 1
            else:
                self._waiting.append(entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="zq-trail", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self, patience: float = 5.0) -> None:
        """Wait until all that was put is written, or was lost."""
        with self._changed:
            self._tell_counted(None)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self._busy, patience)

    def list(self, project: str, marker: str, limit: int | None, since: str) -> Page[Entry]:
        """A page, the latest first; ``project`` "": of all projects. ``since``: ISO 8601 or "".

        Raises ``InvalidParameter``.
        """
        if marker and not _NAME.fullmatch(marker):
            raise InvalidParameter("marker must be one that the link to the next page has.")
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, MOST_LISTED)
        bound = _since(since)
        page = self._documents.list(project, KIND, "", marker, size, self._clock.now())
        found = [document for document in page.items if document.ref.name < bound]
        more = len(found) == size
        return Page([_decode(document.value) for document in found], found[-1].ref.name if more else None)

    def _tell_counted(self, second: int | None) -> None:
        """Put an entry with the number of those that were only counted before this second; None: whenever."""
        for project, (when, _, counted) in list(self._accounts.items()):
            if when != second:
                del self._accounts[project]
                if counted:
                    why = f"{counted} more changes within a second are not listed"
                    self._waiting.append(Entry(project=project, outcome="counted", why=why))

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                counted = any(account[2] for account in self._accounts.values())
                if not self._waiting:
                    self._changed.wait(1.0 if counted else None)
                self._tell_counted(int(time.monotonic()))
                entries, self._waiting = self._waiting, deque()
                self._busy = bool(entries)
            for entry in entries:
                self._write(entry)

    def _write(self, entry: Entry) -> None:
        try:
            now = self._clock.now()
            self._last = max(self._last + 1, int(now * 1_000_000))
            name = f"{END - self._last:018d}.{urandom(4).hex()}"
            value = msgspec.json.encode(structs.replace(entry, time=_text(now)))
            for project in dict.fromkeys((entry.project, "")):
                self._documents.put(DocumentRef(project, KIND, name), value, now, expires=now + self.ttl)
        except Exception:  # the edge of this thread, which must outlive any one failure
            LOG.exception("An entry of the audit is lost: %s", msgspec.json.encode(entry).decode())


def _text(now: Seconds) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")


def _since(given: str) -> str:
    """What the names of entries of this moment or later are below."""
    if not given:
        return "~"
    told = moment(given)
    if told is None:
        raise InvalidParameter("since must be a date and time as 2026-01-31T12:00:00Z (in a URL + is %2B).")
    return f"{END - int(min(max(told, 0.0), END / 1_000_000) * 1_000_000):018d}~"
