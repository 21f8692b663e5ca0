# SPDX-License-Identifier: Apache-2.0
"""Granian's connections by their descriptors: deadlines that it neither has nor lets the application set, and an end
of a worker at which no request fails that a client could not know to be lost.

Granian gives no head a deadline before it knows which HTTP it is (24 bytes), none to a silent connection of HTTP/2,
none to a handshake of TLS, none to a client that does not take what it is sent, and no address a bound. The kernel says
of each connection how much came and when, and ends what is shut down, whatever reads from it.

On SIGTERM Granian closes its listening socket and every connection that is idle at that moment: the kernel resets what
was connected but not accepted, and a client that is just sending finds its connection closed. So before Granian gets
the signal, no client can connect any more, all who have are accepted, and for a moment those that are connected are
heard.
"""

import asyncio
import fcntl
import logging
import os
import select
import signal
import socket
import struct
import termios
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Generator
from contextlib import closing, suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from zq.engines.listening import HANDSHAKE, refuse_handshakes
from zq.events import Refusal, refused

LOG = logging.getLogger(__name__)
# The folder of this process's descriptors.
DESCRIPTORS: Final = Path("/proc/self/fd")
# Seconds between two looks.
INTERVAL: Final = 1.0
# Bytes by which HTTP/1 and HTTP/2 are distinguished.
PREFACE: Final = 24
# Of the kernel's ``struct tcp_info``: ``tcpi_last_data_sent`` and ``tcpi_last_data_recv``, milliseconds ago, and
# ``tcpi_bytes_received``; see linux/tcp.h.
TCP_INFO: Final = struct.Struct("=44xI4xI72xQ")
# Address and port.
Peer = tuple[str, str]
# Seconds for which silent connections are still read; gunicorn's worker has the same.
LINGER: Final = 2.0
# Seconds between two looks at who is left.
LOOK: Final = 0.05


class Timeouts(Struct, frozen=True):
    """Seconds that connections get. ``connections``: how many of one address may be idle; None: any number.

    ``tls``: whether a connection begins with a handshake.
    """

    head: float
    idle: float
    send: float
    connections: int | None
    tls: bool = False


class Seen(Struct):
    """What was seen of one connection: its socket's number in the kernel, and since when it is known.

    ``spare``: it was without a request at the last look, too. An answer is not sent in the moment when it is given.
    """

    inode: int
    peer: Peer
    since: float
    spare: bool = False


class Idle(Struct):
    """A connection without a request. ``seconds``: for how long nothing came on it or went out."""

    descriptor: int
    peer: Peer
    seconds: float


class ConnectionWatcher:
    """Looks after the connections to ``port`` of this process. ``busy`` says whose requests are under way."""

    def __init__(self, port: int, patience: Timeouts, busy: Callable[[], Collection[Peer]], heard: set[Peer]) -> None:
        """``heard``: the clients of which any request has come. Those that have left are removed from it."""
        self._heard = heard
        self._port = port
        self._patience = patience
        self._busy = busy
        self._known: dict[int, Seen] = {}

    def start(self) -> None:
        """Look every second, from a thread of its own."""
        _bound_sending(self._port, self._patience.send)
        threading.Thread(target=self._run, name="zq-connections", daemon=True).start()

    def hang_up(self, peer: Peer, reason: Refusal) -> None:
        """End the connection of a client, whatever is still to be sent to it. From any thread."""
        descriptor = _of(peer, self._known)
        if descriptor is None:  # it came after the last look
            self._connections()
            descriptor = _of(peer, self._known)
        if descriptor is not None:
            _hang_up(descriptor, peer, reason)

    def untaken(self, peer: Peer) -> bool:
        """Whether the kernel holds something for a client; also for one that came after the last look."""
        descriptor = _of(peer, self._known)
        return descriptor is None or _untaken(descriptor, peer)

    def _run(self) -> None:
        while True:
            time.sleep(INTERVAL)
            try:
                self.look()
            except Exception:  # the edge of this thread, which must look again
                LOG.critical("Connections were not looked after, for an unforeseen reason.", exc_info=True)

    def look(self) -> None:
        """Hang up on those whose time is up."""
        idle: dict[str, list[Idle]] = defaultdict(list)
        busy = self._busy()
        for descriptor, seen in self._connections():
            spare, seen.spare = seen.spare, seen.peer not in busy
            if not (spare and seen.spare):
                continue
            received, seconds = _activity(descriptor)
            age = time.monotonic() - seen.since
            if (received < PREFACE or self._is_shaking_hands(seen.peer)) and age > self._patience.head:
                _hang_up(descriptor, seen.peer, Refusal.HEAD)
            elif seconds > self._patience.idle:
                _hang_up(descriptor, seen.peer, Refusal.IDLE)
            elif seconds > INTERVAL or received < PREFACE:
                idle[_network(seen.peer[0])].append(Idle(descriptor, seen.peer, seconds))
        if self._patience.connections is not None:
            for crowd in idle.values():
                self._thin(crowd, self._patience.connections)

    def _is_shaking_hands(self, peer: Peer) -> bool:
        """Whether no request has come by TLS: a handshake that is not finished is not known by its bytes."""
        return self._patience.tls and peer not in self._heard

    def _thin(self, crowd: list[Idle], most: int) -> None:
        """Hang up on those that have been idle longest, so that no more are left."""
        crowd.sort(key=lambda connection: -connection.seconds)
        for connection in crowd[: max(0, len(crowd) - most)]:
            _hang_up(connection.descriptor, connection.peer, Refusal.CONNECTIONS)

    def _connections(self) -> list[tuple[int, Seen]]:
        """Those of clients, as far as they are known; the others are looked at for the first time."""
        known: dict[int, Seen] = {}
        heard = set(self._heard)  # of those that come meanwhile, none is taken for one that has left
        for name in os.listdir(DESCRIPTORS):
            descriptor = int(name)
            with suppress(OSError):  # closed meanwhile
                inode = os.fstat(descriptor).st_ino
                seen = self._known.get(descriptor)
                if seen is None or seen.inode != inode:
                    seen = Seen(inode, _peer(descriptor, self._port), time.monotonic())
                known[descriptor] = seen
        self._known = known
        self._heard -= heard - {seen.peer for seen in known.values()}
        return [(descriptor, seen) for descriptor, seen in known.items() if seen.peer[0]]


def _of(peer: Peer, known: dict[int, Seen]) -> int | None:
    return next((descriptor for descriptor, seen in list(known.items()) if seen.peer == peer), None)


def _peer(descriptor: int, port: int) -> Peer:
    """Who is at the other end of a connection to the port; ("", "") if it is none."""
    if not os.readlink(DESCRIPTORS / str(descriptor)).startswith("socket:"):
        return "", ""
    with socket.socket(fileno=os.dup(descriptor)) as opened, suppress(OSError):
        if opened.family in (socket.AF_INET, socket.AF_INET6) and opened.getsockname()[1] == port:
            host, number = opened.getpeername()[:2]
            return host, str(number)
    return "", ""


def _activity(descriptor: int) -> tuple[int, float]:
    """Bytes received on a connection, and seconds for which nothing came or went."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as opened:
        raw = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(raw) >= TCP_INFO.size:
            sent, came, received = TCP_INFO.unpack_from(raw)
            return received, min(sent, came) / 1000
    return PREFACE, 0.0


def _untaken(descriptor: int, peer: Peer) -> bool:
    """Whether something sent on a connection, if it is still that of the peer, is not acknowledged."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as opened:
        host, number = opened.getpeername()[:2]
        return (host, str(number)) == peer and fcntl.ioctl(opened, termios.TIOCOUTQ, bytes(4)) != bytes(4)
    return False


def _network(host: str) -> str:
    """What counts as one address: of IPv6 the /64 network."""
    if ":" not in host:
        return host
    return str(ip_network((host.partition("%")[0], 64), strict=False))


def _hang_up(descriptor: int, peer: Peer, reason: Refusal) -> None:
    """End a connection, if it is still that of the peer: another may have got its number."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as opened:
        host, number = opened.getpeername()[:2]
        if (host, str(number)) == peer:
            refused(reason)
            opened.shutdown(socket.SHUT_RDWR)


def _bound_sending(port: int, seconds: float) -> None:
    """The kernel ends any connection to ``port`` of this process, now or later, when what was sent on it has not been
    taken for so long: connections to come have it from the socket that listens."""
    for name in os.listdir(DESCRIPTORS):
        with suppress(OSError):  # no socket, or closed meanwhile
            if os.readlink(DESCRIPTORS / name).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as opened:
                    if opened.family != socket.AF_UNIX and opened.getsockname()[1] == port:
                        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1e3))


class Ending(Struct, frozen=True):
    """How a worker that listens on ``port`` ends. Seconds for which it serves on (``delay``), and in which what is at
    work then may be finished (``patience``)."""

    port: int
    delay: float
    patience: float


def prepend(ending: Ending, loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop run the handler of SIGTERM, which Granian is about to set, after the ending, and others at once."""
    add, handed_on = loop.add_signal_handler, False
    ends: set[asyncio.Task[None]] = set()  # kept, or it might be collected

    def added(number: int, callback: Callable[..., object], *arguments: Any) -> None:
        def hand_on() -> None:
            nonlocal handed_on
            if not handed_on:  # a second call could hold up the loop
                handed_on = True
                callback(*arguments)

        def end() -> None:
            if not ends:
                ends.add(loop.create_task(_end(ending, lambda: handed_on, hand_on)))

        add(number, end if number == signal.SIGTERM else hand_on)

    loop.add_signal_handler = added  # type: ignore[method-assign, assignment]


async def _end(ending: Ending, over: Callable[[], bool], hand_on: Callable[[], object]) -> None:
    """In the loop, so that Granian does not stop halfway: what is found to be its socket is so when it is replaced."""
    try:
        await asyncio.sleep(ending.delay)
        if over():
            return
        deadline = time.monotonic() + min(LINGER, ending.patience / 2)
        for _, listener in _sockets(ending.port, listening=True):
            refuse_handshakes(listener)
        await asyncio.sleep(HANDSHAKE)
        await _until(deadline, lambda: over() or not _any_to_accept(ending.port))
        if not over():
            _close_listeners(ending.port)
        await _until(deadline, lambda: over() or not _anyone(ending.port))
    except Exception:  # the edge of this task: the worker must end
        LOG.critical("The end was not prepared, for an unforeseen reason.", exc_info=True)
    finally:
        hand_on()


async def _until(deadline: float, over: Callable[[], bool]) -> None:
    while not over() and time.monotonic() < deadline:
        await asyncio.sleep(LOOK)


def _sockets(port: int, *, listening: bool) -> Generator[tuple[int, socket.socket], None, None]:
    """This process's sockets at a port, those that listen or those that are connected: descriptors, and copies of them
    that are open until the next is asked for."""
    for name in os.listdir(DESCRIPTORS):
        with suppress(OSError):  # no socket, or closed meanwhile
            if not os.readlink(DESCRIPTORS / name).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as opened:
                if opened.family not in (socket.AF_INET, socket.AF_INET6) or opened.getsockname()[1] != port:
                    continue
                if bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) == listening:
                    yield int(name), opened


def _any_to_accept(port: int) -> bool:
    with closing(_sockets(port, listening=True)) as found:
        for _, listener in found:
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            if poll.poll(0):
                return True
    return False


def _anyone(port: int) -> bool:
    """Whether a client is connected. Granian's master leaves its workers a socket that just is bound to the port."""
    with closing(_sockets(port, listening=False)) as found:
        for _, connection in found:
            with suppress(OSError):  # it is not connected
                connection.getpeername()
                return True
    return False


def _close_listeners(port: int) -> None:
    """Have connections refused. Granian keeps the descriptor until it stops, of a socket that refuses connections.

    One that listens, for Granian would ask any other again and again.
    """
    for descriptor in [descriptor for descriptor, _ in _sockets(port, listening=True)]:
        with socket.socket() as closed:
            closed.setblocking(False)
            closed.bind(("127.0.0.1", 0))
            refuse_handshakes(closed)
            closed.listen(1)
            os.dup2(closed.fileno(), descriptor, inheritable=False)
