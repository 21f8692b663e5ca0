# SPDX-License-Identifier: Apache-2.0
"""The audit trail: a stored log of changes and deletions by clients, which the console shows.

A background thread writes each entry after the request was answered. Therefore the audit trail neither delays a request
nor makes it fail. An entry is lost if the process is killed or the store is unavailable at that time.

At most ``MAX_PER_SECOND`` entries of a project are written per second; further entries are only counted. The names of
entries sort by time, latest first. Each entry is stored twice: for its project and for administrators.
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

from zq.audit import encode
from zq.clock import Clock
from zq.errors import InvalidParameter
from zq.model import Page
from zq.model.audit import Entry
from zq.model.documents import DocumentRef
from zq.model.limits import DEFAULT_PAGE, check_range
from zq.storage.api import DocumentController
from zq.wire.encoding import timestamp
from zq.wire.extensions import parse_time

LOG = logging.getLogger(__name__)
# Kind of the audit documents.
AUDIT_KIND: Final = "audit"
# Maximum number of entries per page.
MAX_PAGE: Final = 100
# Maximum number of entries of a project per second.
MAX_PER_SECOND: Final = 20
# Maximum number of entries in the write queue, over all projects.
MAX_WAITING: Final = 1000
# Maximum length of each text in an entry.
MAX_TEXT: Final = 1024
# Seconds after which an idle writer thread ends. It exceeds one second because the thread also writes the counts of the
# last second.
IDLE_TIMEOUT: Final = 2.0
# Default retention of entries in seconds.
TTL: Final = 30 * 86_400
# The start of the year 10000 in microseconds.
END: Final = 253_402_300_800_000_000
_NAME: Final = re.compile(r"[0-9]{18}\.[0-9a-f]{8}")
_decode: Final = msgspec.json.Decoder(Entry).decode


class Trail:
    """The audit entries of all projects, kept for ``ttl`` seconds. Thread-safe. ``put`` never raises."""

    def __init__(self, documents: DocumentController, clock: Clock, ttl: float = TTL) -> None:
        self._ttl = ttl
        self._documents = documents
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[Entry] = deque()
        self._second: int | None = None
        self._counts: dict[str, int] = {}
        """Number of entries per project in the current second."""
        self._dropped = 0
        self._finishing = False
        self._writer: threading.Thread | None = None
        self._last = 0

    def configure(self, ttl: float) -> None:
        self._ttl = ttl

    def put(self, entry: Entry) -> None:
        """Queue the entry for writing. If its project exceeds ``MAX_PER_SECOND``, only count it."""
        with self._changed:
            self._append_counts(int(time.monotonic()))
            count = self._counts[entry.project] = self._counts.get(entry.project, 0) + 1
            if count <= MAX_PER_SECOND:
                self._append(_truncate(entry))
            self._start()

    def finish(self, patience: float = 5.0) -> None:
        """Wait up to ``patience`` seconds until queued entries are written and the writer thread has ended."""
        with self._changed:
            self._append_counts(None)
            if self._waiting:
                self._start()
            self._finishing = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._writer is None, patience):
                LOG.error("Audit entries were lost because the store is slow: %d", len(self._waiting) + 1)
            self._finishing = False

    def list(self, project: str, marker: str, limit: int | None, since: str) -> Page[Entry]:
        """Return a page of entries, latest first. If ``project`` is "", include the entries of all projects.

        ``since`` is a time in ISO 8601; "" = no bound. Raises ``InvalidParameter`` if ``marker`` or ``since`` is not
        valid.
        """
        if marker and not _NAME.fullmatch(marker):
            raise InvalidParameter("marker is not valid; use the marker in the link to the next page.")
        size = DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, MAX_PAGE)
        bound = _since(since)
        page = self._documents.list(project, AUDIT_KIND, "", marker, size + 1, self._clock.now())
        found = [document for document in page.items if document.ref.name < bound]
        shown = found[:size]
        return Page([_decode(document.value) for document in shown], shown[-1].ref.name if found[size:] else None)

    def _append(self, entry: Entry) -> None:
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(entry)
        else:
            self._dropped += 1

    def _append_counts(self, second: int | None) -> None:
        """Append an entry for each project that made more than ``MAX_PER_SECOND`` changes in the previous second.

        The entry has the number of changes that have no entry of their own. If ``second`` has not changed since the
        last call, do nothing.
        """
        if second == self._second:
            return
        counts, self._counts, self._second = self._counts, {}, second
        for project, count in counts.items():
            if count > MAX_PER_SECOND:
                why = f"{count - MAX_PER_SECOND} more changes within a second are not listed"
                self._append(Entry(project=project, outcome="counted", why=why))

    def _start(self) -> None:
        """Start the writer thread if it is not running. If the start fails, the next entry triggers another attempt."""
        if self._writer is None or not self._writer.is_alive():
            writer = threading.Thread(target=self._run, name="zq-trail", daemon=True)
            try:
                writer.start()
            except RuntimeError:  # the process is out of threads or is exiting
                LOG.exception("The writer thread of the audit trail cannot be started.")
                return
            self._writer = writer
        self._changed.notify_all()

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            self._write(entry)

    def _next(self) -> Entry | None:
        """Wait for the next entry and return it. After ``IDLE_TIMEOUT`` seconds, return ``None`` to end the thread."""
        entry = None
        with self._changed:
            self._append_counts(int(time.monotonic()))
            if not self._changed.wait_for(lambda: self._waiting or self._finishing, IDLE_TIMEOUT):
                self._append_counts(int(time.monotonic()))
            if self._waiting:
                entry = self._waiting.popleft()
            else:
                self._writer = None
                self._changed.notify_all()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            LOG.error("Audit entries were lost because %d entries were already queued: %d", MAX_WAITING, dropped)
        return entry

    def _write(self, entry: Entry) -> None:
        try:
            now = self._clock.now()
            self._last = max(self._last + 1, int(now * 1_000_000))
            name = f"{END - self._last:018d}.{urandom(4).hex()}"
            value = encode(structs.replace(entry, time=timestamp(int(now * 1000) / 1000)))
            for project in dict.fromkeys((entry.project, "")):
                self._documents.put(DocumentRef(project, AUDIT_KIND, name), value, now, expires=now + self._ttl)
        except BaseException:  # the thread must survive every failure, even a panic of a native extension
            LOG.exception("An audit entry was lost: %r", entry)


def _truncate(entry: Entry) -> Entry:
    texts = {name: text[:MAX_TEXT] for name, text in structs.asdict(entry).items() if isinstance(text, str)}
    return structs.replace(entry, **texts)


def _since(timestamp: str) -> str:
    """Convert a time in ISO 8601 to a name that sorts after all entries made at or after this time.

    Newer entries sort before older entries. If ``timestamp`` is "", the result sorts after all entries. Raises
    ``InvalidParameter`` for an invalid time.
    """
    if not timestamp:
        return "~"
    since = parse_time(timestamp)
    if since is None:
        raise InvalidParameter(
            "since must be an ISO 8601 date and time such as 2026-01-31T12:00:00Z (write + as %2B in a URL)."
        )
    return f"{END - int(min(max(since, 0.0), END / 1_000_000) * 1_000_000):018d}~"
