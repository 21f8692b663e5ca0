# SPDX-License-Identifier: Apache-2.0
"""Events in a server, for observers such as ``zq.serving.metrics``."""

import threading
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from zq.model import Claim, Committed, Draft, Messages, Outcome, QueueRef, Seconds
from zq.model.topics import Entry, TopicRef


class Events:
    """An observer of a server's events; this one ignores them, and subclasses override methods.

    Each method is called after the event, by any thread. It must return at once and must not raise.
    """

    # HTTP requests.

    def answered(self, method: str, route: str, status: int, seconds: float, waited: bool) -> None:
        """A request was answered.

        ``route``: the path's template, "" if there is none. ``waited``: whether it was a long poll.
        """

    # The store.

    def store_called(self, verb: str, seconds: float) -> None:
        """A verb of the store, such as ``messages.post``, returned or raised after ``seconds``."""

    # The use cases.

    def posted(self, queue: QueueRef, drafts: Sequence[Draft]) -> None:
        """Messages were stored, not repeated by an idempotency key."""

    def claimed(self, queue: QueueRef, claim: Claim, now: Seconds) -> None:
        """A claim was created, not found by its name."""

    def popped(self, queue: QueueRef, messages: Messages, now: Seconds) -> None:
        """Messages were popped from a queue."""

    def finished(self, queue: QueueRef, outcome: Outcome, count: int) -> None:
        """Messages of a queue finished, except popped ones (see ``popped``), as far as the answer reports them.

        For a commit that settles claims of several queues, the queue has no name.
        """

    def committed(self, commit: Committed) -> None:
        """A commit was made or repeated."""

    def published(self, topic: TopicRef, entries: Sequence[Entry]) -> None:
        """Messages were published to a topic, not repeated by an idempotency key."""

    def waiting(self, change: int) -> None:
        """The number of requests that wait for messages changed by ``change``."""

    def woken(self, found: bool) -> None:
        """A waiting request looked again; ``found``: whether it found something."""

    def turned_away(self) -> None:
        """A request should have waited, but no slot was free."""

    def streams(self, change: int) -> None:
        """The number of open streams changed by ``change``."""

    def streamed(self, count: int) -> None:
        """``count`` messages were sent to a stream."""

    def stream_refused(self) -> None:
        """A stream was refused because no slot was free."""

    def stream_dropped(self) -> None:
        """A stream's reader took nothing and was disconnected."""

    # Encryption.

    def unreadable(self) -> None:
        """A message's body could not be decrypted."""

    # Active expiry.

    def expired(self, count: int, queue: QueueRef) -> None:
        """``count`` expired messages of a queue were deleted."""

    def swept(self, seconds: float, removed: int, exhausted: bool, rested: float) -> None:
        """A round of active expiry ended.

        Args:
            removed: Number of messages deleted.
            exhausted: Whether the round reached its maximum.
            rested: Seconds of the round in which it slept.
        """

    def throttled(self, ratio: float, share: float) -> None:
        """Active expiry was throttled.

        Args:
            ratio: Duration of requests during a round, relative to their usual duration.
            share: Fraction of the time in which the round may work.
        """


# Observer of a server without observers.
NO_EVENTS: Final = Events()


class Observers(Events):
    """Several observers that each receive every event. An event costs nothing if no observer overrides its method."""

    def __init__(self, *observers: Events) -> None:
        self._observers = list(observers)
        self._bind()

    def add(self, observer: Events) -> None:
        """Add an observer."""
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
    """Why an edge refused a request or a connection before the application saw it; a label of the metric."""

    HEAD = "head_timeout"
    BODY = "body_timeout"
    ANSWER = "send_timeout"
    IDLE = "idle_timeout"
    QUEUE = "overload"
    CONNECTIONS = "connections"
    MEMORY = "memory"
    MALFORMED = "malformed"


# Counted per process, because the edge accepts connections before the application, and so an observer, exists.
_refused: dict[str, int] = dict.fromkeys(Refusal, 0)
_counting = threading.Lock()


def refused(reason: Refusal) -> None:
    """Count a request or connection that an edge refused."""
    with _counting:
        _refused[reason] += 1


def refusals() -> Mapping[str, int]:
    """Return the number of refusals of edges in this process, by reason."""
    with _counting:
        return {str(reason): count for reason, count in _refused.items()}
