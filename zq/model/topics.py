# SPDX-License-Identifier: Apache-2.0
"""Topics: batches of published messages, retention, log slices, and name patterns (extensions contract, section 8).

The topics of a project share one log, so sequence numbers are unique in the project.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct

from zq.model import Seconds

# Kind of the documents that hold the metadata of topics.
TOPIC: Final = "topic"


class TopicRef(NamedTuple):
    """The full name of a topic."""

    project: str
    name: str


class Entry(Struct, frozen=True, array_like=True):
    """A message to be published, with all defaults applied.

    Attributes:
        body: The body as raw JSON, or encrypted.
        hops: Number of zq subscriptions through which the message has passed already.
        seal: Random bytes that are part of the associated data of an encrypted body; b"" if the body is not encrypted,
            and in messages of earlier zq versions.
    """

    body: bytes
    ttl: int
    checksum: str = ""
    hops: int = 0
    seal: bytes = b""
    attributes: bytes = b""

    @property
    def size(self) -> int:
        """Size of the body and the attributes in bytes."""
        return len(self.body) + len(self.attributes)


class PublishedMessage(Struct, frozen=True):
    """A message in a topic's log. Its id is its sequence number."""

    topic: str
    sequence: int
    created: Seconds
    entry: Entry


class Batch(Struct, frozen=True):
    """Consecutive messages of one topic in the log. ``sequence`` is the sequence number of the first message."""

    topic: str
    sequence: int
    created: Seconds
    entries: list[Entry]

    @property
    def last(self) -> int:
        """Sequence number of the last message."""
        return self.sequence + len(self.entries) - 1

    @property
    def size(self) -> int:
        """Total size of the messages in bytes."""
        return sum(entry.size for entry in self.entries)

    def messages(self, after: int, now: Seconds) -> Iterator[PublishedMessage]:
        """Yield the unexpired messages with a sequence number above ``after``."""
        for sequence, entry in enumerate(self.entries, self.sequence):
            if sequence > after and self.created + entry.ttl > now:
                yield PublishedMessage(self.topic, sequence, self.created, entry)


class Retention(NamedTuple):
    """The retention limits of a log, in bytes and in number of messages.

    When the log exceeds a limit by one eighth, the store deletes the oldest batches until the log is within the limit.
    The newest batch is never deleted.
    """

    size: int
    messages: int


class LogSlice(Struct, frozen=True):
    """The result of a read from a log.

    Attributes:
        position: Sequence number up to which the log was read.
        more: Whether the read ended before the end of the log.
        last: Sequence number of the last message in the log.
        dropped: Sequence number of the last trimmed message of any topic.
        given: Upper bound of the sequence numbers that the log has ever assigned. Set only if the start position of the
            read is above ``last``. If ``given`` is greater than ``last``, the log may have lost its newest messages.
    """

    batches: list[Batch]
    position: int
    more: bool
    last: int
    dropped: int
    given: int = 0


Listener = Callable[[Batch | None, int], None]
"""A function that receives notifications of a log. It is called on any thread and must not block.

- (batch, before): ``batch`` was published directly after the message with sequence number ``before``. Batches arrive in
  order, but may be lost or repeated.
- (``None``, last): messages up to at least sequence number ``last`` were published.
- (``None``, 0): the log changed in another way, or notifications were lost. Cached data is invalid.
"""

PATTERN: Final = re.compile(r"[A-Za-z0-9_.*-]{1,64}", re.ASCII)
_TOKEN: Final = re.compile(r"\*+|[^*]")
# Maximum number of topic names that a pattern caches.
MAX_CACHED: Final = 10_000


class Pattern:
    """A topic name or a glob. ``*`` matches text without a dot, and ``**`` matches any text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.topic = "" if "*" in text else text
        """The only name that matches; "" = several names may match."""
        tokens = _TOKEN.findall(text)
        self._end = 1 << len(tokens)
        self._stars = _bits(token[0] == "*" for token in tokens)
        self._across = _bits(token.startswith("**") for token in tokens)
        self._places = {letter: _bits(token == letter for token in tokens) for letter in set(text) - {"*"}}
        # Returns whether a topic matches. Cached, because the names of a log repeat.
        self.matches: Callable[[str], bool] = (
            self.topic.__eq__ if self.topic else lru_cache(maxsize=MAX_CACHED)(self.fits)
        )
        self.begin = 1 | (self._stars & 1) << 1
        """The state before the first letter: the possible positions in the pattern, one bit each."""

    def fits(self, topic: str) -> bool:
        """Return whether the topic matches. Unlike ``matches``, this method does not cache the result."""
        state = self.begin
        for letter in topic:
            state = self.step(state, letter)
        return self.ends(state)

    def step(self, state: int, letter: str) -> int:
        """Return the state of a match after the next letter of the topic name. In state 0, no match is possible.

        A match starts in the state ``begin``, and calls this method for each letter. A state is a bit mask of the
        positions in the pattern that the match may have reached.
        """
        stay = state & (self._across if letter == "." else self._stars)
        state = stay | (state & self._places.get(letter, 0)) << 1
        return state | (state & self._stars) << 1

    def ends(self, state: int) -> bool:
        """Return whether a topic name matches. ``state`` is the result of ``step`` for its last letter."""
        return bool(state & self._end)


def _bits(flags: Iterable[bool]) -> int:
    return sum(flag << at for at, flag in enumerate(flags))


EVERYTHING: Final = "**"
