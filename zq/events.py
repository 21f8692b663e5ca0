# SPDX-License-Identifier: Apache-2.0
"""Events of a server, for observers such as ``zq.serving.metrics``."""

import threading
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from zq.model import Claim, CommitResult, Draft, Messages, Outcome, QueueRef, Seconds
from zq.model.topics import Entry, TopicRef


class Events:
    """Base class of observers of server events. Each method ignores its event unless a subclass overrides it.

    Each method is called after its event, on any thread. It must return at once and must not raise an error.
    """

    # HTTP requests.

    def answered(self, method: str, route: str, status: int, seconds: float, waited: bool) -> None:
        """Observe the response to an HTTP request. ``waited``: whether the request was a long poll."""

    def auth_failed(self, reason: str) -> None:
        """Observe a request that was rejected because of its credential.

        Args:
            reason: ``unauthenticated`` (401), ``forbidden`` (403), or ``throttled``: the client's address has sent too
                many requests without a valid credential.
        """

    def quota_refused(self, limit: str) -> None:
        """Observe a request that was rejected because of a quota or a rate limit.

        Args:
            limit: Name of the option in ``[quota]`` that sets the limit; ``heavy`` or ``other`` if no option sets it.
        """

    # The store.

    def store_called(self, verb: str, seconds: float) -> None:
        """Observe that an operation of the store has returned or failed after ``seconds``."""

    # The use cases.

    def posted(self, queue: QueueRef, drafts: Sequence[Draft]) -> None:
        """Observe messages stored in a queue. A repeated request stores no messages and is not observed."""

    def claimed(self, queue: QueueRef, claim: Claim, now: Seconds) -> None:
        """Observe a new claim. A request that returns an existing claim by its name is not observed."""

    def popped(self, queue: QueueRef, messages: Messages, now: Seconds) -> None:
        """Observe messages popped from a queue."""

    def finished(self, queue: QueueRef, outcome: Outcome, count: int) -> None:
        """Observe ``count`` messages that have left the queue with this outcome, such as deleted or moved.

        Popped messages are excluded; see ``popped``.
        """

    def committed(self, commit: CommitResult) -> None:
        """Observe a commit or a repeated commit."""

    def published(self, topic: TopicRef, entries: Sequence[Entry]) -> None:
        """Observe messages published to a topic. A repeated request publishes no messages and is not observed."""

    def waiting(self, change: int) -> None:
        """Observe a change of the number of requests that wait for messages."""

    def woken(self, found: bool) -> None:
        """Observe that a woken long poll has searched for messages. ``found`` is true if it found a message."""

    def poll_refused(self) -> None:
        """Observe a long poll that found no free slot."""

    def streams(self, change: int) -> None:
        """Observe a change of the number of open streams."""

    def streamed(self, count: int) -> None:
        """Observe ``count`` messages sent to a stream."""

    def stream_refused(self) -> None:
        """Observe a stream that found no free slot."""

    def stream_dropped(self) -> None:
        """Observe the disconnection of a stalled stream reader."""

    # Tracing.

    def spans_dropped(self, count: int) -> None:
        """Observe trace spans that were not sent, because the export buffer was full or the receiver failed."""

    # Encryption.

    def unreadable(self) -> None:
        """Observe a message that could not be decrypted."""

    # Active expiry.

    def expired(self, count: int, queue: QueueRef) -> None:
        """Observe ``count`` expired messages that were deleted from a queue."""

    def swept(self, seconds: float, removed: int, exhausted: bool, paused: float) -> None:
        """Observe the end of a sweep, which removes expired messages.

        Args:
            seconds: Duration of the sweep, including pauses.
            removed: Number of removed messages.
            exhausted: Whether the sweep reached the limit of removed messages.
            paused: Seconds for which the sweep paused in favour of requests.
        """

    def throttled(self, ratio: float, share: float) -> None:
        """Observe a change of the throttling of sweeps, which remove expired messages.

        Args:
            ratio: Duration of store operations during sweeps, relative to their duration at other times.
            share: Fraction of time that a sweep works while requests are served.
        """


# Observer of a server without observers.
NO_EVENTS: Final = Events()


class Observers(Events):
    """A group of observers. Each event is passed to the observers that override the method of this event."""

    def __init__(self, *observers: Events) -> None:
        self._observers = list(observers)
        self._bind()

    def add(self, observer: Events) -> None:
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
    """The reason why the HTTP server rejects a request before the application receives it."""

    HEAD = "head_timeout"
    BODY = "body_timeout"
    ANSWER = "send_timeout"
    IDLE = "idle_timeout"
    QUEUE = "overload"
    CONNECTIONS = "connections"
    MEMORY = "memory"
    MALFORMED = "malformed"


# Counted per process, because the HTTP server accepts connections before the application and its observers exist.
_refused: dict[str, int] = dict.fromkeys(Refusal, 0)
_counting = threading.Lock()


def count_refusal(reason: Refusal) -> None:
    """Count a request or connection that the HTTP server has rejected."""
    with _counting:
        _refused[reason] += 1


def refusal_counts() -> Mapping[str, int]:
    """Return the number of requests and connections that the HTTP servers of this process have rejected, by reason."""
    with _counting:
        return {str(reason): count for reason, count in _refused.items()}
