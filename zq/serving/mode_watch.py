# SPDX-License-Identifier: Apache-2.0
"""A thread that reads the server mode and the free disk space regularly, so that requests need not read them.

The mode is ``normal``, ``no_posts`` or ``read_only``.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from zq.core.modes import Modes
from zq.errors import Unavailable
from zq.model.modes import Mode

LOG = logging.getLogger(__name__)
# Seconds between two reads. All servers must obey a new mode within five seconds.
INTERVAL: Final = 2.0


class ModeWatch:
    """The thread that keeps this process's copy of the server mode up to date."""

    def __init__(self, modes: Modes, has_low_space: Callable[[], bool], report: Callable[[Mode], object] = str) -> None:
        """Read the mode and the free space once. ``report`` is called with the current mode after each read."""
        self._modes = modes
        self._report = report
        self._has_low_space = has_low_space
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zq-mode", daemon=True)
        self._refresh()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL):
            self._refresh()

    def _refresh(self) -> None:
        modes = self._modes
        before = modes.current, modes.has_low_space
        try:
            modes.refresh(self._read_space())
            self._report(modes.current)
        except Unavailable as error:
            LOG.warning("The mode cannot be read and stays the same: %s", error)
        except Exception:  # the thread must survive every failure
            LOG.critical("Unexpected error while reading the mode, which stays the same.", exc_info=True)
        if before != (modes.current, modes.has_low_space):
            reason = "; the store has little free disk space" if modes.has_low_space else ""
            LOG.warning("The mode is now %s%s.", modes.current, reason)

    def _read_space(self) -> bool:
        """Return whether free space is low. If this is unknown, return the previous value."""
        try:
            return self._has_low_space()
        except OSError as error:
            LOG.warning("The free disk space cannot be read: %s", error)
            return self._modes.has_low_space
