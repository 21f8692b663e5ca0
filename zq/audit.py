# SPDX-License-Identifier: Apache-2.0
"""The audit log: who was refused what, and who changed what (tenancy 9). One JSON object a line, of the logger
``zq.audit``; never a body, a secret or a signature.

Refusals beyond ``MOST`` in a second are counted, and their number is told ``DELAY`` after the first of them, whether or
not another one comes.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType, structs

from zq.errors import StartRefused

# The logger; nothing of it goes anywhere else.
LOGGER: Final = logging.getLogger("zq.audit")
# Refusals that are logged in one second.
MOST: Final = 100
# Seconds after which the number of those that were only counted is told.
DELAY: Final = 1.0
OFF: Final = "off"
STDERR: Final = "stderr"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line. ``route``: the path with the names of its parameters, as ``/v2/queues/{queue}/purge``; ``object``: what
    it was about, as ``queue jobs``; ``why``: of a refusal, the sentence; of a token's rotation, its twin. ``messages``:
    how many it was about, where that is known."""

    time: str = ""
    request_id: str = ""
    project: str = ""
    credential: str = ""
    peer: str = ""
    method: str = ""
    route: str = ""
    rule: str = ""
    object: str = ""
    outcome: str
    why: str = ""
    messages: int | UnsetType = UNSET


def encoded(entry: Entry) -> bytes:
    """An entry as JSON. Half of a pair of surrogates, which UTF-8 does not have, is escaped: the id of a credential may
    have one."""
    try:
        return msgspec.json.encode(entry)
    except UnicodeEncodeError:
        texts = {name: text for name, text in structs.asdict(entry).items() if isinstance(text, str)}
        told = {name: text.encode(errors="backslashreplace").decode() for name, text in texts.items()}
        return msgspec.json.encode(structs.replace(entry, **told))


def later(delay: float, task: Callable[[], None]) -> None:
    """Run the task in a thread of its own, after so many seconds."""
    timer = threading.Timer(delay, task)
    timer.daemon = True
    timer.name = "zq-audit"
    timer.start()


class Audit:
    """Writes entries for whoever asks; safe to call from any thread."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] = later,
    ) -> None:
        self._monotonic = monotonic
        self._later = later
        self._lock = threading.Lock()
        self._second = 0
        self._count = 0
        self._unsaid = 0

    @property
    def on(self) -> bool:
        """Whether anybody reads it."""
        return bool(LOGGER.handlers)

    def did(self, entry: Entry) -> None:
        """Something was changed, or tried to be."""
        LOGGER.info(entry)

    def unauthenticated(self, env: Mapping[str, Any], peer: str) -> None:
        """A request was refused by what stands before the application."""
        if self.on:
            why = "Keystone's middleware has refused it."
            self.refused(
                Entry(peer=peer, method=env["REQUEST_METHOD"], object=env["PATH_INFO"], outcome="refused", why=why)
            )

    def refused(self, entry: Entry) -> None:
        """Something was refused; if that was the case too often in this second, it is only counted."""
        with self._lock:
            second = int(self._monotonic())
            if second != self._second:
                self._second, self._count = second, 0
            self._count += 1
            counted = self._count > MOST
            first = counted and self._unsaid == 0
            self._unsaid += counted
        if first:
            self._later(DELAY, self.tell_counted)
        if not counted:
            LOGGER.info(entry)

    def tell_counted(self) -> None:
        """Tell how many refusals were only counted since this was told last, if there were any."""
        with self._lock:
            unsaid, self._unsaid = self._unsaid, 0
        if unsaid:
            LOGGER.info(Entry(outcome="refused", why=f"{unsaid} more refusals within a second are not listed"))


class Line(logging.Formatter):
    """An entry as JSON, with the moment at which it was told."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: Any = record.msg
        return encoded(structs.replace(entry, time=moment)).decode()


def configure(target: str) -> None:
    """Where it goes: ``stderr``, ``off``, or the path of a file, which is made as 0600 and may be rotated away.

    Raises ``StartRefused``.
    """
    for former in LOGGER.handlers[:]:
        LOGGER.removeHandler(former)
        former.close()
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)
    if target != OFF:
        handler = logging.StreamHandler(sys.stderr) if target == STDERR else _file(target)
        handler.setFormatter(Line())
        LOGGER.addHandler(handler)


def _file(path: str) -> logging.Handler:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        return WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise StartRefused(f"[log] audit {path} cannot be written: {error.strerror}.") from error
