# SPDX-License-Identifier: Apache-2.0
"""The audit log: changes and rejected requests (tenancy contract, section 9).

The log contains no bodies, secrets or signatures. At most ``MAX_PER_SECOND`` rejected requests are logged per second.
The others are counted. After ``DELAY`` seconds, a single log line reports their number.
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
from msgspec import structs

from zq.errors import StartRefused
from zq.model.audit import Entry

# The logger of the audit log. It does not propagate.
LOGGER: Final = logging.getLogger("zq.audit")
# Maximum number of refusals logged in one second.
MAX_PER_SECOND: Final = 100
# Seconds after which the number of unlogged refusals is logged.
DELAY: Final = 1.0
OFF: Final = "off"
STDERR: Final = "stderr"


def encode(entry: Entry) -> bytes:
    """Encode the entry as JSON. Escape lone surrogates, which a credential id may contain."""
    try:
        return msgspec.json.encode(entry)
    except UnicodeEncodeError:
        texts = {name: text for name, text in structs.asdict(entry).items() if isinstance(text, str)}
        escaped = {name: text.encode(errors="backslashreplace").decode() for name, text in texts.items()}
        return msgspec.json.encode(structs.replace(entry, **escaped))


def run_later(delay: float, task: Callable[[], None]) -> None:
    """Run the task in a separate thread after ``delay`` seconds."""
    timer = threading.Timer(delay, task)
    timer.daemon = True
    timer.name = "zq-audit"
    timer.start()


class Audit:
    """The writer of the audit log. Thread-safe."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        run_later: Callable[[float, Callable[[], None]], None] = run_later,
    ) -> None:
        self._monotonic = monotonic
        self._later = run_later
        self._lock = threading.Lock()
        self._second = 0
        self._count = 0
        self._unlogged = 0

    @property
    def is_enabled(self) -> bool:
        return bool(LOGGER.handlers)

    def log_change(self, entry: Entry) -> None:
        """Log a change, or a failed attempt at a change. For rejected requests, use ``log_refusal``."""
        LOGGER.info(entry)

    def log_unauthenticated(self, env: Mapping[str, Any], peer: str) -> None:
        """Log a request that Keystone's middleware rejected before it reached the application."""
        if self.is_enabled:
            why = "The Keystone middleware rejected the request."
            self.log_refusal(
                Entry(peer=peer, method=env["REQUEST_METHOD"], object=env["PATH_INFO"], outcome="refused", why=why)
            )

    def log_refusal(self, entry: Entry) -> None:
        """Log a rejected request, or only count it if the rate exceeds ``MAX_PER_SECOND``."""
        with self._lock:
            second = int(self._monotonic())
            if second != self._second:
                self._second, self._count = second, 0
            self._count += 1
            counted = self._count > MAX_PER_SECOND
            first = counted and self._unlogged == 0
            self._unlogged += counted
        if first:
            self._later(DELAY, self.log_unlogged_count)
        if not counted:
            LOGGER.info(entry)

    def log_unlogged_count(self) -> None:
        """Log the number of rejected requests that were counted but not logged, and reset this number."""
        with self._lock:
            unlogged, self._unlogged = self._unlogged, 0
        if unlogged:
            LOGGER.info(Entry(outcome="refused", why=f"{unlogged} more refusals within a second are not listed"))


class AuditFormatter(logging.Formatter):
    """A log formatter that renders an entry as JSON with the time of the log record."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: Any = record.msg
        return encode(structs.replace(entry, time=moment)).decode()


def configure(target: str) -> None:
    """Configure the destination of the audit log. Raises ``StartRefused`` if a file cannot be written.

    ``target`` is "stderr", "off", or the path of a file. A missing file is created with mode 0600.
    """
    for former in LOGGER.handlers[:]:
        LOGGER.removeHandler(former)
        former.close()
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)
    if target != OFF:
        handler = logging.StreamHandler(sys.stderr) if target == STDERR else _file(target)
        handler.setFormatter(AuditFormatter())
        LOGGER.addHandler(handler)


def _file(path: str) -> logging.Handler:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        return WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise StartRefused(f"The [log] audit file {path} cannot be written: {error.strerror}.") from error
