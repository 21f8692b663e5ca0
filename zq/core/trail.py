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
KIND: Final = "audit"
# Entries of one page.
MOST_LISTED: Final = 100
# Entries of a project that are kept in one second.
MOST: Final = 20
# Entries that wait to be written, of all projects.
ROOM: Final = 1000
# Characters of each of an entry's texts.
MOST_TEXT: Final = 1024
# Seconds after which a writer without work ends; more than one, since then it tells what was counted.
IDLE: Final = 2.0
# Seconds for which an entry is kept, unless options say otherwise.
TTL: Final = 30 * 86_400
# Microseconds above all moments: until the year 9999.
END: Final = 253_402_300_800_000_000
_NAME: Final = re.compile(r"[0-9]{18}\.[0-9a-f]{8}")
_decode: Final = msgspec.json.Decoder(Entry).decode


class Trail:
    """Entries of all projects; safe to call from any thread. ``put`` raises nothing, whatever becomes of the store."""

    def __init__(self, documents: DocumentController, clock: Clock, ttl: float = TTL) -> None:
        """``ttl``: seconds for which an entry is kept."""
        self._ttl = ttl
        self._documents = documents
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[Entry] = deque()
        self._second: int | None = None
        self._counts: dict[str, int] = {}
        """Of each project: its entries of this second."""
        self._dropped = 0
        self._finishing = False
        self._writer: threading.Thread | None = None
        self._last = 0

    def configure(self, ttl: float) -> None:
        """Keep new entries for this number of seconds."""
        self._ttl = ttl

    def put(self, entry: Entry) -> None:
        """Have the entry written soon; it is only counted if its project has had too many in this second."""
        with self._changed:
            self._tell_counted(int(time.monotonic()))
            count = self._counts[entry.project] = self._counts.get(entry.project, 0) + 1
            if count <= MOST:
                self._append(_shortened(entry))
            self._start()

    def finish(self, patience: float = 5.0) -> None:
        """Wait until all that was put is written, or was lost, and the writer has ended."""
        with self._changed:
            self._tell_counted(None)
            if self._waiting:
                self._start()
            self._finishing = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._writer is None, patience):
                LOG.error("Entries of the audit are lost, since the store is slow: %d", len(self._waiting) + 1)
            self._finishing = False

    def list(self, project: str, marker: str, limit: int | None, since: str) -> Page[Entry]:
        """A page, the latest first; ``project`` "": of all projects. ``since``: ISO 8601 or "".

        Raises ``InvalidParameter``.
        """
        if marker and not _NAME.fullmatch(marker):
            raise InvalidParameter("marker must be one that the link to the next page has.")
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, MOST_LISTED)
        bound = _since(since)
        page = self._documents.list(project, KIND, "", marker, size + 1, self._clock.now())
        found = [document for document in page.items if document.ref.name < bound]
        shown = found[:size]
        return Page([_decode(document.value) for document in shown], shown[-1].ref.name if found[size:] else None)

    def _append(self, entry: Entry) -> None:
        if len(self._waiting) < ROOM:
            self._waiting.append(entry)
        else:
            self._dropped += 1

    def _tell_counted(self, second: int | None) -> None:
        """Put an entry with the number of those that were only counted before this second; None: until now."""
        if second == self._second:
            return
        counts, self._counts, self._second = self._counts, {}, second
        for project, count in counts.items():
            if count > MOST:
                why = f"{count - MOST} more changes within a second are not listed"
                self._append(Entry(project=project, outcome="counted", why=why))

    def _start(self) -> None:
        """Have a writer, which ends when it has nothing to do; without one what waits is for that of the next entry."""
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
        """The next entry to write; None: there was none for a while, and the writer is discharged."""
        entry = None
        with self._changed:
            self._tell_counted(int(time.monotonic()))
            if not self._changed.wait_for(lambda: self._waiting or self._finishing, IDLE):
                self._tell_counted(int(time.monotonic()))
            if self._waiting:
                entry = self._waiting.popleft()
            else:
                self._writer = None
                self._changed.notify_all()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            LOG.error("Entries of the audit are lost, since %d waited to be written: %d", ROOM, dropped)
        return entry

    def _write(self, entry: Entry) -> None:
        try:
            now = self._clock.now()
            self._last = max(self._last + 1, int(now * 1_000_000))
            name = f"{END - self._last:018d}.{urandom(4).hex()}"
            value = encoded(structs.replace(entry, time=timestamp(int(now * 1000) / 1000)))
            for project in dict.fromkeys((entry.project, "")):
                self._documents.put(DocumentRef(project, KIND, name), value, now, expires=now + self._ttl)
        except BaseException:  # the edge of this thread, which must outlive any one failure, as a panic of an extension
            LOG.exception("An entry of the audit is lost: %r", entry)


def _shortened(entry: Entry) -> Entry:
    """An entry whose texts, some of which callers choose, have a bound."""
    told = {name: text[:MOST_TEXT] for name, text in structs.asdict(entry).items() if isinstance(text, str)}
    return structs.replace(entry, **told)


def _since(given: str) -> str:
    """What the names of entries of this moment or later are below."""
    if not given:
        return "~"
    told = moment(given)
    if told is None:
        raise InvalidParameter("since must be a date and time as 2026-01-31T12:00:00Z (in a URL + is %2B).")
    return f"{END - int(min(max(told, 0.0), END / 1_000_000) * 1_000_000):018d}~"
