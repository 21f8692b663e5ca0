# SPDX-License-Identifier: Apache-2.0
"""Streams of server-sent events that reconnect and resume after a failure."""

import time
from collections.abc import AsyncGenerator, Generator
from typing import Final

import msgspec

from zq.client.calls import AsyncTransport, Call, Params, Response, Transport, translate_read_errors
from zq.client.values import Event, Gap
from zq.errors import Invalid, TooManyRequests, Unavailable

# Read timeout of a stream in seconds: three heartbeat intervals of the server.
SILENCE: Final = 45.0
# First back-off in seconds before a reconnection, doubled after each connection that delivers no event.
FIRST_PAUSE: Final = 0.2
# Maximum back-off in seconds.
MAX_PAUSE: Final = 10.0
Broken = Unavailable | Invalid | TooManyRequests
_event: Final = msgspec.json.Decoder(Event)
_gap: Final = msgspec.json.Decoder(Gap)


class EventReader:
    """An incremental parser of server-sent events that keeps track of the position at which to resume.

    Attributes:
        last: Id of the last event; "" = unknown.
        pause: Seconds to sleep before the next connection.
    """

    def __init__(self, path: str, params: Params, after: int | str | None) -> None:
        self.last = "" if after is None else str(after)
        self._path = path
        self._params = params
        self._rest = b""
        self._got_bytes = self._opened = False
        self._position_known = False
        self.pause = FIRST_PAUSE

    def call(self) -> Call[None]:
        """Return the call that opens the stream at the position after the last event."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self.last} if self.last else {})
        self._rest, self._got_bytes = b"", False
        return Call(method="GET", path=self._path, params=self._params, headers=headers, read=_stream, wait=SILENCE)

    def feed(self, chunk: bytes) -> list[Event | Gap]:
        """Add received bytes. Return the events that are now complete."""
        self._got_bytes = self._opened = True
        *blocks, self._rest = (self._rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        with translate_read_errors("GET", self._path):
            events = [event for block in blocks if (event := self._read(block)) is not None]
        self.pause = FIRST_PAUSE if events else self.pause
        return events

    def prepare_reconnect(self, error: Broken | None) -> list[Gap]:
        """Prepare to reconnect after the stream has ended. Return the gaps to report, or raise ``error``.

        The first case that applies determines the reaction:

        - The server rejects a resume position that it has sent itself (``Invalid``). The server has lost the log, so
          report a gap, and read the new log from its start.
        - The server limits the rate (``TooManyRequests``), and data was received earlier. Sleep as long as the server
          requests.
        - Another error occurs before this connection has received data. Raise ``error``.
        - In all other cases, sleep for a back-off. If no resume position is known, report a gap.
        """
        if isinstance(error, Invalid) and self._position_known:
            self.last, self._position_known = "0", False
            return [Gap(None, None)]
        if isinstance(error, TooManyRequests) and self._opened:
            self.pause = max(self.pause, float(error.retry_after))
            return []
        if error is not None and not self._got_bytes:
            raise error
        self.pause = min(self.pause * 2, MAX_PAUSE)
        return [] if self.last else [Gap(None, None)]

    def _read(self, block: bytes) -> Event | Gap | None:
        kind, data = b"message", []
        for line in block.split(b"\n"):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"id":
                self.last, self._position_known = value.decode(), True
            elif name == b"event":
                kind = value
            elif name == b"data":
                data.append(value)
        if not data:
            return None
        return (_gap if kind == b"gap" else _event).decode(b"\n".join(data))


def _stream(response: Response) -> None:
    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
        raise ValueError(response.status)


def stream(transport: Transport, reader: EventReader) -> Generator[Event | Gap, None, None]:
    """Yield the events of a stream forever. Reconnect after failures."""
    while True:
        broken: Broken | None = None
        try:
            with transport.open(reader.call()) as chunks:
                for chunk in chunks:
                    yield from reader.feed(chunk)
        except (Unavailable, Invalid, TooManyRequests) as error:
            broken = error
        yield from reader.prepare_reconnect(broken)
        time.sleep(reader.pause)


async def stream_async(transport: AsyncTransport, reader: EventReader) -> AsyncGenerator[Event | Gap, None]:
    """Yield the events of a stream forever. Reconnect after failures."""
    import asyncio  # A blocking client does not need asyncio.

    while True:
        broken: Broken | None = None
        try:
            async with transport.open(reader.call()) as chunks:
                async for chunk in chunks:
                    for event in reader.feed(chunk):
                        yield event
        except (Unavailable, Invalid, TooManyRequests) as error:
            broken = error
        for gap in reader.prepare_reconnect(broken):
            yield gap
        await asyncio.sleep(reader.pause)
