# SPDX-License-Identifier: Apache-2.0
"""What happens in a server, for observers: ``zq.serving.metrics`` is one, and none is needed."""

import threading
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from zq.model import Claim, Committed, Draft, Messages, Outcome, QueueRef, Seconds
from zq.model.topics import Entry, TopicRef


class Events:
    """Each method is called after what it is named after, by any thread; it must return at once and raise nothing.

    These do nothing: a listener overrides those that it wants to hear of.
    """

    # The HTTP interface.

    def answered(self, method: str, route: str, status: int, seconds: float, waited: bool) -> None:
        """A request was answered. ``route``: the path's template, "" if there is none; ``waited``: it was to wait."""

    # The store.

    def store_called(self, verb: str, seconds: float) -> None:
        """A verb of the store, as ``messages.post``, took so long, whether it answered or raised."""

    # The use cases.

    def posted(self, queue: QueueRef, drafts: Sequence[Draft]) -> None:
        """Messages were stored for the first time."""

    def claimed(self, queue: QueueRef, claim: Claim, now: Seconds) -> None:
        """A claim was made, not found again under its name."""

    def popped(self, queue: QueueRef, messages: Messages, now: Seconds) -> None:
        """Messages were removed from a queue without a claim."""

    def finished(self, queue: QueueRef, outcome: Outcome, count: int) -> None:
        """Messages of a queue finished, as far as the answer said: popped ones come with ``popped`` instead.

        For a commit that settles claims of several queues, it is a queue without a name."""

    def committed(self, commit: Committed) -> None:
        """A commit was made, or answered again."""

    def published(self, topic: TopicRef, entries: Sequence[Entry]) -> None:
        """Messages were published to a topic for the first time."""

    def waiting(self, change: int) -> None:
        """So many requests more (or fewer) wait for messages."""

    def woken(self, found: bool) -> None:
        """A waiting request looked again, and found something or not."""

    def turned_away(self) -> None:
        """A request was to wait, and there was no slot for it."""

    def streams(self, change: int) -> None:
        """So many streams more (or fewer) are open."""

    def streamed(self, count: int) -> None:
        """A stream was sent so many messages."""

    def stream_refused(self) -> None:
        """There was no slot for a stream."""

    def stream_dropped(self) -> None:
        """A stream's reader took nothing and was hung up on."""

    # Encryption.

    def unreadable(self) -> None:
        """The body of a message could not be opened."""

    # Active expiry.

    def expired(self, count: int, queue: QueueRef) -> None:
        """So many expired messages of a queue were removed."""

    def swept(self, seconds: float, removed: int, exhausted: bool, rested: float) -> None:
        """A round is over. ``exhausted``: it removed as much as a round may; ``rested``: seconds of it without work."""

    def throttled(self, ratio: float, share: float) -> None:
        """How long requests took beside a round, relative to what they take otherwise; its share of the time."""


# The events of a server without observers.
NO_EVENTS: Final = Events()


class Observers(Events):
    """Observers that all learn of each event. An event costs nothing if no observer overrides its method."""

    def __init__(self, *observers: Events) -> None:
        self._observers = list(observers)
        self._bind()

    def add(self, observer: Events) -> None:
        """Tell this observer of all events from now on."""
        self._observers.append(observer)
        self._bind()

    def _bind(self) -> None:
        for name in [name for name in vars(Events) if not name.startswith("_")]:
            plain = getattr(Events, name)
            calls = [getattr(each, name) for each in self._observers if getattr(type(each), name) is not plain]
            if calls:
                setattr(self, name, calls[0] if len(calls) == 1 else _in_turn(calls))


def _in_turn(calls: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        for each in calls:
            each(*args)

    return call


class Refusal(StrEnum):
    """Why an engine turned a request or a connection away, before the application saw it; the label of the metric."""

    HEAD = "head_timeout"
    BODY = "body_timeout"
    ANSWER = "send_timeout"
    IDLE = "idle_timeout"
    QUEUE = "overload"
    CONNECTIONS = "connections"
    MEMORY = "memory"
    MALFORMED = "malformed"


# Counted for the process: an engine serves before there is an application, and so a listener.
_refused: dict[str, int] = dict.fromkeys(Refusal, 0)
_counting = threading.Lock()


def refused(reason: Refusal) -> None:
    """An engine has turned away one more."""
    with _counting:
        _refused[reason] += 1


def refusals() -> Mapping[str, int]:
    """How many engines have turned away so far in this process, by reason."""
    with _counting:
        return {str(reason): count for reason, count in _refused.items()}
