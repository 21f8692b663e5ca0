# SPDX-License-Identifier: Apache-2.0
"""A master that Sentinels watch: verbs reach it while nobody replaces it, and wait while somebody does.

Between the promotion of a replica and the moment when the old master is told, 11 seconds later, both take writes, and
those of the old one are lost. So verbs stop at the Sentinels' first word of a failover, which comes before the
promotion, until the Sentinels agree on a master and it says that it is one. A verb under way at that word is answered
with ``Unavailable``, since nobody knows whether the replica has its change. All connections are made anew after a
pause: those of one process never lead to two masters.

Words can be missed, so every Sentinel is asked once a second besides. A process that stood still for longer asks before
it goes on. Where no Sentinel answers, the last known master is used: without Sentinels nobody replaces it.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from redis.exceptions import AskError, ConnectionError, TimeoutError

from zq.storage.redis.lines import VENDOR, Line, Lines
from zq.storage.redis.sentinel import Announcements, Host, Make, Sentinel, Told

LOG = logging.getLogger(__name__)
EVERY: Final = 1.0
"""Seconds between two rounds of questions."""
SOON: Final = 0.1
"""The same while verbs wait."""
LEAST: Final = 0.02
"""Seconds between two rounds, whoever wants one."""
SURE: Final = 2.0
"""Seconds after a round for which its answer holds; then verbs wait for the next round."""
QUICK: Final = 0.4
"""Seconds that all connections of a round may take at most, and the same for all answers: with ``EVERY`` less than
``SURE``, or a Sentinel that hangs would have verbs wait."""
LONGEST_PAUSE: Final = 10.0
"""Seconds after which verbs go on with the master that Sentinels name, whatever has become of the failover."""
MOST_SENTINELS: Final = 16
PAUSED: Final = "Writes wait: the Sentinels of %s replace the master."
RESUMED: Final = "The master of %s is %s:%d; writes go on after %.2f seconds."
STALLED: Final = "The Sentinels of %s have not replaced the master in %.0f seconds, so writes go on as before."
UNKNOWN: Final = "No Sentinel knows the master."
AWAITED: Final = "The Sentinels are replacing the master."


class Watched:
    """The ``Network`` of a master behind Sentinels. ``make``: connections to Sentinels, ``lines``: to a master."""

    def __init__(
        self, name: str, master: str, hosts: Sequence[Host], make: Make, lines: Callable[[Host], Lines], timeout: float
    ) -> None:
        self.name = name
        self._master, self._make, self._make_lines = master, make, lines
        self._patience, self._quick = timeout * 3 / 4, min(timeout / 8, QUICK)
        self._hosts = list(dict.fromkeys(hosts))
        self._changed = threading.Condition()
        """Guards what follows; it is never held while a server is asked."""
        self._lines: Lines | None = None
        """Connections to the master; None while there is none, or it is being replaced."""
        self._former: list[Lines] = []
        self._address: Host | None = None
        self._paused = 0.0
        self._speakers: set[Host] = set()
        """Sentinels that said the first word of a failover; they have to say that it has ended."""
        self._words = self._answered = 0
        """First words that were heard, and those of them that were heard before the last round's questions."""
        self._gave_up = False
        self._sure_until = 0.0
        self._rounds = 0
        self._closed = False
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._sentinels: dict[Host, Sentinel] = {}
        self._announcements: list[Announcements] = []

    def lines(self, key: bytes) -> Lines:
        lines = self._lines
        if lines is not None and time.monotonic() < self._sure_until:
            return lines
        return self._wait()

    def still(self, lines: Lines) -> bool:
        if time.monotonic() >= self._sure_until:
            self._wait()
        return lines is self._lines

    def own_line(self) -> Line:
        return self.lines(b"").own()

    def relearn(self) -> None:
        self._wanted.set()

    def doubt(self) -> None:
        self._wanted.set()

    def asked(self, error: AskError) -> Lines:
        raise error

    def close(self) -> None:
        with self._changed:
            self._closed = True
            former, self._lines = [*self._former, self._lines], None
            self._changed.notify_all()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(1)
        for lines in former:
            if lines is not None:
                lines.drop()

    def hear(self, host: Host, first_word: bool) -> None:
        """A Sentinel has announced something about the master."""
        if first_word:
            self._pause(host)
        self._wanted.set()

    def _wait(self) -> Lines:
        """The connections, once there is a master of which the Sentinels were asked lately."""
        deadline = time.monotonic() + self._patience
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="zq-redis-master", daemon=True)
                self._thread.start()
            while True:
                if self._lines is not None and time.monotonic() < self._sure_until:
                    return self._lines
                if self._closed or (self._rounds and self._address is None):
                    self._wanted.set()
                    raise ConnectionError(UNKNOWN)
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(AWAITED)

    def _pause(self, speaker: Host | None = None) -> None:
        """Let nobody write from now on, and believe nobody's answer who does."""
        with self._changed:
            if speaker is not None:
                self._speakers.add(speaker)
                self._words += 1
                self._gave_up = False
            if self._paused == 0:
                self._paused = time.monotonic()
                LOG.warning(PAUSED, self.name)
            lines, self._lines = self._lines, None
            if lines is not None:
                self._former.append(lines)
        if lines is not None:
            lines.retire()

    def _open(self, address: Host, lines: Lines) -> None:
        """Let verbs go on, over these connections; not if one said a first word since the questions were asked."""
        with self._changed:
            if self._closed or self._words > self._answered:
                return
            former, self._former = self._former, []
            lasted = time.monotonic() - self._paused if self._paused else 0.0
            self._address, self._lines, self._paused = address, lines, 0.0
            self._speakers.clear()
            self._changed.notify_all()
        for old in former:
            old.drop()
        if lasted:
            LOG.warning(RESUMED, self.name, *address, lasted)

    def _run(self) -> None:
        while not self._closed:
            began, self._answered = time.monotonic(), self._words
            try:
                self._judge(self._ask(began), began)
            except Exception:  # the edge of this thread, without which nobody would write any more
                LOG.critical("Asking the Sentinels of %s failed for a reason nobody foresaw.", self.name, exc_info=True)
            with self._changed:
                self._sure_until = time.monotonic() + SURE
                self._rounds += 1
                self._changed.notify_all()
            time.sleep(LEAST)
            self._wanted.wait(EVERY if self._lines is not None else SOON)
            self._wanted.clear()
        for announcements in self._announcements:
            announcements.close()
        for sentinel in self._sentinels.values():
            sentinel.close()

    def _ask(self, began: float) -> Mapping[Host, Told]:
        """What the Sentinels say, those that are known and those that they know."""
        for host in self._hosts:
            self._know(host)
        sent = [sentinel for sentinel in self._sentinels.values() if sentinel.send()]
        deadline = time.monotonic() + self._quick
        told = {sentinel.host: said for sentinel in sent if (said := sentinel.receive(deadline)) is not None}
        self._hosts += [peer for said in told.values() for peer in said.peers]
        self._hosts = list(dict.fromkeys(self._hosts))[:MOST_SENTINELS]
        return told

    def _know(self, host: Host) -> None:
        if host not in self._sentinels:
            self._sentinels[host] = Sentinel(self._make(host), host, self._master)
            self._announcements.append(Announcements(self._make, host, self._master, self.hear))

    def _judge(self, told: Mapping[Host, Told], began: float) -> None:
        """Pause, go on, or go on elsewhere, as what was said since ``began`` demands."""
        if not told:
            if self._paused and self._is_overdue() and self._address is not None:
                self._go_on(self._address)
            return
        best = max(told.values(), key=lambda said: (said.epoch, said.address == self._address))
        if best.address != self._address:
            if self._address is not None:
                self._pause()
            self._take_over(best.address)
        elif any(said.failing_over for said in told.values()):
            self._await_end(best.address)
        else:
            self._gave_up = False
            # A word that came while the questions were under way is not answered by them.
            ended = self._paused < began and self._speakers <= told.keys()
            if self._paused and (ended or self._is_overdue()):
                self._go_on(best.address)

    def _await_end(self, address: Host) -> None:
        """A Sentinel leads a failover, and the master is still the old one."""
        if not self._gave_up and self._lines is not None:
            self._pause()
        if self._paused and self._is_overdue():
            self._gave_up = True
            LOG.error(STALLED, self.name, LONGEST_PAUSE)
            self._go_on(address)

    def _take_over(self, address: Host) -> None:
        """Go on with a new master, once it says that it is one; or when that lasts too long."""
        lines = self._make_lines(address)
        with contextlib.suppress(*VENDOR):
            lines.give_back(lines.take(0))
            self._open(address, lines)
            return
        if self._is_overdue() or self._address is None:
            self._open(address, lines)

    def _go_on(self, address: Host) -> None:
        self._open(address, self._make_lines(address))

    def _is_overdue(self) -> bool:
        return time.monotonic() - self._paused > LONGEST_PAUSE
