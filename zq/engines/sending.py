# SPDX-License-Identifier: Apache-2.0
"""How answers go to Granian: short ones at once, long ones in pieces, of which it takes no more than it can hand on."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from zq import lifecycle
from zq.engines.process import Answer, Gone, Process, Unsent
from zq.engines.sockets import Peer
from zq.events import Refusal

# Bytes of an answer that are handed over at a time.
PIECE: Final = 64 << 10
# Seconds between two looks at an answer that is not taken.
LOOK: Final = 0.5
# Seconds between the first two at one that is handed over.
SHORTEST: Final = 0.02

Send = Callable[[dict[str, Any]], Any]


class Sender:
    """For one answer. ``closes``: the connection ends with it."""

    def __init__(self, process: Process, client: Peer, protocol: str, send: Send) -> None:
        self.closes = False
        self._process = process
        self._client = client
        self._protocol = protocol
        self._send = send

    def begin(self, answer: Answer) -> None:
        """Send the head. From any thread."""
        headers = answer.headers
        if (self.closes or lifecycle.is_stopping()) and self._protocol < "HTTP/2":
            headers = [(name, value) for name, value in headers if name != b"connection"] + [(b"connection", b"close")]
        self._send({"type": "http.response.start", "status": answer.status, "headers": headers})

    def short(self, answer: Answer, body: bytes) -> None:
        """Send an answer whose body is one piece. From any thread; never blocks."""
        self.begin(answer)
        self._send({"type": "http.response.body", "body": body})

    def end(self) -> None:
        """Nothing follows."""
        self._send({"type": "http.response.body", "body": b""})

    async def long(self, answer: Answer, unsent: Unsent, gone: Callable[[], bool]) -> None:
        """Send an answer in pieces. Raises ``Gone``, too if it was dropped in favour of others."""
        self.begin(answer)
        at, more = 0, True
        while more:
            body = unsent.body
            if body is None or gone():
                raise Gone
            piece, at = body[at : at + PIECE], at + PIECE
            more = at < len(body)
            del body
            await self.piece(piece, more, lambda: self._process.limits.send)
            unsent.moved = time.monotonic()
        self._process.unsent.handed(unsent)
        await self._until_taken(unsent, gone)

    async def _until_taken(self, unsent: Unsent, gone: Callable[[], bool]) -> None:
        """Count what Granian holds of it as long as the kernel holds some: for no longer than a reader may take."""
        pause = SHORTEST
        while unsent.size and not gone() and self._process.untaken(self._client):
            if time.monotonic() - unsent.moved > self._process.limits.send:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, LOOK)

    async def piece(
        self, piece: bytes, more: bool, patience: Callable[[], float], drop: Callable[[], object] | None = None
    ) -> None:
        """Return when the piece is handed on. Raises ``Gone`` if the reader takes nothing for too long."""
        handed = self._send({"type": "http.response.body", "body": piece, "more_body": more})
        if not asyncio.isfuture(handed):
            await handed
            return
        taken, since = asyncio.ensure_future(_awaited(handed)), time.monotonic()
        while not (await asyncio.wait({taken}, timeout=LOOK))[0]:
            if time.monotonic() - since > patience():
                taken.cancel()
                if drop is not None:
                    drop()
                self._process.hang_up(self._client, Refusal.ANSWER)
                raise Gone


async def _awaited(handed: Any) -> None:
    await handed
