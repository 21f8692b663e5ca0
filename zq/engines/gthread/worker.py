# SPDX-License-Identifier: Apache-2.0
"""The worker: an event loop that owns every connection but those whose request a thread is answering."""

import contextlib
import errno
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import ClassVar, Final

from gunicorn.http import wsgi
from gunicorn.workers.base import Worker

from zq.engines import listening
from zq.engines.gthread import answers
from zq.engines.gthread.connections import LATE, LATENESS, Connection, ConnectionLimits, Connections, State
from zq.engines.gthread.parsing import RawRequest, Refused
from zq.engines.gthread.pauses import Pauses
from zq.engines.gthread.pool import Pool
from zq.engines.tls import ServerTls, TlsSocket
from zq.errors import StartRefused
from zq.events import Refusal, refused
from zq.http import heads
from zq.model.identity import CERTIFICATE
from zq.settings import Settings

# Seconds between looks at deadlines.
TICK: Final = 0.5
# Seconds for which the loop runs scheduled calls before it polls its sockets again.
SLICE: Final = 0.02
# Seconds that a refused client has to read why; and for which a stopping worker still reads idle connections.
LINGER: Final = 2.0
# Seconds without a look at new connections when this process has no descriptors for them.
FULL_PAUSE: Final = 0.01
# Connections that are taken in one go.
ACCEPTED: Final = 64
# Seconds that a request gets when the worker is to end at once.
AT_WORK: Final = 1.0
# Threads for ``/readyz``, so that it answers whatever the others do.
PROBES: Final = 2
# What a connection that the client is to send something on is armed with, for one event.
IN: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
# What one is armed with that may send no more, and is not read from: it is closed when the client has closed it.
OVER: Final = select.EPOLLRDHUP | select.EPOLLONESHOT
# What a connection that an answer is to be sent on is armed with, for one event.
OUT: Final = select.EPOLLOUT | select.EPOLLONESHOT
# The sentence of a 503 to a request that waited too long for a thread.
BUSY: Final = "The server has more requests than it can answer in time. Try again later."


class LoopWorker(Worker):  # type: ignore[misc]
    """gunicorn makes and ends it; a subclass sets ``chosen``, and ``tls`` if it is spoken."""

    chosen: ClassVar[Settings]
    tls: ClassVar[ServerTls | None] = None

    def init_process(self) -> None:
        chosen = self.chosen
        self._limits = ConnectionLimits(
            head=chosen.head_timeout,
            body_time=chosen.body_timeout,
            send=chosen.send_timeout,
            idle=chosen.keepalive,
            body=chosen.max_body,
        )
        self._connections = Connections(chosen)
        self._pauses = Pauses(chosen)
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls: deque[tuple[Connection, Callable[[Connection], object]]] = deque()
        self._pool = Pool("zq", chosen.threads, self._serve)
        self._probes = Pool("zq-probe", PROBES, self._serve)
        if self.tls is not None:  # of a worker that comes later than a HUP
            with contextlib.suppress(StartRefused):
                self.tls.reload()
        super().init_process()

    def load_wsgi(self) -> None:
        super().load_wsgi()
        self._judge: heads.Judge | None = getattr(self.wsgi, "judge", None)

    def _everyone(self) -> list[Connection]:
        return list(self._connections.taken.values())

    def _call(self, connection: Connection, call: Callable[[Connection], object]) -> None:
        """Have the loop do this with a connection, soon; for threads."""
        self._calls.append((connection, call))
        os.eventfd_write(self._wake, 1)

    # From gunicorn's signal handlers.

    def handle_exit(self, sig: int, frame: object) -> None:
        self.alive = False
        os.eventfd_write(self._wake, 1)

    def handle_quit(self, sig: int, frame: object) -> None:
        self.alive = False
        self._pool.close(AT_WORK)  # what runs in the store must not meet the end of the interpreter
        super().handle_quit(sig, frame)

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
        for fd, _ in self._epoll.poll(self._pauses.wait(seconds)):
            connection = self._connections.taken.get(fd)
            if connection is not None:
                self._safely(connection, self._heard)
            elif fd in self._listeners:
                self._accept(self._listeners[fd])
            elif fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
        self._make_calls()
        for connection in self._pauses.over(everyone=not self.alive):
            if self._connections.has(connection):
                self._safely(connection, self._advance)
        self._tick()

    def _make_calls(self) -> None:
        """Those that wait, in turn, for a bounded time: what comes in meanwhile does not wait for all of them."""
        end = time.monotonic() + SLICE
        for _ in range(len(self._calls)):  # some come back for another turn
            connection, call = self._calls.popleft()
            if self._connections.has(connection):  # it may have been closed meanwhile, for what it held
                self._safely(connection, call)
            if time.monotonic() > end:
                break
        if self._calls:
            os.eventfd_write(self._wake, 1)

    def _safely(self, connection: Connection, call: Callable[[Connection], object]) -> None:
        """What goes wrong with one connection ends that one."""
        try:
            call(connection)
        except Exception as error:  # the edge of the loop
            if not isinstance(error, OSError):  # the client has gone
                self.log.exception("A connection failed for an unforeseen reason.")
            self._connections.close(connection)

    _ticked = 0.0

    def _tick(self) -> None:
        now = time.monotonic()
        if now < self._ticked + TICK:
            return
        self._ticked = now
        self.notify()
        self.alive = self.alive and self.ppid == os.getppid()
        for connection in [each for each in self._everyone() if each.late(now)]:
            self._safely(connection, self._too_late)
        for pool in (self._pool, self._probes):
            for connection in pool.overdue(self.chosen.queue_timeout):
                self._refuse(connection, HTTPStatus.SERVICE_UNAVAILABLE, BUSY, Refusal.QUEUE)
        self._connections.bound_memory()

    def _heard(self, connection: Connection) -> None:
        """Something came, something can be sent, or the client has hung up."""
        if connection.state is State.WORK:
            return
        if connection.state is State.SENDING:
            self._send(connection)
        elif connection.state is State.LINGERING:
            if not connection.unread and connection.drop():
                self._arm(connection, IN)
            else:
                self._connections.close(connection)
        elif connection.receive():
            self._advance(connection)
        else:
            self._connections.close(connection)

    def _advance(self, connection: Connection) -> None:
        try:
            whole = connection.advance()
        except Refused as refused:
            self._refuse(connection, refused.status, refused.sentence, Refusal.MALFORMED)
            return
        if whole:
            self._dispatch(connection)
        elif connection.state is State.BODY and not connection.judged:
            self._judge_head(connection)
        elif connection.undecoded:
            self._call(connection, self._decode)
        else:
            self._arm(connection, IN)

    def _decode(self, connection: Connection) -> None:
        """Go on with a body of many chunks, unless its time has been up meanwhile."""
        if connection.state is State.BODY and self._connections.taken.get(connection.fd) is connection:
            self._advance(connection)

    def _judge_head(self, connection: Connection) -> None:
        """Have the body read only of who may send one; a thread finds that out if the store must be asked."""
        known = self._judge.known(connection.head()) if self._judge else True
        if known is None:
            connection.state = State.WORK
            self._pool.submit(connection)
        else:
            self._go_on(connection, known)

    def _go_on(self, connection: Connection, wanted: bool | None) -> None:
        """Read the body, or have the request refused at once without it; None: the store could not be asked."""
        if wanted:
            connection.want_body()
            self._advance(connection)
        else:
            connection.withhold_body(unknown=wanted is None)
            self._serve(connection)

    def _dispatch(self, connection: Connection) -> None:
        path = connection.request.path if connection.request else ""
        if path == "/healthz":
            self._serve(connection)  # at once, whatever the threads do: it needs no store
        elif path == "/readyz":
            self._probes.submit(connection)
        elif self._pool.waits() > self.chosen.queue_timeout:
            self._refuse(connection, HTTPStatus.SERVICE_UNAVAILABLE, BUSY, Refusal.QUEUE)
        else:
            self._pool.submit(connection)

    def _too_late(self, connection: Connection) -> None:
        state = connection.state
        if state in LATENESS:
            refused(LATENESS[state])
        elif state is State.IDLE and connection.silent:
            refused(Refusal.HEAD)
        if state in LATE:
            self._refuse(connection, HTTPStatus.REQUEST_TIMEOUT, LATE[state])
        else:
            self._connections.close(connection)

    def _send(self, connection: Connection) -> None:
        if not connection.send():
            self._arm(connection, OUT)
        elif connection.last:
            self._linger(connection)
        else:
            self._next(connection)

    def _next(self, connection: Connection) -> None:
        """Wait for another request; after one that was too much, not before a pause is over."""
        connection.next()
        if not (connection.slowed and self.alive and self._pauses.begin(connection)):
            self._advance(connection)

    # New connections.

    def _accept(self, listener: socket.socket) -> None:
        """Take those that wait."""
        for _ in range(ACCEPTED):
            try:
                sock, peer = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the client has gone, or there are no descriptors left
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._connections.make_room():
                    time.sleep(FULL_PAUSE)
                return
            sock.setblocking(False)
            if self.tls is not None:
                try:
                    sock = self.tls.wrap(sock)
                except OSError:  # the client has gone
                    sock.close()
                    continue
            connection = Connection(sock, peer, listener.getsockname(), self.cfg, self._limits)
            if self._connections.take(connection):
                self._safely(connection, lambda it: self._epoll.register(it.fd, IN))

    # In a thread of a pool; for /healthz, in the loop.

    def _serve(self, connection: Connection) -> None:
        """Have the application answer, and give the connection back to the loop."""
        if not connection.judged:
            assert self._judge is not None
            wanted = self._judge.look_up(connection.head())
            self._call(connection, partial(self._go_on, wanted=wanted))
            return
        try:
            request = connection.take_body()
            answer = self._answered(connection, request)
        except OSError:  # the client has gone, or takes nothing of a stream
            self._call(connection, self._connections.close)
        except Exception:  # the edge of this thread; the application answers its own failures
            self.log.exception("A request was not answered, for an unforeseen reason.")
            self._call(connection, self._connections.close)
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
            response_args=(self._limits.send,),
        )
        environ["wsgi.multithread"] = True
        if isinstance(connection.sock, TlsSocket):
            environ[CERTIFICATE] = connection.sock.caller()
        if request.refusal:
            environ[heads.REFUSED] = request.refusal
        if connection.withheld:
            environ[heads.WITHHELD] = heads.UNKNOWN if connection.unknown else True
        if request.incomplete or not self.alive or not self._limits.idle:
            answer.force_close()
        pieces = self.wsgi(environ, answer.start_response)
        try:
            for piece in pieces:
                answer.write(piece)
            answer.close()
        finally:
            if hasattr(pieces, "close"):
                pieces.close()
        connection.slowed = self._pauses.on and heads.SLOWED in environ
        return answer

    def _give_back(self, connection: Connection, answer: answers.Answer) -> None:
        last = answer.should_close()
        if answer.unsent is not None:
            connection.send_later(answer.unsent, last)
            self._arm(connection, OUT)
        elif last:
            self._call(connection, self._linger)
        elif connection.slowed:
            self._call(connection, self._next)
        else:
            connection.next()
            if connection.pipelined:
                self._call(connection, self._advance)
            else:
                self._arm(connection, IN)

    def _arm(self, connection: Connection, events: int) -> None:
        """Have the loop hear of the connection."""
        with contextlib.suppress(OSError, ValueError):  # the worker ends, and has closed it
            self._epoll.modify(connection.fd, events)

    # Ends of connections.

    def _refuse(self, connection: Connection, status: HTTPStatus, sentence: str, reason: Refusal | None = None) -> None:
        if reason:
            refused(reason)
        answer = answers.refusal(status, sentence, retry=status == HTTPStatus.SERVICE_UNAVAILABLE)
        with contextlib.suppress(OSError):
            answers.send(connection.sock, answer)
        self._linger(connection)

    def _linger(self, connection: Connection) -> None:
        try:
            connection.linger(LINGER)
        except OSError:
            self._connections.close(connection)
        else:
            self._arm(connection, OVER if connection.unread else IN)

    # The end.

    def _stop(self) -> None:
        """Take nothing new, and answer what has begun within the graceful timeout."""
        self.alive = False
        self._turn_until(time.monotonic() + self.chosen.drain_delay, lambda: False)
        for listener in self._listeners.values():
            listening.refuse_handshakes(listener)
        self._turn_until(time.monotonic() + listening.HANDSHAKE, lambda: False)
        for fd, listener in self._listeners.items():
            self._accept(listener)
            self._epoll.unregister(fd)
            listener.close()
        began = time.monotonic()
        self._turn_until(began + min(LINGER, self.chosen.graceful_timeout), lambda: not self._connections.taken)
        for connection in [each for each in self._everyone() if each.state is State.IDLE]:
            self._connections.close(connection)
        end = began + self.chosen.graceful_timeout
        self._turn_until(end, lambda: all(each.state is State.LINGERING for each in self._everyone()))
        for pool in (self._pool, self._probes):
            pool.close(max(0.0, end - time.monotonic()))

    def _turn_until(self, deadline: float, over: Callable[[], bool]) -> None:
        while (rest := deadline - time.monotonic()) > 0 and not over():
            self._turn(min(TICK, rest))
