# SPDX-License-Identifier: Apache-2.0
"""What the use cases tell of their work, to be counted. ``zq.metrics`` listens; nobody has to."""

from collections.abc import Sequence
from typing import Final, Protocol

from zq.model import Claim, Committed, Draft, Messages, Outcome, Seconds
from zq.topics import Entry


class Watch(Protocol):
    """Told after each verb that did something; must return at once and raise nothing."""

    def posted(self, drafts: Sequence[Draft]) -> None:
        """Messages were stored for the first time."""
        ...

    def claimed(self, claim: Claim, now: Seconds) -> None:
        """A claim was made, not found again under its name."""
        ...

    def popped(self, messages: Messages, now: Seconds) -> None:
        """Messages were taken off a queue without a claim."""
        ...

    def finished(self, outcome: Outcome, count: int) -> None:
        """Messages finished, as far as the answer told: popped ones come with ``popped`` instead."""
        ...

    def committed(self, commit: Committed) -> None:
        """A commit was made, or told again."""
        ...

    def waiting(self, change: int) -> None:
        """So many requests more (or fewer) wait for messages."""
        ...

    def woken(self, found: bool) -> None:
        """One of them looked again, and found something or not."""
        ...

    def turned_away(self) -> None:
        """A request would have waited, and there was no place to."""
        ...

    def published(self, entries: Sequence[Entry]) -> None:
        """Messages were published for the first time."""
        ...

    def streams(self, change: int) -> None:
        """So many streams more (or fewer) are open."""
        ...

    def streamed(self, count: int) -> None:
        """A stream is sent so many messages."""
        ...

    def stream_refused(self) -> None:
        """There was no place for a stream."""
        ...

    def stream_dropped(self) -> None:
        """A stream's reader took nothing and was hung up on."""
        ...


class Unwatched:
    """Listens to nothing."""

    def posted(self, drafts: Sequence[Draft]) -> None: ...

    def claimed(self, claim: Claim, now: Seconds) -> None: ...

    def popped(self, messages: Messages, now: Seconds) -> None: ...

    def finished(self, outcome: Outcome, count: int) -> None: ...

    def committed(self, commit: Committed) -> None: ...

    def waiting(self, change: int) -> None: ...

    def woken(self, found: bool) -> None: ...

    def turned_away(self) -> None: ...

    def published(self, entries: Sequence[Entry]) -> None: ...

    def streams(self, change: int) -> None: ...

    def streamed(self, count: int) -> None: ...

    def stream_refused(self) -> None: ...

    def stream_dropped(self) -> None: ...


UNWATCHED: Final = Unwatched()
