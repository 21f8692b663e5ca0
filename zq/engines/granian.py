# SPDX-License-Identifier: Apache-2.0
"""Granian: its master, how it is started, and a way past its event loop for requests that need none.

Granian hands each request to the loop by ``call_soon_threadsafe``. ``Shortcut`` intercepts that on the calling thread:
a request whose body is short and comes at once, which is nearly every one, goes straight to the pool, and its answer
from there to Granian. Whatever is not as it is expected here goes the way that Granian means it to go.
"""

import asyncio
import ctypes
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from granian import Granian
from granian.constants import Interfaces, RuntimeModes, SSLProtocols
from granian.http import HTTP1Settings

from zq import lifecycle, prompt
from zq.engines import listening
from zq.engines.exchange import INLINE, Adapter, Exchange, HangUp, serve
from zq.engines.intake import BODY_RATE, UNANNOUNCED, announced, environment
from zq.engines.pool import Owed
from zq.engines.process import Answer, Gone, Limits, Process
from zq.engines.sending import PIECE
from zq.engines.sockets import ConnectionWatcher, Ending, Timeouts, prepend
from zq.settings import Settings

# PR_SET_PDEATHSIG
PARENT_DEATH_SIGNAL: Final = 1


def _master(reload: Callable[[], bool], lost: Callable[[int], None]) -> Any:
    class Master(Granian):  # type: ignore[misc, valid-type]
        """Reloads options, not workers; replaces workers that were killed. ``lost`` is told of those."""

        @property
        def respawn_failed_workers(self) -> bool:
            """Whether all that have ended were killed. Others had a reason, which the next one would have too."""
            return all(self._code(index) < 0 for index in self.interrupt_children)

        @respawn_failed_workers.setter
        def respawn_failed_workers(self, _: bool) -> None:
            """Granian sets what its caller chose."""

        def _code(self, index: int) -> int:
            return self.wrks[index].inner.exitcode or 0

        def _respawn_workers(self, workers: list[int], *arguments: Any, **options: Any) -> None:
            for index in workers:
                lost(self.wrks[index].inner.pid)
            lifecycle.defer_reload()  # the new workers release it when they can obey
            super()._respawn_workers(workers, *arguments, **options)
            lifecycle.allow_reload()

        def shutdown(self, exit_code: int = 0) -> None:
            """End, by the exit code of a worker that has given up, if one has."""
            given_up = [index for index in self.interrupt_children if self._code(index) == lifecycle.GIVEN_UP]
            super().shutdown(lifecycle.GIVEN_UP if given_up else exit_code)

        def startup(self, *arguments: Any) -> None:
            super().startup(*arguments)
            # Not by Granian's own handlers: they may wait for a lock that the thread they interrupt holds, and Python
            # runs them when the main thread wakes, which a signal that comes close behind another does not see to.
            end: Callable[[], object] = self.signal_handler_interrupt
            ends = dict.fromkeys((signal.SIGINT, signal.SIGTERM), end)
            lifecycle.listen({lifecycle.RELOAD: self._hand_on, **ends})
            for number in ends:
                signal.signal(number, lifecycle.ignored)

        def _hand_on(self) -> None:
            if reload():
                for worker in list(self.wrks):
                    with suppress(ProcessLookupError):
                        os.kill(worker.inner.pid, lifecycle.RELOAD)

    return Master


def run(chosen: Settings, reload: Callable[[], bool], lost: Callable[[int], None]) -> int:
    _master(reload, lost)(
        target="zq.server:asgi",
        address=listening.numeric(chosen.bind),
        port=chosen.port,
        interface=Interfaces.ASGINL,
        runtime_mode=RuntimeModes.st,
        websockets=False,
        workers=chosen.workers,
        backpressure=chosen.max_waiters + chosen.max_streams + chosen.max_connections,
        http1_settings=HTTP1Settings(
            header_read_timeout=int(chosen.head_timeout * 1000),
            max_buffer_size=PIECE,  # what it holds of an answer, for a reader that does not take it
        ),
        **_tls(chosen),
        workers_kill_timeout=chosen.drain_delay + chosen.graceful_timeout,
    ).serve()
    return 0


def _tls(chosen: Settings) -> dict[str, Any]:
    """What Granian is told of certificates."""
    if not chosen.tls_cert:
        return {}
    return {
        "ssl_cert": Path(chosen.tls_cert),
        "ssl_key": Path(chosen.tls_key),
        "ssl_protocol_min": SSLProtocols.tls13 if chosen.tls_min == "1.3" else SSLProtocols.tls12,
        "ssl_ca": Path(chosen.tls_client_ca) if chosen.tls_client_ca else None,
        "ssl_client_verify": bool(chosen.tls_client_ca),
    }


def adapted(app: Callable[..., Iterable[bytes]], chosen: Settings, ready: Callable[[], object]) -> Adapter:
    """The application as Granian is to run it. ``ready`` is called in the main thread when it begins to."""
    _end_with_master()
    _allow_connections()
    limits = Limits(chosen.body_timeout, chosen.send_timeout, chosen.queue_timeout, chosen.max_body)
    process = Process(app, chosen.threads, limits)
    crowd = None if chosen.behind_proxy else chosen.max_connections_per_address
    patience = Timeouts(chosen.head_timeout, chosen.keepalive, chosen.send_timeout, crowd, bool(chosen.tls_cert))
    watcher = ConnectionWatcher(chosen.port, patience, process.busy, process.heard)
    process.hang_up, process.untaken = watcher.hang_up, watcher.untaken
    loop = asyncio.get_event_loop()
    prepend(Ending(chosen.port, chosen.drain_delay, chosen.graceful_timeout), loop)
    process.start(loop)
    Shortcut(process, loop)
    loop.call_soon(ready)
    loop.call_soon(watcher.start)  # Granian listens by then
    return Adapter(process)


def _end_with_master() -> None:
    """Have the kernel end this worker, as SIGTERM does, when its master is gone: it would keep the store and the port.

    Granian's workers do not look for their master themselves, as gunicorn's do.
    """
    master = multiprocessing.parent_process()
    with suppress(OSError, AttributeError):  # a system that is not Linux
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
    if master is not None and os.getppid() != master.pid:  # it has gone before
        os.kill(os.getpid(), signal.SIGTERM)


def _allow_connections() -> None:
    """As many open files as the system lets this process have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Shortcut:
    """For the requests of a process in its loop."""

    def __init__(self, process: Process, loop: asyncio.AbstractEventLoop) -> None:
        self.process = process
        self._loop = loop
        self._plain: Callable[..., Any] = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = self._call  # type: ignore[method-assign, assignment]

    def _call(self, callback: Any, *arguments: Any, context: Any = None) -> Any:
        if len(arguments) == 2 and hasattr(arguments[1], "taskref"):
            if self._take(arguments[1]):
                arguments[0].close()  # what would have been run in the loop
                return None
        elif isinstance(callback, (_Body, HangUp)):
            return callback(*arguments)
        return self._plain(callback, *arguments, context=context)

    def _take(self, watcher: Any) -> bool:
        """Serve a request; False if it is to go the long way. On Granian's thread."""
        process, scope, proto = self.process, watcher.scope, watcher.proto
        if scope["type"] != "http" or scope["path"] in INLINE or process.overloaded():
            return False
        environ = environment(scope)
        size = announced(environ) if "CONTENT_LENGTH" in environ else 0
        if UNANNOUNCED in environ or size is None or size > PIECE:
            return False
        wanted = True if process.judge is None or not size else process.judge.known(environ)
        if wanted is None:
            return False  # the store must be asked first
        exchange = Exchange(process, scope["client"], environ, proto.receive, proto.send)
        if not wanted:
            exchange.withhold()
            self.submit(exchange, watcher, b"")
        elif size:
            _Body(self, exchange, watcher, size, proto.receive).ask()
        else:
            self.submit(exchange, watcher, b"")
        return True

    def submit(self, exchange: Exchange, watcher: Any, body: bytes) -> None:
        """Have it answered, at once or on a thread. On Granian's thread."""
        if exchange.at_once(body):
            self._serve(exchange, watcher, body)
        else:
            self._put(exchange, watcher, body)

    def _put(self, exchange: Exchange, watcher: Any, body: bytes | None) -> None:
        if not self.process.pool.idle():
            exchange.look_out()
        self.process.pool.put(
            partial(self._work, exchange, watcher, partial(exchange.begin, body)),
            partial(self.hand_over, watcher, partial(exchange.refuse_by, exchange.turn_away)),
        )

    def _serve(self, exchange: Exchange, watcher: Any, body: bytes) -> None:
        """Answer it here, but for what would hold this thread (``zq.prompt``)."""
        prompt.begin()
        answer, error = None, None
        try:
            answer = exchange.ask(body)
        except BaseException as caught:  # noqa: BLE001 - it is raised where it is reported
            error = caught
        debt = prompt.end()
        if error is None and exchange.given_up():
            self._put(exchange, watcher, None)
            return
        go_on = partial(self._work, exchange, watcher, partial(_outcome, exchange, answer, error))
        if debt is None:
            go_on()
        else:
            refuse = partial(self.hand_over, watcher, partial(exchange.refuse_by, exchange.refuse_lost))
            self.process.debts.put(Owed(debt, go_on, refuse))

    def hand_over(self, watcher: Any, serve: Callable[[], Any]) -> None:
        """Have the loop serve the rest of it. From any thread."""
        self._plain(self._begin, watcher, serve, context=None)

    def _work(self, exchange: Exchange, watcher: Any, work: Callable[[], Answer | None]) -> None:
        try:
            answer = work()
        except Gone:
            answer = None
        except BaseException as error:  # noqa: BLE001 - Granian reports it, as any
            exchange.close()
            watcher.err(error)
            return
        if answer is None:
            exchange.close()
            watcher.done()
        else:
            self.hand_over(watcher, partial(serve, exchange, answer))

    def _begin(self, watcher: Any, serve: Callable[[], Any]) -> None:
        watcher.taskref(self._loop.create_task(_served(watcher, serve)))


def _outcome(exchange: Exchange, answer: Answer | None, error: BaseException | None) -> Answer | None:
    if error is not None:
        raise error
    return None if answer is None else exchange.send(answer)


class _Body:
    """The body of a request, as it comes; called when a piece has."""

    def __init__(
        self, owner: Shortcut, exchange: Exchange, watcher: Any, size: int, receive: Callable[[], Any]
    ) -> None:
        self._owner = owner
        self._exchange = exchange
        self._watcher = watcher
        self._left = size
        self._receive = receive
        self._body = b""
        self._deadline = time.monotonic() + owner.process.limits.body

    def ask(self) -> None:
        """Ask for the next piece. On Granian's thread, which also calls back."""
        future = self._receive()
        self._owner.process.deadlines.put(future, self._deadline + len(self._body) / BODY_RATE)
        future.add_done_callback(self)

    def __call__(self, future: Any) -> None:
        late = self._owner.process.deadlines.late(future)
        event: dict[str, Any] = {"type": "late"} if late or future.cancelled() else future.result()
        if event["type"] != "http.request":
            refuse = self._exchange.refuse_late if late else self._exchange.refuse_broken
            self._owner.hand_over(self._watcher, partial(self._exchange.refuse_by, refuse))
            return
        piece = event.get("body", b"")
        self._body += piece
        self._left -= len(piece)
        if self._left <= 0:
            self._owner.submit(self._exchange, self._watcher, self._body)
        elif event.get("more_body", False):
            self.ask()
        else:
            self._owner.hand_over(self._watcher, partial(self._exchange.refuse_by, self._exchange.refuse_broken))


async def _served(watcher: Any, serve: Callable[[], Any]) -> None:
    try:
        await serve()
    except BaseException as error:  # noqa: BLE001 - Granian reports it, as any
        watcher.err(error)
        return
    watcher.done()
