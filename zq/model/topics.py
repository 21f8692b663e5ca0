# SPDX-License-Identifier: Apache-2.0
"""The values of topics (extensions 8): batches of published messages, what of a log is kept, patterns of names.

No I/O, no clock, no JSON, as in ``model``. Topics of a project share one log, so sequences are the project's.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct

from zq.model import Seconds

# The kind of the documents that hold topics' metadata.
TOPIC: Final = "topic"


class TopicRef(NamedTuple):
    """A topic's full name."""

    project: str
    name: str


class Entry(Struct, frozen=True, array_like=True):
    """A message on its way in, every default already decided.

    ``body``: raw JSON, or encrypted; ``hops``: by how many deliveries of zq it has come; ``seal``: random bytes to
    which an encrypted body is bound, b"" if it is bound to its topic alone.
    """

    body: bytes
    ttl: int
    checksum: str = ""
    hops: int = 0
    seal: bytes = b""


class Published(Struct, frozen=True):
    """A published message; its id is its sequence."""

    topic: str
    sequence: int
    created: Seconds
    entry: Entry


class Batch(Struct, frozen=True):
    """Messages of one topic that follow each other in the log, from ``sequence`` on; ``topic`` is its name."""

    topic: str
    sequence: int
    created: Seconds
    entries: list[Entry]

    @property
    def last(self) -> int:
        """Sequence of the last one."""
        return self.sequence + len(self.entries) - 1

    @property
    def size(self) -> int:
        """Bytes of the bodies."""
        return sum(len(entry.body) for entry in self.entries)

    def messages(self, after: int, now: Seconds) -> Iterator[Published]:
        """Those of sequence above ``after`` that have not expired."""
        for sequence, entry in enumerate(self.entries, self.sequence):
            if sequence > after and self.created + entry.ttl > now:
                yield Published(self.topic, sequence, self.created, entry)


class Retention(NamedTuple):
    """How much of a log is kept: a batch may fall off when it and all that was published since, whatever became of it,
    are more than so many bytes of bodies, or messages; it has fallen off when they are an eighth more. The newest batch
    stays."""

    size: int
    messages: int


class LogSlice(Struct, frozen=True):
    """What a look into a log found.

    ``position``: up to there it has looked; the next look begins there. ``more``: it has not come to the end. ``last``:
    the last sequence of the log. ``dropped``: that of the last message that has fallen off, of whatever topic.
    ``given``: no sequence beyond it and ``last`` was ever given to anybody; it is above ``last`` where the log may have
    lost its end, and told only to whoever reads from beyond that.
    """

    batches: list[Batch]
    position: int
    more: bool
    last: int
    dropped: int
    given: int = 0


Listener = Callable[[Batch | None, int], None]
"""(batch, before): it was published, next after the message of sequence ``before``. Batches come in the order of
sequence but may be lost, or come again; (None, last): something was published, up to that sequence at least. (None, 0):
something else has happened, or may have been lost, so that what the listener remembers of the log is to be forgotten.
Called from any thread; returns at once."""

PATTERN: Final = re.compile(r"[A-Za-z0-9_.*-]{1,64}", re.ASCII)
_TOKEN: Final = re.compile(r"\*+|[^*]")
# How many names of topics one pattern remembers.
MOST_REMEMBERED: Final = 10_000


class Pattern:
    """Which topics are meant: a name, or a glob with ``*`` within a part between dots and ``**`` across them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.topic = "" if "*" in text else text
        """The only name that matches; "" = several may."""
        tokens = _TOKEN.findall(text)
        self._end = 1 << len(tokens)
        self._stars = _bits(token[0] == "*" for token in tokens)
        self._across = _bits(token.startswith("**") for token in tokens)
        self._places = {letter: _bits(token == letter for token in tokens) for letter in set(text) - {"*"}}
        # Whether a topic is meant; remembered, for the names of a log come again and again.
        self.matches: Callable[[str], bool] = (
            self.topic.__eq__ if self.topic else lru_cache(maxsize=MOST_REMEMBERED)(self.fits)
        )
        self.begin = 1 | (self._stars & 1) << 1
        """Where a name begins: a set of places in the pattern, each a bit of one number."""

    def fits(self, topic: str) -> bool:
        """Whether a topic is meant, found out anew."""
        places = self.begin
        for letter in topic:
            places = self.step(places, letter)
        return self.ends(places)

    def step(self, places: int, letter: str) -> int:
        """Follow all ways through the pattern at once, so that no name makes it slow; 0: no name begins so."""
        stay = places & (self._across if letter == "." else self._stars)
        places = stay | (places & self._places.get(letter, 0)) << 1
        return places | (places & self._stars) << 1

    def ends(self, places: int) -> bool:
        """Whether a name may end there."""
        return bool(places & self._end)


def _bits(flags: Iterable[bool]) -> int:
    return sum(flag << at for at, flag in enumerate(flags))


EVERYTHING: Final = "**"
