# SPDX-License-Identifier: Apache-2.0
"""Server-Sent Events: parsing, and reading on where a lost connection ended."""

import time
from collections.abc import AsyncGenerator, Generator
from typing import Final

import msgspec

from zq.client.answers import understood
from zq.client.calls import Answer, Awaits, Call, Params, Runs
from zq.client.values import Event, Gap
from zq.errors import Invalid, Unavailable

SILENCE: Final = 45.0
"""Seconds without a byte after which a stream counts as broken; the server sends something every 15."""
REST: Final = 0.2
"""Seconds before a stream that broke is opened again; twice as many each time that it brought nothing."""
LONGEST: Final = 10.0
_event: Final = msgspec.json.Decoder(Event)
_gap: Final = msgspec.json.Decoder(Gap)


class Reader:
    """Turns what comes into events, and knows where to go on. ``last`` "" = no position is known yet."""

    def __init__(self, path: str, params: Params, after: int | str | None) -> None:
        self.last = "" if after is None else str(after)
        self._path = path
        self._params = params
        self._rest = b""
        self._heard = False
        self._was_told = False
        self.pause = REST

    def call(self) -> Call[None]:
        """Opens the stream behind the last event."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self.last} if self.last else {})
        self._rest, self._heard = b"", False
        return Call(method="GET", path=self._path, params=self._params, headers=headers, read=_stream, wait=SILENCE)

    def feed(self, chunk: bytes) -> list[Event | Gap]:
        """The events that are complete with these bytes."""
        self._heard = True
        *blocks, self._rest = (self._rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        with understood("GET", self._path):
            events = [event for block in blocks if (event := self._read(block)) is not None]
        self.pause = REST if events else self.pause
        return events

    def broke(self, error: Unavailable | Invalid | None) -> list[Gap]:
        """What to tell before the stream is opened again. Raises the error if it could not be opened at all.

        A position that the server told and takes no more is of a log that is not there any more, so all is read that
        its successor has.
        """
        if isinstance(error, Invalid) and self._was_told:
            self.last, self._was_told = "0", False
            return [Gap(None, None)]
        if error is not None and not self._heard:
            raise error
        self.pause = min(self.pause * 2, LONGEST)
        return [] if self.last else [Gap(None, None)]

    def _read(self, block: bytes) -> Event | Gap | None:
        kind, data = b"message", []
        for line in block.split(b"\n"):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"id":
                self.last, self._was_told = value.decode(), True
            elif name == b"event":
                kind = value
            elif name == b"data":
                data.append(value)
        if not data:
            return None
        return (_gap if kind == b"gap" else _event).decode(b"\n".join(data))


def _stream(answer: Answer) -> None:
    if not answer.headers.get("Content-Type", "").startswith("text/event-stream"):
        raise ValueError(answer.status)


def stream(transport: Runs, reader: Reader) -> Generator[Event | Gap, None, None]:
    """Events without end."""
    while True:
        broken: Unavailable | Invalid | None = None
        try:
            with transport.open(reader.call()) as chunks:
                for chunk in chunks:
                    yield from reader.feed(chunk)
        except (Unavailable, Invalid) as error:
            broken = error
        yield from reader.broke(broken)
        time.sleep(reader.pause)


async def stream_async(transport: Awaits, reader: Reader) -> AsyncGenerator[Event | Gap, None]:
    """Events without end."""
    import asyncio  # here: a blocking client does without it

    while True:
        broken: Unavailable | Invalid | None = None
        try:
            async with transport.open(reader.call()) as chunks:
                async for chunk in chunks:
                    for event in reader.feed(chunk):
                        yield event
        except (Unavailable, Invalid) as error:
            broken = error
        for gap in reader.broke(broken):
            yield gap
        await asyncio.sleep(reader.pause)
