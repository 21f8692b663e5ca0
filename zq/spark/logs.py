# SPDX-License-Identifier: Apache-2.0
"""What can be read in an order without taking anything: a queue's living messages, its history, or a topic.

Every message has a position, and positions rise and may have gaps: its sequence, or in a queue's history the place of
its record in the order of finishing. A range of positions is read the same way however often it is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from zq.client import Message, Stretch
from zq.errors import Invalid
from zq.spark.options import Connection


class Gap(Invalid):
    """Messages of a topic are gone that were to be read."""


@dataclass(frozen=True)
class Walk:
    """A look along a log: where it ended, and over how many messages."""

    end: int
    rows: int
    last: Message | None
    whole: bool = False
    """Whether there was nothing behind its end."""
    looked: int | None = None
    """Of a topic, if so: up to where nothing is to be found, as far as the project's log reaches."""


@dataclass(frozen=True)
class Log:
    """``state``: live, all, history, or topic."""

    connection: Connection
    name: str
    state: str
    strict: bool = False
    """Whether messages of a topic that have fallen off raise ``Gap``."""
    since: datetime | None = None
    until: datetime | None = None

    def after(self, position: int, page: int) -> Stretch[Message]:
        """At most so many messages behind a position."""
        client = self.connection.client()
        if self.state == "topic":
            return self._whole(position, client.topic(self.name).stretch(position, page=page))
        queue = client.queue(self.name)
        if self.state == "live":
            return queue.stretch(position, page=page)
        living = self.state == "all"
        found = queue.history_stretch(position, page=page, living=living, since=self.since, until=self.until)
        return Stretch([*found.messages], found.end)

    def first(self, position: int) -> int | None:
        """Where the first message behind a position is."""
        return self.after(position, 1).end

    def beyond(self, position: int) -> int | None:
        """As ``first``, also behind the end of a topic's log, where it is an error to begin."""
        try:
            return self.first(position)
        except Gap:
            raise
        except Invalid:
            return None

    def walk(self, low: int, most: int) -> Walk:
        """The next so many messages behind a position, or all that there are."""
        page = self._page()
        end, rows, last = low, 0, None
        while rows < most:
            found = self.after(end, min(page, most - rows))
            if found.end is None:
                return Walk(end, rows, last, whole=True, looked=found.looked)
            end, rows, last = found.end, rows + len(found.messages), found.messages[-1]
        return Walk(end, rows, last)

    def last(self, low: int) -> int:
        """The position of the last message behind ``low``; ``low`` if there is none. It is found by halving."""
        found, step = self.beyond(low), 1
        if found is None:
            return low
        last = found
        while (found := self.beyond(last + step - 1)) is not None:
            last, step = found, step * 2
        none_beyond = last + step - 1
        while last < none_beyond:
            middle = (last + none_beyond + 1) // 2
            found = self.beyond(middle - 1)
            last, none_beyond = (last, middle - 1) if found is None else (found, max(found, none_beyond))
        return last

    def between(self, low: int, high: int) -> Iterator[Sequence[Message]]:
        """The messages behind ``low`` and up to ``high``, in pages."""
        page = self._page()
        while low < high:
            found = self.after(low, min(page, high - low))
            if found.end is None:
                return
            if found.end <= high:
                yield found.messages
            elif self.state != "history":
                yield [message for message in found.messages if message.sequence <= high]
            elif len(found.messages) > 1:
                page = len(found.messages) // 2  # positions of single records are not told, only a page's last one
                continue
            low = found.end

    def _page(self) -> int:
        most: int = self.connection.client().limits()["max_messages_per_page"]
        return most

    def _whole(self, position: int, found: Stretch[Message]) -> Stretch[Message]:
        if self.strict and position and found.gap is not None:
            raise Gap(
                f"Messages of topic {self.name} behind {position} have fallen off the log before they were read. "
                "Option failOnDataLoss=false goes on with what is left."
            )
        return found


def split(low: int, high: int, parts: int) -> list[tuple[int, int]]:
    """A range of positions as at most so many of about the same width."""
    width = -(-(high - low) // parts) or 1
    return [(first, min(first + width, high)) for first in range(low, high, width)]
