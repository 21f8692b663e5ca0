# SPDX-License-Identifier: Apache-2.0
"""Waits of verbs while Sentinels replace a master, with stub Sentinels."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError, NoPermissionError, RedisError, TimeoutError

from tests.servers import wait_for
from zq.storage.redis import failover
from zq.storage.redis.address import Host
from zq.storage.redis.failover import SentinelNetwork

OLD, NEW = ("old", 1), ("new", 2)
FIRST, SECOND = ("s1", 3), ("s2", 4)
SOON = 60.0


class Says:
    """A stub Sentinel's replies, as the pool of connections to it and as the connection."""

    def __init__(self) -> None:
        self.address, self.epoch, self.flags = OLD, 0, "master"
        self.former: Host | None = None
        """The old master, while the address is that of the promoted replica."""
        self.gone = False
        self.speaks = threading.Event()
        self.speaks.set()
        self.asked = 0
        self.peers: Any = []
        self._left: list[Any] = []

    def connect(self) -> None:
        if self.gone:
            raise ConnectionError("gone")

    def disconnect(self) -> None: ...

    def make_connection(self) -> "Says":
        return self

    def pack_commands(self, commands: object) -> list[bytes]:
        return []

    def send_packed_command(self, command: list[bytes], check_health: bool) -> None:
        self.speaks.wait()
        self.asked += 1
        address, master = ([host[0].encode(), b"%d" % host[1]] for host in (self.address, self.former or self.address))
        state = [b"flags", self.flags.encode(), b"config-epoch", b"%d" % self.epoch]
        self._left = [address, [*state, b"ip", master[0], b"port", master[1]], self.peers]

    def read_response(self, disable_decoding: bool, *, timeout: float) -> Any:
        reply = self._left.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


class Opened:
    """Connections to a master. ``faulty``: masters to which no connection can be opened."""

    def __init__(self, host: Host, faulty: set[Host]) -> None:
        self.host, self._faulty = host, faulty
        self.retired = False

    def get_connection(self) -> "Opened":
        if self.host in self._faulty or self.retired:
            raise ConnectionError("no master")
        return self

    def release(self, connection: "Opened") -> None: ...

    def retire(self) -> None:
        self.retired = True


class Deaf:
    """A subscription to announcements that never arrive: tests call ``hear``."""

    def __init__(self, *_: object) -> None: ...

    def close(self) -> None: ...


class Scene:
    def __init__(self) -> None:
        self.sentinels = {FIRST: Says(), SECOND: Says()}
        self.faulty: set[Host] = set()
        known: Any = self.sentinels
        self.watched = SentinelNetwork("here", "main", [FIRST, SECOND], known.__getitem__, self._opened, 1.5)

    def _opened(self, host: Host) -> Any:
        return Opened(host, self.faulty)

    def master(self) -> Host:
        """Return the master to which a verb would write now."""
        connection: Any = self.watched.pool(b"").get_connection()
        found: Host = connection.host
        return found

    def rounds(self) -> None:
        """Wait until every reachable Sentinel has been queried twice more, because the first reply may be older."""
        enough = {says: says.asked + 2 for says in self.sentinels.values() if not says.gone}
        wait_for(lambda: all(says.asked >= number for says, number in enough.items()), SOON, "all were asked")

    def waits(self) -> bool:
        """Return whether verbs wait, and find no master within two rounds."""
        self.rounds()
        return self.watched._pool is None

    def all_say(self, **said: Any) -> None:
        for says in self.sentinels.values():
            for name, value in said.items():
                setattr(says, name, value)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(failover, "Announcements", Deaf)
    monkeypatch.setattr(failover, "INTERVAL", 0.05)
    monkeypatch.setattr(failover, "RETRY_DELAY", 0.05)
    made = Scene()
    yield made
    for says in made.sentinels.values():
        says.speaks.set()
    made.watched.close()


def begun(scene: Scene) -> Says:
    """Begin a failover that the first Sentinel leads."""
    assert scene.master() == OLD
    leader = scene.sentinels[FIRST]
    leader.flags = "master,failover_in_progress"
    scene.watched.on_announcement(FIRST, True)
    return leader


def test_verbs_wait_from_the_first_announcement_until_there_is_a_new_master(scene: Scene) -> None:
    """Commands in progress at the announcement are not trusted, whatever their result."""
    before = scene.watched.pool(b"")
    leader = begun(scene)
    assert before.retired
    assert scene.waits()
    found: list[Host] = []
    verb = threading.Thread(target=lambda: found.append(scene.master()))
    verb.start()
    leader.address, leader.epoch, leader.flags = NEW, 1, "master"
    verb.join(SOON)
    assert found == [NEW]
    assert not scene.watched.is_current(before)
    with pytest.raises(ConnectionError):
        before.get_connection()


def test_a_new_master_is_used_once_it_reports_its_role(scene: Scene) -> None:
    """The role that the Sentinels report is not sufficient."""
    scene.faulty.add(NEW)
    leader = begun(scene)
    leader.address, leader.epoch, leader.flags = NEW, 1, "master"
    assert scene.waits()
    scene.faulty.clear()
    assert scene.master() == NEW


def test_a_promoted_replica_is_used_before_the_failover_is_complete(scene: Scene) -> None:
    """The leader reports the failover as in progress until the other replicas follow the new master too."""
    leader = begun(scene)
    leader.former, leader.address, leader.epoch = OLD, NEW, 1
    assert scene.master() == NEW
    lines = scene.watched.pool(b"")
    assert not scene.waits()
    assert scene.watched.pool(b"") is lines


def test_a_failover_that_ends_without_a_new_master_is_over(scene: Scene) -> None:
    """The former master stays in use, over new connections."""
    before = scene.watched.pool(b"")
    leader = begun(scene)
    assert scene.waits()
    leader.flags = "master"
    assert scene.master() == OLD
    assert scene.watched.pool(b"") is not before


def test_the_sentinel_that_reported_a_failover_must_report_its_end(scene: Scene) -> None:
    """Other Sentinels do not know of the failover."""
    leader = begun(scene)
    leader.gone = True
    scene.sentinels[FIRST] = leader
    assert scene.waits()
    leader.gone, leader.flags = False, "master"
    assert wait_for(lambda: scene.watched._pool is not None, SOON, "verbs go on")


def test_a_failover_that_begins_as_another_one_ends_is_waited_for(scene: Scene) -> None:
    """The announcement arrives after the replies by which verbs were about to continue, and which do not include it."""
    leader = begun(scene)
    assert scene.waits()
    go_on, opened = scene.watched._resume, threading.Event()

    def surprised(address: Host) -> None:
        scene.watched._resume = go_on
        leader.flags = "master,failover_in_progress"
        scene.watched.on_announcement(FIRST, True)
        go_on(address)
        assert scene.watched._pool is None
        opened.set()

    scene.watched._resume = surprised
    leader.flags = "master"
    assert wait_for(opened.is_set, SOON, "the answers were judged")
    assert scene.waits()
    leader.flags = "master"
    assert scene.master() == OLD


def test_a_failover_without_announcement_is_detected_by_queries(scene: Scene) -> None:
    """Queries detect both the beginning and the end of the failover."""
    assert scene.master() == OLD
    leader = scene.sentinels[SECOND]
    leader.flags = "master,failover_in_progress"
    assert scene.waits()
    leader.address, leader.epoch, leader.flags = NEW, 1, "master"
    assert scene.master() == NEW


def test_a_pause_has_an_end(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the failover hangs, verbs continue with the master that the Sentinels name.

    The same failover does not stop them again.
    """
    monkeypatch.setattr(failover, "LONGEST_PAUSE", 0.3)
    begun(scene)
    wait_for(lambda: scene.watched._pool is not None, SOON, "verbs go on")
    assert not scene.waits()
    assert scene.master() == OLD


def test_a_sentinel_with_a_smaller_epoch_is_ignored(scene: Scene) -> None:
    """A Sentinel that was partitioned names the former master, with a smaller epoch."""
    assert scene.master() == OLD
    scene.sentinels[SECOND].address, scene.sentinels[SECOND].epoch = NEW, 7
    wait_for(lambda: scene.watched._address == NEW, SOON, "the newer word counts")
    scene.rounds()
    assert scene.master() == NEW


def test_sentinels_that_a_sentinel_lists_are_queried(scene: Scene) -> None:
    """The other Sentinels may lead a failover; a user without permission to list them is served anyway."""
    third = scene.sentinels["s3", 5] = Says()
    assert scene.master() == OLD
    scene.sentinels[SECOND].peers = NoPermissionError("NOPERM")
    scene.sentinels[FIRST].peers = [[b"ip", b"s3", b"port", b"5"]]
    wait_for(lambda: third.asked, SOON, "the third one is asked")
    third.address, third.epoch = NEW, 1
    wait_for(lambda: scene.watched._address == NEW, SOON, "the third one is believed")
    assert scene.master() == NEW


class Hung(Says):
    """A Sentinel that accepts queries and never replies."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def read_response(self, disable_decoding: bool, *, timeout: float) -> Any:
        self.waits.append(timeout)
        raise TimeoutError("hung")


def test_a_sentinel_that_hangs_makes_no_verb_wait(scene: Scene) -> None:
    """The replies of the other Sentinels remain valid until the next round, whatever the timeout of verbs."""
    hung = Hung()
    known: Any = {FIRST: Says(), SECOND: hung}
    watched = SentinelNetwork("here", "main", [FIRST, SECOND], known.__getitem__, scene._opened, 600)
    watched.pool(b"")
    watched.close()
    assert 1.0 + 2 * max(hung.waits) < failover.VALIDITY


def test_without_sentinels_the_last_master_serves(scene: Scene) -> None:
    """No Sentinel could replace the master."""
    assert scene.master() == OLD
    scene.all_say(gone=True)
    rounds = scene.watched._rounds
    wait_for(lambda: scene.watched._rounds > rounds + 3, SOON, "they were asked")
    assert scene.master() == OLD


def test_without_a_sentinel_from_the_start_there_is_no_master(scene: Scene) -> None:
    """The error is raised within the timeout; once a Sentinel replies, the master is used."""
    scene.all_say(gone=True)
    with pytest.raises(RedisError):
        scene.master()
    scene.all_say(gone=False)
    assert wait_for(lambda: served(scene.master), SOON, "there is a master") == OLD


def served(master: Callable[[], Host]) -> Host | None:
    try:
        return master()
    except RedisError:
        return None


def test_a_process_without_recent_queries_queries_before_it_continues(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the process was suspended, no command is sent and no reply is trusted before the Sentinels were queried."""
    monkeypatch.setattr(failover, "VALIDITY", 0.5)
    before = scene.watched.pool(b"")
    for says in scene.sentinels.values():
        says.speaks.clear()
    deadline = scene.watched._sure_until
    wait_for(lambda: time.monotonic() > max(deadline, scene.watched._sure_until), SOON, "it is long ago")
    with pytest.raises(TimeoutError):
        scene.watched.pool(b"")
    answers: list[bool] = []
    verb = threading.Thread(target=lambda: answers.append(scene.watched.is_current(before)))
    verb.start()
    scene.all_say(address=NEW, epoch=1)
    for says in scene.sentinels.values():
        says.speaks.set()
    verb.join(SOON)
    assert answers == [False]
    assert scene.master() == NEW
