# SPDX-License-Identifier: Apache-2.0
"""A way past the event loop for requests that need none: from Granian's thread to one of ours, and back.

Granian hands each request to the loop by ``call_soon_threadsafe``. Here that is heard on the thread that calls it: a
request whose body is short and comes at once, which is nearly every one, goes straight to the pool, and its answer from
there to Granian. Whatever is not as it is expected here goes the way that Granian means it to go.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from zq.engines.asgi import serve
from zq.engines.environ import UNANNOUNCED, announced, environment
from zq.engines.exchange import INLINE, Departure, Exchange
from zq.engines.intake import BODY_RATE
from zq.engines.process import Answer, Gone, Process
from zq.engines.sending import PIECE


class Shortcut:
    """For the requests of a process in its loop."""

    def __init__(self, process: Process, loop: asyncio.AbstractEventLoop) -> None:
        self.process = process
        self._loop = loop
        self._plain: Callable[..., Any] = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = self._call  # type: ignore[method-assign, assignment]

    def _call(self, callback: Any, *arguments: Any, context: Any = None) -> Any:
        if isinstance(callback, _Body | Departure):
            return callback(*arguments)
        if len(arguments) == 2 and hasattr(arguments[1], "taskref") and self._take(arguments[1]):
            arguments[0].close()  # what would have been run in the loop
            return None
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
        exchange = Exchange(process, scope["client"], environ, proto.receive, proto.send)
        if size:
            _Body(self, exchange, watcher, size, proto.receive).ask()
        else:
            self.submit(exchange, watcher, b"")
        return True

    def submit(self, exchange: Exchange, watcher: Any, body: bytes) -> None:
        """Have it answered on a thread. On Granian's thread."""
        if not self.process.pool.idle():
            exchange.look_out()
        self.process.pool.put(
            partial(self._work, exchange, watcher, body),
            partial(self.hand_over, watcher, partial(exchange.refuse_by, exchange.turn_away)),
        )

    def hand_over(self, watcher: Any, serve: Callable[[], Any]) -> None:
        """Have the loop serve the rest of it. From any thread."""
        self._plain(self._begin, watcher, serve, context=None)

    def _work(self, exchange: Exchange, watcher: Any, body: bytes) -> None:
        try:
            answer: Answer | None = exchange.begin(body)
        except Gone:
            answer = None
        except BaseException as error:  # noqa: BLE001 - Granian tells of it, as of any
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
        """Ask for the next piece. On Granian's thread, which is the one that tells."""
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
    except BaseException as error:  # noqa: BLE001 - Granian tells of it, as of any
        watcher.err(error)
        return
    watcher.done()
