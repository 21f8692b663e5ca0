# SPDX-License-Identifier: Apache-2.0
"""The audit trail: changes and deletions by clients, kept in the store so that the console can show them (console E11).

A background thread writes an entry after its request was answered, so writing neither delays nor fails the request. The
entry is lost if the process is killed or the store is unavailable at that time. A project has at most
``MAX_PER_SECOND`` entries a second; further ones are only counted. Names of entries sort by time, latest first. Each
entry is stored twice: for its project and for administrators.
"""

import logging
import re
import threading
import time
from collections import deque
from os import urandom
from typing import Final

import msgspec
from msgspec import structs

from zq.audit import Entry, encoded
from zq.clock import Clock
from zq.errors import InvalidParameter
from zq.limits import DEFAULT_PAGE, within
from zq.model import Page
from zq.model.documents import DocumentRef
from zq.storage.api import DocumentController
from zq.wire.answers import timestamp
from zq.wire.extensions import moment

LOG = logging.getLogger(__name__)
# Kind of the documents.
KIND: Final = "audit"
# Maximum number of entries in a page.
MAX_PAGE: Final = 100
# Maximum number of entries of a project in one second.
MAX_PER_SECOND: Final = 20
# Maximum number of entries waiting to be written, of all projects.
MAX_WAITING: Final = 1000
# Maximum number of characters in each text of an entry.
MAX_TEXT: Final = 1024
# Seconds after which an idle writer ends; more than one, because it also writes the counts of the last second.
IDLE: Final = 2.0
# Default seconds for which an entry is kept.
TTL: Final = 30 * 86_400
# The start of the year 10000 in microseconds.
END: Final = 253_402_300_800_000_000
_NAME: Final = re.compile(r"[0-9]{18}\.[0-9a-f]{8}")
_decode: Final = msgspec.json.Decoder(Entry).decode


class Trail:
    """The audit entries of all projects. Thread-safe. ``put`` never raises, not even if the store fails."""

    def __init__(self, documents: DocumentController, clock: Clock, ttl: float = TTL) -> None:
        """Initialize; an entry is kept for ``ttl`` seconds."""
        self._ttl = ttl
        self._documents = documents
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[Entry] = deque()
        self._second: int | None = None
        self._counts: dict[str, int] = {}
        """Number of entries in the current second, by project."""
        self._dropped = 0
        self._finishing = False
        self._writer: threading.Thread | None = None
        self._last = 0

    def configure(self, ttl: float) -> None:
        """Keep new entries for ``ttl`` seconds."""
        self._ttl = ttl

    def put(self, entry: Entry) -> None:
        """Queue the entry for writing. If its project has too many in this second, only count it."""
        with self._changed:
            self._append_counts(int(time.monotonic()))
            count = self._counts[entry.project] = self._counts.get(entry.project, 0) + 1
            if count <= MAX_PER_SECOND:
                self._append(_shortened(entry))
            self._start()

    def finish(self, patience: float = 5.0) -> None:
        """Wait up to ``patience`` seconds until all entries are written or lost and the writer has ended."""
        with self._changed:
            self._append_counts(None)
            if self._waiting:
                self._start()
            self._finishing = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._writer is None, patience):
                LOG.error("Entries of the audit are lost, since the store is slow: %d", len(self._waiting) + 1)
            self._finishing = False

    def list(self, project: str, marker: str, limit: int | None, since: str) -> Page[Entry]:
        """Return a page of entries, latest first; ``project`` "" lists all projects. ``since``: ISO 8601 or "".

        Raises ``InvalidParameter``.
        """
        if marker and not _NAME.fullmatch(marker):
            raise InvalidParameter("marker must be one that the link to the next page has.")
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, MAX_PAGE)
        bound = _since(since)
        page = self._documents.list(project, KIND, "", marker, size + 1, self._clock.now())
        found = [document for document in page.items if document.ref.name < bound]
        shown = found[:size]
        return Page([_decode(document.value) for document in shown], shown[-1].ref.name if found[size:] else None)

    def _append(self, entry: Entry) -> None:
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(entry)
        else:
            self._dropped += 1

    def _append_counts(self, second: int | None) -> None:
        """Append an entry with the number of entries that were only counted before ``second`` (``None``: until now)."""
        if second == self._second:
            return
        counts, self._counts, self._second = self._counts, {}, second
        for project, count in counts.items():
            if count > MAX_PER_SECOND:
                why = f"{count - MAX_PER_SECOND} more changes within a second are not listed"
                self._append(Entry(project=project, outcome="counted", why=why))

    def _start(self) -> None:
        """Start the writer thread unless it runs. If that fails, the next entry tries again."""
        if self._writer is None or not self._writer.is_alive():
            writer = threading.Thread(target=self._run, name="zq-trail", daemon=True)
            try:
                writer.start()
            except RuntimeError:  # the process may have no more threads, or ends
                LOG.exception("Entries of the audit cannot be written now.")
                return
            self._writer = writer
        self._changed.notify_all()

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            self._write(entry)

    def _next(self) -> Entry | None:
        """Return the next entry to write, or ``None`` if the writer must end after ``IDLE`` seconds without entries."""
        entry = None
        with self._changed:
            self._append_counts(int(time.monotonic()))
            if not self._changed.wait_for(lambda: self._waiting or self._finishing, IDLE):
                self._append_counts(int(time.monotonic()))
            if self._waiting:
                entry = self._waiting.popleft()
            else:
                self._writer = None
                self._changed.notify_all()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            LOG.error("Entries of the audit are lost, since %d waited to be written: %d", MAX_WAITING, dropped)
        return entry

    def _write(self, entry: Entry) -> None:
        try:
            now = self._clock.now()
            self._last = max(self._last + 1, int(now * 1_000_000))
            name = f"{END - self._last:018d}.{urandom(4).hex()}"
            value = encoded(structs.replace(entry, time=timestamp(int(now * 1000) / 1000)))
            for project in dict.fromkeys((entry.project, "")):
                self._documents.put(DocumentRef(project, KIND, name), value, now, expires=now + self._ttl)
        except BaseException:  # the thread must survive every failure, even a panic of a native extension
            LOG.exception("An entry of the audit is lost: %r", entry)


def _shortened(entry: Entry) -> Entry:
    """Return the entry with its texts cut to ``MAX_TEXT``, because clients choose some of them."""
    texts = {name: text[:MAX_TEXT] for name, text in structs.asdict(entry).items() if isinstance(text, str)}
    return structs.replace(entry, **texts)


def _since(given: str) -> str:
    """Return the exclusive upper bound of the names of entries at this time or later."""
    if not given:
        return "~"
    since = moment(given)
    if since is None:
        raise InvalidParameter("since must be a date and time as 2026-01-31T12:00:00Z (in a URL + is %2B).")
    return f"{END - int(min(max(since, 0.0), END / 1_000_000) * 1_000_000):018d}~"
