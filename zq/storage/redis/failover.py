# SPDX-License-Identifier: Apache-2.0
"""Connection to a master behind Sentinels. Operations wait during a failover.

After a replica is promoted, the old master still accepts writes for up to 11 seconds, and these writes are lost. A
Sentinel announces the failover before the promotion. At the first announcement, the driver therefore pauses all
operations. They resume when the Sentinels agree on a master and the master confirms its role. An operation that is in
progress at the announcement fails with ``Unavailable``, because its change may not be replicated. After a pause, all
connections are reopened, so that connections of one process never lead to two masters.

Announcements can be lost, so every Sentinel is also polled once a second. If the process was suspended for more than
``VALIDITY`` seconds, operations wait for the next poll. If no Sentinel replies, the last known master stays in use,
because no failover is possible without Sentinels.

Measured with Redis 7.0 and Valkey 9.1, in seconds after the command ``SENTINEL FAILOVER``:

- 0.00: ``+try-failover`` at the leading Sentinel only
- 0.19: the replica is promoted
- 1.10: ``+promoted-slave`` and ``+failover-end`` at the leader, 1.15 ``+switch-master``
- 1.16: ``+switch-master`` at the other Sentinels
- 11.3: the old master becomes a replica
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from redis.exceptions import AskError, ConnectionError, NoPermissionError, TimeoutError

from zq.storage.redis.address import Host
from zq.storage.redis.connections import VENDOR, Pool, Reply
from zq.storage.redis.subscriber import Connection, Notice, Subscriber

# Seconds for which a Sentinel is not polled after a poll has failed.
RETRY_DELAY: Final = 3.0
# Minimum seconds to read a reply, even after the deadline: the reply may have arrived.
MIN_WAIT: Final = 0.02
QUESTIONS: Final = (b"GET-MASTER-ADDR-BY-NAME", b"MASTER", b"SENTINELS")
PATTERNS: Final = (b"*failover*", b"+promoted-*", b"+switch-master")
BEGIN: Final = b"+try-failover"
IN_PROGRESS: Final = b"failover_in_progress"

# Seconds between two checks whether a Sentinel's subscriber was closed.
CHECK_INTERVAL: Final = 0.1


class MasterReport(NamedTuple):
    """A Sentinel's report about the master.

    The report with the largest ``epoch`` is the latest. ``failing_over`` is true if the Sentinel leads a failover that
    has not promoted a replica yet. ``peers`` are the addresses of the other Sentinels.
    """

    address: Host
    epoch: int
    failing_over: bool
    peers: Sequence[Host]


class Sentinel:
    """A connection to one Sentinel, used by the thread that polls the Sentinels."""

    def __init__(self, pool: Pool, host: Host, name: str) -> None:
        self.host = host
        self._connection = pool.make_connection()
        self._retry_at = 0.0
        self._commands = [(b"SENTINEL", question, name.encode()) for question in QUESTIONS]

    def send(self) -> bool:
        """Send a poll without waiting for the reply, and return whether the Sentinel is reachable."""
        if time.monotonic() < self._retry_at:
            return False
        try:
            self._connection.connect()
            packed = self._connection.pack_commands(self._commands)
            self._connection.send_packed_command(packed, check_health=False)
        except VENDOR:
            self._fail()
            return False
        return True

    def receive(self, deadline: float) -> MasterReport | None:
        """Return the reply to the last poll, or ``None`` if no valid reply arrives by the monotonic ``deadline``."""
        try:
            address, state = self._read(deadline), self._read(deadline)
            return _report(address, state, self._peers(deadline))
        except (
            *VENDOR,
            ValueError,
            KeyError,
            TypeError,
        ):  # a Sentinel that does not know the name replies with an error
            self._fail()
            return None

    def close(self) -> None:
        self._connection.disconnect()

    def _peers(self, deadline: float) -> Any:
        try:
            return self._read(deadline)
        except NoPermissionError:
            return []

    def _read(self, deadline: float) -> Reply:
        left = max(deadline - time.monotonic(), MIN_WAIT)
        return self._connection.read_response(disable_decoding=True, timeout=left)

    def _fail(self) -> None:
        self._connection.disconnect()
        self._retry_at = time.monotonic() + RETRY_DELAY


def _report(address: Any, state: Any, peers: Any) -> MasterReport:
    facts = _pairs(state)
    # During a promotion, the first reply already has the new master's address while the second one has the old master.
    failing_over = IN_PROGRESS in facts[b"flags"].split(b",") and [facts[b"ip"], facts[b"port"]] == address
    return MasterReport(_host(*address), int(facts[b"config-epoch"]), failing_over, [_peer(peer) for peer in peers])


def _peer(reply: Any) -> Host:
    facts = _pairs(reply)
    return _host(facts[b"ip"], facts[b"port"])


def _pairs(reply: Any) -> dict[bytes, bytes]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _host(name: bytes, port: bytes) -> Host:
    return name.decode(), int(port)


class Announcements(Subscriber):
    """A subscriber to a Sentinel's announcements about the master.

    ``listener`` is called with the Sentinel's address and a flag, which is true if the announcement begins a failover.
    ``listener`` is also called, with a false flag, when the subscription begins.
    """

    def __init__(self, pool: Pool, host: Host, name: str, listener: Callable[[Host, bool], None]) -> None:
        super().__init__("zq-redis-sentinel", CHECK_INTERVAL, 0)
        self._pool, self._host = pool, host
        self._name = name.encode()
        self._listener = listener
        self._subscribed = False
        self.start()

    def pool(self) -> Pool:
        self._subscribed = False
        return self._pool

    def subscribe(self, connection: Connection) -> None:
        connection.send_command("PSUBSCRIBE", *PATTERNS)

    def on_notices(self, notices: list[Notice]) -> None:
        for kind, *about in notices:
            if kind == b"pmessage" and self._name in about[2].split():
                self._listener(self._host, about[1] == BEGIN)
            elif kind == b"psubscribe" and not self._subscribed:
                self._subscribed = True
                self._listener(self._host, False)  # earlier announcements may be lost, so the listener must poll


LOG = logging.getLogger(__name__)
# Seconds between two polls.
INTERVAL: Final = 1.0
# Seconds between two polls while operations wait.
PAUSED_INTERVAL: Final = 0.1
# Minimum seconds between two polls.
MIN_INTERVAL: Final = 0.02
# Seconds for which a poll is valid. After that, operations wait for the next poll.
VALIDITY: Final = 2.0
# Maximum seconds of a poll to open all connections, and maximum seconds to read all replies. Twice this value plus
# ``INTERVAL`` must be less than ``VALIDITY``, so that an unresponsive Sentinel does not delay operations.
POLL_TIMEOUT: Final = 0.4
# Seconds after which operations resume with the master that the Sentinels report, even if the failover has not ended.
LONGEST_PAUSE: Final = 10.0
MAX_SENTINELS: Final = 16
PAUSED: Final = "Writes are paused: the Sentinels of %s are replacing the master."
RESUMED_TEXT: Final = "The master of %s is %s:%d; writes resume after %.2f seconds."
STALLED_TEXT: Final = "The Sentinels of %s have not replaced the master within %.0f seconds; writes resume."
UNKNOWN: Final = "No Sentinel knows the master."
AWAITED_ERROR: Final = "The Sentinels are replacing the master."


class SentinelNetwork:
    """A ``Network`` that connects to the current master behind Sentinels."""

    def __init__(
        self,
        name: str,
        master: str,
        hosts: Sequence[Host],
        to_sentinel: Callable[[Host], Pool],
        to_master: Callable[[Host], Pool],
        timeout: float,
    ) -> None:
        self.name = name
        self._master, self._to_sentinel, self._to_master = master, to_sentinel, to_master
        self._patience, self._quick = timeout * 3 / 4, min(timeout / 8, POLL_TIMEOUT)
        self._hosts = list(dict.fromkeys(hosts))
        self._changed = threading.Condition()
        """Guards the attributes below. No thread holds this lock during a network round trip."""
        self._pool: Pool | None = None
        """The pool of the master; ``None`` without a master and during a failover."""
        self._address: Host | None = None
        self._paused = 0.0
        self._announcers: set[Host] = set()
        """Sentinels that announced a failover. Operations resume after all of them have reported its end."""
        self._announcement_count = self._handled_count = 0
        """Number of failover announcements: in total, and up to the start of the last poll."""
        self._has_given_up = False
        self._sure_until = 0.0
        self._rounds = 0
        self._closed = False
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._sentinels: dict[Host, Sentinel] = {}
        self._announcements: list[Announcements] = []

    def pool(self, key: bytes) -> Pool:
        pool = self._pool
        if pool is not None and time.monotonic() < self._sure_until:
            return pool
        return self._wait()

    def is_current(self, pool: Pool) -> bool:
        if time.monotonic() >= self._sure_until:
            self._wait()
        return pool is self._pool

    def any_pool(self) -> Pool:
        return self.pool(b"")

    def pools(self) -> list[Pool]:
        return [self.pool(b"")]

    def relearn(self) -> None:
        self._wanted.set()

    def relearn_later(self) -> None:
        self._wanted.set()

    def redirected_pool(self, error: AskError) -> Pool:
        raise error

    def close(self) -> None:
        with self._changed:
            self._closed = True
            pool, self._pool = self._pool, None
            self._changed.notify_all()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(1)
        if pool is not None:
            pool.retire()

    def on_announcement(self, host: Host, begins_failover: bool) -> None:
        """Pause operations if a failover begins, and poll the Sentinels soon."""
        if begins_failover:
            self._pause(host)
        self._wanted.set()

    def _wait(self) -> Pool:
        """Return the pool of the master. Wait while operations are paused or the last poll is too old."""
        deadline = time.monotonic() + self._patience
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="zq-redis-master", daemon=True)
                self._thread.start()
            while True:
                if self._pool is not None and time.monotonic() < self._sure_until:
                    return self._pool
                if self._closed or (self._rounds and self._address is None):
                    self._wanted.set()
                    raise ConnectionError(UNKNOWN)
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(AWAITED_ERROR)

    def _pause(self, announcer: Host | None = None) -> None:
        """Pause new operations, and make operations in progress fail.

        ``announcer`` is the Sentinel that has announced a failover, or None if there is no announcement.
        """
        with self._changed:
            if announcer is not None:
                self._announcers.add(announcer)
                self._announcement_count += 1
                self._has_given_up = False
            if self._paused == 0:
                self._paused = time.monotonic()
                LOG.warning(PAUSED, self.name)
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.retire()

    def _open(self, address: Host, pool: Pool) -> None:
        """Resume operations with the master, unless a new failover was announced after the last poll began."""
        with self._changed:
            if self._closed or self._announcement_count > self._handled_count:
                return
            lasted = time.monotonic() - self._paused if self._paused else 0.0
            former, self._pool = self._pool, pool
            self._address, self._paused = address, 0.0
            self._announcers.clear()
            self._changed.notify_all()
        if former is not None:
            former.retire()
        if lasted:
            LOG.warning(RESUMED_TEXT, self.name, *address, lasted)

    def _run(self) -> None:
        while not self._closed:
            began, self._handled_count = time.monotonic(), self._announcement_count
            try:
                self._apply_reports(self._poll(), began)
            except Exception:  # the thread must survive, because no operation could write without it
                LOG.critical("Unexpected error while polling the Sentinels of %s.", self.name, exc_info=True)
            with self._changed:
                self._sure_until = time.monotonic() + VALIDITY
                self._rounds += 1
                self._changed.notify_all()
            time.sleep(MIN_INTERVAL)
            self._wanted.wait(INTERVAL if self._pool is not None else PAUSED_INTERVAL)
            self._wanted.clear()
        for announcements in self._announcements:
            announcements.close()
        for sentinel in self._sentinels.values():
            sentinel.close()

    def _poll(self) -> Mapping[Host, MasterReport]:
        for host in self._hosts:
            self._add(host)
        sent = [sentinel for sentinel in self._sentinels.values() if sentinel.send()]
        deadline = time.monotonic() + self._quick
        reports = {sentinel.host: report for sentinel in sent if (report := sentinel.receive(deadline)) is not None}
        self._hosts += [peer for report in reports.values() for peer in report.peers]
        self._hosts = list(dict.fromkeys(self._hosts))[:MAX_SENTINELS]
        return reports

    def _add(self, host: Host) -> None:
        if host not in self._sentinels:
            pool = self._to_sentinel(host)
            self._sentinels[host] = Sentinel(pool, host, self._master)
            self._announcements.append(Announcements(pool, host, self._master, self.on_announcement))

    def _apply_reports(self, reports: Mapping[Host, MasterReport], began: float) -> None:
        if not reports:
            if self._paused and self._is_overdue() and self._address is not None:
                self._resume(self._address)
            return
        best = max(reports.values(), key=lambda report: (report.epoch, report.address == self._address))
        if best.address != self._address:
            if self._address is not None:
                self._pause()
            self._take_over(best.address)
        elif any(report.failing_over for report in reports.values()):
            self._pause_until_end(best.address)
        else:
            self._has_given_up = False
            # An announcement during the poll is not covered by its reports.
            ended = self._paused < began and self._announcers <= reports.keys()
            if self._paused and (ended or self._is_overdue()):
                self._resume(best.address)

    def _pause_until_end(self, address: Host) -> None:
        """Pause operations because a Sentinel reports a failover in progress.

        After ``LONGEST_PAUSE`` seconds, resume operations anyway.
        """
        if not self._has_given_up and self._pool is not None:
            self._pause()
        if self._paused and self._is_overdue():
            self._has_given_up = True
            LOG.error(STALLED_TEXT, self.name, LONGEST_PAUSE)
            self._resume(address)

    def _take_over(self, address: Host) -> None:
        """Switch to the new master at ``address`` once this server confirms its role as master.

        No confirmation is required if there is no earlier master, or if the pause has lasted longer than
        ``LONGEST_PAUSE`` seconds.
        """
        pool = self._to_master(address)
        with contextlib.suppress(*VENDOR):
            pool.release(pool.get_connection())
            self._open(address, pool)
            return
        if self._is_overdue() or self._address is None:
            self._open(address, pool)

    def _resume(self, address: Host) -> None:
        self._open(address, self._to_master(address))

    def _is_overdue(self) -> bool:
        return time.monotonic() - self._paused > LONGEST_PAUSE
