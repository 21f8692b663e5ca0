# SPDX-License-Identifier: Apache-2.0
"""The end of a worker under Granian, so that no request fails that a client could not know to be lost.

Told to end, Granian closes its listening socket and every connection that is idle at that moment: the kernel resets
what was connected but not accepted, and a client that is just sending finds its connection closed. So before Granian is
told, nobody can connect any more, all who have are accepted, and for a moment those that are connected are heard.
"""

import asyncio
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import Any, Final

from msgspec import Struct

from zq.engines.gthread.listeners import HANDSHAKE, refuse_handshakes
from zq.engines.sockets import DESCRIPTORS

LOG = logging.getLogger(__name__)
LINGER: Final = 2.0
"""Seconds for which connections are heard that say nothing; gunicorn's worker has the same."""
LOOK: Final = 0.05
"""Seconds between two looks at who is left."""


class Ending(Struct, frozen=True):
    """How a worker that listens on ``port`` ends. Seconds for which it serves on (``delay``), and in which what is at
    work then may be finished (``patience``)."""

    port: int
    delay: float
    patience: float


def prepend(ending: Ending, loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop, which Granian is about to tell what ends it, do so on SIGTERM after the ending; else at once."""
    add, told = loop.add_signal_handler, False
    ends: set[asyncio.Task[None]] = set()  # kept, or it might be collected

    def added(number: int, callback: Callable[..., object], *arguments: Any) -> None:
        def hand_on() -> None:
            nonlocal told
            if not told:  # a second call could hold up the loop
                told = True
                callback(*arguments)

        def end() -> None:
            if not ends:
                ends.add(loop.create_task(_end(ending, lambda: told, hand_on)))

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
        LOG.critical("The end was not prepared, for a reason that nobody foresaw.", exc_info=True)
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
    """Whether somebody is connected. Granian's master leaves its workers a socket that just is bound to the port."""
    with closing(_sockets(port, listening=False)) as found:
        for _, connection in found:
            with suppress(OSError):  # it is connected to nobody
                connection.getpeername()
                return True
    return False


def _close_listeners(port: int) -> None:
    """Have connections refused. Granian keeps the descriptor until it stops, of a socket that nobody can connect to.

    One that listens, for Granian would ask any other again and again.
    """
    for descriptor in [descriptor for descriptor, _ in _sockets(port, listening=True)]:
        with socket.socket() as nobody:
            nobody.setblocking(False)
            nobody.bind(("127.0.0.1", 0))
            refuse_handshakes(nobody)
            nobody.listen(1)
            os.dup2(nobody.fileno(), descriptor, inheritable=False)
