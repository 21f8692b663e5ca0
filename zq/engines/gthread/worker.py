# SPDX-License-Identifier: Apache-2.0
"""The worker: an event loop that owns every connection but those whose request a thread is answering."""

import contextlib
import os
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import ClassVar, Final

from gunicorn.http import wsgi
from gunicorn.workers.base import Worker

from zq import strain
from zq.engines.gthread import answers, listeners
from zq.engines.gthread.connections import READING, Bounds, Connection, State
from zq.engines.gthread.parsing import RawRequest, Refused
from zq.engines.gthread.pool import Pool
from zq.http import heads
from zq.settings import Settings
from zq.strain import Reason

TICK: Final = 0.5
"""Seconds between looks at deadlines."""
LINGER: Final = 2.0
"""Seconds that a refused client has to read why; and that a stopping worker hears idle connections."""
SETTLED: Final = 1.0
"""Seconds after which a connection that waits may be closed in favour of a new one."""
ACCEPTED: Final = 64
"""Connections that are taken in one go."""
PROBES: Final = 2
"""Threads for ``/readyz``, so that it answers whatever the others do."""
ONCE: Final = select.EPOLLONESHOT
IN, OUT = select.EPOLLIN | select.EPOLLRDHUP | ONCE, select.EPOLLOUT | ONCE
FULL: Final = "The server has too many connections. Try again later."
BUSY: Final = "The server has more requests than it can answer in time. Try again later."
LATE: Final = {
    State.HEAD: "The head of the request did not come in time.",
    State.BODY: "The body did not come in time.",
}
LATENESS: Final = {
    State.HEAD: Reason.HEAD,
    State.BODY: Reason.BODY,
    State.SENDING: Reason.ANSWER,
    State.IDLE: Reason.IDLE,
}


class LoopWorker(Worker):  # type: ignore[misc]
    """gunicorn makes and ends it; ``chosen`` is set by a subclass."""

    chosen: ClassVar[Settings]

    def init_process(self) -> None:
        chosen = self.chosen
        self._bounds = Bounds(
            head=chosen.head_timeout,
            body_time=chosen.body_timeout,
            send=chosen.send_timeout,
            idle=chosen.keepalive,
            body=chosen.max_body,
        )
        self._connections: dict[int, Connection] = {}
        self._peers: Counter[bytes] = Counter()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls: deque[Callable[[], object]] = deque()
        self._pool = Pool("zq", chosen.threads, self._serve)
        self._probes = Pool("zq-probe", PROBES, self._serve)
        self._most = listeners.room_for(chosen.max_connections)
        super().init_process()

    def _call(self, call: Callable[[], object]) -> None:
        """Have the loop call this, soon; for threads and signal handlers."""
        self._calls.append(call)
        os.eventfd_write(self._wake, 1)

    # From gunicorn's signal handlers.

    def handle_exit(self, sig: int, frame: object) -> None:
        self.alive = False
        self._call(lambda: None)

    # The loop.

    def run(self) -> None:
        self._epoll.register(self._wake, select.EPOLLIN)
        self._listeners = {listener.fileno(): listener.sock for listener in self.sockets}
        for fd, listener in self._listeners.items():
            listener.setblocking(False)
            self._epoll.register(fd, select.EPOLLIN)
        while self.alive:
            self._turn(TICK)
        self._stop()

    def _turn(self, seconds: float) -> None:
        """One round: whatever happens within so many seconds."""
        for fd, _ in self._epoll.poll(seconds):
            connection = self._connections.get(fd)
            if connection is not None:
                self._heard(connection)
            elif fd in self._listeners:
                self._accept(self._listeners[fd])
            elif fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
        while self._calls:
            self._calls.popleft()()
        self._tick()

    _ticked = 0.0

    def _tick(self) -> None:
        now = time.monotonic()
        if now < self._ticked + TICK:
            return
        self._ticked = now
        self.notify()
        self.alive = self.alive and self.ppid == os.getppid()
        for connection in [each for each in list(self._connections.values()) if each.late(now)]:
            self._too_late(connection)
        for pool in (self._pool, self._probes):
            for connection in pool.overdue(self.chosen.queue_timeout):
                self._refuse(connection, HTTPStatus.SERVICE_UNAVAILABLE, BUSY, Reason.QUEUE)

    def _heard(self, connection: Connection) -> None:
        """Something came, something can be sent, or the client has hung up."""
        if connection.state is State.SENDING:
            self._send(connection)
        elif connection.state is State.LINGERING:
            if connection.drop():
                self._epoll.modify(connection.fd, IN)
            else:
                self._close(connection)
        elif connection.receive():
            self._advance(connection)
        else:
            self._close(connection)

    def _advance(self, connection: Connection) -> None:
        try:
            whole = connection.advance()
        except Refused as refused:
            self._refuse(connection, refused.status, refused.sentence, Reason.MALFORMED)
            return
        if whole:
            self._dispatch(connection)
        else:
            self._epoll.modify(connection.fd, IN)

    def _dispatch(self, connection: Connection) -> None:
        path = connection.request.path if connection.request else ""
        if path == "/healthz":
            self._serve(connection)  # at once, whatever the threads do: it asks nobody
        elif path == "/readyz":
            self._probes.submit(connection)
        elif self._pool.waits() > self.chosen.queue_timeout:
            self._refuse(connection, HTTPStatus.SERVICE_UNAVAILABLE, BUSY, Reason.QUEUE)
        else:
            self._pool.submit(connection)

    def _too_late(self, connection: Connection) -> None:
        state = connection.state
        if state in LATENESS:
            strain.note(LATENESS[state])
        if state in LATE and connection.pipelined | (state is State.BODY):
            self._refuse(connection, HTTPStatus.REQUEST_TIMEOUT, LATE[state])
        else:
            self._close(connection)

    def _send(self, connection: Connection) -> None:
        try:
            whole = connection.send()
        except OSError:
            self._close(connection)
            return
        if not whole:
            self._epoll.modify(connection.fd, OUT)
        elif connection.last:
            self._linger(connection)
        else:
            connection.next()
            self._advance(connection)

    # New connections.

    def _accept(self, listener: socket.socket) -> int:
        """Take those that wait; how many."""
        for taken in range(ACCEPTED):
            try:
                sock, peer = listener.accept()
            except BlockingIOError:
                return taken
            except OSError as error:  # the client has gone, or there are no descriptors left
                self.log.warning("A connection was not taken: %s", error)
                return taken
            sock.setblocking(False)
            self._welcome(Connection(sock, peer, listener.getsockname(), self.cfg, self._bounds))
        return ACCEPTED

    def _welcome(self, connection: Connection) -> None:
        connection.address = listeners.address(connection.peer)
        of_peer = 0 if self.chosen.behind_proxy else self._peers[connection.address]
        crowded = of_peer >= self.chosen.max_connections_per_address
        full = crowded or len(self._connections) >= self._most
        if full and not self._make_room(connection.address if crowded else None):
            strain.note(Reason.CONNECTIONS)
            connection.receive()  # what is unread when a connection is closed takes the answer with it
            with contextlib.suppress(OSError):
                answers.send(connection.sock, answers.refusal(HTTPStatus.SERVICE_UNAVAILABLE, FULL, retry=True))
            connection.sock.close()
            return
        self._peers[connection.address] += 1
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, IN)

    def _make_room(self, address: bytes | None) -> bool:
        """Close those connections, of an address if one is given, that have waited longest for their clients."""
        before = time.monotonic() - SETTLED
        waiting = [
            each
            for each in list(self._connections.values())
            if each.state in READING and each.moved < before and address in (None, each.address)
        ]
        waiting.sort(key=lambda each: each.moved)
        for connection in waiting[:ACCEPTED]:
            strain.note(Reason.CONNECTIONS)
            self._close(connection)
        return bool(waiting)

    # In a thread of a pool; for /healthz, in the loop.

    def _serve(self, connection: Connection) -> None:
        """Have the application answer, and give the connection back to the loop."""
        try:
            request = connection.take_body()
            answer = self._answered(connection, request)
        except Refused as refused:
            self._call(partial(self._refuse, connection, refused.status, refused.sentence, Reason.MALFORMED))
        except OSError:  # the client has gone, or takes nothing of a stream
            self._call(partial(self._close, connection))
        except Exception:  # the edge of this thread; the application answers its own failures
            self.log.exception("A request was not answered, for a reason that nobody foresaw.")
            self._call(partial(self._close, connection))
        else:
            self._give_back(connection, answer)

    def _answered(self, connection: Connection, request: RawRequest) -> answers.Answer:
        answer: answers.Answer
        answer, environ = wsgi.create(
            request,
            connection.sock,
            connection.peer,
            connection.server,
            self.cfg,
            response_class=answers.Answer,
            response_args=(self._bounds.send,),
        )
        environ["wsgi.multithread"] = True
        if request.refusal:
            environ[heads.REFUSED] = request.refusal
        if request.incomplete or not self.alive or not self._bounds.idle:
            answer.force_close()
        pieces = self.wsgi(environ, answer.start_response)
        try:
            for piece in pieces:
                answer.write(piece)
            answer.close()
        finally:
            if hasattr(pieces, "close"):
                pieces.close()
        return answer

    def _give_back(self, connection: Connection, answer: answers.Answer) -> None:
        last = answer.should_close()
        if answer.unsent is not None:
            connection.send_later(answer.unsent, last)
            self._epoll.modify(connection.fd, OUT)
        elif last:
            self._call(partial(self._linger, connection))
        else:
            connection.next()
            if connection.pipelined:
                self._call(partial(self._advance, connection))
            else:
                self._epoll.modify(connection.fd, IN)

    # Ends of connections.

    def _refuse(self, connection: Connection, status: HTTPStatus, sentence: str, reason: Reason | None = None) -> None:
        if reason:
            strain.note(reason)
        answer = answers.refusal(status, sentence, retry=status == HTTPStatus.SERVICE_UNAVAILABLE)
        with contextlib.suppress(OSError):
            answers.send(connection.sock, answer)
        self._linger(connection)

    def _linger(self, connection: Connection) -> None:
        try:
            connection.linger(LINGER)
            self._epoll.modify(connection.fd, IN)
        except OSError:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        if self._connections.pop(connection.fd, None) is None:
            return
        self._peers[connection.address] -= 1
        if self._peers[connection.address] <= 0:
            del self._peers[connection.address]
        connection.sock.close()  # epoll forgets it

    # The end.

    def _stop(self) -> None:
        """Take nothing new, and answer what has begun within the graceful timeout."""
        self.alive = False
        self._turn_until(time.monotonic() + self.chosen.drain_delay, lambda: False)
        for listener in self._listeners.values():
            listeners.refuse_handshakes(listener)
        self._turn_until(time.monotonic() + listeners.HANDSHAKE, lambda: False)
        for fd, listener in self._listeners.items():
            self._accept(listener)
            self._epoll.unregister(fd)
            listener.close()
        began = time.monotonic()
        self._turn_until(began + min(LINGER, self.chosen.graceful_timeout), lambda: not self._connections)
        for connection in [each for each in list(self._connections.values()) if each.state is State.IDLE]:
            self._close(connection)
        end = began + self.chosen.graceful_timeout
        self._turn_until(end, lambda: all(each.state is State.LINGERING for each in list(self._connections.values())))
        self._pool.close(max(0.0, end - time.monotonic()))

    def _turn_until(self, deadline: float, over: Callable[[], bool]) -> None:
        while (rest := deadline - time.monotonic()) > 0 and not over():
            self._turn(min(TICK, rest))
