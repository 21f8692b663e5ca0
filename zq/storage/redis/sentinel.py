# SPDX-License-Identifier: Apache-2.0
"""One Sentinel: what it says when asked, and what it announces by itself.

Measured with Redis 7.0 and Valkey 9.1, in seconds after an order to fail over: 0.00 ``+try-failover`` at the Sentinel
that leads, and at no other; 0.19 the replica is a master; 1.10 ``+promoted-slave`` and ``+failover-end``, and 1.15
``+switch-master``, at the leader; 1.16 ``+switch-master`` at the others; 11.3 the old master is told to be a replica.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from redis.exceptions import ConnectionError, NoPermissionError

from zq.storage.redis.layout import wire
from zq.storage.redis.lines import VENDOR, Line, Reply
from zq.storage.redis.speech import spoken
from zq.storage.redis.subscriber import Subscriber

REST: Final = 3.0
"""Seconds for which a Sentinel that did not answer is not asked again."""
LEAST: Final = 0.02
"""Seconds to read an answer even if others have taken all the time: it may be there already."""
PATTERNS: Final = (b"*failover*", b"+promoted-*", b"+switch-master")
FIRST_WORD: Final = b"+try-failover"
IN_PROGRESS: Final = b"failover_in_progress"

Host = tuple[str, int]
Make = Callable[[Host], Line]
"""A connection to a Sentinel, not yet open."""


class Told(NamedTuple):
    """What a Sentinel knows of the master. ``epoch``: whose is larger knows better. ``failing_over``: the Sentinel
    leads a failover in which no replica has been promoted yet."""

    address: Host
    epoch: int
    failing_over: bool
    peers: Sequence[Host]


class Sentinel:
    """Asked on one connection, by one thread."""

    def __init__(self, line: Line, host: Host, name: str) -> None:
        self.host = host
        self._line = line
        self._rest_until = 0.0
        questions = [(b"GET-MASTER-ADDR-BY-NAME",), (b"MASTER",), (b"SENTINELS",)]
        text = name.encode()
        self._packed = b"".join(b"*3\r\n" + wire(b"SENTINEL", *question, text) for question in questions)

    def send(self) -> bool:
        """Ask, and do not wait; whether it could be asked."""
        if time.monotonic() < self._rest_until:
            return False
        try:
            self._line.connect()
            self._line.send_packed_command([self._packed], check_health=False)
        except VENDOR:
            self._fail()
            return False
        return True

    def receive(self, deadline: float) -> Told | None:
        """What it says to that; None if it says nothing of use by the deadline."""
        try:
            address, state = self._read(deadline), self._read(deadline)
            return _told(address, state, self._peers(deadline))
        except (*VENDOR, ValueError, KeyError, TypeError):  # a Sentinel that does not know the name answers an error
            self._fail()
            return None

    def close(self) -> None:
        self._line.disconnect()

    def _peers(self, deadline: float) -> Any:
        try:
            return self._read(deadline)
        except NoPermissionError:
            return []

    def _read(self, deadline: float) -> Reply:
        left = max(deadline - time.monotonic(), LEAST)
        return self._line.read_response(disable_decoding=True, timeout=left)

    def _fail(self) -> None:
        self._line.disconnect()
        self._rest_until = time.monotonic() + REST


def _told(address: Any, state: Any, peers: Any) -> Told:
    facts = _pairs(state)
    # The first question is answered with the promoted replica already while the second one still has its master.
    failing_over = IN_PROGRESS in facts[b"flags"].split(b",") and [facts[b"ip"], facts[b"port"]] == address
    return Told(_host(*address), int(facts[b"config-epoch"]), failing_over, [_peer(peer) for peer in peers])


def _peer(reply: Any) -> Host:
    facts = _pairs(reply)
    return _host(facts[b"ip"], facts[b"port"])


def _pairs(reply: Any) -> dict[bytes, bytes]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _host(name: bytes, port: bytes) -> Host:
    return name.decode(), int(port)


class Announcements(Subscriber):
    """Tells ``hear`` of each announcement about the master of this name, and whether it is the first of a failover."""

    def __init__(self, make: Make, host: Host, name: str, hear: Callable[[Host, bool], None]) -> None:
        super().__init__("zq-redis-sentinel", 0)
        self._make, self._host = make, host
        self._name = name.encode()
        self._hear = hear
        self._subscribed = False
        self.start()

    def line(self) -> Line:
        self._subscribed = False
        return self._make(self._host)

    def greeting(self) -> bytes:
        return b"*%d\r\n" % (len(PATTERNS) + 1) + wire(b"PSUBSCRIBE", *PATTERNS)

    def outgoing(self) -> bytes:
        return b""

    def heard(self, read: bytes) -> bytes:
        said, rest = spoken(read)
        for kind, *parts in said:
            if kind == b"pmessage" and len(parts) == 3:
                _, channel, content = parts
                if isinstance(content, bytes) and self._name in content.split():
                    self._hear(self._host, channel == FIRST_WORD)
            elif kind == b"psubscribe" and not self._subscribed:
                self._subscribed = True
                self._hear(self._host, False)  # what was announced while it was not heard is asked for
            elif isinstance(kind, bytes) and kind.startswith(b"-"):
                raise ConnectionError(kind.decode(errors="replace"))
        return rest
